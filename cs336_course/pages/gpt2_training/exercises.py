"""Exercises of page 09: the backward pass of a batch, piece by piece, and the loop."""

import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache, partial
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, sizes
from cs336_course.engine.observe import is_learners
from cs336_course.engine.records import Record, plain
from cs336_course.engine.state import seeded
from cs336_course.engine.training import (
    Autocast,
    Passes,
    activations,
    elsewhere,
    flat_gradient,
    flat_weights,
    one_number,
    watched_forward,
)
from cs336_course.shared import given_parts
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.model import GPT

NOTEBOOK = "09_gpt2_training"
ELSEWHERE = "a model on another device"


def little_gpt(seed: int, device: str = "cpu") -> GPT:
    """Make a GPT of odd sizes with large weights, so that the losses of windows differ."""
    with seeded(seed), torch.device(device), torch.no_grad():
        model = GPT(GPTConfig(7, vocab_size=23, n_layer=1, n_head=3, n_embd=12))
        for p in model.parameters():
            p.mul_(6)
    return model


def draw(pieces: int, rows: int, seq: int, seed: int) -> list[tuple[Tensor, Tensor]]:
    """Draw micro-batches of little GPT's tokens."""
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.randint(23, (pieces, 2, rows, seq), generator=generator)
    return [(x.clone(), y.clone()) for x, y in drawn]


# backward


def piece_cases() -> Iterator[Case]:
    """Yield numbers of micro-batches that this process and others have, and their sizes."""
    yield Case(pieces=3, others=0, rows=2, seq=7)
    yield Case("2 of the batch's 5 pieces", pieces=2, others=3, rows=3, seq=5)
    yield Case("one piece of one token", pieces=1, others=0, rows=1, seq=1)
    for size in sizes(2, pieces=(1, 5), others=(0, 6), rows=(1, 4), seq=(2, 7)):
        yield Case("some of the batch's pieces", **vars(size))
    yield Case(ELSEWHERE, pieces=2, others=1, rows=1, seq=2)


def see_backward(answer: Any, case: Case) -> Record:
    """Observe how an answer calls the model, what it keeps, and what is left in the end."""
    pieces, others, rows, seq = case.inputs.values()
    autocast, given = Autocast(), draw(pieces, rows, seq, seed=pieces)
    if case.what == ELSEWHERE:
        model = little_gpt(0, "meta")
        call = partial(answer, model, iter(given), pieces + others, autocast)
        return {"elsewhere": elsewhere(model, call)}
    model = little_gpt(pieces)
    passes, before, kept = Passes(model, autocast), flat_weights(model), []

    def look(x: Tensor) -> None:
        passes.look(x)
        kept.append(bool(alive))

    with activations() as alive, watched_forward(model, look):
        loss = answer(model, iter(given), pieces + others, autocast)
    tokens = zip(sum(given, ()), sum(draw(pieces, rows, seq, seed=pieces), ()), strict=True)
    return {
        **passes.facts(),
        "autocast is open": autocast.is_open,
        "rows at once": any(len(x) > rows for x in passes.inputs),
        "memory": any(kept),
        "weights moved": not torch.equal(before, flat_weights(model)),
        "the gradient": flat_gradient(model),
        "the loss": one_number(loss),
        "graph": isinstance(loss, Tensor) and loss.requires_grad,
        "changed": [] if all(torch.equal(*pair) for pair in tokens) else ["pieces"],
    }


