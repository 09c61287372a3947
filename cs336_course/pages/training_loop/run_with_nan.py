"""Simulate a training run that fails with NaN after 9,000 normal steps.

The model is tiny, so the run takes only seconds, but large models can fail in the same way. The
matmuls run in fp16, and the loss is scaled by a fixed factor. One window of the corpus is planted.
"""

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Int
from torch import Tensor, nn

from cs336_lib.data.tokenizer import CharTokenizer

LENGTH, BAD_STEP, SAVED_STEP, LAST_STEP = 32, 9_000, 8_960, 10_000
WIDTHS = (16, 32)

Finish = Callable[[torch.optim.Optimizer, float, float], float]
"""Finish a step: take the optimizer, the loss scale and the clipping limit, and return the scale of
the next step. The gradients are still multiplied by the scale."""


@dataclass(frozen=True)
class Config:
    """Settings of the run. A replay changes one of them."""

    rate: float = 0.1
    momentum: float = 0.9
    clip: float = math.inf
    dtype: torch.dtype = torch.float16
    scale: float = 2.0**16
    skip: bool = False
    """Whether a step is skipped if its gradient isn't finite."""
    windows: int = 1
    """Windows per step, each in a micro-batch of its own."""
    page: bool = True
    """Whether step 9,000 reads the planted window, or the text that stood there."""
    autocast: bool = True
    """Whether matmuls run in `dtype`, or in fp32 without a loss scale."""
    seed: int = 0
    """Seed of the initial weights. It also shifts the order of the windows."""


CONFIG = Config()


@dataclass(frozen=True)
class Log:
    """Metrics of each step, and the last checkpoint of the run."""

    losses: np.ndarray
    grad_norms: np.ndarray
    scales: np.ndarray
    checkpoint: dict[str, Any]


class Pages:
    """Training data in which the window for step 9,000 doesn't contain natural language."""

    def __init__(self, text: str):
        self.tokenizer = CharTokenizer(text)
        self.vocab = self.tokenizer.vocab_size
        self.text = torch.from_numpy(self.tokenizer.encode(text).astype(np.int64))
        generator = torch.Generator().manual_seed(0)
        self.starts = torch.randint(len(self.text) - LENGTH, (LAST_STEP,), generator=generator)
        self.ids = self.text.clone()
        bad = self.starts[BAD_STEP]
        self.ids[bad : bad + LENGTH + 1] = self.tokenizer.encode("!")[0]

    def batch(
        self, step: int, page: bool = True
    ) -> tuple[Int[Tensor, "length"], Int[Tensor, "length"]]:
        """Return the inputs and targets of a step. The batch is one window of 32 tokens."""
        start, ids = self.starts[step], self.ids if page else self.text
        return ids[start : start + LENGTH], ids[start + 1 : start + LENGTH + 1]


def make_model(vocab: int, seed: int = 0) -> nn.Sequential:
    """Create a model that predicts the next character from the current one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding, hidden = WIDTHS
        return nn.Sequential(
            nn.Embedding(vocab, embedding),
            nn.Linear(embedding, hidden),
            nn.GELU(),
            nn.Linear(hidden, vocab),
        )


def make_optimizer(model: nn.Module, config: Config = CONFIG) -> torch.optim.Optimizer:
    """Create SGD with momentum."""
    return torch.optim.SGD(
        model.parameters(), lr=config.rate, momentum=config.momentum, foreach=True
    )


def restored(
    vocab: int, checkpoint: Mapping[str, Any], config: Config = CONFIG
) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return the model and the optimizer of a checkpoint, which share no memory with it."""
    model = make_model(vocab)
    optimizer = make_optimizer(model, config)
    model.load_state_dict(checkpoint["model"])
    # Without a copy, the optimizer would go on in the checkpoint's own momentum buffers
    optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
    optimizer.param_groups[0]["lr"] = config.rate
    return model, optimizer


def backward(model: nn.Module, pages: Pages, step: int, config: Config, scale: float) -> Tensor:
    """Accumulate the scaled gradient of a step, and return its mean loss.

    Only the first micro-batch is the window of this step. The others belong to earlier steps.
    """
    total = torch.zeros(())
    for number in range(config.windows):
        place = step - 97 * number + 1_000 * config.seed
        x, y = pages.batch(place % LAST_STEP, config.page)
        with torch.autocast("cpu", dtype=config.dtype, enabled=config.autocast):
            loss = F.cross_entropy(model(x), y)
        (loss * (scale / config.windows)).backward()
        total += loss.detach() / config.windows
    return total


def finish_as_configured(config: Config) -> Finish:
    """Return how the run finishes a step. By default, it takes any step, and keeps the scale."""

    def finish(optimizer: torch.optim.Optimizer, scale: float, limit: float) -> float:
        parameters = optimizer.param_groups[0]["params"]
        gradients = [p.grad for p in parameters]
        torch._foreach_div_(gradients, scale)
        is_good = True
        if limit < math.inf or config.skip:
            norm = nn.utils.clip_grad_norm_(parameters, limit)
            is_good = bool(norm.isfinite()) or not config.skip
        if is_good:
            optimizer.step()
        optimizer.zero_grad()
        return scale

    return finish


def finish_and_adapt(optimizer: torch.optim.Optimizer, scale: float, limit: float) -> float:
    """Unscale, clip, and step if the gradient is finite; otherwise halve the scale."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for p in parameters:
        if p.grad is not None:
            p.grad /= scale
    norm = nn.utils.clip_grad_norm_(parameters, limit)
    if norm.isfinite():
        optimizer.step()
    else:
        scale /= 2
    optimizer.zero_grad()
    return scale


def train(
    pages: Pages,
    steps: int = BAD_STEP + 20,
    config: Config = CONFIG,
    checkpoint: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
    save_at: int | None = None,
) -> Log:
    """Train on the CPU until `steps`, and return the log from the first step or the checkpoint on.

    Args:
        pages: The training data.
        steps: Number of the step before which the run ends.
        config: Settings.
        checkpoint: A log's checkpoint to resume from.
        finish: What follows after backward, instead of what the settings say.
        save_at: The step before which a new run saves its checkpoint, by default 8,960.
    """
    save_at = SAVED_STEP if save_at is None else save_at
    finish = finish or finish_as_configured(config)
    if checkpoint is None:
        model, first = make_model(pages.vocab, config.seed), 0
        optimizer, saved = make_optimizer(model, config), {}
    else:
        model, optimizer = restored(pages.vocab, checkpoint, config)
        first, saved = checkpoint["step"], dict(checkpoint)
    scale = config.scale if config.autocast else 1.0
    losses, norms, scales = [], [], []
    for step in range(first, steps):
        if step == save_at and checkpoint is None:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saved = copy.deepcopy(saved) | {"step": step}
        losses.append(backward(model, pages, step, config, scale))
        gradients = [p.grad for p in model.parameters()]
        norms.append(torch.stack(torch._foreach_norm(gradients)).norm() / scale)
        scales.append(scale)
        scale = finish(optimizer, scale, config.clip)
    return Log(torch.stack(losses).numpy(), torch.stack(norms).numpy(), np.array(scales), saved)
