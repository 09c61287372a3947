"""Exercises of the page on the training loop: the end of a 16-bit step, and the verdict."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, normal
from cs336_course.engine.records import Record, plain
from cs336_course.shared.named_letters import named_letters, says

NOTEBOOK = "06_training_loop"

# verdict

CHANGES = {
    "the text instead of the page": (
        "lives",
        "ordinary text had never come near the ceiling, so step 9,000 is harmless. But is a second "
        "page cured, too?",
    ),
    "clip at 1": (
        "dies",
        "which norm does the log have for step 9,000, and what does clipping make of it?",
    ),
    "a tenth of the rate": ("dies", "what is a tenth of infinity?"),
    "half the loss scale": ("dies", "multiply the page's largest gradient by 32,768."),
    "a quarter of the loss scale": ("lives", "multiply the gradient by 16,384, and then by 2."),
    "four windows a step": (
        "lives",
        "each window's loss is divided by 4 before backward. By how much is a page's gradient "
        "smaller, and that of one twice as large?",
    ),
    "bf16 instead of fp16": ("safe", "what is bf16's largest number?"),
    "skip steps with an infinite gradient": (
        "safe",
        "if a step isn't taken, which weights does the next one find, and does the size matter?",
    ),
}
FATES = ("dies", "lives", "safe")


EVIDENCE = "the largest number in the true gradient of step 9,000"
TRUE_LARGEST = 3.46
NUMBERS = {
    "number": "write the number that you found. `incident.request` gets it.",
    "near": "that isn't it. Request the gradient of this step, which is in fp32 and unscaled.",
}


def changes() -> Iterator[Case]:
    """Yield the evidence, and the changes of the run that are to be judged."""
    yield from map(Case, (EVIDENCE, *CHANGES))


def why_not_that_fate(change: str, fate: str) -> Record:
    """Return what to ask about a change that is judged wrongly."""
    right, why = CHANGES[change]
    return {} if fate == right else {"said": why}


def see_verdict(answer: Any, case: Case) -> Record:
    """Observe a fate, or the number on which all of them rest."""
    fates = named_letters(FATES, why_not_that_fate)
    if case.what != EVIDENCE or not isinstance(answer, Mapping):
        return fates(answer, case)
    if all(given is ... for given in answer.values()):
        raise NotImplementedError
    given = answer.get(EVIDENCE, ...)
    is_number = isinstance(given, int | float | np.number)
    return {
        "form": True,
        "number": is_number,
        "near": is_number and abs(float(given) - TRUE_LARGEST) < 0.1,
    }


verdict = Exercise(
    NOTEBOOK,
    "verdict",
    changes,
    observe=see_verdict,
    answers=("answer",),
    is_quiz=True,
    smaller="What is the page's largest gradient times the loss scale, and what is fp16's largest "
    "number?",
    says=says(FATES) | NUMBERS | {"form": "keep the dictionary, and replace each `...` in it."},
    wrong={},
)


# finish_step


def finishing_cases() -> Iterator[Case]:
    """Yield loss scales, clipping limits, and the true gradient norms of steps in a row."""
    yield Case(optimizer="sgd", scale=1024.0, limit=1.0, norms=[5.0, 0.5, 3.0])
    overflow = "a step whose last gradient is infinite"
    yield Case(overflow, optimizer="sgd", scale=1024.0, limit=1.0, norms=[0.5, "inf", 0.5])
    yield Case("a nan", optimizer="sgd", scale=64.0, limit=2.0, norms=[3.0, "nan", 3.0])
    yield Case(
        "AdamW, and two overflows",
        optimizer="adamw",
        scale=64.0,
        limit=0.5,
        norms=["inf"] * 2 + [2.0],
    )
    yield Case("a scale of 1", optimizer="sgd", scale=1.0, limit=1.0, norms=["inf", 2.0])
    groups = "two parameter groups, and a parameter without a gradient"
    yield Case(groups, optimizer="groups", scale=8.0, limit=1.0, norms=[4.0, "inf", 0.25])


def made_optimizer(kind: str) -> torch.optim.Optimizer:
    """Return an optimizer of three small parameters, the same in every run."""
    ps = [nn.Parameter(normal(*shape, seed=n)) for n, shape in enumerate([(3, 2), (4,), (2,)])]
    if kind == "adamw":
        return torch.optim.AdamW(ps, lr=0.1, weight_decay=0.1)
    if kind == "groups":
        groups = [{"params": ps[:1], "lr": 0.2}, {"params": [*ps[1:], nn.Parameter(torch.ones(2))]}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1)
    return torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1)


def give_gradients(parameters: list[nn.Parameter], norm: float | str, scale: float) -> None:
    """Set the scaled gradients of the first three parameters, with a true norm."""
    gradients = [normal(*p.shape, seed=20 + n) for n, p in enumerate(parameters[:3])]
    length = torch.cat([g.flatten() for g in gradients]).norm()
    size = norm if isinstance(norm, float) else 1.0
    for p, gradient in zip(parameters, gradients, strict=False):
        p.grad = gradient * (size * scale / length)
    if isinstance(norm, str):
        gradients[2][0] = float(norm)
        parameters[2].grad = gradients[2]


def see_finish(answer: Any, case: Case) -> Record:
    """Observe the weights, the optimizer's state and the scale after each step."""
    kind, scale, limit, norms = case.inputs.values()
    optimizer = made_optimizer(kind)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    record: Record = {}
    for number, norm in enumerate(norms, start=1):
        give_gradients(parameters, norm, scale)
        returned = answer(optimizer, scale, limit)
        is_number = isinstance(returned, int | float | Tensor | np.number)
        record[f"weights after step {number}"] = torch.cat(
            [p.detach().flatten() for p in parameters]
        ).clone()
        state = optimizer.state_dict()["state"]
        record[f"state after step {number}"] = plain(
            {f"{n} {key}": x for n, at in state.items() for key, x in at.items() if x is not None}
        )
        record[f"scale after step {number}"] = float(returned) if is_number else plain(returned)
        record[f"gradients after step {number}"] = [p.grad is not None for p in parameters]
        scale = float(returned) if is_number else scale
    return record


