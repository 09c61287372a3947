"""Times are taken after warm-up, and in turns where they are compared."""

import torch

from cs336_course.shared import stopwatch

CPU = torch.device("cpu")


def test_ways_take_turns_and_warm_up():
    calls = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = stopwatch.seconds_in_turns(ways, CPU, rounds=2, warmup=1)
    assert "".join(calls) == "ababab"
    assert [len(measured) for measured in seconds.values()] == [2, 2]


def test_best_seconds_is_the_shortest_that_counts(monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(stopwatch.time, "perf_counter", lambda: clock[0])
    naps = iter((0, 4, 2, 3))  # the first is to warm up

    def nap() -> None:
        clock[0] += next(naps)

    best = stopwatch.best_seconds({"nap": nap, "nothing": lambda: None}, CPU, rounds=3)
    assert best == {"nap": 2, "nothing": 0}
