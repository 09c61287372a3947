"""Threads that stand in for the processes of a group."""

import threading
import time

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cs336_course.engine import ranks


def summed(tensor: Tensor) -> Tensor:
    """Add up a tensor over all ranks."""
    dist.all_reduce(tensor)
    return tensor


def test_a_slow_process_is_no_deadlock():
    def slow(rank):
        time.sleep(rank)  # longer than the seconds below
        return summed(torch.tensor(1.0)).item()

    assert ranks.on_processes(2, slow, seconds=0.2) == [2.0, 2.0]


def test_a_process_that_never_ends_is_no_deadlock(monkeypatch):
    end = threading.Event()
    monkeypatch.setattr(ranks, "LONGEST", 0.3)
    with pytest.raises(ranks.StuckError, match="slow"):
        ranks.on_processes(2, lambda rank: end.wait(20), seconds=0.2)
    end.set()


def test_threads_stand_in_for_processes():
    sums = ranks.on_processes(3, lambda rank: summed(torch.tensor(float(rank))).item())
    assert sums == [3.0, 3.0, 3.0]
    assert not dist.is_initialized()
