import math

import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st

from cs336_lib.system.processes import World, rank_failure


@given(st.integers(1, 60), st.integers(1, 7), st.integers(1, 9))
def test_pieces_cover_everything_once_in_step_with_each_other(count, size, largest):
    ranks = [World(rank=rank, size=size).pieces(count, largest) for rank in range(size)]
    assert len({len(pieces) for pieces in ranks}) == 1, "every rank the same number of pieces"
    seen = [first + i for pieces in ranks for first, n in pieces for i in range(n)]
    assert seen == list(range(count))
    assert all(0 <= first < count and 0 <= n <= largest for pieces in ranks for first, n in pieces)
    assert len(ranks[0]) == math.ceil(count / (size * largest)), "and no more than needed"


def test_failures_of_other_ranks_are_told_apart():
    """The errors of gloo, NCCL and the store."""
    for error, kind, said in (
        (RuntimeError("unbound_buffer.cc:78] Timed out waiting 6ms for recv"), TimeoutError, "9 s"),
        (RuntimeError("Watchdog caught collective operation timeout: Work"), TimeoutError, "9 s"),
        (dist.DistStoreError("wait timeout after 600000ms, keys: /0//0"), TimeoutError, "9 s"),
        (RuntimeError("Read error [::1]:1: Connection reset by peer"), ConnectionError, "died"),
        (dist.DistNetworkError("Connection closed by peer [::1]"), ConnectionError, "died"),
        (dist.DistBackendError("NCCL\nerror 2"), ConnectionError, "communicate (NCCL error 2)"),
    ):
        failure = rank_failure(error, 4, 9)
        assert type(failure) is kind
        assert said in str(failure)
        assert "4 processes" in str(failure)
    launch = RuntimeError("CUDA error: the launch timed out and was terminated")
    assert rank_failure(launch, 2, 9) is None
