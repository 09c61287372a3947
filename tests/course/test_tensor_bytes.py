"""The meters count each storage once, and the formula of checkpointing is what they measure."""

import math

import torch
from torch import nn

from cs336_course.shared.activation_memory import (
    LiveBytes,
    SavedTensors,
    checkpointed_peak,
    checkpointed_values,
    first_step,
    peak_by_kind,
)
from cs336_lib import accounting
from cs336_lib.config import GPTConfig


def test_saved_tensors_counts_a_storage_once_and_known_ones_never():
    weight, x = nn.Parameter(torch.ones(8, 8)), torch.ones(4, 8)
    with SavedTensors([weight]) as saved:
        hidden = x @ weight
        (hidden * hidden).sum()  # saves `hidden` twice
    assert saved.bytes == x.nbytes + hidden.nbytes
    with SavedTensors([weight, x]) as saved:
        x @ weight
    assert saved.bytes == 0


def test_live_bytes_sees_birth_and_death():
    start = torch.zeros(100)
    with LiveBytes([start]) as live:
        assert live.now == 400
        view = start[:50]  # no new storage
        assert live.now == 400
        other = start + 1
        assert live.now == 800
        del other
        assert live.now == 400
        assert view.numel() == 50
    assert live.peak == 800
    assert live.timeline[0] == 400


def test_square_root_law():
    for segments in (1, 4, 16):
        measured = checkpointed_peak(16, segments)
        predicted = checkpointed_values(16, segments, 16)
        assert 0 < measured - predicted < 0.05 * predicted + 12, segments


def test_peaks_add_up_to_the_accounting():
    kinds, whole = peak_by_kind(4), accounting.peak_memory(GPTConfig(), 4)
    assert sum(kinds.values()) == (sum(whole.values()) - whole["token ids"]) / 1e9


def test_long_batches_peak_in_backward_and_short_ones_in_the_optimizer():
    config = GPTConfig(n_layer=2, n_head=2, n_embd=32, block_size=64, vocab_size=128)
    long, short = first_step(config, 8, 64), first_step(config, 1, 4)
    assert max(long, key=long.get) == "backward"
    assert max(short, key=short.get) == "AdamW"
    weights = 4 * accounting.count_parameters(config)
    assert short["AdamW"] > 4 * weights


def test_least_memory_is_at_the_root():
    peaks = {k: checkpointed_values(64, k, 1) for k in range(1, 65)}
    assert min(peaks, key=peaks.get) == 8
    assert min(peaks.values()) == 2 * math.sqrt(64)
