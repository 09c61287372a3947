"""The engine: what is observed, how records are compared, and what a learner is told."""

import contextlib
import json
import random
import signal
import time

import numpy as np
import pytest
import torch

from cs336_course.engine import Case, Exercise, function, normal, observe, records, state
from cs336_course.engine.compare import difference
from cs336_course.engine.judge import diagnose
from cs336_course.engine.several_results import one_of


def an_exercise(solution, *cases, **more):
    """An exercise whose solution stands here and not in a notebook."""
    exercise = Exercise("", "answer", lambda: cases, more.pop("wrong", {}), **more)
    exercise.solution = f"answer = {solution}"
    return exercise


TWICE = an_exercise("lambda number: 2 * number", Case(number=1), Case("zero", number=0))


def said(exercise, answer):
    found = diagnose(exercise, list(exercise.records(answer)))
    return found.said if found else ""


# State


CHANGES = {
    "gradients": lambda: torch.set_grad_enabled(False),
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16).__enter__(),
    "inference mode": lambda: KEPT.append(enter(torch.inference_mode())),
    "default dtype": lambda: torch.set_default_dtype(torch.float64),
    "default device": lambda: torch.set_default_device("meta"),
    "threads": lambda: torch.set_num_threads(torch.get_num_threads() + 1),
    "deterministic algorithms": lambda: torch.use_deterministic_algorithms(True),
    "seed": lambda: random.choice([torch.manual_seed, random.seed, np.random.seed])(0),
}
KEPT = []


def enter(context):
    context.__enter__()
    return context


def shared():
    """Everything that an answer could change."""
    values = [setting.read() for setting in state.SETTINGS]
    return values, random.getstate(), str(np.random.get_state()), torch.get_rng_state().tolist()


def test_each_setting_is_tried_below():
    assert {*CHANGES} == {*state.SENTENCES}


@pytest.mark.parametrize("name", CHANGES)
@pytest.mark.parametrize("factor", [2, 3])
def test_a_change_is_the_first_thing_that_a_learner_is_told_and_is_undone(name, factor):
    def answer(number):
        CHANGES[name]()
        return factor * number

    before = shared()
    assert said(TWICE, answer) == state.SENTENCES[name]
    assert shared() == before


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError])
def test_a_change_is_undone_after_an_error_or_an_interrupt(error):
    def answer(number):
        torch.set_grad_enabled(False)
        random.seed(0)
        raise error("mine")

    before = shared()
    if error is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            TWICE(answer)
    else:
        assert said(TWICE, answer) == "your code raised ValueError: mine"
    assert shared() == before


def test_an_answer_may_draw_and_change_the_state_for_a_while():
    @torch.no_grad()
    def answer(number):
        torch.rand(3), random.random(), np.random.rand()
        with torch.autocast("cpu", torch.bfloat16), torch.inference_mode(), torch.device("meta"):
            return 2 * number

    before = shared()
    assert said(TWICE, answer) == ""
    assert shared() == before


def test_a_task_may_ask_for_seeds():
    seeding = an_exercise("lambda: torch.manual_seed(0) and None", Case(), may_seed=True)
    seeding.given = {"torch": torch}
    assert said(seeding, lambda: CHANGES["seed"]() and None) == ""
    assert said(seeding, lambda: torch.set_grad_enabled(False)) == state.SENTENCES["gradients"]


def test_what_a_cell_left_before_the_check_is_set_back_and_said(capsys):
    torch.set_grad_enabled(False)
    TWICE(lambda number: 2 * number)
    first, second = capsys.readouterr().out.splitlines()
    assert first == "answer: gradients were off before this check, so the check has set that back."
    assert second == "answer: passed"
    assert torch.is_grad_enabled()


# What is observed


def test_an_untouched_stub_is_not_attempted(capsys):
    def stub(number):
        raise NotImplementedError

    TWICE(stub)
    TWICE(...)
    assert capsys.readouterr().out == "answer: not attempted yet\n" * 2


SQUARE = an_exercise(
    "lambda x: x * x",
    Case(x=normal(3)),
    observe=function(grad="x", on_other_device=True, by_hand=[(torch, "square")]),
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda x: x**2, ""),
        (lambda x: None, "the result is None"),
        (lambda x: "9", "the result is text; a tensor is expected"),
        (lambda x: x[:2] ** 2, "the shape of the result is (2,); it should be (3,)"),
        (lambda x: (x * x).double(), "the dtype of the result is float64"),
        (lambda x: x * x + 1e-3, "not the right numbers"),
        (lambda x: x * x / (x != x), "not the right numbers"),
        (lambda x: x * x / (x - x) - x * x / (x - x), "NaNs"),
        (lambda x: x.detach() ** 2, "the gradient is lost"),
        (lambda x: x * x.detach(), "the gradient of x isn't"),
        (lambda x: x.mul_(x), "changes its input x in place"),
        (torch.square, "torch.square does all the work"),
        (lambda x: torch.square(x), "torch.square does all the work"),
        (lambda x: x * x + torch.zeros(3), "on another device"),
        (lambda x: x * x + torch.tensor(x.tolist()) * 0, ""),
        (lambda x: x @ x[:2], "your code raised RuntimeError"),
        (lambda x, y: x, "cannot be used as the task says"),
    ],
)
def test_shared_sentences(answer, expected):
    found = said(SQUARE, answer)
    assert found == expected if not expected else expected in found


