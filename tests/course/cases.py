"""Run one test body on several cases, and report every case that fails by its name."""

from collections.abc import Callable, Mapping
from typing import Any

import torch


def for_each(cases: Mapping[str, tuple], body: Callable[..., Any]) -> None:
    """Call `body` with every case's arguments from the same seed, then list all failures."""
    assert cases
    failed = []
    for name, arguments in cases.items():
        torch.manual_seed(0)
        try:
            body(*arguments)
        except Exception as error:
            failed.append(f"{name}: {type(error).__name__}: {error}")
    assert not failed, "\n".join(["", *failed])
