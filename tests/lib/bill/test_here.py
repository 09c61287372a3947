"""What `cs336 estimate --here` predicts from its measurements, and what it prints."""

import json

import pytest
import torch

from cs336_lib import cli
from cs336_lib.bill import here
from cs336_lib.bill.here import Passes
from cs336_lib.config import PRESETS, TrainConfig

CPU = torch.device("cpu")
CHAR = PRESETS["shakespeare-char"][1]


def passes_of(config: TrainConfig, blocks: int) -> Passes:
    """Times that are linear in blocks and tokens, as the prediction assumes."""
    tokens = config.micro_batch_size * config.block_size
    first = 0.01 + 0.002 * blocks
    update = 0.003 + 0.001 * blocks
    slope = 1e-5 * (1 + blocks)
    few = first + slope * here.FEW_TOKENS
    return Passes(first + slope * tokens + update, few, few + 0.004, few + 0.004 + update)


def test_a_step_is_the_sum_of_its_parts(monkeypatch):
    """GPT-2 124M with 2 x 256 tokens is measured whole, and with 16 x 256 tokens in part."""
    measured = []

    def measure(config, vocab_size, device):
        measured.append(config.micro_batch_size)
        return tuple(passes_of(config, blocks) for blocks in here.DEPTHS)

    monkeypatch.setattr(here, "measured_passes", measure)
    for micro, pieces in ((2, 1), (2, 3), (16, 1), (16, 4)):
        tokens = pieces * micro * 256
        config = TrainConfig(block_size=256, micro_batch_size=micro, batch_tokens=tokens)
        by_hand = (0.01 + 0.024) * pieces + 13e-5 * tokens + 0.004 * (pieces - 1) + 0.003 + 0.012
        assert here.step_seconds(config, 50257, CPU) == pytest.approx(by_hand)
        assert (measured[-1] < micro) == (micro == 16)


def test_parts_of_a_real_step_are_measured(monkeypatch):
    """The step of `cs336 train` runs with one full micro-batch and with three small ones."""
    monkeypatch.setattr(here, "ROUND_SECONDS", 0.01)
    low, high = here.measured_passes(CHAR, 65, CPU)
    for found in (low, high):
        assert min(found.few, found.whole, found.later) > 0


def test_a_model_that_does_not_fit_is_not_measured(monkeypatch):
    monkeypatch.setattr(here.hardware, "memory", lambda device: 10**6)
    row = here.predict("big", CHAR, ["fp32"], CPU)
    assert row.seconds is None
    assert row.memory > 10**6
    assert "too large" in here.cells(row)


def test_the_report_has_every_preset_and_a_run_of_your_own(tmp_path, monkeypatch, capsys):
    asked = []

    def seconds(config, size, device):
        asked.append(config.precision)
        return config.n_layer / 10 * (1 if config.precision == "bf16" else 2)

    monkeypatch.setattr(here.hardware, "has_bf16", lambda device: True)
    monkeypatch.setattr(here.hardware, "peak_flops", lambda device, dtype: (2e11, ""))
    monkeypatch.setattr(here.hardware, "memory", lambda device: 10**12)
    monkeypatch.setattr(here, "step_seconds", seconds)
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"n_layer": 5, "block_size": 64, "batch_tokens": 64}))
    cli.main(["estimate", "--here", "--config", str(own)])
    text = capsys.readouterr().out
    assert "fp32 200 GFLOP/s, bf16 200 GFLOP/s" in text
    lines = {line.split()[0]: line.split()[1:] for line in text.splitlines() if line}
    assert lines.keys() > PRESETS.keys()
    assert lines["gpt2-124m"][:4] == ["bf16", "1,200", "ms", "436,907"]
    assert lines[str(own)][:4] == ["bf16", "500", "ms", "128"]
    assert asked == ["fp32", "bf16"] * 3 + ["bf16"] * 3 + ["fp32", "bf16"]
