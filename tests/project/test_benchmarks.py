"""The benchmarks run, compare like with like, and leave what they say they leave."""

import gzip
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import numpy as np
import pytest
import torch
import tyro
from torch import nn

from benchmarks import (
    common,
    engines,
    generate,
    gpu,
    loader,
    nanogpt_with_ours,
    peers,
    report,
    speedrun,
    speedrun_texts,
    texts,
    train_step,
)
from cs336_course.pages.gpt2_speed.story import TINY
from cs336_lib import config, schedule
from cs336_lib.model import GPT

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


def test_the_ratio_is_the_median_of_the_rounds():
    assert common.ratio([4.0, 9.0, 8.0], [2.0, 3.0, 1.0]) == 3.0


def failing() -> None:
    raise SystemExit("no memory")


def numbered() -> Callable[[], list[int]]:
    """Counts the calls, and says where they are made."""
    calls = count(1)
    return lambda: [next(calls), os.getpid()]


def test_a_contender_has_a_process_of_its_own():
    with common.own_process(numbered) as call:
        first, second = call(), call()
    assert [first[0], second[0]] == [1, 2]
    assert first[1] == second[1] != os.getpid()
    with pytest.raises(ValueError, match="died with exit code 1"), common.own_process(failing):
        pass


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


def test_nanogpt_is_told_apart_from_any_folder(tiny_config, tmp_path):
    with pytest.raises(ValueError, match="give a checkout of karpathy/nanoGPT"):
        peers.nanogpt_model(tmp_path, GPT(tiny_config))


def test_scoring_is_the_mean_over_all_whole_windows(tiny_config):
    torch.manual_seed(0)
    model = GPT(tiny_config).eval()
    tokens = np.random.default_rng(0).integers(0, 50, 10 * 16 + 5).astype(np.uint16)

    class Sixteen(nn.Module):
        """Sees only the beginning of each window of 64."""

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.cat([model(part) for part in x.split(16, dim=1)], dim=1)

    with torch.no_grad():
        x = torch.from_numpy(tokens[: 2 * 64 + 1].astype(np.int64))
        by_hand = [model(x[i : i + 16][None], x[i + 1 : i + 17][None]) for i in range(0, 128, 16)]
    found = speedrun.score(Sixteen(), tokens, lambda m, x, _: m(x))
    assert found == pytest.approx(torch.stack(by_hand).mean().item(), rel=1e-5)


NANOGPT_MODEL = """
from torch import nn

class GPT(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.transformer = nn.ModuleDict({"h": nn.ModuleList([nn.Linear(4, 4)])})

    def configure_optimizers(self, *_):
        raise AssertionError("its own optimizer")
"""
NANOGPT_TRAIN = """
from model import GPT

model = GPT(None)
first = model.transformer.h[0].weight.detach().clone()
optimizer = model.configure_optimizers(0.1, 1e-3, (0.9, 0.99), "cpu")
rates = []
for _ in range(20):
    optimizer.param_groups[0]["lr"] = 1e-3
    model.transformer.h[0](model.transformer.h[0].weight).sum().backward()
    optimizer.step()
    rates.append(optimizer.param_groups[0]["lr"])
"""


def test_nanogpts_loop_gets_our_optimizer_rates_and_seed(tmp_path, monkeypatch):
    (tmp_path / "model.py").write_text(NANOGPT_MODEL)
    (tmp_path / "train.py").write_text(NANOGPT_TRAIN)
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for seed in (1, 1, 2):
        nanogpt_with_ours.train(seed)
        found.append(sys.modules.pop("train"))
        del sys.modules["model"]
    preset = config.PRESETS["shakespeare-char"][1]
    rates = [schedule.learning_rate(step, preset) for step in range(20)]
    assert found[0].rates == rates
    assert "muon_momentum" in found[0].optimizer.param_groups[0]
    assert torch.equal(found[0].first, found[1].first)
    assert not torch.equal(found[0].first, found[2].first)


