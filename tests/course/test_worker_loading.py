"""Windows that several processes read, and reading ahead."""

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch

from cs336_course.pages.training_loop.worker_loading import TokenWindows, read_and_compute


def test_token_windows_are_the_files_windows(tmp_path: Path):
    np.arange(41, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    dataset = TokenWindows(tmp_path / "tokens.bin", block_size=4)
    assert len(dataset) == 10
    items = [dataset[i] for i in range(10)]
    assert torch.cat([item["x"] for item in items]).tolist() == list(range(40))
    assert torch.cat([item["y"] for item in items]).tolist() == list(range(1, 41))
    assert items[0]["x"].dtype == torch.int64
    assert dataset.reads == 10
    with pytest.raises(IndexError, match="window 10"):
        dataset[10]
    assert len(pickle.dumps(dataset)) < 1000


def test_token_windows_refuse_a_file_without_a_window(tmp_path: Path):
    np.arange(4, dtype=np.uint16).tofile(tmp_path / "short.bin")
    with pytest.raises(ValueError, match="a window needs 5"):
        TokenWindows(tmp_path / "short.bin", block_size=4)


def test_reading_ahead_overlaps_and_taking_turns_does_not():
    turns = read_and_compute(iter, batches=2, seconds=0.01)
    assert [len(spans) for spans in turns.values()] == [2, 2]
    assert turns["read"][1][0] >= turns["compute"][0][1]  # read when the first was computed on
    ahead = read_and_compute(lambda batches: iter(list(batches)), batches=2, seconds=0.01)
    assert ahead["read"][1][1] <= ahead["compute"][0][0]  # both were read first
