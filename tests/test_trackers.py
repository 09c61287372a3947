import dataclasses
import json
import sys
from pathlib import Path
from types import ModuleType

import pytest

from cs336_lib import trackers
from cs336_lib.train import train


class FakeTracker(ModuleType):
    """What wandb and trackio have in common."""

    def __init__(self, name: str):
        super().__init__(name)
        self.settings, self.rows = {}, []

    def init(self, **settings) -> None:
        self.settings = settings

    def log(self, row: dict, step: int) -> None:
        self.rows.append((step, row))


@pytest.fixture
def installed(monkeypatch):
    """Make a package of this name importable."""

    def install(name: str, module: ModuleType) -> None:
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(trackers, "find_spec", lambda wanted: wanted == name or None)

    return install


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_tracker_gets_every_row(tiny_run, installed, name):
    tracker = FakeTracker(name)
    installed(name, tracker)
    result = train(dataclasses.replace(tiny_run, log_to=name))
    assert tracker.settings["config"]["n_layer"] == tiny_run.n_layer
    assert [step for step, _ in tracker.rows] == list(range(12))
    for row, (_, sent) in zip(result.metrics, tracker.rows, strict=True):
        assert sent == {k: v for k, v in row.items() if k != "step" and v is not None}
        json.dumps(sent)


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_written(
    tiny_run, monkeypatch
):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install trackio"):
        train(dataclasses.replace(tiny_run, log_to="trackio"))
    assert not Path(tiny_run.run_dir).exists()
