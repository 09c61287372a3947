"""Every case equals its twin until its wrong line acts, and what clears a suspect is true."""

import numpy as np
import pytest
import torch

from cs336_course.pages.bug_hunt import story
from cs336_course.pages.bug_hunt.exercises import INNOCENT
from cs336_course.pages.bug_hunt.story import CASES, HEALTHY, SUSPECTS, Hunt
from cs336_lib.config import UserError

FIRST = {"A": 7, "B": 8, "C": 0, "D": 0, "E": 9, "F": 1}


def test_the_cases_are_suspects_in_another_order():
    assert set(CASES.values()) < set(SUSPECTS) == set(INNOCENT)
    assert list(CASES.values()) != [bug for bug in SUSPECTS if bug in CASES.values()]


@pytest.mark.parametrize("case", CASES)
def test_a_case_equals_its_twin_until_its_line_acts(case):
    apart = story.record(case).apart(story.run())
    assert int(np.flatnonzero(apart)[0]) == FIRST[case]


def test_the_right_repair_gives_the_twin_and_a_wrong_one_changes_nothing(capsys):
    repaired = story.trial({"D": "loss_not_divided", "F": "loss_not_divided", "A": ...})
    assert list(repaired) == ["D", "F"]
    assert not repaired["D"].apart(story.run()).any()
    assert not repaired["F"].apart(story.record("F")).any()
    said = capsys.readouterr().out
    assert "D with loss_not_divided repaired, and its twin: the same run" in said
    assert said.count("    + ") == 1  # a wrong accusation shows no line
    with pytest.raises(UserError, match="no bug 'gremlin'"):
        story.repair("A", "gremlin")


def is_innocent(bug, record, twin):
    """Whether the records of a case show what `INNOCENT` says about it."""
    growth = np.divide(record.grad_norm, twin.grad_norm)
    x, y = record.batches[0]
    script = story.loaded(record, 96)
    return {
        "targets_not_shifted": lambda: torch.equal(x[1:], y[:-1]),
        "replayed_data": lambda: torch.equal(record.batches[8][0], twin.batches[8][0]),
        "optimizer_not_restored": lambda: story.counted(record.checkpoints[2]) == 16,
        "dropout_in_evaluation": lambda: script.evaluate() == script.evaluate(),
        "loss_not_divided": lambda: not np.isclose(growth[0], 4, atol=0.01),
        "last_piece_only": lambda: growth[0] > 0.9,
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
def test_what_clears_a_suspect_is_true_of_every_other_case(case):
    record, twin = story.record(case), story.run()
    for bug in INNOCENT:
        if bug == "future_not_masked":
            found = story.probe(case, 0).endswith("letters: 1, twin 1")
        else:
            found = is_innocent(bug, record, twin)
        assert found == (CASES[case] != bug), bug


def test_a_run_repeats_itself_and_leaves_the_global_generator_alone():
    before = torch.get_rng_state()
    again = story.run.__wrapped__(HEALTHY)
    assert not again.apart(story.run()).any()
    assert torch.equal(torch.get_rng_state(), before)
    assert story.first_and_end()[1] == story.run().end()


def test_requests_are_counted_and_printed_beside_the_twin(capsys):
    hunt = Hunt()
    hunt.request("twin", "probe", 16)
    for request in (
        ("E", "checkpoint", 16),
        ("A", "evaluation", 96),
        ("C", "probe", 0),
        ("C", "batch", 0),
        ("D", "update", 0),
    ):
        hunt.request(*request)
    hunt.bill()
    said = capsys.readouterr().out
    assert "request free: twin, probe 16" in said
    assert "request 1: E, checkpoint 16\n" in said
    assert "8 steps counted by AdamW, twin 16" in said
    assert "letters: 32, twin 1" in said
    assert said.endswith("5 requests: E 1, A 1, C 2, D 1\n")


@pytest.mark.parametrize(
    ("request_", "said"),
    [
        (("K", "rows", 0), "no case 'K'"),
        (("A", "guess", 0), "no evidence 'guess'"),
        (("A", "rows", 96), "no step 96"),
        (("A", "probe", 3), "saved after 0, 8"),
    ],
)
def test_impossible_requests_are_refused_and_not_counted(request_, said):
    hunt = Hunt()
    with pytest.raises(UserError, match=said):
        hunt.request(*request_)
    assert hunt.requests == []