backward = Exercise(
    NOTEBOOK,
    "backward",
    piece_cases,
    observe=see_backward,
    is_part=True,
    smaller="A batch has two pieces with the mean losses 2 and 4. What does each piece contribute "
    "to the mean loss of the batch?",
    says={
        "in training mode": "the model is in evaluation mode; leave it in training mode.",
        "with gradients": "gradients are off in the forward pass, so there is none to add up.",
        "in autocast": "the forward pass must be inside `with autocast:`.",
        "autocast is open": "your code enters `autocast` and never leaves it; write "
        "`with autocast:`.",
        "rows at once": "more rows than a piece has went through the model at once. Give the model "
        "one piece at a time, because joined pieces keep all their activations.",
        "memory": "a forward pass begins while the activations of the last piece are still in "
        "memory. Go backward right after each piece, without retain_graph.",
        "weights moved": "the weights have moved; only `update` may change them.",
        "the gradient": "the gradient isn't the sum of the gradients of loss / count.",
        "the loss": "the returned loss isn't the sum of loss / count, as a tensor with one number.",
        "graph": "the returned loss still holds a graph, and with it the activations; add "
        "loss.detach().",
        "elsewhere": "on a GPU this fails, or its result is on the CPU; move x and y to the "
        "model's device, and add the losses up there.",
    },
    wrong={
        "there is no gradient; let every piece go backward, and leave zero_grad to the update.": [
            ("        loss.backward()\n", ""),
            ("    return", "    model.zero_grad()\n    return"),
        ],
        "gradient and loss are `count` times too large; divide each loss by `count`.": (
            " / count",
            "",
        ),
        "the gradient is `count` times too long; go backward from loss / count.": (
            "loss.backward()",
            "(loss * count).backward()",
        ),
        "you divide by `count` twice; once is enough.": [
            ("loss.backward()", "(loss / count).backward()"),
            ("/ count", "/ count**2"),
            ("return total", "return total / count"),
        ],
        "your process may get only some of the batch's `count` micro-batches. Divide by `count`, "
        "not by the number of pieces you got.": edits(
            ("    for x, y", "    pieces = list(pieces)\n    for x, y"),
            ("/ count", "/ len(pieces)"),
        ),
        "model(x, y) is already the mean over rows and tokens; divide by `count` alone.": [
            ("/ count", "/ len(x)"),
            ("/ count", "/ y.numel()"),
        ],
        "only the last micro-batch's gradient is left. Let .grad add up; don't zero it here.": (
            "        loss.backward()",
            "        model.zero_grad()\n        loss.backward()",
        ),
        "the earlier pieces' gradients are divided again with each piece; divide the loss.": edits(
            (" / count", ""),
            (
                "loss.backward()\n",
                "loss.backward()\n        for p in model.parameters(): p.grad /= count\n",
            ),
            ("loss.detach()", "loss.detach() / count"),
        ),
        "return a tensor. A number from .item() makes the GPU wait, and can't be summed over "
        "processes.": [
            ("return total", "return total.item()"),
            edits(
                ("torch.zeros((), device=model.lm_head.weight.device)", "0.0"),
                ("total.device", "model.lm_head.weight.device"),
                ("loss.detach()", "loss.item()"),
            ),
        ],
        "the returned loss is `count` times too large; return the sum of loss / count.": (
            "return total",
            "return total * count",
        ),
        "you return the loss of the last piece only; add up loss / count of all pieces.": [
            ("return total", "return loss.detach()"),
            ("return total", "return loss.detach() * count"),
        ],
    },
)


# train


class Tokens:
    """A stream of tokens, in which each is different."""

    ids = np.random.default_rng(23).permutation(23).astype(np.uint16)

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, start: int, count: int) -> np.ndarray:
        """Return `count` tokens from position `start` on."""
        return self.ids[start : start + count]


@cache
def page() -> dict[str, Any]:
    """Return the functions that the page gives, and the solution of `backward`."""
    names = {"Tokens": Tokens, "Tensor": Tensor, "torch": torch, "nn": nn, "np": np, "math": math}
    given = ("windows", "learning_rate", "update", "evaluate")
    return given_parts.run(NOTEBOOK, *given, names=names) | {
        "backward": backward.build(backward.solution)
    }


def of_page(name: str) -> Callable[..., Any]:
    """Return a function of the page, which is read when it's called."""
    return lambda *given: page()[name](*given)


