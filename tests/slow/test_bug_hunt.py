"""Every planted bug has a signature, which separates from healthy runs over five seeds."""

import matplotlib
import matplotlib.pyplot as plt
import pytest
import torch

from cs336_course.demos import bug_hunt
from cs336_course.demos.bug_hunt import BUGS, CASES, HEALTHY, SIGNATURES
from cs336_course.figures import logs

matplotlib.use("Agg")

SEEDS = range(5)


def values(bug: str, number: str) -> list[float]:
    """Return one of the numbers of a bug's runs, for each seed."""
    return [bug_hunt.run(bug, seed).numbers()[number] for seed in SEEDS]


def test_signatures_separate_from_healthy_runs():
    overlapping = []
    for bug, number in SIGNATURES.items():
        healthy, planted = values(HEALTHY, number), values(bug, number)
        gap = max(min(planted) - max(healthy), min(healthy) - max(planted))
        if not gap > max(healthy) - min(healthy):  # farther away than healthy runs differ
            overlapping.append(f"{bug}: {number} {planted}, healthy {healthy}")
    assert not overlapping, "\n".join(overlapping)


def test_bugs_that_share_a_number_differ_in_it():
    divided, cleared = (
        values(bug, "gradient norm") for bug in ("loss_not_divided", "no_zero_grad")
    )
    assert min(cleared) > 3 * max(divided)


def test_every_bug_is_a_case_and_has_a_signature():
    assert sorted(CASES.values()) == sorted(BUGS) == sorted(SIGNATURES)
    assert list(CASES.values()) != list(BUGS)  # the table of bugs doesn't give the order away


def test_a_run_repeats_itself_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    first = bug_hunt.run(HEALTHY, 0)
    bug_hunt.run.cache_clear()
    assert bug_hunt.run(HEALTHY, 0) == first
    assert torch.equal(torch.get_rng_state(), before)


def test_unknown_bugs_are_refused():
    with pytest.raises(ValueError, match="no bug 'gremlin'"):
        bug_hunt.run("gremlin")


def test_the_table_and_the_figure_show_the_cases():
    rows = bug_hunt.table("AH", healthy=1).splitlines()
    assert rows[0].split() == ["healthy", "A", "H"]
    assert rows[1].startswith("first loss")
    assert float(rows[1].split()[-1]) > 10  # H has weights that are too large
    record = bug_hunt.case("H")
    drawing = logs.hunt({"H": record}, [bug_hunt.run(HEALTHY, 0)])
    assert any(list(line.get_ydata()) == record.loss for line in drawing.axes[0].get_lines())
    assert len(drawing.axes) == 4
    plt.close("all")
