"""Simulate a training run that fails with NaN after 9,000 normal steps.

The model is tiny, so the run takes only seconds, but large models can fail in the same way. The
matmuls run in fp16, and the loss is scaled by a fixed factor.
"""

import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_lib.data.tokenizer import CharTokenizer

LENGTH, LOSS_SCALE, RATE, MOMENTUM = 32, 2.0**16, 0.1, 0.9
BAD_STEP, SAVED_STEP = 9_000, 8_960


@dataclass(frozen=True)
class Log:
    """Metrics of each step, and the last checkpoint of the run."""

    losses: np.ndarray
    grad_norms: np.ndarray
    checkpoint: dict[str, Any]


class Pages:
    """Training data in which the window for step 9,000 doesn't contain natural language."""

    def __init__(self, text: str):
        self.tokenizer = CharTokenizer(text)
        self.vocab = self.tokenizer.vocab_size
        ids = torch.from_numpy(self.tokenizer.encode(text).astype(np.int64))
        generator = torch.Generator().manual_seed(0)
        self.starts = torch.randint(len(ids) - LENGTH, (BAD_STEP + 100,), generator=generator)
        self.ids = ids
        bad = self.starts[BAD_STEP]
        self.ids[bad : bad + LENGTH + 1] = self.tokenizer.encode("!")[0]

    def batch(self, step: int) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a step. The batch is one window of 32 tokens."""
        start = self.starts[step]
        return self.ids[start : start + LENGTH], self.ids[start + 1 : start + LENGTH + 1]


def make_model(vocab: int) -> nn.Sequential:
    """Create a model that predicts the next character from the current one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(
            nn.Embedding(vocab, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, vocab)
        )


def make_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    """Create SGD with momentum."""
    return torch.optim.SGD(model.parameters(), lr=RATE, momentum=MOMENTUM, foreach=True)


def train(pages: Pages, steps: int = BAD_STEP + 20) -> Log:
    """Train on the CPU with fp16 autocast and a fixed loss scale, and return the log."""
    model = make_model(pages.vocab)
    optimizer, saved = make_optimizer(model), {}
    parameters = list(model.parameters())
    losses, norms = [], []
    for step in range(steps):
        if step == SAVED_STEP:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saved = copy.deepcopy(saved)
        x, y = pages.batch(step)
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x), y)
        (loss * LOSS_SCALE).backward()
        gradients = [p.grad for p in parameters]
        torch._foreach_div_(gradients, LOSS_SCALE)
        norms.append(torch.stack(torch._foreach_norm(gradients)).norm())
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return Log(torch.stack(losses).numpy(), torch.stack(norms).numpy(), saved)