def training_cases() -> Iterator[Case]:
    """Yield lengths of runs, when they are evaluated, and the size of a step."""

    def case(what: str, *numbers: float, **others: float) -> Case:
        names = ("max_steps", "eval_every", "first_step", "pieces", "rows")
        more = {"warmup_steps": 2, "grad_clip": 1.0} | others
        return Case(what, **dict(zip(names, numbers, strict=True)), **more)

    yield case("", 5, 2, 0, 2, 1)
    yield case("a last step that is due anyway", 4, 2, 0, 1, 2)
    yield case("evaluations in each step", 3, 1, 0, 3, 1)
    yield case("no evaluation before the last step", 3, 9, 0, 1, 1)
    yield case("a run that is resumed", 6, 3, 2, 2, 1)
    yield case("a run that is resumed where it was evaluated", 6, 3, 3, 2, 2)
    yield case("a run that is over", 4, 2, 4, 1, 1)
    yield case("no clipping", 3, 2, 0, 2, 2, grad_clip=0.0)
    yield case("another limit", 3, 2, 0, 1, 1, grad_clip=0.125, warmup_steps=0)


@contextmanager
def clock(read: Callable[[], float], wait: Callable[[], Any]) -> Iterator[None]:
    """Let a learner's code read another clock, and call `wait` when a tensor becomes a number."""

    def replaced(real: Callable[[], float]) -> Callable[[], float]:
        def seconds() -> float:
            return read() if is_learners(sys._getframe(1).f_code.co_filename) else real()

        return seconds

    def waiting(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda tensor: (wait(), real(tensor))[1]

    with ExitStack() as stack:
        for name in ("item", "tolist", "cpu", "__float__"):
            stack.enter_context(mock.patch.object(Tensor, name, waiting(getattr(Tensor, name))))
        for name in ("perf_counter", "time", "monotonic"):
            stack.enter_context(mock.patch.object(time, name, replaced(getattr(time, name))))
        yield


def see_training(answer: Any, case: Case) -> Record:
    """Observe the rows of a run, when they come, and the weights at each of them.

    A forward pass takes a second of training or 1,000 seconds of evaluation, and twice as long on
    the device, for which the next request of a number waits.
    """
    steps, every, first_step, pieces, rows, warmup, clip = case.inputs.values()
    config = TrainConfig(
        block_size=7,
        micro_batch_size=rows,
        batch_tokens=7 * rows * pieces,
        max_steps=steps,
        warmup_steps=warmup,
        eval_every=every,
        eval_tokens=14,
        learning_rate=0.25,
        min_learning_rate=0.0625,
        grad_clip=clip,
    )
    model, autocast, asked = little_gpt(6), Autocast(), []
    optimizer = torch.optim.SGD(model.parameters(), lr=9.0)
    passes = Passes(model, autocast)
    queued = seconds = 0

    def look(x: Tensor) -> None:
        nonlocal queued, seconds
        passes.look(x)
        seconds += (took := 1 if torch.is_grad_enabled() else 1000)
        queued += 2 * took

    def wait() -> None:
        nonlocal queued, seconds
        queued, seconds = 0, seconds + queued

    def batches(step: int) -> Iterator[tuple[Tensor, Tensor]]:
        asked.append(step)
        return iter(draw(pieces, rows, 7, seed=step))

    found, weights = [], []
    with seeded(0), watched_forward(model, look), clock(lambda: float(seconds), wait):
        given = (first_step,) if first_step else ()
        run = answer(model, optimizer, batches, Tokens(), config, autocast, *given)
        for row in run:
            found.append(dict(row) if isinstance(row, dict) else row)
            weights.append(flat_weights(model))
    if not all(isinstance(row, dict) for row in found):
        return {"form": sorted({type(row).__name__ for row in found})}
    names = ("step", "loss", "lr", "grad_norm", "seconds", "val_loss")
    kinds = {f"{n}: {type(v).__name__}" for row in found for n, v in row.items()}
    return {
        "form": sorted({name for row in found for name in row} - set(names)),
        "kinds": sorted(kind.replace("float64", "float") for kind in kinds),
        "step": [row.get("step") for row in found],
        "evaluated": [number for number, row in enumerate(found) if "val_loss" in row],
        "asked": asked,
        "in autocast": passes.facts()["in autocast"],
        "passes": [len(passes.inputs), sum(len(x) for x in passes.inputs)],
        "lr": [plain(row.get("lr")) for row in found],
        "loss": [one_number(row.get("loss")) for row in found],
        "grad_norm": [one_number(row.get("grad_norm")) for row in found],
        "weights": weights,
        "val_loss": [one_number(row.get("val_loss")) for row in found],
        "seconds": [row.get("seconds") for row in found],
    }


train = Exercise(
    NOTEBOOK,
    "train",
    training_cases,
    observe=see_training,
    is_part=True,
    given={
        **{name: of_page(name) for name in ("learning_rate", "backward", "update", "evaluate")},
        **{"math": math, "time": time},
    },
    tolerance=20,
    smaller="A run has max_steps = 5 and eval_every = 2. Which steps does it take, and after which "
    "of them is it evaluated? And if it resumes with first_step = 3?",
    says={
        "form": "each row must be a dict with step, loss, lr, grad_norm and seconds, and with "
        "val_loss where it's due.",
        "kinds": "a row must hold plain numbers, because it goes into a log; .item() makes one of "
        "a tensor.",
        "asked": "you ask `batches` for the wrong steps. Ask once in each step, with its number.",
        "in autocast": "pass `autocast` on to backward and evaluate.",
        "passes": "the model runs too often or too rarely. A step is one call of backward, and an "
        "evaluation is one call of evaluate.",
        "step": "the rows aren't those of the steps from first_step to max_steps - 1.",
        "lr": "a row's lr must be the rate that its step was taken with.",
        "loss": "a row's loss isn't the loss of its step's batch, which backward returns.",
        "grad_norm": "a row's grad_norm isn't the norm before clipping, which update returns.",
        "weights": "the weights at a row aren't those after its step. Yield each row as soon as "
        "its step is done, because the caller logs it, and may save the weights, before the next.",
        "evaluated": "val_loss comes at the wrong steps. Steps count from 0, so with eval_every = "
        "2 it comes after steps 1, 3 and so on, and after the last.",
        "val_loss": "a val_loss isn't what evaluate returns for the weights after the step.",
        "seconds": "seconds must be the time that the step took, without the evaluation.",
    },
    wrong={
        "you update before the gradient is there; go backward first.": edits(
            ("        loss = backward(model, batches(step), count, autocast)\n", ""),
            (
                "        row = {",
                "        loss = backward(model, batches(step), count, autocast)\n        row = {",
            ),
        ),
        "the gradient is already gone when you update; update zeroes it itself.": (
            "        norm =",
            "        model.zero_grad(set_to_none=False)\n        norm =",
        ),
        "`count` is the number of micro-batches in a step, so divide the windows of a step by "
        "micro_batch_size.": [
            ("config.batch_tokens // config.block_size // config.micro_batch_size", count)
            for count in (
                "config.batch_tokens // config.block_size",
                "config.batch_tokens // config.micro_batch_size",
                "1",
                "config.micro_batch_size",
            )
        ],
        "with grad_clip = 0, nothing should be clipped, but you clip to a length of 0.": (
            "config.grad_clip or math.inf",
            "config.grad_clip",
        ),
        "the limit of the clipping is config.grad_clip, and 0 means no clipping.": [
            ("config.grad_clip or math.inf", limit)
            for limit in ("math.inf", "1.0", "config.grad_clip or 1.0")
        ],
        "leave val_loss out where there's none.": (
            '        row["seconds"]',
            '        row["val_loss"] = None\n        row["seconds"]',
        ),
        "your function returns None; is there a `yield`?": ("        yield row", "        pass"),
        "the seconds are those since the beginning of the run; a row has its own step's, so read "
        "the clock twice in each step.": edits(
            ("begun, rate = time.perf_counter(), ", "rate = "),
            ("    for step", "    begun = time.perf_counter()\n    for step"),
        ),
        "a GPU only queues its work, and .item() waits for it; read the clock after that.": edits(
            ('        row["seconds"] = time.perf_counter() - begun', "        row |= seconds"),
            (
                "        row = {",
                '        seconds = {"seconds": time.perf_counter() - begun}\n        row = {',
            ),
        ),
        "you read the clock too late, when the step's work is done.": edits(
            ("begun, rate = time.perf_counter(), ", "rate = "),
            ("        row = {", "        begun = time.perf_counter()\n        row = {"),
        ),
    },
)
