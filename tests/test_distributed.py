import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from cs336_lib.distributed import (
    DEAD,
    HUNG,
    VARIABLES,
    World,
    fresh_store,
    process_group,
    timeout_seconds,
    world_from_environment,
)


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))
def test_pieces_cover_everything_once_in_step_with_each_other(count, size, largest):
    ranks = [World(rank=rank, size=size).pieces(count, largest) for rank in range(size)]
    assert len({len(pieces) for pieces in ranks}) == 1, "every rank the same number of pieces"
    seen = [first + i for pieces in ranks for first, n in pieces for i in range(n)]
    assert seen == list(range(count))
    assert all(0 <= first < count and 0 <= n <= largest for pieces in ranks for first, n in pieces)
    assert len(ranks[0]) == math.ceil(count / (size * largest)), "and no more than needed"


def test_one_process_cuts_evenly():
    assert World().pieces(8, 3) == [(0, 2), (2, 3), (5, 3)]
    assert World().pieces(8, 8) == [(0, 8)]


def test_how_long_to_wait_can_be_set(monkeypatch):
    monkeypatch.delenv("CS336_TIMEOUT", raising=False)
    assert timeout_seconds() == 600
    monkeypatch.setenv("CS336_TIMEOUT", "90")
    assert timeout_seconds() == 90
    for text in ("", "soon", "0", "-5", "nan", "inf"):
        monkeypatch.setenv("CS336_TIMEOUT", text)
        with pytest.raises(ValueError, match=r"CS336_TIMEOUT is '.*'; seconds"):
            timeout_seconds()


def test_hung_and_dead_are_told_apart():
    """In the words of gloo, NCCL and the store; tests/slow/test_ranks.py sees them in earnest."""
    for text in (
        "unbound_buffer.cc:78] Timed out waiting 600000ms for recv operation to complete",
        "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3, OpType=ALLREDUCE",
        "wait timeout after 600000ms, keys: /default_pg/0//0//0",
    ):
        assert HUNG.search(text)
        assert not DEAD.search(text)
    for text in ("Read error [::1]:1: Connection reset by peer", "Connection closed by peer [::1]"):
        assert DEAD.search(text)
        assert not HUNG.search(text)
    assert not HUNG.search("CUDA error: the launch timed out and was terminated")


@pytest.mark.parametrize(
    ("set_to", "message"),
    [
        ({"RANK": "0"}, "RANK is set but LOCAL_RANK is not; start with torchrun, or unset RANK"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE is set but RANK is not; start with torchrun"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "LOCAL_RANK is not; .* unset RANK and WORLD_SIZE"),
        ({"RANK": "0", "LOCAL_RANK": "x", "WORLD_SIZE": "1"}, "LOCAL_RANK is 'x'; a number"),
        ({"RANK": "-1", "LOCAL_RANK": "0", "WORLD_SIZE": "1"}, "RANK is '-1'; a number"),
        ({"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "0"}, "WORLD_SIZE 0; a smaller rank"),
        ({"RANK": "2", "LOCAL_RANK": "0", "WORLD_SIZE": "2"}, "RANK is 2, WORLD_SIZE 2"),
    ],
)
def test_half_of_what_torchrun_sets_is_one_line(monkeypatch, set_to, message):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert world_from_environment() == World()
    for name, value in set_to.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ValueError, match=message) as error:
        world_from_environment()
    assert "\n" not in str(error.value)


def test_processes_need_a_place_to_meet(monkeypatch):
    for name, value in zip(VARIABLES, ("1", "0", "2"), strict=True):
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("MASTER_ADDR", raising=False)
    assert world_from_environment() == World(rank=1, local_rank=0, size=2)
    with (
        pytest.raises(ValueError, match="WORLD_SIZE is 2 but MASTER_ADDR is not set"),
        process_group(torch.device("cpu")),
    ):
        pass


@pytest.mark.parametrize(("system", "use_libuv"), [("posix", True), ("nt", False)])
def test_windows_wheels_are_not_asked_for_libuv(monkeypatch, system, use_libuv):
    """Without libuv, TCPStore raises unless use_libuv is False."""
    asked = []

    def store(*_, **options):
        asked.append(options["use_libuv"])
        raise ConnectionError

    with monkeypatch.context() as patched:
        patched.setenv("MASTER_ADDR", "localhost")
        patched.setenv("MASTER_PORT", "29500")
        patched.setattr("torch.distributed.TCPStore", store)
        patched.setattr("os.name", system)
        with pytest.raises(ConnectionError):
            fresh_store(World(rank=1, local_rank=1, size=2), 1.0)
    assert asked == [use_libuv]
