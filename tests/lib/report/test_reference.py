"""A run is judged by recorded ones: what is normal is called so, and faults get their name."""

import dataclasses
import json
import math
from pathlib import Path

import numpy as np
import pytest

from cs336_lib import cli, io, schedule
from cs336_lib.config import TrainConfig
from cs336_lib.report import runs
from cs336_lib.report.runs import Run

CONTENT = io.read_json(runs.RECORDED)
RECIPE = TrainConfig(**CONTENT["recipe"])


def as_run(number: int = 0, **changes) -> Run:
    """A recorded run as its folder held it. A change is a function of a list of numbers."""
    recorded = CONTENT["runs"][number]
    curve = {name: recorded[name] for name in ("train_loss", "grad_norm", "val_loss")}
    curve |= {name: change(np.array(curve[name], float)) for name, change in changes.items()}
    rows = []
    for step, (loss, norm, val) in enumerate(zip(*curve.values(), strict=True)):
        rate = schedule.learning_rate(step, RECIPE)
        row = {"step": step, "train_loss": loss, "grad_norm": norm, "lr": rate}
        rows.append(row | ({} if val is None or math.isnan(val) else {"val_loss": val}))
    return Run("no folder", RECIPE, rows)


def scattered(losses: np.ndarray) -> np.ndarray:
    """Losses that scatter more from step to step."""
    return losses + 0.08 * np.random.default_rng(0).standard_normal(len(losses))


def test_each_recorded_run_is_normal_beside_the_others(monkeypatch):
    for number in range(len(CONTENT["runs"])):
        others = [one for i, one in enumerate(CONTENT["runs"]) if i != number]
        monkeypatch.setattr(runs, "read_json", lambda path, o=others: CONTENT | {"runs": o})
        for steps in (100, 300, RECIPE.max_steps):  # unfinished ones, too
            run = as_run(number)
            verdict = runs.judge(dataclasses.replace(run, rows=run.rows[:steps]))
            assert verdict.line.startswith("normal: "), (number, steps, verdict)


def test_settings_that_differ_come_first():
    run = as_run(train_loss=scattered)
    config = dataclasses.replace(RECIPE, batch_tokens=384, seed=7, log_every=10)
    verdict = runs.judge(dataclasses.replace(run, config=config))
    assert verdict.line == "off: other settings (batch_tokens)"
    assert verdict.reasons[0].endswith(f"the reference's is {RECIPE.batch_tokens}")


def test_a_longer_run_is_read_as_far_as_the_recorded_ones():
    run, steps = as_run(), RECIPE.max_steps
    config = dataclasses.replace(RECIPE, max_steps=2 * steps)
    verdict = runs.judge(dataclasses.replace(run, config=config, rows=run.rows + run.rows))
    assert verdict.line == "off: other settings (max_steps)"
    assert verdict.reasons[-1].endswith(f"over the last tenth of {steps} steps")


def gpt2(losses: list[tuple[int, float]], **changes) -> Run:
    """A run of GPT-2 124M with these validation losses."""
    rows = [
        {"step": i, "tokens": tokens, "val_loss": loss} for i, (tokens, loss) in enumerate(losses)
    ]
    return Run("gpt2", TrainConfig(train_data="fineweb", **changes), rows)


def test_gpt2_is_put_beside_published_curves():
    curves = io.read_json(runs.PUBLISHED)["curves"]
    points = curves[0]["val_loss"]
    assert (
        runs.judge(gpt2(points)).line
        == "normal: +0.00 nats beside llm.c, and +0.00 since the first row"
    )
    shifted = [(tokens, loss - 0.2) for tokens, loss in points]
    assert runs.judge(gpt2(shifted)).line.startswith("normal: -0.20")
    stuck = [(tokens, max(loss, 3.5)) for tokens, loss in points]
    assert "it falls behind llm.c by 0.23" in runs.judge(gpt2(stuck)).line
    far = [(tokens, loss + 0.5) for tokens, loss in points]
    assert "more than another text" in runs.judge(gpt2(far)).line
    assert "no validation between 1B" in runs.judge(gpt2(points[:3])).line
    assert runs.judge(gpt2(points, n_layer=11)).line.startswith("no reference")


@pytest.fixture
def one_file_run(tmp_path) -> Path:
    """A folder as train_gpt2.py writes it."""
    (tmp_path / "config.json").write_text(
        json.dumps({"model_type": "gpt2", "vocab_size": 50257, "data": "d", "compile": True})
    )
    row = {"step": 0, "loss": 11.0, "lr": 1e-4, "grad_norm": 9.0, "seconds": 2.0, "val_loss": 10.9}
    (tmp_path / "log.jsonl").write_text(json.dumps(row) + "\n")
    return tmp_path


def test_a_run_of_train_gpt2_is_read(one_file_run, capsys):
    run = runs.read_run(one_file_run)
    assert (run.config.tokenizer, run.config.train_data) == ("gpt2", "d")
    assert (run.rows[0]["tokens"], run.rows[0]["step_ms"]) == (524288, 2000)
    cli.main(["compare", str(one_file_run), "--with", "reference"])
    assert "no reference: no validation between 1B and" in capsys.readouterr().out
    for bad in ({}, {"step": 0, "loss": 1, "seconds": 0}, []):
        (one_file_run / "log.jsonl").write_text(json.dumps(bad) + "\n")
        with pytest.raises(ValueError, match="line 1 isn't a row of metrics"):
            runs.read_run(one_file_run)
