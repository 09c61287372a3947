"""Every case equals its twin until its wrong line acts, and only the right repair mends it."""

from pathlib import Path

import matplotlib
import numpy as np
import pytest
import torch

from cs336_course.pages.bug_hunt import bug_hunt, hunted_script, script_tests
from cs336_course.pages.bug_hunt import pictures as plots
from cs336_course.pages.bug_hunt.bug_hunt import CASES, HEALTHY, SUSPECTS, Hunt
from cs336_course.pages.bug_hunt.exercises import INNOCENT
from cs336_lib.config import UserError

matplotlib.use("Agg")

FIRST = {"A": 0, "B": 7, "C": 8, "D": 1, "E": 0, "F": 1, "G": 0, "H": 9, "I": 0, "J": 1}


def test_each_suspect_has_one_line_and_at_most_one_case():
    code = Path(hunted_script.__file__).read_text()
    assert [bug for bug, (_, (right, _)) in SUSPECTS.items() if code.count(right) != 1] == []
    assert len(set(CASES.values())) == len(CASES) == 10
    assert set(CASES.values()) < set(SUSPECTS)
    assert list(CASES.values()) != [bug for bug in SUSPECTS if bug in CASES.values()]  # shuffled


@pytest.mark.parametrize("case", CASES)
def test_a_case_equals_its_twin_until_its_line_acts(case):
    apart = bug_hunt.record(case).apart(bug_hunt.run())
    assert int(np.flatnonzero(apart)[0]) == FIRST[case]


def test_the_right_repair_gives_the_twin_and_a_wrong_one_changes_nothing(capsys):
    accused = {"A": "last_piece_only", "G": "no_zero_grad", "B": ...}
    repaired = bug_hunt.trial(accused)
    assert list(repaired) == ["A", "G"]
    assert not repaired["A"].apart(bug_hunt.run()).any()
    assert not repaired["G"].apart(bug_hunt.record("G")).any()
    said = capsys.readouterr().out
    assert "A with last_piece_only repaired, and its twin: the same run" in said
    assert "    -             self.optimizer.zero_grad()" in said
    assert said.count("zero_grad") == 2  # in A's difference and G's name; a wrong one has none
    assert "G with no_zero_grad repaired, and its twin: 96 of 96 steps differ" in said


def is_innocent(bug, record, twin):
    """Whether the records of a case show what `INNOCENT` says about it."""
    step = {part: record.gradients[0][part] / twin.gradients[0][part] for part in bug_hunt.PARTS}
    growth = np.divide(record.grad_norm, twin.grad_norm)
    x, y = record.batches[0]
    script = bug_hunt.loaded(record, 96)
    return {
        "targets_not_shifted": lambda: torch.equal(x[1:], y[:-1]),
        "replayed_data": lambda: torch.equal(record.batches[8][0], twin.batches[8][0]),
        "optimizer_not_restored": lambda: bug_hunt.counted(record.checkpoints[2]) == 16,
        "dropout_in_evaluation": lambda: script.evaluate() == script.evaluate(),
        "loss_not_divided": lambda: not np.allclose(list(step.values()), 4, atol=0.01),
        "last_piece_only": lambda: min(step.values()) > 0.9,
        "no_zero_grad": lambda: growth[7] < 2 * growth[0],
        "schedule_per_piece": lambda: record.rate == twin.rate,
        "schedule_off_by_one": lambda: record.rate[0] > 0,
        "decay_on_norms": lambda: (
            record.updates[0]["norm gains"]
            == pytest.approx(twin.updates[0]["norm gains"], rel=1e-3)
        ),
        "weights_too_large": lambda: all(
            torch.equal(weights, twin.checkpoints[0]["model"][name])
            for name, weights in record.checkpoints[0]["model"].items()
        ),
    }[bug]()


@pytest.mark.parametrize("case", CASES)
def test_what_clears_a_suspect_is_true_of_every_other_case(case, capsys):
    record, twin = bug_hunt.record(case), bug_hunt.run()
    for bug in INNOCENT:
        if bug == "future_not_masked":
            found = bug_hunt.probe(case, 0).endswith("letters: 1, twin 1")
        else:
            found = is_innocent(bug, record, twin)
        assert found == (CASES[case] != bug), bug


