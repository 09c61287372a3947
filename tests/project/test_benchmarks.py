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
    generate,
    gpu,
    loader,
    report,
    speedrun,
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


def test_many_texts_are_raced_one_by_one_and_kept(results, tmp_path, capsys, monkeypatch):
    for name in ("french", "dna"):
        (tmp_path / f"{name}.txt").write_text("C'est çaa")
    losses = iter([1.5, 1.7, 1.6, 1.5, 1.4, 1.3])
    monkeypatch.setattr(speedrun, "prepared", lambda *_: None)
    monkeypatch.setattr(speedrun, "run_nanogpt", lambda *_: (80.0, 1.55))
    monkeypatch.setattr(speedrun, "run_ours", lambda *_: (10.0, next(losses)))
    for name in ("french", "dna"):
        speedrun.main(tmp_path, tmp_path, only=(name,))
    found = read(results)
    assert [(found[name]["ratio"], found[name]["reached"]) for name in found] == [
        (8.0, False),
        (8.0, True),
    ]
    assert (found["dna"]["length"], found["dna"]["bytes"], found["dna"]["characters"]) == (9, 10, 8)
    made = report.text_table(found)
    assert "on 1 of 2 texts, 8.0 times as fast in the median" in made
    assert "| french | tuned | 1.600 (1.500 to 1.700), **not reached** | 1.550 |" in made
    assert "| dna | tuned | 1.400 (1.300 to 1.500) | 1.550 | 10.0 | 80 | 8.00 x |" in made
    assert "french" in capsys.readouterr().out
    with pytest.raises(config.UserError, match=r"polish\.txt: not found"):
        speedrun.main(tmp_path, tmp_path, only=("polish",))


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
    goal = read(results)["goals"]["transformers' time / ours"]
    assert (goal["found"], goal["lowest"], goal["reached"]) == (1.2, 1.3, False)

    monkeypatch.setattr(gpu, "PARTS", {"step": part("step", 9), "ladder": part("ladder", 1)})
    gpu.main(device="cpu", parts=("step", "ladder"))
    assert called == ["step", "ladder", "ladder"]
    assert last_ratio(capsys.readouterr().out) == 1.2


def test_generation_gives_the_same_tokens(results, capsys, monkeypatch):
    small = generate.GPTConfig(n_layer=1, n_head=2, n_embd=64, block_size=64, vocab_size=500)
    monkeypatch.setattr(generate, "GPTConfig", lambda: small)
    generate.main(prompt_tokens=4, new_tokens=8, rounds=2)
    assert last_ratio(capsys.readouterr().out) > 0
    assert all(read(results)["same_tokens"].values())


def test_the_loader_reads_shards_that_are_mostly_holes(results, capsys, monkeypatch):
    monkeypatch.setattr(loader, "SHARD_TOKENS", 100_000)
    loader.main(gigabytes=0.0004, count=2, block_size=16, rounds=3)
    assert last_ratio(capsys.readouterr().out) > 0
    assert read(results)


def test_a_peer_is_quoted_in_its_faster_precision(tmp_path):
    for dtype, ours, factor in (("float32", 30.0, 1.2), ("float16", 20.0, 12.0)):
        result = {
            "machine": {"cpu": "a CPU", "cpu_capability": "AVX2"},
            "setup": {"dtype": dtype, "prompt_tokens": 16, "new_tokens": 128},
            "ms_per_token": {"ours": {"median": ours}},
            "times_ours": {"transformers": factor},
        }
        (tmp_path / f"generate_avx2_{dtype}_prompt16.json").write_text(json.dumps(result))
    float16, float32 = report.read_lines(tmp_path)
    assert float16.times["transformers"] == pytest.approx(36 / 20)
    assert float32.times["transformers"] == 1.2


def test_the_readme_shows_what_was_measured():
    """Every number in the tables comes from a stored result and names its command."""
    lines = report.read_lines()
    assert len(lines) >= 5
    for page, made in report.pages(lines).items():
        text = page.read_text(encoding="utf-8")
        assert report.with_table(text, made) == text, f"{page}: python -m benchmarks.report"
    for line in lines:
        module = line.command.strip("`").split()[0]
        assert (common.ROOT / f"{module.replace('.', '/')}.py").is_file(), line
