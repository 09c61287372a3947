"""Small tests of a training script, which find bugs before a run has begun."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_pre_hook

from cs336_course.pages.bug_hunt.hunted_script import LENGTH, PEAK, WARMUP
from cs336_course.pages.bug_hunt.story import corpus
from cs336_lib.system import hardware

Test = Callable[[Any], bool]


def fresh(module: Any, seed: int = 0) -> Any:
    """Return a new run of a script."""
    ids, tokenizer = corpus()
    return module.Script(ids, tokenizer.vocab_size, seed)


def first_loss(module: Any) -> bool:
    """Return whether the loss before training is close to ln V, that of a uniform guess."""
    return abs(fresh(module).evaluate() - math.log(corpus()[1].vocab_size)) < 0.5


def targets(module: Any) -> bool:
    """Return whether the targets are the inputs, one letter later."""
    x, y = fresh(module).batch()
    return torch.equal(x[:, 1:], y[:, :-1])


def causality(module: Any) -> bool:
    """Return whether another last letter changes the last prediction only."""
    model = fresh(module).model.eval()
    ids = corpus()[0][:LENGTH].clone()[None]
    before = model(ids)
    ids[0, -1] += 1
    return torch.equal(before[:, :-1], model(ids)[:, :-1])


def flat_gradient(model: torch.nn.Module) -> Tensor:
    """Return the gradient of all parameters as one vector."""
    gradients = (p.grad for p in model.parameters())
    return torch.cat([g.flatten() for g in gradients if g is not None])


def gradients(module: Any) -> bool:
    """Return whether micro-batches give the gradient of the whole batch, in two steps."""
    script = fresh(module)
    script.model.dropout.p = 0.0
    given: list[Tensor] = []
    handle = register_optimizer_step_pre_hook(
        lambda *_: given.append(flat_gradient(script.model).clone())
    )
    try:
        is_right = True
        for step in range(2):
            x, y = script.batch()
            parameters = list(script.model.parameters())
            whole = torch.autograd.grad(script.loss(x, y), parameters)
            want = torch.cat([g.flatten() for g in whole])
            script.step(step)
            is_right &= torch.allclose(given[-1], want, rtol=1e-3, atol=1e-5)
        return is_right
    finally:
        handle.remove()


def rates(module: Any) -> bool:
    """Return whether the rates of the first step, and of the last one of the warm-up, are right."""
    script = fresh(module)
    used = [script.step(step)[2] for step in range(WARMUP)]
    return math.isclose(used[0], PEAK / WARMUP) and math.isclose(used[-1], PEAK)


def decay(module: Any) -> bool:
    """Return whether only matrices are decayed."""
    groups = fresh(module).optimizer.param_groups
    return all(p.dim() > 1 for group in groups if group["weight_decay"] for p in group["params"])


def resuming(module: Any) -> bool:
    """Return whether a run that is resumed after two steps makes the same next two steps."""
    straight, resumed = fresh(module), fresh(module)
    losses = []
    for script in (straight, resumed):
        for step in range(4):
            if script is resumed and step == 2:
                script.resume(script.checkpoint())
            losses.append(script.step(step)[0])
    return losses[:4] == losses[4:]


def evaluating(module: Any) -> bool:
    """Return whether two evaluations of the same weights agree."""
    script = fresh(module)
    return script.evaluate() == script.evaluate()


TESTS: dict[str, Test] = {
    "first loss near ln V": first_loss,
    "targets one letter later": targets,
    "last letter moves one prediction": causality,
    "micro-batches = whole batch, twice": gradients,
    "rates of the warm-up": rates,
    "only matrices decay": decay,
    "resumed = never stopped": resuming,
    "evaluated twice, the same": evaluating,
}


def failing(module: Any) -> list[str]:
    """Return which tests fail for a script."""
    with torch.random.fork_rng(devices=[]), hardware.threads_for(0):
        torch.manual_seed(0)
        return [name for name, test in TESTS.items() if not test(module)]


SPLIT = "self.train_text, self.held_out = text[:-20_000], text[-20_000:]"
UNSEEN: dict[str, tuple[str, str]] = {
    "sees half of the text": (
        SPLIT,
        "self.train_text, self.held_out = text[: len(text) // 2 - 10_000], text[-20_000:]",
    ),
    "trains on the held-out part, too": (
        SPLIT,
        "self.train_text, self.held_out = text, text[-20_000:]",
    ),
    "never begins in the first half": (
        "starts = torch.randint(len(text) - LENGTH,",
        "starts = torch.randint(len(text) // 2, len(text) - LENGTH,",
    ),
}
"""Bugs that none of the eight tests finds."""
