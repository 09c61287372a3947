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
        self.settings, self.rows, self.finished = {}, [], False

    def init(self, **settings) -> None:
        self.settings = settings

    def log(self, row: dict, step: int) -> None:
        self.rows.append((step, row))

    def finish(self) -> None:
        self.finished = True


@pytest.fixture
def installed(monkeypatch):
    """Make a package of this name importable."""

    def install(name: str, module: ModuleType) -> None:
        monkeypatch.setitem(sys.modules, name, module)
        monkeypatch.setattr(trackers, "find_spec", lambda wanted: wanted == name or None)

    return install


def test_a_tracker_gets_every_row_and_is_finished(tiny_run, installed):
    tracker = FakeTracker("wandb")
    installed("wandb", tracker)
    result = train(dataclasses.replace(tiny_run, log_to="wandb", sample="To be"))
    assert tracker.finished
    assert tracker.rows[-1][1]["sample"].startswith("To be")
    assert tracker.settings["config"]["n_layer"] == tiny_run.n_layer
    assert [step for step, _ in tracker.rows] == list(range(12))
    for row, (_, sent) in zip(result.metrics, tracker.rows, strict=True):
        assert sent == {k: v for k, v in row.items() if k != "step" and v is not None}
        json.dumps(sent)


@pytest.mark.parametrize("method", ["init", "log", "finish"])
def test_a_failing_tracker_warns_once_and_the_run_continues(
    tiny_run, installed, monkeypatch, capsys, method
):
    def fail(*arguments, **settings):
        raise ConnectionError("the server\ndoesn't answer")

    tracker = FakeTracker("wandb")
    monkeypatch.setattr(tracker, method, fail)
    installed("wandb", tracker)
    assert train(dataclasses.replace(tiny_run, log_to="wandb")).finished
    warning = (
        "Warning: wandb failed (ConnectionError: the server doesn't answer); the run continues"
    )
    assert capsys.readouterr().err.count(warning) == 1


def test_tensorboard_gets_every_row_and_is_closed(tiny_run, installed, monkeypatch):
    class SummaryWriter:
        def __init__(self, folder: str):
            assert Path(folder).parent == Path(tiny_run.run_dir)

        def close(self):
            closed.append(True)

        def add_text(self, name: str, text: str, step: int) -> None:
            texts[name, step] = text

        def add_scalar(self, name: str, value: float, step: int) -> None:
            scalars[name, step] = value

    scalars, texts, closed = {}, {}, []
    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    installed("tensorboard", ModuleType("tensorboard"))
    result = train(dataclasses.replace(tiny_run, log_to="tensorboard", sample="To be"))
    assert closed == [True]
    assert scalars["train_loss", 7] == result.metrics[7]["train_loss"]
    sampled = [row for row in result.metrics if "sample" in row]
    others = sum(len(row) - 1 - (row["mfu"] is None) for row in result.metrics)
    assert len(scalars) == others - len(sampled)
    assert '"n_layer": 2' in texts["config", 0]
    assert texts["sample", 11].startswith("    To be")


def test_a_tracker_that_is_not_installed_is_refused_before_anything_is_written(
    tiny_run, monkeypatch
):
    monkeypatch.setattr(trackers, "find_spec", lambda name: None)
    with pytest.raises(ValueError, match="pip install trackio"):
        train(dataclasses.replace(tiny_run, log_to="trackio"))
    assert not Path(tiny_run.run_dir).exists()
