"""The simulated cache, against counts by hand."""

from cs336_course.pages.stride_costs import story as cache_sets


def test_a_line_is_fetched_once_for_its_16_numbers():
    assert cache_sets.misses(range(0, 256, 4), sets=4, places=1) == 4


def test_a_full_set_drops_the_line_used_least_recently():
    one, two, three = 0, 128, 256  # all in set 0 of 2
    assert cache_sets.misses([one, two, one, three, one], sets=2, places=2) == 3
    assert cache_sets.misses([one, two, three, one], sets=2, places=2) == 4
    assert cache_sets.misses([one, two, three, one], sets=8, places=1) == 3


def test_a_column_walk_goes_down_first():
    assert cache_sets.column_walk(2, columns=2) == [0, 8, 4, 12]


def test_only_round_widths_collide():
    assert cache_sets.missed_share(1024) == cache_sets.missed_share(1536) == 1
    assert cache_sets.missed_share(768) == cache_sets.missed_share(1040) == 1 / 16


def test_few_long_rows_collide_like_a_square():
    assert cache_sets.column_walk(2, columns=1, height=3) == [0, 8, 16]
    assert cache_sets.missed_share(3072, height=768) == 1
    assert cache_sets.missed_share(3088, height=768) == 1 / 16


def test_1000_misses_the_first_cache_like_768():
    assert cache_sets.missed_share(768, sets=64, places=12) == 1
    assert cache_sets.missed_share(1000, sets=64, places=12) == 1
    assert cache_sets.missed_share(760, sets=64, places=12) < 0.1
