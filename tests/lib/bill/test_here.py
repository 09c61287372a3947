"""What `cs336 estimate --here` predicts from its measurements, and what it prints."""

import json

import pytest
import torch

from cs336_lib import cli
from cs336_lib.bill import here
from cs336_lib.bill.here import Machine, Passes, Prediction
from cs336_lib.config import PRESETS, TrainConfig

CPU = torch.device("cpu")


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


def test_the_report_is_measured_once_a_day(tmp_path, monkeypatch, capsys):
    rows = [Prediction(name, "fp32", 0.5, 1024, 7200, 2e9) for name in PRESETS]
    shapes = {"fp32": {"768 x 2304": [1e11, 2e11, 3e11]}}
    sampling = {"fp32": 0.03, "fp16": 0.02, "bf16": 0.025}
    machine = Machine(rows, shapes, {"fp32": 2e11}, 3e10, sampling, 2)
    measured = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(here, "measure", lambda device: measured.append(1) or machine)
    monkeypatch.setattr(here, "step_seconds", lambda config, size, device: config.n_layer / 10)
    own = tmp_path / "own.json"
    own.write_text(json.dumps({"n_layer": 5, "block_size": 64, "batch_tokens": 64}))
    for _ in range(2):
        cli.main(["estimate", "--here", "--config", str(own)])
        text = capsys.readouterr().out
        assert "fp16 to sample (--weights fp16): fp32 30.0, fp16 20.0, bf16 25.0 ms" in text
        assert "fp32 768 x 2304 100 200 300" in " ".join(text.split())
        (line,) = (line for line in text.splitlines() if line.startswith("gpt2-124m"))
        assert line.split()[1:] == ["fp32", "500", "ms", "2,048", "2", "GB", "60.0", "minutes"]
        (line,) = (line for line in text.splitlines() if line.startswith(str(own)))
        assert line.split()[2:5] == ["500", "ms", "128"]
    assert len(measured) == 1
    assert here.this_machine(CPU) == machine
    here.cache_file(CPU).write_text("{")
    assert here.this_machine(CPU) == machine
    assert len(measured) == 2