def test_a_number_that_no_float_holds_is_wrong():
    assert "isn't right" in said(TWICE, lambda number: 10**400 * (2 * number - 1))


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="Windows has no such timer")
def test_an_endless_loop_is_stopped_and_waiting_is_none(monkeypatch):
    monkeypatch.setattr(observe, "LONGEST", 0.2)
    tried = []

    def endless(number):
        tried.append(number)
        end = time.thread_time() + 10  # if the check doesn't stop it
        with contextlib.suppress(Exception):
            while number < 2 and time.thread_time() < end:
                pass
        time.sleep(0.5)
        return 2 * number

    exercise = an_exercise("lambda number: 2 * number", *(Case(number=n) for n in (2, 1, 0)))
    assert "not for number=1. Your code was still computing" in said(exercise, endless)
    assert tried == [2, 1]
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_a_later_case_is_named():
    assert said(TWICE, lambda number: 2 if number else 1).startswith(
        "it is right for the first inputs, but not for zero (number=0)."
    )


def two_mistakes(**more):
    """An exercise of three cases, two of which a wrong idea of their own misses."""
    cases = Case(number=1), Case("two", number=2), Case("three", number=3)
    wrong = {
        "two is special.": lambda number: 2 * number + (number == 2),
        "three is special.": lambda number: 2 * number + (number == 3),
    }
    return an_exercise("lambda number: 2 * number", *cases, wrong=wrong, **more)


def test_of_two_mistakes_the_first_is_named_where_it_is_the_only_idea_that_explains_it():
    x = normal(5)
    exercise = an_exercise(
        "lambda x, twice: x * (1 + twice)",
        Case(x=x, twice=False),
        Case("twice", x=x, twice=True),
        wrong={"x isn't squared.": lambda x, twice: x * x * (1 + twice)},
    )
    both = lambda x, twice: x * x + 3 * twice  # noqa: E731
    named = "there may be more than one mistake. The first one: x isn't squared."
    assert said(exercise, both) == named
    ideas = {"nan!": lambda x, twice: x if twice else x * torch.nan}
    exercise = an_exercise("lambda x, twice: x", *exercise.cases(), wrong=ideas)
    assert "nan!" not in said(exercise, lambda x, twice: x * torch.nan)  # many slips end there
    # One number may agree by chance.
    one = an_exercise("lambda x: x + 1", Case(x=2), Case(x=3), wrong={"4!": lambda x: 2 * x})
    assert said(one, lambda x: 4 if x == 2 else 9) == "the result isn't right."


def test_an_idea_that_differs_in_the_first_wrong_case_is_tried_in_no_other():
    exercise = two_mistakes()
    assert said(exercise, lambda number: 2 * number + (number == 3)) == "three is special."
    assert exercise.observed.keys() == {1}
    assert said(exercise, lambda number: 2 * number + 5) == "the result isn't right."


def test_an_error_with_another_message_isnt_told_an_ideas_sentence():
    ideas = {"is there a yield?": "answer = lambda number: sum(None)"}
    exercise = an_exercise("lambda number: 2 * number", Case(number=1), wrong=ideas)
    assert said(exercise, lambda number: sum(None)) == "is there a yield?"
    assert "your code raised TypeError" in said(exercise, lambda number: len(number))


def test_only_an_error_is_like_an_error():
    nameless = type("", (Exception,), {})

    def answer(number):
        raise nameless

    assert said(TWICE, answer)


def test_a_wrong_shape_is_told_before_wrong_numbers():
    square = an_exercise(
        "lambda x: x + x", Case(x=normal(2, 2)), Case("a row", x=normal(1, 3)), says={"result": ""}
    )
    found = said(square, lambda x: x.T @ x.T if len(x) == 2 else x.T)
    assert found.startswith("for a row (x (1, 3)), the shape of the result is (3, 1)")


