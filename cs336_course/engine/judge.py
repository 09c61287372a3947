"""Judge the records of an answer, and say what is wrong with it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from cs336_course.engine import state
from cs336_course.engine.compare import Difference, difference
from cs336_course.engine.records import Record
from cs336_course.engine.relations import related
from cs336_course.engine.task import Task

# Names of code that look like words, at the beginning of a diagnosis
NAMES = {"eps", "idx", "mask", "params", "qkv", "wpe", "wte"}
# Facts that don't depend on the inputs
ALWAYS = ("left", "changed", "used", "elsewhere")
# A name that doesn't exist says nothing about what the learner has understood.
TYPOS = ("NameError", "AttributeError", "ImportError", "ModuleNotFoundError", "UnboundLocalError")


@dataclass(frozen=True)
class Diagnosis:
    """What is wrong with an answer.

    Attributes:
        said: The sentence for the learner.
        figures: The first wrong number with its inputs, and the right one.
        is_typo: Whether the code only has a wrong name.
        is_named: Whether the sentence is that of a wrong idea of this exercise.
    """

    said: str
    figures: str = ""
    is_typo: bool = False
    is_named: bool = False


def diagnose(exercise: Task, got: Sequence[Record], explain: bool = True) -> Diagnosis | None:
    """Return what is wrong with an answer, or None if it is right.

    It is a wrong idea's own sentence if the idea does the same as the answer in every case.

    Args:
        exercise: The exercise.
        got: The records of the answer. They may come from another process.
        explain: Whether to look for a wrong idea, which runs many of them.
    """
    if len(got) != len(exercise.expected):
        return Diagnosis("your code ended before the check was over.")
    pairs = zip(got, exercise.expected, strict=True)
    found = [difference(mine, right, exercise.tolerance) for mine, right in pairs]
    place = next((n for n, differs in enumerate(found) if differs), None)
    if place is None:
        return None
    numbers = got[place].get("figures") or figures(exercise, found[place], place)
    if said := of_error(exercise, got[place]):
        return Diagnosis(said, is_named=True)
    if explain and (said := named(exercise, got, place) or relation(exercise, got, found[place])):
        return Diagnosis(said, numbers, is_named=True)
    if found[place].kind == "value":  # a wrong form explains wrong numbers, wherever it shows
        forms = (n for n, differs in enumerate(found) if differs and differs.kind == "shape")
        place = next(forms, place)
    first = found[place]
    error = got[place].get("raises", {}).get("type") if first.kind == "raises" else ""
    said = in_words(exercise, got[place], first, place)
    if place and not exercise.is_quiz and first.fact not in ALWAYS:
        where = exercise.case(place).described() or "others"
        if found[0]:
            said = f"for {where}, {said}"
        else:
            said = f"it is right for the first inputs, but not for {where}. {sentence(said)}"
    return Diagnosis(said, numbers, is_typo=error in TYPOS)


def named(exercise: Task, got: Sequence[Record], place: int) -> str:
    """Return the sentence of the wrong idea that does the same as an answer in all cases, or "".

    An idea that explains only the first wrong case is named if it is the only one.

    Args:
        exercise: The exercise. In a quiz, only the first wrong case has to be the same.
        got: The records of the answer.
        place: Number of the first wrong case.
    """
    explain_first = set()
    for idea, (said, _) in enumerate(exercise.ideas()):
        if not alike(got[place], exercise.idea_record(idea, place), exercise.tolerance):
            continue
        if exercise.is_quiz:
            return said
        theirs = exercise.idea_records(idea)
        pairs = zip(got, theirs, strict=True)
        if all(alike(mine, its, exercise.tolerance) for mine, its in pairs):
            return said
        explain_first.add(said)
    if len(explain_first) == 1 and tells_much(got[place]):
        return f"there may be more than one mistake. The first one: {sentence(*explain_first)}"
    return ""


def tells_much(record: Record) -> bool:
    """Return whether a result is so large that it can't agree with another one by chance."""
    result = record.get("result")
    if not isinstance(result, Tensor) or not result.is_floating_point():
        return False
    return result.numel() > 3 and bool(result.isfinite().all())


def relation(exercise: Task, got: Sequence[Record], first: Difference) -> str:
    """Return how the answer's results relate to the right ones in all cases, or ""."""
    if first.fact != "result" or first.kind not in ("value", "shape"):
        return ""
    code, cases = exercise.solution, list(exercise.cases())
    return related(got, exercise.expected, cases, code, exercise.build(code))


def alike(mine: Record, theirs: Record, tolerance: float) -> bool:
    """Return whether two records agree, including the messages of errors.

    Answers raise errors of one type for many reasons, so the type alone explains nothing.
    """
    messages = [record.get("raises", {}).get("message") for record in (mine, theirs)]
    return messages[0] == messages[1] and difference(mine, theirs, tolerance) is None