UNSCALE = "        p.grad /= scale\n"

LOOP = f"    for p in parameters:\n{UNSCALE}"

CLIP = "    norm = nn.utils.clip_grad_norm_(parameters, limit)\n"

NORM_ONLY = CLIP.replace("limit", "float('inf')")

IF_FINITE = "    if norm.isfinite():\n"

SKIP = "    else:\n        scale = scale / 2\n"

CLEAR = "    optimizer.zero_grad()\n"
finish_step = Exercise(
    NOTEBOOK,
    "finish_step",
    finishing_cases,
    observe=see_finish,
    answers=("finish",),
    is_part=True,
    smaller="A scaled gradient is (3072, 4096), the scale is 1024 and the limit is 1. Which "
    "gradient does an fp32 run take its step with?",
    says={
        f"{what} after step {number}": said
        for number in (1, 2, 3)
        for what, said in {
            "weights": "the weights aren't those of an fp32 run that is clipped at the limit.",
            "state": "the weights are right, but the optimizer's state isn't.",
            "scale": "the weights are right, but the scale that you return isn't.",
            "gradients": "every .grad must be None at the end.",
        }.items()
    },
    wrong={
        "you clip the scaled gradient. Its norm is `scale` times too large, so nearly every step "
        "is clipped, and after unscaling it is `scale` times too short.": edits(
            (LOOP, ""), (CLIP, CLIP + LOOP)
        ),
        "the gradients are still multiplied by the scale. Clipping hides it in some steps, but "
        "every step has the length of the limit.": [(LOOP, ""), ("/= scale", "*= scale")],
        "you skip a step whose norm is above the limit; clip it and take it.": (
            IF_FINITE,
            "    if norm <= limit:\n",
        ),
        "you unscale twice, so the steps are `scale` times too short.": (LOOP, LOOP + LOOP),
        "the step is taken with a gradient that isn't clipped. Do you step before you clip, or is "
        "the scale still in the limit?": [
            edits(
                (CLIP, NORM_ONLY),
                (CLEAR, "    nn.utils.clip_grad_norm_(parameters, limit)\n" + CLEAR),
            ),
            (CLIP, NORM_ONLY),
            (CLIP, CLIP.replace("limit)", "limit * scale)")),
        ],
        "you clip each number by itself, which turns the gradient; clip its norm.": (
            CLIP,
            f"{NORM_ONLY}    nn.utils.clip_grad_value_(parameters, limit)\n",
        ),
        "you clip each parameter by itself; the limit is for the norm over all of them.": (
            CLIP,
            "    norm = sum(nn.utils.clip_grad_norm_([p], limit) for p in parameters)\n",
        ),
        "a step with an infinite gradient is taken, so the weights become nan. Clipping doesn't "
        "help, because 0 times infinity is nan.": [
            (IF_FINITE, "    if True:\n"),
            edits(
                (IF_FINITE, ""),
                ("        optimizer.step()\n", "    optimizer.step()\n"),
                (SKIP, "    if not norm.isfinite():\n        scale = scale / 2\n"),
            ),
        ],
        "a nan passes your check, because nan isn't infinite; use isfinite.": (
            "norm.isfinite()",
            "not norm.isinf()",
        ),
        "you replace infinities by numbers and take the step. What stands there is not a "
        "gradient; skip the step.": (
            UNSCALE,
            f"{UNSCALE}        p.grad.nan_to_num_(0.0, 0.0, 0.0)\n",
        ),
        "you replace a nan by 0 and take the step. What stands there is not a gradient; skip the "
        "step.": (UNSCALE, f"{UNSCALE}        p.grad.nan_to_num_(0.0)\n"),
        "you step with gradients of zero instead of skipping. Momentum and weight decay still move "
        "the weights.": edits(
            (
                SKIP,
                SKIP + "        for p in parameters:\n            p.grad.zero_()\n"
                "        optimizer.step()\n",
            ),
        ),
        "you leave the gradients of a skipped step. The next backward would add to them, and "
        "infinity never goes away.": edits(
            (
                "        optimizer.step()\n",
                "        optimizer.step()\n        optimizer.zero_grad()\n",
            ),
            (f"{SKIP}{CLEAR}", SKIP),
        ),
        "every .grad must be None at the end, or the next backward adds to it.": [
            (CLEAR, ""),
            (CLEAR, "    optimizer.zero_grad(set_to_none=False)\n"),
        ],
        "after a skipped step, the scale must be halved, or the next step overflows again.": (
            SKIP,
            "",
        ),
        "you halve the scale after good steps, too.": (
            "    return scale",
            "    return scale / 2 if norm.isfinite() else scale",
        ),
        "you double the scale after an overflow; halve it.": ("scale / 2", "scale * 2"),
        "return the scale of the next step, also when no step was skipped.": [
            ("    return scale", "    return None"),
            ("    return scale", "    pass"),
        ],
        "your function fails where a parameter has no gradient; keep the list that was given.": (
            "if p.grad is not None",
            "if True",
        ),
        "you handle only the first parameter group.": (
            "groups = optimizer.param_groups",
            "groups = optimizer.param_groups[:1]",
        ),
    },
)