def test_both_codes_get_the_same_recipe():
    def flags(given: list[str]) -> dict[str, str]:
        return dict(flag[2:].split("=") for flag in given if flag.startswith("--"))

    theirs = flags(speedrun.NANOGPT_FLAGS)
    preset = config.PRESETS["shakespeare-char"][1]
    ours = tyro.cli(config.TrainConfig, default=preset, args=speedrun.SAME_FLAGS)
    for name in ("n_layer", "n_head", "n_embd", "block_size"):
        assert getattr(ours, name) == int(theirs[name])
    assert ours.batch_windows == int(theirs["batch_size"])
    assert ours.max_steps == int(theirs["max_iters"])
    assert (ours.weight_decay, ours.grad_clip) == (0.1, 1.0)  # what nanoGPT's train.py sets
    theirs = flags(speedrun.our_recipe())
    assert int(theirs["batch_size"]) * int(theirs["block_size"]) == preset.batch_tokens
    assert int(theirs["max_iters"]) % int(theirs["eval_interval"]) == 0  # it saves the last weights


def test_the_timed_processes_of_a_speedrun_spin_without_a_limit(tmp_path):
    program = (
        "import os, cs336_lib\n"
        "assert os.environ['OMP_WAIT_POLICY'] == 'ACTIVE'\n"
        "assert 'GOMP_SPINCOUNT' not in os.environ"
    )
    assert speedrun.timed([sys.executable, "-c", program], tmp_path) > 0


def test_an_interrupted_speedrun_continues(results, tmp_path, capsys, monkeypatch):
    text, nanogpt = tmp_path / "text.txt", tmp_path / "nanoGPT"
    text.write_text("To be")
    nanogpt.mkdir()
    (nanogpt / "train.py").touch()
    called: list[tuple[str, str, int]] = []

    def contender(code: str, seconds: float) -> Callable[..., tuple[float, float]]:
        def run(recipe: str, _: Path, __: object, seed: int) -> tuple[float, float]:
            called.append((code, recipe, seed))
            if len(called) == 6:
                raise KeyboardInterrupt
            return seconds, 1.5

        return run

    monkeypatch.setattr(speedrun, "prepared", lambda *_: None)
    monkeypatch.setattr(speedrun, "run_nanogpt", contender("theirs", 8.0))
    monkeypatch.setattr(speedrun, "run_ours", contender("ours", 4.0))
    with pytest.raises(KeyboardInterrupt):
        speedrun.main(text, nanogpt, seeds=2)
    speedrun.main(text, nanogpt, seeds=2)
    assert last_ratio(capsys.readouterr().out) == 2
    assert called[5] == called[6]
    assert len(called) == 9
    assert len(set(called)) == 8
    assert set(map(len, read(results)["losses"].values())) == {2}
    assert [path.name for path in results.iterdir()] == ["speedrun_text.json"]


def test_many_texts_are_raced_one_by_one_and_kept(results, tmp_path, capsys, monkeypatch):
    for name in ("french", "dna"):
        (tmp_path / f"{name}.txt").write_text("C'est çaa")
    losses = iter([1.5, 1.7, 1.6, 1.5, 1.4, 1.3])
    monkeypatch.setattr(speedrun_texts, "prepared", lambda *_: None)
    monkeypatch.setattr(speedrun_texts, "run_nanogpt", lambda *_: (80.0, 1.55))
    monkeypatch.setattr(speedrun_texts, "run_ours", lambda *_: (10.0, next(losses)))
    for name in ("french", "dna"):
        speedrun_texts.main(tmp_path, tmp_path, only=(name,))
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
        speedrun_texts.main(tmp_path, tmp_path, only=("polish",))


