"""Fit the constants of `simulate` to published steps: python -m tools.fit_simulator.

It takes about ten minutes. Each paper is left out once, the constants are fitted to the others, and
its steps are simulated with them. Steps that are held out are in no fit. The results go to
data/simulator_fit.json, which docs/published_runs.md and a test read.
"""

import json
import math
import statistics
from collections.abc import Collection, Mapping
from dataclasses import asdict, replace

from cs336_course.demos import published_runs
from cs336_course.demos.published_runs import PublishedStep
from cs336_lib.bill.simulate import Efficiency, simulate
from cs336_lib.data.corpus import DATA

# The grid of each constant. Nothing faster than a datasheet is tried.
GRID = {
    "matmul": [x / 100 for x in range(60, 96)],
    "hopper": [x / 100 for x in range(60, 101)],
    "attention": [x / 100 for x in range(20, 101, 5)],
    "memory": [x / 100 for x in range(30, 101, 5)],
    "inner": [x / 100 for x in range(20, 101, 4)],
    "outer": [x / 100 for x in range(20, 101, 10)],
    "overlap": [x / 100 for x in range(50, 101, 5)],
}
STRIDES = (4, 2, 1)  # steps on the grid, from coarse to fine


def ratio(step: PublishedStep, constants: Efficiency) -> float:
    """Return the stated seconds of a step over the simulated ones."""
    cluster = replace(step.cluster, efficiency=constants)
    return simulate(step.work, cluster).mfu / step.mfu


def loss(steps: Collection[PublishedStep], constants: Efficiency) -> float:
    """Return the mean over papers of their mean error, as a logarithm that ignores the sign."""
    papers: dict[str, list[float]] = {}
    for step in steps:
        papers.setdefault(step.paper, []).append(abs(math.log(ratio(step, constants))))
    return statistics.mean(statistics.mean(errors) for errors in papers.values())


def fit(steps: Collection[PublishedStep], start: Efficiency) -> Efficiency:
    """Move one constant at a time on its grid while the loss falls."""
    best, least = start, loss(steps, start)
    for stride in STRIDES:
        moved = True
        while moved:
            moved = False
            for name, grid in GRID.items():
                for way in (-stride, stride):
                    while True:
                        value = getattr(best, name)
                        nearest = min(range(len(grid)), key=lambda i: abs(grid[i] - value))
                        place = min(max(nearest + way, 0), len(grid) - 1)
                        tried = replace(best, **{name: grid[place]})
                        if place == nearest or (found := loss(steps, tried)) >= least - 1e-5:
                            break
                        best, least, moved = tried, found, True
    return best


def left_out(steps: Mapping[str, PublishedStep], start: Efficiency) -> dict[str, float]:
    """Return the ratio of each step by constants that are fitted without its paper."""
    ratios = {}
    for paper in dict.fromkeys(step.paper for step in steps.values()):
        constants = fit([step for step in steps.values() if step.paper != paper], start)
        for name, step in steps.items():
            if step.paper == paper:
                ratios[name] = round(ratio(step, constants), 4)
        print(f"without {paper}: {constants}", flush=True)
    return ratios


def main() -> None:
    """Fit, leave each paper out, and write the results."""
    steps = published_runs.steps()
    fitted = {name: step for name, step in steps.items() if not step.held_out}
    constants = fit(list(fitted.values()), Efficiency())
    print(f"all: {constants}", flush=True)
    ratios = left_out(fitted, constants)
    held = {name: round(ratio(steps[name], constants), 4) for name in steps.keys() - fitted.keys()}
    found = {"constants": asdict(constants), "left_out": ratios, "held_out": held}
    (DATA / "simulator_fit.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
