"""A small run that can be resumed, and a data set that counts its reads."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool
from torch import Tensor, nn
from torch.utils.data import Dataset

from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer

BATCH, LENGTH = 8, 32


class SmallRun:
    """Small training run on the CPU with dropout, AdamW, a schedule and random batches.

    Args:
        tokens: Token ids of the training data.
        vocab: Vocabulary size.
        seed: Seed for the initial weights, the batches and dropout.
    """

    def __init__(self, tokens: np.ndarray, vocab: int, seed: int):
        torch.manual_seed(seed)
        layers = nn.Embedding(vocab, 32), nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1)
        self.model = nn.Sequential(*layers, nn.Linear(128, vocab))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1, (step + 1) / 8) * (1 - step / 50)
        )
        number = int(np.random.SeedSequence((seed, 1)).generate_state(1)[0])
        self.data = torch.Generator().manual_seed(number)  # decides the batches
        self.tokens = tokens
        self.step = 0

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of the next batch."""
        starts = torch.randint(len(self.tokens) - LENGTH, (BATCH,), generator=self.data)
        rows = np.stack([self.tokens[start : start + LENGTH + 1] for start in starts.tolist()])
        both = torch.from_numpy(rows.astype(np.int64))
        return both[:, :-1], both[:, 1:]

    def loss(self) -> Tensor:
        """Return the loss of the next batch."""
        x, y = self.batch()
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def until(self, last: int) -> list[float]:
        """Train until step `last`, and return the loss of every step."""
        losses = []
        while self.step < last:
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.step += 1
            losses.append(loss.item())
        return losses


@torch.random.fork_rng(devices=[])
def looks_fine(
    stop: int, end: int, weights: int
) -> tuple[list[float], list[float], Bool[np.ndarray, "bits weights"]]:
    """Train a run, and again with a resume that lacks the optimizer's state.

    Returns:
        The losses of the run that never stopped, those of the other run after the resume, and
        which bits of the first weights differ at the end.
    """
    text = shakespeare()
    tokenizer = CharTokenizer(text)
    runs = [SmallRun(tokenizer.encode(text), tokenizer.vocab_size, seed=0) for _ in range(2)]
    straight, resumed = runs
    torch.manual_seed(1)  # of dropout
    losses = straight.until(end)
    torch.manual_seed(1)
    resumed.until(stop)
    resumed.optimizer.state.clear()
    continued = resumed.until(end)
    one, other = (run.model[0].weight.detach().flatten().view(torch.int32) for run in runs)
    changed = (one ^ other)[:weights].numpy()
    return losses, continued, (changed >> np.arange(31, -1, -1)[:, None]) & 1 == 1


def adamw_step(gradients: Sequence[float]) -> float:
    """Return the size of AdamW's last step on one weight with these gradients and a rate of 1."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.AdamW([weight], lr=1.0, weight_decay=0.0)
    before = 0.0
    for gradient in gradients:
        before = weight.item()
        weight.grad = torch.tensor([gradient])
        optimizer.step()
    return abs(weight.item() - before)


class TokenWindows(Dataset):
    """All windows of a file of uint16 tokens, in order, each with the process that read it.

    A worker that is started with `spawn` (macOS, Windows) imports this class by name. It gets only
    the path, because pickling a memmap would copy the entire file.
    """

    def __init__(self, path: Path, block_size: int):
        self.path, self.block_size = path, block_size
        self.windows = (path.stat().st_size // 2 - 1) // block_size
        self.reads = 0  # counted in this process's copy of the dataset

    def __len__(self) -> int:
        return self.windows

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return the inputs `x`, the targets `y`, and the ID of the process that reads them."""
        self.reads += 1
        tokens = np.memmap(self.path, dtype=np.uint16, mode="r")
        start = index * self.block_size
        row = torch.from_numpy(tokens[start : start + self.block_size + 1].astype(np.int64))
        return {"x": row[:-1], "y": row[1:], "pid": os.getpid()}
