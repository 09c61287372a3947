"""Times are taken after warm-up, and in turns where they are compared."""

import time

import torch

from cs336_course.shared import stopwatch

CPU = torch.device("cpu")


def test_median_seconds_warms_up_and_takes_the_median():
    calls = []
    seconds = stopwatch.median_seconds(lambda: calls.append(1), CPU, repeats=3, warmup=2)
    assert len(calls) == 5
    assert 0 <= seconds < 0.1


def test_ways_take_turns_and_warm_up():
    calls = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = stopwatch.seconds_in_turns(ways, CPU, rounds=2, warmup=1)
    assert "".join(calls) == "ababab"
    assert [len(measured) for measured in seconds.values()] == [2, 2]


def test_best_seconds_is_the_shortest_that_counts():
    naps = iter((0, 0.2, 0.002, 0.2))  # to warm up, disturbed, clear, disturbed
    ways = {"nap": lambda: time.sleep(next(naps)), "nothing": lambda: None}
    best = stopwatch.best_seconds(ways, CPU, rounds=3)
    assert best["nothing"] < 0.002 <= best["nap"] < 0.2


def test_bandwidth_is_measured():
    assert 1e8 < stopwatch.measured_bandwidth(CPU, megabytes=8) < 1e13
