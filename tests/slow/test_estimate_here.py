"""`cs336 estimate --here` as a whole, on small models."""

import dataclasses

import pytest
import torch

from cs336_lib import cli
from cs336_lib.bill import here
from cs336_lib.config import PRESETS, GPTConfig

CHAR = PRESETS["shakespeare-char"][1]


@pytest.fixture
def small(tmp_path, monkeypatch):
    """Presets and models of a few thousand weights, and a cache folder of our own."""
    shrunk = {
        name: (text, dataclasses.replace(CHAR, max_steps=config.max_steps))
        for name, (text, config) in PRESETS.items()
    }
    monkeypatch.setattr(here, "PRESETS", shrunk)
    tiny = GPTConfig(n_layer=1, n_head=2, n_embd=64, block_size=64, vocab_size=500)
    monkeypatch.setattr(here, "GPTConfig", lambda: tiny)
    monkeypatch.setattr(here, "ROUND_SECONDS", 0.1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_every_part_of_the_report(small, capsys):
    cli.main(["estimate", "--here"])
    text = capsys.readouterr().out
    for name in PRESETS:
        (line,) = (line for line in text.splitlines() if line.startswith(f"{name} "))
        assert " ms " in line
    for word in ("768 x 2304", "768 x 3072", "precision", "threads", "weights", "read at"):
        assert word in text
    threads = torch.get_num_threads()
    assert f" of {threads} (OMP_NUM_THREADS=" in text
