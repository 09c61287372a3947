import dataclasses
import json
import math
import signal
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cs336_lib.data.prepare import prepare
from cs336_lib.optim import OPTIMIZERS
from cs336_lib.training import checkpoint
from cs336_lib.training import job as job_module
from cs336_lib.training import loop as train_module
from cs336_lib.training.loop import train
from cs336_lib.training.metrics import read_metrics

METRICS = {"step", "tokens", "train_loss", "lr", "grad_norm", "step_ms", "tokens_per_sec", "mfu"}


def weights(run_dir) -> dict[str, torch.Tensor]:
    """Everything in the newest checkpoint of a run."""
    newest = checkpoint.newest_valid(Path(run_dir) / "checkpoints")
    files = (load_file(newest / name) for name in (checkpoint.MODEL, checkpoint.OPTIMIZER))
    return {name: value for file in files for name, value in file.items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_it_learns_and_writes_what_it_promises(tiny_run, either_cpu, capsys):
    seen = []
    config = dataclasses.replace(tiny_run, max_steps=60, warmup_steps=5, dropout=0.0)
    result = train(config, on_step=seen.append)
    assert result.finished
    assert seen == result.metrics
    assert all(p.dtype == torch.float32 for p in result.model.parameters())
    assert result.metrics[-1]["train_loss"] < result.metrics[0]["train_loss"] - 0.5
    rows = read_metrics(Path(config.run_dir) / "metrics.jsonl")
    assert rows == result.metrics
    assert [row["step"] for row in rows] == list(range(60))
    assert rows[-1]["tokens"] == 60 * config.batch_tokens
    for row in rows:
        assert row.keys() - {"val_loss"} == METRICS
        assert ("val_loss" in row) == (row["step"] % 4 == 3)
        assert all(math.isfinite(value) for value in row.values())
    assert result.val_loss == rows[-1]["val_loss"]
    banner = capsys.readouterr().out
    for word in ("parameters", "FLOPs", "tokens", "expected", either_cpu):
        assert word in banner


@pytest.mark.parametrize(("stop_after", "optimizer"), [(5, "adamw"), (7, "muon")])
def test_stopped_and_resumed_equals_never_stopped(
    tiny_run, either_cpu, tmp_path, monkeypatch, capsys, stop_after, optimizer
):
    tiny_run = dataclasses.replace(tiny_run, optimizer=optimizer)
    straight = dataclasses.replace(tiny_run, run_dir=str(tmp_path / "straight"))
    train(straight)

    steps = 0

    def interrupt(*arguments):
        nonlocal steps
        steps += 1
        if steps == stop_after:
            signal.raise_signal(signal.SIGTERM if stop_after == 7 else signal.SIGINT)
        return clip(*arguments)

    clip = train_module.clip_gradients
    monkeypatch.setattr(train_module, "clip_gradients", interrupt)
    assert not train(tiny_run).finished
    line = f"Stopped after step {stop_after} of 12 and saved; --resume continues it."
    assert line in capsys.readouterr().out
    rows = read_metrics(Path(tiny_run.run_dir) / "metrics.jsonl")
    assert len(rows) == stop_after
    steps = -1000
    torch.rand(5)  # the caller's randomness does not matter
    assert train(dataclasses.replace(tiny_run, resume=True)).finished
    assert same(weights(straight.run_dir), weights(tiny_run.run_dir))
    for one, two in zip(
        read_metrics(Path(straight.run_dir) / "metrics.jsonl"),
        read_metrics(Path(tiny_run.run_dir) / "metrics.jsonl"),
        strict=True,
    ):
        for name in ("step", "tokens", "train_loss", "lr", "grad_norm"):
            assert one[name] == two[name]
        assert one.get("val_loss") == two.get("val_loss")


def test_accumulation_equals_the_whole_batch(tiny_run, either_cpu, tmp_path):
    # In bf16 a gradient is rounded to 8 bits in every micro-batch, so later updates drift apart.
    loss_error, norm_error = {"fp32": (1e-4, 1e-3), "bf16": (2e-3, 2e-2)}[either_cpu]
    steps = {"fp32": 12, "bf16": 5}[either_cpu]
    results = []
    for micro in (8, 2, 3):  # 8 windows at once, 4 times 2, and 3 + 3 + 2
        config = dataclasses.replace(
            tiny_run, run_dir=str(tmp_path / str(micro)), micro_batch_size=micro, dropout=0.0
        )
        results.append(train(config))
    for other in results[1:]:
        for a, b in zip(results[0].metrics[:steps], other.metrics[:steps], strict=True):
            assert a["train_loss"] == pytest.approx(b["train_loss"], abs=loss_error)
            assert a["grad_norm"] == pytest.approx(b["grad_norm"], rel=norm_error)


def test_a_run_is_never_overwritten(tiny_run, tmp_path):
    result = train(dataclasses.replace(tiny_run, resume=True))  # there is none, so it starts one
    assert train(dataclasses.replace(tiny_run, resume=True)).metrics == result.metrics
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    with pytest.raises(FileExistsError, match=r"isn.t a run folder"):
        train(dataclasses.replace(tiny_run, run_dir=str(tmp_path / "mine")))


EXAMPLES = [
    {"ctx": "To be, or not to", "endings": [" be", " sky", " Nimbus", " 1"], "label": 0},
    {"ctx": "that is the", "endings": [" Nimbus", " question", " 7", " sky"], "label": 1},
    {"ctx": "that is", "endings": [" 8", " Nimbus", " sky", " the"], "label": 3},
]


def test_scores_and_samples_come_with_validation_and_do_not_disturb(tiny_run, tmp_path):
    prepare(tmp_path / "text.txt", tmp_path / "gpt2", "gpt2")
    (tmp_path / "hellaswag.jsonl").write_text("\n".join(map(json.dumps, EXAMPLES)))
    data = {"train_data": str(tmp_path / "gpt2"), "tokenizer": "gpt2"}
    extras = {"hellaswag": str(tmp_path / "hellaswag.jsonl"), "sample": "To be"}
    plain = dataclasses.replace(tiny_run, block_size=16, batch_tokens=128, **data)
    result = train(dataclasses.replace(plain, run_dir=str(tmp_path / "scored"), **extras))
    rows = [row for row in result.metrics if "val_loss" in row]
    assert [row["step"] for row in rows] == [3, 7, 11]
    for row in rows:
        assert row["hellaswag"] in {0, 1 / 3, 2 / 3, 1}
        assert row["sample"].startswith("To be")
    assert rows[0]["sample"] != rows[1]["sample"]
    assert same(weights(train(plain).run_dir), weights(result.run_dir))


def test_fine_tuning_begins_with_the_weights_it_is_given(tiny_run, tmp_path):
    first = train(dataclasses.replace(tiny_run, max_steps=60, learning_rate=3e-2))
    tuned = dataclasses.replace(
        tiny_run, init_from=first.run_dir.as_posix(), run_dir=str(tmp_path / "tuned"), dropout=0.0
    )
    result = train(tuned)
    assert result.metrics[0]["train_loss"] < first.metrics[0]["train_loss"] - 0.5
    # The weights decide the shape, the config the context.
    other = dataclasses.replace(
        tuned, n_layer=1, n_head=4, n_embd=64, block_size=4, run_dir=str(tmp_path / "other")
    )
    result = train(other)
    assert (result.model.config.n_layer, result.model.config.n_embd) == (2, 16)
    assert result.model.config.block_size == 4
    saved = json.loads((tmp_path / "other" / "config.json").read_text())
    assert (saved["n_layer"], saved["n_head"], saved["n_embd"]) == (2, 2, 16)
    checkpoint.remove(checkpoint.checkpoints(tmp_path / "other" / "checkpoints")[-1])
    again = train(dataclasses.replace(other, resume=True))
    assert [r["train_loss"] for r in again.metrics] == [r["train_loss"] for r in result.metrics]


@pytest.fixture
def poisoned(tiny_run, monkeypatch):
    """The run, with a loss of infinity in step 6."""
    calls = 0
    honest = train_module.backward

    def backward(*arguments):
        nonlocal calls
        loss = honest(*arguments)
        calls += 1
        return loss + math.inf if calls == 7 else loss

    monkeypatch.setattr(train_module, "backward", backward)
    return tiny_run


def test_nan_can_be_skipped_and_is_counted(poisoned, capsys):
    result = train(dataclasses.replace(poisoned, on_nan="skip"))
    assert [row["step"] for row in result.metrics if row.get("skipped")] == [6]
    assert len(result.metrics) == 12
    for parameter in result.model.parameters():
        assert parameter.isfinite().all()
    text = (Path(poisoned.run_dir) / "metrics.jsonl").read_text()
    assert "NaN" not in text, "the file stays JSON"
    assert "Infinity" not in text
    assert "1 of 12 steps skipped for NaN or infinity: 6" in capsys.readouterr().out
    checkpoint.remove(checkpoint.checkpoints(Path(poisoned.run_dir) / "checkpoints")[-1])
    again = train(dataclasses.replace(poisoned, resume=True, on_nan="skip"))
    assert [row["step"] for row in again.metrics if row.get("skipped")] == [6], "after a resume too"
    assert "1 of 12 steps skipped for NaN or infinity: 6" in capsys.readouterr().out


def test_a_loss_spike_is_marked_also_after_a_resume(tiny_run, monkeypatch, capsys):
    long = dataclasses.replace(tiny_run, max_steps=40, checkpoint_every=25)
    honest = train_module.backward
    steps = []

    def backward(*arguments):
        steps.append(len(steps))
        return honest(*arguments) + (5.0 if steps[-1] in (10, 30) else 0.0)

    monkeypatch.setattr(train_module, "backward", backward)
    result = train(long)  # at step 10 there is no level yet to lie above
    assert [row["step"] for row in result.metrics if row.get("spike")] == [30]
    assert "1 of 40 steps with a loss spike: 30" in capsys.readouterr().out
    steps[:] = range(25)
    checkpoint.remove(checkpoint.checkpoints(Path(long.run_dir) / "checkpoints")[-1])
    again = train(dataclasses.replace(long, resume=True))
    assert [row["step"] for row in again.metrics if row.get("spike")] == [30]


@pytest.mark.parametrize("log_every", [1, 5])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_nan_between_two_looks_stops_at_its_step(poisoned, monkeypatch, optimizer, log_every):
    jobs = []
    honest = job_module.Job
    monkeypatch.setattr(job_module, "Job", lambda *a: jobs.append(honest(*a)) or jobs[-1])
    changes = {"log_every": log_every, "checkpoint_every": 6, "optimizer": optimizer}
    config = dataclasses.replace(poisoned, **changes)
    with pytest.raises(FloatingPointError, match="step 6: loss inf"):
        train(config)
    rows = read_metrics(Path(poisoned.run_dir) / "metrics.jsonl")
    assert [row["step"] for row in rows] == list(range(6))
    # With 5, steps 6 to 8 ran before the host looked. No weight and no state has changed.
    [job] = jobs
    saved = weights(poisoned.run_dir)
    now = checkpoint.model_tensors(job.model)
    now |= checkpoint.optimizer_tensors(job.model, job.optimizer)
    assert same(now, saved)
