import dataclasses
import json
import re
from pathlib import Path

import pytest

from cs336_lib import cli
from cs336_lib.config import TrainConfig, UserError
from cs336_lib.report.runs import read_run

BASE = TrainConfig(max_steps=4, warmup_steps=1, batch_tokens=64, block_size=8, micro_batch_size=8)


def write_run(folder: Path, losses: list, val: dict[int, float], **changed: object) -> Path:
    """A run folder as `train` leaves it: 64 tokens and half a second per step."""
    folder.mkdir(parents=True)
    config = dataclasses.replace(BASE, run_dir=str(folder), **changed)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    with open(folder / "metrics.jsonl", "w") as file:
        for step, loss in enumerate(losses):
            row = {"step": step, "tokens": 64 * (step + 1), "train_loss": loss, "step_ms": 500.0}
            row["tokens_per_sec"] = 128.0
            if step in val:
                row["val_loss"] = val[step]
            file.write(json.dumps(row) + "\n")
    return folder


@pytest.fixture
def runs(tmp_path, monkeypatch) -> tuple[Path, Path]:
    """A finished run whose best validation is not its last, and one that is still going."""
    monkeypatch.chdir(tmp_path)
    first = write_run(Path("a"), [4.0, 3.0, 2.5, 2.0], {1: 2.9, 3: 3.1})
    second = write_run(Path("b"), [5.0, None], {}, learning_rate=0.5, min_learning_rate=0.05)
    return first, second


def run(capsys, *arguments: object) -> str:
    """What `cs336 compare` prints."""
    cli.main(["compare", *map(str, arguments)])
    return capsys.readouterr().out


def test_the_table_shows_differences_and_outcomes(runs, capsys):
    out = run(capsys, *runs)
    cells = {line[:23].strip(): line[23:].split("  ") for line in out.splitlines()}
    rows = {name: [cell.strip() for cell in row if cell.strip()] for name, row in cells.items()}
    assert "batch_tokens" not in rows
    assert rows["learning_rate"] == [str(BASE.learning_rate), "0.5"]
    assert rows["steps"] == ["4 of 4", "2 of 4"]
    assert rows["tokens"] == ["256", "128"]
    assert rows["training loss (last 5%)"] == ["2.0000", "5.0000"]
    assert rows["validation loss, final"] == ["3.1000", "-"]
    assert rows["validation loss, best"] == ["2.9000 (step 2)", "-"]
    assert rows["tokens/s (median)"] == ["128", "128"]
    assert rows["time in steps"] == ["2 seconds", "1 seconds"]
    assert len({len(line) for line in out.splitlines() if line}) == 1  # columns stand in line


def test_a_run_can_not_forge_a_row_or_color_the_terminal(runs, capsys):
    forged = "x\nvalidation loss, best  0.1\r\x1b[31m\u202e\u2028"
    other = write_run(Path("c"), [4.0], {}, val_data=forged)
    named = write_run(Path("d\nsteps  9"), [4.0], {})
    out = run(capsys, runs[0], other, named)
    lines = out.splitlines()
    assert sum(line.startswith("validation loss, best") for line in lines) == 1
    assert sum(line.startswith("steps") for line in lines) == 1
    assert all(line.isprintable() for line in lines)
    half = write_run(Path("half\udcff\x1b"), [4.0], {}, val_data="\ud800")
    assert r"half\udcff\x1b" in run(capsys, runs[0], half, "--out", "a.png")
    cli.main(["report", str(half)])
    assert r"half\udcff\x1b/report.html" in capsys.readouterr().out
    assert r"x\nvalidation loss, best  0.1\r\x1b[31m\u202e\u2028" in out


def test_losses_of_different_tasks_get_a_warning_and_a_run_is_like_itself(runs, capsys):
    out = run(capsys, runs[0], runs[0])
    assert "rate" not in out
    assert "comparable" not in out
    assert BASE.tokenizer == "gpt2"
    other = write_run(Path("c"), [4.0], {}, tokenizer="char")
    assert "Losses of different tokenizer are not comparable." in run(capsys, runs[0], other)


def test_damaged_runs_are_one_line(runs):
    for name, text, message in [
        ("metrics.jsonl", "", "no step is finished"),
        ("metrics.jsonl", "{\n", "line 1 isn't a row"),
        ("metrics.jsonl", '{"step": 1}\n', "line 1 isn't a row of metrics (tokens is None"),
        ("metrics.jsonl", '{"step": NaN}\n', "line 1 isn't a row of metrics (step is nan"),
        ("config.json", '{"colour": "red"}', "'colour'"),
    ]:
        (runs[1] / name).write_text(text)
        with pytest.raises(UserError, match=re.escape(message)) as error:
            read_run(runs[1])
        assert "\n" not in str(error.value)
