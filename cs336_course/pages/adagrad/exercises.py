"""Exercises of the page on AdaGrad: runs in a ravine, and the betas that can't take a shock."""

from cs336_course.engine import Case, Exercise
from cs336_course.engine.records import Record
from cs336_course.shared.named_letters import named_letters, says

NOTEBOOK = "05_adagrad"

# in_the_ravine

SETTINGS = [(0.81, 0.02), (0.81, 0.04), (0.81, 0.005), (0.25, 0.02), (0.64, 0.02), (0.9801, 0.02)]
WAYS = ("swings", "crawls", "explodes")


def way(mu: float, lr: float) -> str:
    """Return what momentum does in a ravine whose curvatures reach from 1 to 100."""
    if lr * 100 > 2 * (1 + mu):
        return "explodes"
    return "crawls" if lr < (1 - mu**0.5) ** 2 else "swings"


RUNS = {f"mu {mu}, lr {lr}": way(mu, lr) for mu, lr in SETTINGS}
WHY = {
    "swings": "compare lr times 1 and lr times 100 with the two ends of its window.",
    "crawls": "is lr times 1 below the lower end of its window? A small lr alone isn't enough.",
    "explodes": "is lr times 100 above 2 (1 + mu)? Above its window it may still be slow.",
}


def why_not_that_way(run: str, said: str) -> Record:
    """Return what to ask about a run that is judged wrongly."""
    return {} if said == RUNS[run] else {"said": WHY[said]}


in_the_ravine = Exercise(
    NOTEBOOK,
    "in_the_ravine",
    lambda: map(Case, RUNS),
    observe=named_letters(WAYS, why_not_that_way),
    answers=("answer",),
    is_quiz=True,
    smaller="with mu = 0.25, the window is 0.25 to 2.25. Is lr times 1 in it, and lr times 100?",
    says=says(WAYS) | {"form": "keep the dictionary, and replace each `...` in it."},
    wrong={},
)


# shocks

PAIRS = [(0.9, 0.85), (0.5, 0.3), (0.8, 0.6), (0.95, 0.85), (0.99, 0.95), (0.99, 0.999)]
FATES = {
    f"{beta1} and {beta2}": "cancel" if beta1 > beta2**0.5 else "keep" for beta1, beta2 in PAIRS
}


def why_not_that_fate(pair: str, fate: str) -> Record:
    """Return what to ask about a pair that is judged wrongly."""
    beta1, beta2 = pair.split(" and ")
    said = f"m is multiplied by {beta1} a step. By how much is the root of v, if v is by {beta2}?"
    return {} if fate == FATES[pair] else {"said": said}


shocks = Exercise(
    NOTEBOOK,
    "shocks",
    lambda: map(Case, FATES),
    observe=named_letters(("keep", "cancel"), why_not_that_fate),
    answers=("answer",),
    is_quiz=True,
    smaller="m fades by 0.5 a step, and v by 0.16. What happens to m / sqrt(v)?",
    says=says(("keep", "cancel")) | {"form": "keep the dictionary, and replace each `...` in it."},
    wrong={},
)
