"""Configs of published models, as the cases of exercises use them."""

from typing import Any

from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json

Config = dict[str, Any]


def published(name: str) -> Config:
    """Return the config of a published model."""
    return read_json(DATA / "models.json")[name]["config"]


def named(config: Config, *names: str) -> str:
    """Return fields of a config in words."""
    return ", ".join(f"{name}={config[name]}" for name in names)