def test_an_error_is_explained_by_its_message_whatever_else_is_wrong():
    def answer(number):
        if number == 0:
            raise RuntimeError("Expected target size [2]")
        return 2 * number

    errors = {"flatten the targets.": ("target size", answer)}
    cases = Case(number=1), Case("zero", number=0)
    exercise = an_exercise("lambda number: 2 * number", *cases, errors=errors)
    assert said(exercise, answer) == "flatten the targets."
    assert "right for the first inputs" in said(exercise, lambda number: 2 * number // number)


def test_the_first_wrong_number_is_shown_with_its_inputs_and_the_right_one():
    exercise = an_exercise("lambda number: 2 * number", Case(number=3), Case(number=4))
    found = diagnose(exercise, list(exercise.records(lambda number: 7 - 1 * (number == 3))))
    assert found.figures == "With number=4, you get 7, and 8 is right."
    exercise = an_exercise("lambda x: x + 1", Case(x=torch.zeros(2, 3)))
    found = diagnose(exercise, list(exercise.records(lambda x: x + torch.tensor([1, 1, 5]))))
    assert found.figures == "With x (2, 3), you get 5 at [0, 2], and 1 is right."


def test_a_fact_that_holds_or_not_is_shown_without_false_and_true():
    (record,) = SQUARE.records(lambda x: x * x)
    found = diagnose(SQUARE, [record | {"elsewhere": False}])
    assert "another device" in found.said
    assert found.figures == ""
    is_even = an_exercise("lambda number: number % 2 == 0", Case(number=4))
    found = diagnose(is_even, list(is_even.records(lambda number: False)))
    assert found.figures == "With number=4, you get False, and True is right."


def test_a_case_is_described_without_the_settings_of_its_observer():
    options = {"on_other_device": True, "gradients": False}
    assert Case("", x=normal(2, 3), top={"k": 5}, none={}, **options).described() == (
        "x (2, 3), top={'k': 5}"
    )
    assert Case("", gradients=normal(2)).described() == "gradients (2,)"


def test_a_wrong_idea_explains_an_answer_only_if_it_agrees_in_every_case():
    exercise = an_exercise(
        "lambda x: 2 * x",
        Case(x=2),
        Case("three", x=3),
        wrong={"you squared it.": lambda x: x * x, "you tripled it.": ("2", "3")},
    )
    assert said(exercise, lambda x: x + x + x) == "you tripled it."
    assert said(exercise, lambda x: x**2) == "you squared it."
    assert "isn't right" in said(exercise, lambda x: 4 if x == 2 else 7)
    with pytest.raises(ValueError, match="isn't in the solution"):
        exercise.build(("5", "6"))


SUMS = an_exercise(
    "lambda x, y: (sum(x) + sum(y), sum(x) - sum(y))",
    Case("the sum"),
    Case("the difference"),
    observe=one_of(
        ("the sum", "the difference"), lambda: [Case(x=[1], y=[2]), Case("nothing", x=[], y=[])]
    ),
    is_quiz=True,
    says={"form": "return two numbers."},
    wrong={"you left out y.": lambda x, y: (sum(x), sum(x) - sum(y))},
)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (lambda x, y: torch.tensor([sum(x) + sum(y), sum(x) - sum(y)]), ""),
        (lambda x, y: sum(x), "the sum: return two numbers."),
        (lambda x, y: (sum(x), 7), "you left out y."),
        (lambda x, y: (sum(x) + sum(y), 7), "the difference: the result for x=[1], y=[2] isn't"),
        (lambda x, y: (sum(x) + sum(y) + (not x), 0), "the sum: the result for nothing isn't"),
        (lambda x, y: (sum(x) + sum(y), sum(x) - sum(y), x.clear())[:2], "changes its input x"),
    ],
)
def test_each_of_several_results_is_a_question(answer, expected):
    found = said(SUMS, answer)
    assert found == expected if not expected else expected in found


# Records


def test_records_survive_json():
    record = {
        "left": [],
        "result": [normal(2, 3), normal(4).bfloat16(), torch.tensor([True]), torch.empty(0, 2)],
        "more": {"a": 1, "b": 2.5, "c": float("inf"), "d": None, "e": "text", "f": True},
    }
    again = records.decode(json.loads(json.dumps(records.encode(record))))
    assert difference(again, record) is None
    assert difference(record, again) is None


def test_text_of_numpy_is_text():
    assert type(records.plain(np.array(["norms"])[0])) is str


@pytest.mark.parametrize(
    "forged",
    [
        {"tensor": "float32", "shape": [10**9], "device": "cpu", "data": ""},
        {"tensor": "float32", "shape": [-1], "device": "cpu", "data": ""},
        {"tensor": "nothing", "shape": [1], "device": "cpu", "data": "AAAA"},
        {"tensor": "int8", "shape": [1], "device": "cpu", "data": "*"},
        {"float": "1"},
        {"pickle": "gASVAAAA"},
    ],
)
def test_a_forged_record_is_refused(forged):
    with pytest.raises(ValueError, match=r"record|base64|padding|Only"):
        records.decode(forged)
