"""The benchmarks run, compare like with like, and leave what they say they leave."""

import json
import re
from collections.abc import Callable
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from benchmarks import (
    common,
    gpu,
    report,
    train_step,
)
from cs336_course.pages.gpt2_speed.story import TINY
from cs336_lib import config

CPU = torch.device("cpu")


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for results, so that those that are committed stay as they are."""
    folder = tmp_path / "results"
    monkeypatch.setattr(common, "RESULTS", folder)
    return folder


def read(folder: Path) -> dict:
    """The one result in the folder."""
    (path,) = folder.glob("*.json")
    return json.loads(path.read_text())


def last_ratio(printed: str) -> float:
    """The R of the last line, `ratio R`."""
    found = re.fullmatch(r"ratio (\d+\.\d\d)", printed.splitlines()[-1])
    assert found, printed
    return float(found[1])


def test_a_training_step_is_the_same_for_all(results, capsys, monkeypatch):
    here = contextmanager(lambda make: iter([make()]))  # starting two processes takes seconds
    monkeypatch.setattr(common, "own_process", here)
    train_step.main(batch=1, seq=16, rounds=2, n_layer=1)
    ratio = last_ratio(capsys.readouterr().out)
    result = read(results)
    assert result["times_ours"]["transformers"] == pytest.approx(ratio, abs=0.01)
    assert result["setup"]["nanogpt"] == "absent"
    ours, theirs = result["losses"]["ours"], result["losses"]["transformers"]
    assert len(ours) == 4
    assert ours == pytest.approx(theirs, rel=1e-3 if result["setup"]["dtype"] == "fp32" else 1e-2)
    assert {"cpu", "commit", "versions", "date"} <= result["machine"].keys()


def test_the_memory_of_a_step_is_as_predicted():
    memory = gpu.memory(CPU, TINY, None)
    measured, predicted = memory["measured"], memory["predicted"]
    assert measured.keys() == predicted.keys()
    for kind, found in measured.items():
        assert found == pytest.approx(predicted[kind], rel=0.1), kind


def test_a_second_run_repeats_only_what_failed_or_is_missing(results, capsys, monkeypatch):
    called = []

    def part(name: str, ratio: float, error: str = "") -> Callable[..., dict]:
        def run(*_) -> dict:
            called.append(name)
            if error:
                raise config.UserError(error)
            return {"times_ours": {"transformers": ratio}}

        return run

    monkeypatch.setattr(gpu, "run_part", lambda work, *_: work())
    monkeypatch.setattr(gpu, "PARTS", {"step": part("step", 1.2), "ladder": part("ladder", 1, "!")})
    with pytest.raises(ValueError, match="ladder failed; run the command again"):
        gpu.main(device="cpu", parts=("step", "ladder"))
    assert read(results)["parts"]["ladder"]["failed"] == "!"

    monkeypatch.setattr(gpu, "PARTS", {"step": part("step", 9), "ladder": part("ladder", 1)})
    gpu.main(device="cpu", parts=("step", "ladder"))
    assert called == ["step", "ladder", "ladder"]
    assert last_ratio(capsys.readouterr().out) == 1.2


def test_the_page_shows_what_was_measured():
    """Every number in the tables comes from a stored result and names its command."""
    lines = report.read_lines()
    assert len(lines) >= 5
    assert report.page(lines) == report.PAGE.read_text(encoding="utf-8")
    for line in lines:
        module = line.command.strip("`").split()[0]
        assert (common.ROOT / f"{module.replace('.', '/')}.py").is_file(), line