def test_a_run_repeats_itself_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    again = bug_hunt.run.__wrapped__(HEALTHY)
    assert not again.apart(bug_hunt.run()).any()
    assert torch.equal(torch.get_rng_state(), before)


def test_requests_are_counted_and_printed_beside_the_twin(capsys):
    hunt = Hunt()
    for request in (
        ("G", "rows", 0),
        ("F", "rates", 90),
        ("I", "batch", 0),
        ("A", "gradient", 0),
        ("D", "update", 0),
        ("H", "checkpoint", 16),
        ("B", "evaluation", 96),
        ("E", "probe", 0),
        ("J", "seeds"),
    ):
        hunt.request(*request)
    hunt.bill()
    said = capsys.readouterr().out
    assert "request 1: G, rows 0\n" in said
    assert "8 steps counted by AdamW, twin 16" in said
    assert "letters: 32, twin 1" in said
    assert "      step        rate" in said
    assert said.endswith("9 requests: G 1, F 1, I 1, A 1, D 1, H 1, B 1, E 1, J 1\n")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (("K", "rows", 0), "no case 'K'"),
        (("A", "guess", 0), "no evidence 'guess'"),
        (("A", "rows"), "takes one step"),
        (("A", "seeds", 3), "takes no step"),
        (("A", "rows", 96), "no step 96"),
        (("A", "probe", 3), "saved after 0, 8"),
    ],
)
def test_impossible_requests_are_refused_and_not_counted(request_, said):
    hunt = Hunt()
    with pytest.raises(UserError, match=said):
        hunt.request(*request_)
    assert hunt.requests == []


def test_requests_about_the_twin_are_free_and_unequal_numbers_are_marked(capsys):
    hunt = Hunt()
    hunt.request("twin", "probe", 16)
    assert hunt.requests == []
    hunt.request("D", "rows", 0)
    step_0, step_1 = capsys.readouterr().out.splitlines()[4:6]
    assert "*" not in step_0
    assert step_1.count("*") == 2


def test_the_eight_tests_miss_three_more_bugs():
    assert set(script_tests.missed()) == set(script_tests.UNSEEN)
    assert not any(script_tests.missed().values())


def test_every_variant_can_be_made_and_other_texts_are_refused():
    for edits in bug_hunt.VARIANTS.values():
        assert bug_hunt.edited_script(*edits).STEPS in (96, 400)
    with pytest.raises(ValueError, match="0 times"):
        bug_hunt.edited_script(("not in the script", ""))


def test_a_run_without_instruments_ends_as_its_records_say():
    assert bug_hunt.first_and_end()[1] == bug_hunt.run().end()


def test_unknown_bugs_are_refused():
    with pytest.raises(UserError, match="no bug 'gremlin'"):
        bug_hunt.repair("A", "gremlin")


def test_eight_small_tests_find_every_suspect():
    found = script_tests.caught()
    assert found[HEALTHY] == []
    assert all(found[bug] for bug in SUSPECTS)
    assert {name for failed in found.values() for name in failed} == set(script_tests.TESTS)


def test_the_figures_show_cases_repairs_and_tests():
    twin, cases = bug_hunt.run(), {case: bug_hunt.record(case) for case in CASES}
    drawing = plots.curves(cases, twin)
    assert any(list(line.get_ydata()) == cases["J"].loss for line in drawing.axes[9].get_lines())
    drawing = plots.proof({"A": cases["A"]}, {"A": twin}, twin)
    assert [max(line.get_ydata()) > 0 for line in drawing.axes[0].get_lines()] == [True, False]
    drawing = plots.repair(cases["F"], twin, twin, "title")
    assert drawing.axes[1].get_yscale() == "symlog"
    drawing = plots.seeds([twin], cases, 0.05, "title")
    assert "I (0.01)" in {text.get_text() for text in drawing.axes[0].texts}  # off the scale
    drawing = plots.caught({"one": ["b"]}, ["a", "b"], "title")
    assert list(drawing.axes[0].get_lines()[0].get_ydata()) == [1]
