"""Plant every fault, judge the runs, and print the table of docs/symptoms.md.

python -m tests.planted RUNS_DIR, which takes about ten minutes on two idle cores. Finished runs
are kept.
"""

import sys
from pathlib import Path

from cs336_lib.report.runs import judge, read_run

from . import FAULTS, MILDER, SOUND, Fault, train


def first_line(folder: Path, seed: int, fault: Fault | None = None) -> str:
    """Train a run and return the first line of its judgement, shortened to what it names."""
    run = read_run(train(folder, seed, fault))
    return judge(run).line.partition(": training")[0]


def main(runs: Path) -> None:
    """Print a row for each planted fault, and how many sound runs are called normal."""
    print("| planted | judged |\n|---|---|")
    for number, (name, fault) in enumerate(FAULTS.items()):
        print(f"| {name} | {first_line(runs / name, 20 + number, fault)} |")
    for number, ((name, strength), fault) in enumerate(MILDER.items()):
        print(f"| {name}, {strength} | {first_line(runs / f'mild {name}', 60 + number, fault)} |")
    sound = [first_line(runs / f"sound{seed}", seed) for seed in SOUND]
    print(f"{sound.count('normal')} of {len(sound)} sound runs are normal")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
