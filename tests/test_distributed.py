import math

from hypothesis import given
from hypothesis import strategies as st

from cs336_lib.distributed import World


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