def of_error(exercise: Task, got: Record) -> str:
    """Return the exercise's own sentence for an error, or ""."""
    message = got.get("raises", {}).get("message", "")
    parts = ((said, part) for said, (part, _) in exercise.errors.items())
    return next((said for said, part in parts if part in message), "")


def in_words(exercise: Task, got: Record, found: Difference, place: int) -> str:
    """Return the sentence for a difference that no known idea explains."""
    case = exercise.case(place)
    if found.kind == "raises" and "raises" in got:
        said = complaint(got["raises"])
    elif "said" in got:  # by an observer that knows more than two records tell
        said = str(got["said"])
    else:
        said = exercise.says.get(found.fact) or shared(found, got, exercise.result_axes)
    if exercise.is_quiz and case.what and found.fact not in ALWAYS:
        return f"{case.what}: {said}"
    return said


def shared(found: Difference, got: Record, axes: str) -> str:
    """Return a sentence that any exercise may need."""
    fact = found.fact
    if fact == "left":
        return state.SENTENCES[got["left"][0]] if got["left"] else "your code restores too much."
    if fact == "used":
        names = " and ".join(got["used"])
        if names == "torch":
            return "your code uses torch, but the task asks you to do without it."
        return f"{names} does all the work here; write it by hand."
    if fact == "changed":
        return f"your function changes its input {' and '.join(got['changed'])} in place."
    if fact == "elsewhere":
        return (
            "right on the CPU, but it fails if the inputs are on another device. Are new tensors "
            "created on theirs, as in torch.arange(..., device=x.device)?"
        )
    if fact.startswith("parameter ") and found.kind == "none":
        return f"there is no {fact}. Checkpoints are read by name, so use the task's names."
    if fact == "parameters":
        return f"there are more parameters than the task names. Yours are {listed(got[fact])}."
    if fact.startswith("gradient") and found.kind == "none":
        return (
            "the numbers are right, but the gradient is lost, so no weight before it could learn. "
            "Is something detached, computed under no_grad, or turned into Python's numbers?"
        )
    if fact.startswith("gradient"):
        return (
            f"the values are right, but the {fact} isn't. Is a part detached, a constant rounded, "
            "or something small added?"
        )
    return of_value(found, "the result" if fact in ("result", "answer") else fact, axes)


def listed(names: Sequence[str]) -> str:
    """Return names in a row, of which a large model has too many."""
    return ", ".join(names[:6]) + (", ..." if len(names) > 6 else "")


def of_value(found: Difference, what: str, axes: str) -> str:
    """Return the sentence for a value that differs."""
    meaning = f"{axes} = " if axes else ""
    return {
        "raises": f"your code should raise {found.want} here.",
        "none": f"{what} is None; is a `return` missing?"
        if found.got == "None"
        else f"{what} should be None here.",
        "type": f"{what} is {found.got}; {found.want} is expected.",
        "length": f"{what} has {found.got} parts; {found.want} are expected.",
        "shape": f"the shape of {what} is {found.got}; it should be {meaning}{found.want}.",
        "dtype": f"the dtype of {what} is {found.got}; it should be {found.want}.",
        "device": f"{what} is on the device {found.got}; it should be on {found.want}.",
        "nan": f"there are NaNs in {what}.",
        "value": f"{what} has the right form, but not the right numbers."
        if found.place
        else f"{what} isn't right.",
    }[found.kind]


def figures(exercise: Task, found: Difference, place: int) -> str:
    """Return the first wrong number, the right one and the inputs, or "" if that says nothing.

    An answer that is a value and no function isn't given away.
    """
    if found.kind not in ("value", "nan") or not found.got or found.fact == "answer":
        return ""
    if {found.got, found.want} == {"True", "False"} and found.fact not in ("result", "answer"):
        return ""  # the sentence says what isn't so
    if found.want.isalpha() and found.want not in ("True", "False", "None", "inf", "nan"):
        return ""  # the observer found a word for the number, such as right or always
    inputs = exercise.case(place).described()
    if found.fact.startswith("the result for "):  # the observer has several inputs in a case
        inputs = found.fact.removeprefix("the result for ")
    given = f"With {inputs}, you" if inputs else "You"
    return f"{given} get {found.got}{found.place}, and {found.want} is right."


def complaint(error: Any) -> str:
    """Format an error, including whether the learner's code raised it, or called what did."""
    if error.get("type") == "EndlessError":
        return (
            "your code was still computing after half a minute, so the check has stopped it. Does "
            "one of your loops never end?"
        )
    what = f"{error.get('type') or 'an exception without a name'}: {error.get('message')}"
    if error.get("own"):
        return f"your code raised {what}"
    return (
        f"your code cannot be used as the task says ({what}). "
        "Does it take those arguments, and does every branch return a value?"
    )


def sentence(said: str) -> str:
    """Begin a diagnosis with a capital, unless it begins with a name such as `m` or `F.softmax`."""
    word = said.split(" ")[0].rstrip(",;:")
    is_name = len(word) < 2 or not word.replace("'", "").isalpha() or word in NAMES
    return said if is_name and word != "a" else said[:1].upper() + said[1:]
