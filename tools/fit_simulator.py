"""Fit the constants of `simulate` to published steps: python -m tools.fit_simulator.

Each paper is left out once, the constants are fitted to the others, and its steps are simulated
with them. The results go to data/simulator_fit.json, for docs/published_runs.md and the tests. Copy
its constants into `network.Efficiency`. It takes about two minutes.
"""

import functools
import itertools
import json
import math
import statistics
from collections.abc import Collection
from dataclasses import asdict, replace

from cs336_course.shared import published_runs
from cs336_course.shared.published_runs import PublishedStep
from cs336_lib.bill.simulate import Efficiency, simulate
from cs336_lib.data.corpus import DATA

# The grid of each constant, and no faster than what was measured elsewhere.
GRID = {
    "matmul": [x / 100 for x in range(55, 86)],
    "hopper": [x / 100 for x in range(70, 101)],
    "attention": [x / 100 for x in range(30, 71, 2)],
    "memory": [x / 100 for x in range(50, 96, 5)],
    "inner": [x / 100 for x in range(20, 81, 2)],
    "overlap": [x / 100 for x in range(50, 96, 5)],
    "hop": [x / 1e6 for x in range(5, 201, 5)],
}
STRIDES = (4, 2, 1)  # steps on the grid, from coarse to fine


@functools.cache
def steps() -> dict[str, PublishedStep]:
    """Return the published steps."""
    return published_runs.steps()


@functools.cache
def ratio(name: str, constants: Efficiency) -> float:
    """Return the stated seconds of a step over the simulated ones."""
    step = steps()[name]
    cluster = replace(step.cluster, efficiency=constants)
    return simulate(step.work, cluster).mfu / step.mfu


def loss(names: Collection[str], constants: Efficiency) -> float:
    """Return the mean over papers of their mean error.

    A step's error is |log ratio|, rounded below 5%. With a sharp corner at 0, moving one constant
    at a time would stop where one step fits exactly.
    """
    papers: dict[str, list[float]] = {}
    for name in names:
        papers.setdefault(steps()[name].paper, []).append(
            math.hypot(math.log(ratio(name, constants)), 0.05)
        )
    return statistics.mean(statistics.mean(errors) for errors in papers.values())


def fit(names: Collection[str], start: Efficiency) -> Efficiency:
    """Move one constant at a time on its grid while the loss falls."""
    best, least = start, loss(names, start)
    for stride in STRIDES:
        moved = True
        while moved:
            moved = False
            for name, way in itertools.product(GRID, (-stride, stride)):
                tried = neighbor(best, name, way)
                while (found := loss(names, tried)) < least - 1e-5:
                    best, least, moved = tried, found, True
                    tried = neighbor(best, name, way)
    return best


def neighbor(constants: Efficiency, name: str, way: int) -> Efficiency:
    """Return the constants with one of them moved on its grid."""
    grid, value = GRID[name], getattr(constants, name)
    nearest = min(range(len(grid)), key=lambda place: abs(grid[place] - value))
    return replace(constants, **{name: grid[min(max(nearest + way, 0), len(grid) - 1)]})


def main() -> None:
    """Fit, leave each paper out, and write the results."""
    fitted = list(steps())
    constants = fit(fitted, Efficiency())
    print(f"all papers: {loss(fitted, constants):.3f}, {constants}", flush=True)
    without: dict[str, dict[str, float]] = {}
    ratios: dict[str, float] = {}
    for paper in dict.fromkeys(step.paper for step in steps().values()):
        others = [name for name in fitted if steps()[name].paper != paper]
        alone = fit(others, constants)
        print(f"without {paper}: {alone}", flush=True)
        without[paper] = asdict(alone)
        ratios |= {
            name: round(ratio(name, alone), 4)
            for name, step in steps().items()
            if step.paper == paper
        }
    found = {"constants": asdict(constants), "without": without, "ratios": ratios}
    (DATA / "simulator_fit.json").write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
