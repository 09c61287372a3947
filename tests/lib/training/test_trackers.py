import dataclasses
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import MagicMock

import pytest

from cs336_lib.training import trackers
from cs336_lib.training.loop import train


class FakeTracker(ModuleType):
    """What wandb and trackio have in common."""

    def __init__(self, name: str):
        super().__init__(name)
        self.settings, self.rows, self.finished = {}, [], False

    def init(self, **settings) -> SimpleNamespace:
        self.settings = settings
        return SimpleNamespace(step=1 + max((step for step, _ in self.rows), default=-1))

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


def killed_at(step: int):
    """A listener that ends a run as a signal would, after it has sent the row of a step."""

    def listen(row: dict) -> None:
        if row["step"] == step + 1:
            raise KeyboardInterrupt

    return listen


def test_a_resumed_run_continues_in_the_tracker(tiny_run, installed):
    config = dataclasses.replace(tiny_run, log_to="wandb")
    tracker = FakeTracker("wandb")
    installed("wandb", tracker)
    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=killed_at(7))  # the newest checkpoint is that of step 5
    begun = tracker.settings
    train(dataclasses.replace(config, resume=True))
    assert tracker.settings["id"] == begun["id"]
    assert tracker.settings["resume"] == begun["resume"] == "allow"
    assert [step for step, _ in tracker.rows] == list(range(12))  # none twice
    train(dataclasses.replace(config, run_dir=f"{config.run_dir}-2"))
    assert tracker.settings["id"] != begun["id"]


def test_a_failing_tracker_warns_once_and_the_run_continues(
    tiny_run, installed, monkeypatch, capsys
):
    def fail(*arguments, **settings):
        raise ConnectionError("the server\ndoesn't answer")

    for method in ("init", "log", "finish"):
        tracker = FakeTracker("wandb")
        monkeypatch.setattr(tracker, method, fail)
        installed("wandb", tracker)
        config = dataclasses.replace(tiny_run, log_to="wandb", run_dir=tiny_run.run_dir + method)
        assert train(config).finished
        warning = "Warning: wandb failed (ConnectionError: the server doesn't answer); the run"
        assert capsys.readouterr().err.count(warning) == 1


def test_tensorboard_gets_every_row_and_hides_what_a_resumed_run_repeats(
    tiny_run, installed, monkeypatch
):
    module = MagicMock()
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    installed("tensorboard", ModuleType("tensorboard"))
    config = dataclasses.replace(tiny_run, log_to="tensorboard", sample="To be")
    with pytest.raises(KeyboardInterrupt):
        train(config, on_step=killed_at(7))
    result = train(dataclasses.replace(config, resume=True))
    opened, writer = module.SummaryWriter.call_args_list, module.SummaryWriter.return_value
    assert [call.kwargs["purge_step"] for call in opened] == [0, 5]
    assert Path(opened[0].args[0]).parent == Path(tiny_run.run_dir)
    assert writer.close.call_count == 2
    scalars = {call.args for call in writer.add_scalar.call_args_list}
    assert {("train_loss", row["train_loss"], row["step"]) for row in result.metrics} <= scalars
    assert "    To be" in writer.add_text.call_args.args[1]
