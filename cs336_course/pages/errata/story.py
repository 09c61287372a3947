"""Small runs that show what it costs to believe a claim about a file, or about a sweep."""

import io
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from cs336_course.shared.letter_gpt import CONTEXT, create
from cs336_lib.config import TrainConfig
from cs336_lib.model import GPT
from cs336_lib.training.loop import train as library_train

# A run of four steps on the shipped plays
TINY: dict[str, Any] = {
    **{"n_layer": 1, "n_head": 2, "n_embd": 16, "block_size": 16, "tokenizer": "char"},
    **{"max_steps": 4, "warmup_steps": 1, "batch_tokens": 64, "micro_batch_size": 4},
    **{"eval_every": 0, "eval_tokens": 64, "checkpoint_every": 0, "device": "cpu"},
    **{"precision": "fp32", "compile": "off"},
}

# Mean losses of 20 steps each, as `train_reader` logs them on the two files of claim 5.
READERS = {
    "letters": (
        *(3.30, 2.89, 2.70, 2.59, 2.53, 2.48, 2.50, 2.40, 2.41, 2.40),
        *(2.40, 2.38, 2.39, 2.35, 2.35),
    ),
    "misread letters": (
        *(1.75, 1.34, 1.30, 1.21, 0.98, 0.92, 0.91, 0.89, 0.87, 0.88),
        *(0.87, 0.86, 0.87, 0.86, 0.86),
    ),
}


def draw_windows(
    ids: Int[Tensor, " tokens"], rows: int, generator: Generator
) -> tuple[Int[Tensor, "rows context_and_1"], Int[Tensor, "rows context_and_1"]]:
    """Draw windows of tokens, and return their positions and the tokens."""
    starts = torch.randint(len(ids) - CONTEXT - 1, (rows, 1), generator=generator)
    positions = starts + torch.arange(CONTEXT + 1)
    return positions, ids[positions]


def train_reader(ids: Int[Tensor, " tokens"], steps: int = 300) -> tuple[GPT, list[float]]:
    """Train a small GPT on these tokens, and return it with its training losses."""
    model, generator = create(0), Generator().manual_seed(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(steps):
        _, window = draw_windows(ids, 16, generator)
        loss = model(window[:, :-1], window[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def loss_of_each_fourth(model: GPT, ids: Int[Tensor, " tokens"]) -> tuple[float, float]:
    """Return the mean loss on the tokens 0, 4, 8, ... of `ids`, and that on all others.

    A window's first four targets don't count, because there the model can't know which is which.
    """
    positions, window = draw_windows(ids, 1000, Generator().manual_seed(1))
    logits = model(window[:, :-1])
    losses = F.cross_entropy(logits.mT, window[:, 1:], reduction="none")[:, 4:]
    fourth = positions[:, 5:] % 4 == 0
    return losses[fourth].mean().item(), losses[~fourth].mean().item()


# Two training functions, of which one doesn't listen to its arguments


def train(num_layers: int, lr: float) -> float:
    """Train `num_layers` layers at the rate `lr`, and return the last loss."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(2)]
    model = nn.Sequential(*layers, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return last_loss(model, optimizer)


def listening_train(num_layers: int, lr: float) -> float:
    """Do what `train` promises."""
    torch.manual_seed(0)
    layers = [nn.Linear(4, 4) for _ in range(num_layers)]
    model = nn.Sequential(*layers, nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    return last_loss(model, optimizer)


def last_loss(model: nn.Module, optimizer: torch.optim.Optimizer) -> float:
    """Fit the sum of four numbers in 20 steps, and return the last loss."""
    x = torch.randn(64, 4)
    for _ in range(20):
        loss = (model(x) - x.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def library_run(**settings: Any) -> list[dict[str, Any]]:
    """Train by the library's loop without a word, and return what it logs at each step."""
    said = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, redirect_stdout(said), redirect_stderr(said):
        return library_train(TrainConfig(run_dir=folder, **TINY | settings)).metrics