def test_texts_are_read_from_packages(tmp_path):
    (tmp_path / "b.gz").write_bytes(gzip.compress("zażółć\n".encode()))
    (tmp_path / "a.gz").write_bytes(b"first\n")
    assert texts.joined("*.gz")(tmp_path) == "first\nzażółć\n"
    page = "<html><head><title>T</title></head><p>One &amp; two</p>\n\n\n<b>three</b></html>"
    (tmp_path / "page.html").write_text(page)
    assert texts.web_pages("*.html")(tmp_path) == "One & two\nthree"
    assert sum(not text.tuned for text in texts.TEXTS.values()) == 6


def test_the_memory_of_a_step_is_as_predicted():
    memory = gpu.memory(CPU, TINY, None)
    measured, predicted = memory["measured"], memory["predicted"]
    assert measured.keys() == predicted.keys()
    for kind, found in measured.items():
        assert found == pytest.approx(predicted[kind], rel=0.1), kind


def test_the_sampler_of_a_small_model_is_measured():
    assert gpu.sampling(CPU, TINY, None)["same_tokens"]["transformers"]


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


def test_engines_are_measured_or_absent_with_the_reason(results, tmp_path, capsys, monkeypatch):
    real = engines.run

    def without_pip(*command) -> str:
        if "pip" in command:
            raise config.UserError("no matching distribution")
        return real(*command)

    def empty(folder: Path, **_) -> None:
        (folder / "lib" / "python3" / "site-packages").mkdir(parents=True)

    monkeypatch.setattr(engines, "run", without_pip)
    monkeypatch.setattr(engines.venv, "create", empty)
    monkeypatch.setattr(engines, "FOLDER", tmp_path / "peers")
    found = {
        "ours": engines.Engine("ours", ("fp32",)),
        "broken": engines.Engine("no_such_function", ("int8",)),
        "missing": engines.Engine("missing", ("fp32",), ("no-such-package",)),
    }
    monkeypatch.setattr(engines, "ENGINES", found)
    small = generate.GPTConfig(n_layer=1, n_head=1, n_embd=8, block_size=32)
    monkeypatch.setattr(generate, "GPTConfig", lambda: small)
    generate.main(prompt_tokens=4, new_tokens=8, rounds=2, peers=True)
    result = read(results)
    assert result["absent"] == {
        "broken int8": "KeyError: 'no_such_function'",
        "missing": "no matching distribution",
    }
    (row,) = result["engines"].values()
    assert row["equal_tokens"] == 8
    assert len(row["ms_per_token"]["rounds"]) == 2
    weights = 4 * (50257 * 8 + 12 * 8 * 8 + 13 * 8 + 2 * 8)
    limit = 1000 * weights / result["read_bytes_per_second"]["median"]
    assert row["limit_ms_per_token"] == pytest.approx(limit)
    assert "broken int8" in capsys.readouterr().out
    assert "| ours | " in report.engine_table(result)


def test_texts_are_compared_up_to_the_first_other_token():
    assert engines.equal_tokens([1, 2, 3], [1, 2, 3]) == 3
    assert engines.equal_tokens([1, 2, 3], [1, 4, 3]) == 1


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


def test_a_report_with_a_bad_flag_is_not_written():
    files = (common.ROOT / "README.md", common.ROOT / "docs" / "benchmarks.png")
    before = [path.stat().st_mtime_ns for path in files]
    command = [sys.executable, "-m", "benchmarks.report", "--halp"]
    done = subprocess.run(command, cwd=common.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--halp" in done.stderr
    assert [path.stat().st_mtime_ns for path in files] == before


def test_the_readme_promises_what_was_measured():
    """The promise on training steps has the extremes of README's table."""
    readme = (common.ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| training step.* \| ([\d.]+) x \| ([\d.]+) x \|$", readme, re.M)
    factors = [float(nanogpt) for _, nanogpt in rows]
    low, high = re.search(r"nanoGPT takes ([\d.]+) to ([\d.]+) times as long", readme).groups()
    assert (low, high) == (f"{min(factors):.1f}", f"{max(factors):.1f}")
