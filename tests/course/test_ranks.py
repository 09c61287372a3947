"""Threads that stand in for the processes of a group."""

import threading

import pytest
import torch
import torch.distributed as dist
from torch import Tensor

from cs336_course.engine import ranks

end = threading.Event()


def summed(tensor: Tensor) -> Tensor:
    """Add up a tensor over all ranks."""
    dist.all_reduce(tensor)
    return tensor


def test_a_slow_process_is_no_deadlock(monkeypatch):
    looks, seen = [], threading.Event()
    is_deadlock = ranks.is_deadlock

    def look(threads: list[threading.Thread]) -> bool:
        looks.append(is_deadlock(threads))
        if len(looks) > 5:
            seen.set()
        return looks[-1]

    def slow(rank: int) -> float:
        if rank == 1:
            seen.wait()  # the other waits for its sum meanwhile
        return summed(torch.tensor(1.0)).item()

    monkeypatch.setattr(ranks, "is_deadlock", look)
    assert ranks.on_processes(2, slow) == [2.0, 2.0]
    assert not any(looks)


def received(rank: int) -> None:
    """Wait for a message that nobody sends."""
    dist.recv(torch.zeros(1), 1 - rank)


def summed_by_one(rank: int) -> None:
    """Add up with a rank that doesn't."""
    if rank == 0:
        summed(torch.ones(1))


def looped(rank: int) -> None:
    """Compute forever."""
    while not end.is_set():
        pass


@pytest.mark.parametrize(
    ("work", "why"),
    [
        (received, "message"),
        (summed_by_one, "each other"),
        (looped, "slow"),
        (lambda rank: end.wait(), "slow"),
    ],
    ids=["message", "each other", "loops", "sleeps"],
)
def test_processes_that_do_not_end_are_given_up(monkeypatch, work, why):
    monkeypatch.setattr(ranks, "LONGEST", 0.3)
    end.clear()
    with ranks.noting_calls(), pytest.raises(ranks.StuckError, match=why):
        ranks.on_processes(2, work)
    end.set()


def test_threads_stand_in_for_processes():
    sums = ranks.on_processes(3, lambda rank: summed(torch.tensor(float(rank))).item())
    assert sums == [3.0, 3.0, 3.0]
    assert not dist.is_initialized()
