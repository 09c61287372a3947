"""Test that an answer must leave what all code shares as it was, and that it is restored."""

import random
import threading

import numpy as np
import pytest
import torch
from torch import nn
from verdicts import verdict

from cs336_course.checks import (
    gpt2_model,
    gpt2_sampling,
    gpt2_scale,
    gpt2_speed,
    surroundings,
)
from cs336_course.checks.report import exercise, expect, part

CHANGES = {
    "leaves gradients off": lambda: torch.set_grad_enabled(False),
    "leaves autocast switched on": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "leaves autocast": lambda: torch.set_autocast_enabled("cuda", True),
    "leaves inference mode on": lambda: KEPT.append(enter(torch.inference_mode())),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "number of threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "use_deterministic_algorithms": lambda: torch.use_deterministic_algorithms(True),
    "leave the seed to the caller": lambda: torch.manual_seed(0),
    "seeds a generator": lambda: torch.seed(),
    "leave the seed": lambda: random.seed(0),
    "the seed to the caller": lambda: np.random.seed(0),
}
KEPT = []


def enter(context):
    context.__enter__()
    return context


@exercise("?")
def twice(answer):
    """Check a function that doubles."""
    for number in range(3):
        with surroundings.seeded(number):
            expect(answer(number) == 2 * number, "not twice.")


@exercise("?", may_seed=True)
def seeding(answer):
    """Check a function that may seed."""
    answer()


@part(nn.Linear, "?")
def doubling(answer):
    """Check a class of modules that double."""
    module = answer()
    expect(module(torch.ones(())) == 2, "not twice.")


def shared():
    """Everything that an answer could change."""
    values = [setting.read() for setting in surroundings.SETTINGS]
    return values, random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


@pytest.mark.parametrize("said", CHANGES)
def test_a_change_is_the_first_thing_that_a_learner_is_told_and_is_undone(said):
    def doubles(number):
        CHANGES[said]()
        return 2 * number

    def is_wrong(number):
        doubles(number)
        return -1

    class InForward(nn.Module):
        def forward(self, x):
            return doubles(x)

    class InInit(nn.Module):
        def __init__(self):
            super().__init__()
            CHANGES[said]()

        def forward(self, x):
            return 2 * x

    torch.manual_seed(7)
    for check, answer in (
        (twice, doubles),
        (twice, is_wrong),
        (doubling, InForward),
        (doubling, InInit),
    ):
        before = shared()
        text = verdict(check, answer)
        assert said in text
        assert "not right yet" in text
        torch.manual_seed(0)  # as `verdict` does
        random.setstate(before[1])
        assert shared()[:3] == before[:3]
        assert torch.initial_seed() == 0


@pytest.mark.parametrize("said", CHANGES)
def test_a_change_is_undone_after_an_error_or_an_interrupt(said):
    def interrupted(number):
        CHANGES[said]()
        raise KeyboardInterrupt

    def broken(number):
        CHANGES[said]()
        raise ValueError("mine")

    before = shared()
    with pytest.raises(KeyboardInterrupt):
        twice(interrupted)
    assert shared() == before
    assert "your code raised ValueError: mine" in verdict(twice, broken)
    assert shared()[0] == before[0]


def test_an_answer_may_draw_and_leaves_the_generators_where_they_were():
    def draws(number):
        torch.rand(3), random.random(), np.random.rand()
        return 2 * number

    before = shared()
    twice(draws)
    assert shared() == before


def test_an_answer_may_change_the_state_for_a_while():
    @torch.no_grad()
    def careful(number):
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            return 2 * number

    assert verdict(twice, careful) == "twice: passed"


def test_a_task_may_ask_for_seeds():
    assert verdict(seeding, lambda: torch.manual_seed(0)) == "seeding: passed"
    assert "leaves gradients off" in verdict(seeding, lambda: torch.set_grad_enabled(False))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda: torch.set_grad_enabled(False), "gradients were off"),
        (lambda: torch.autocast("cpu", torch.bfloat16).__enter__(), "autocast was on"),
        (lambda: KEPT.append(enter(torch.inference_mode())), "inference mode was on"),
        (lambda: torch.set_default_dtype(torch.float64), "the default dtype wasn't float32"),
        (lambda: torch.set_default_device("meta"), "the default device wasn't the CPU"),
    ],
)
def test_what_a_cell_left_before_the_check_is_set_back_and_said(change, said):
    before = shared()[0]
    change()
    first, second = verdict(twice, lambda number: 2 * number).splitlines()
    assert said in first
    assert "set that back" in first
    assert second == "twice: passed"
    assert shared()[0] == before
    assert verdict(twice, lambda number: 2 * number) == "twice: passed"


def test_a_thread_of_a_check_sees_a_change_too():
    @exercise("?")
    def threaded(answer):
        errors = []

        def run():
            try:
                answer(1)
            except Exception as error:
                errors.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join()
        for error in errors:
            raise error

    def off(number):
        torch.set_grad_enabled(False)

    assert "leaves gradients off" in verdict(threaded, off)


def test_grading_and_assembling_get_the_comparison_with_the_check():
    with pytest.raises(Exception, match="leaves gradients off"):
        twice.__wrapped__(lambda number: (torch.set_grad_enabled(False), 2 * number)[1])
    assert torch.is_grad_enabled()


REAL = {
    gpt2_model.generate: gpt2_sampling.library_generate,
    gpt2_model.init_weights: gpt2_model.library_init_weights,
    gpt2_model.embed: gpt2_model.library_embed,
    gpt2_speed.fast: gpt2_speed.library_fast,
    gpt2_scale.most_likely: gpt2_scale.library_most_likely,
}


@pytest.mark.parametrize("check", REAL, ids=lambda check: check.__name__)
@pytest.mark.parametrize("said", ["leaves gradients off", "leaves autocast switched on", "seed"])
def test_the_checks_of_gpt2_notice_a_right_answer_that_changes_the_state(check, said):
    change = {"seed": lambda: torch.manual_seed(0)}.get(said) or CHANGES[said]

    def answer(*args, **kwargs):
        result = REAL[check](*args, **kwargs)
        change()
        return result

    assert said in verdict(check, answer)
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
    assert verdict(check, REAL[check]).endswith("passed")
