"""The training script of the bug hunt, as it should be. Each bug replaces one of its lines.

It trains a tiny transformer on the plays for 96 steps of four micro-batches. After every 8 steps it
evaluates, saves a checkpoint, stops, and resumes from the checkpoint as a new process would.
"""

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

STEPS, WARMUP, SAVED_EVERY = 96, 8, 8
PEAK, LOWEST, DECAY, BETAS = 1e-2, 1e-3, 0.3, (0.5, 0.95)
PIECES, WINDOWS, LENGTH = 4, 16, 32  # micro-batches and windows per step, tokens per window
WIDTH, HEADS, DROPOUT, STD = 32, 2, 0.2, 0.1
DATA, MASKS = 0, 1  # what a seed is for


def seed_of(seed: int, purpose: int, step: int) -> int:
    """Return a seed that differs for each run, purpose and step."""
    return int(np.random.SeedSequence((seed, purpose, step)).generate_state(1)[0])


def rate(step: int) -> float:
    """Return the learning rate of a step: a linear warm-up, then half a cosine."""
    if step < WARMUP:
        return PEAK * (step + 1) / WARMUP
    progress = min(1.0, (step - WARMUP + 1) / (STEPS - WARMUP))
    return LOWEST + (PEAK - LOWEST) * (1 + math.cos(math.pi * progress)) / 2


class Model(nn.Module):
    """A transformer with one block, without biases."""

    def __init__(self, vocab: int):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH, bias=False) for _ in range(3))
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.merge = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)
        self.dropout = nn.Dropout(DROPOUT)
        for matrix in (p for p in self.parameters() if p.dim() > 1):
            nn.init.normal_(matrix, std=STD)

    def attention(self, x: Tensor) -> Tensor:
        """Mix each position with the positions before it."""
        q, k, v = self.qkv(x).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.merge(mixed.transpose(1, 2).flatten(2))

    def forward(self, ids: Tensor) -> Tensor:
        """Return the logits of the next token at each position."""
        x = self.tokens(ids) + self.positions.weight[: ids.shape[1]]
        x = x + self.dropout(self.attention(self.norms[0](x)))
        x = x + self.dropout(self.down(F.gelu(self.up(self.norms[1](x)))))
        return self.norms[2](x) @ self.tokens.weight.T


def make_optimizer(model: Model) -> torch.optim.Optimizer:
    """Create AdamW with weight decay for the matrices only."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    gains = [p for p in model.parameters() if p.dim() == 1]
    groups = [
        {"params": matrices, "weight_decay": DECAY},
        {"params": gains, "weight_decay": 0.0},
    ]
    return torch.optim.AdamW(groups, betas=BETAS)


class Script:
    """A run of the script. The text is split into a training and a held-out part."""

    def __init__(self, text: Tensor, vocab: int, seed: int):
        self.train_text, self.held_out = text[:-20_000], text[-20_000:]
        self.vocab, self.seed = vocab, seed
        torch.manual_seed(seed)
        self.model = Model(vocab)
        self.optimizer = make_optimizer(self.model)
        self.scheduled = 0  # how often the schedule has advanced
        self.batches = 0  # how many batches have been read

    def windows(self, text: Tensor, count: int, seed: int) -> tuple[Tensor, Tensor]:
        """Return random windows of a text, and the token that follows each of their tokens."""
        generator = torch.Generator().manual_seed(seed)
        starts = torch.randint(len(text) - LENGTH, (count,), generator=generator)
        rows = torch.stack([text[start : start + LENGTH + 1] for start in starts])
        return rows[:, :-1], rows[:, 1:]

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the batch of a step."""
        return self.windows(self.train_text, WINDOWS, seed_of(self.seed, DATA, self.batches))

    def loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy."""
        return F.cross_entropy(self.model(inputs).flatten(0, 1), targets.flatten())

    def step(self, step: int) -> tuple[float, float, float]:
        """Make a training step, and return its loss, gradient norm and learning rate."""
        torch.manual_seed(seed_of(self.seed, MASKS, step))
        for group in self.optimizer.param_groups:
            group["lr"] = rate(self.scheduled)
        x, y = self.batch()
        total = 0.0
        for inputs, targets in zip(x.chunk(PIECES), y.chunk(PIECES), strict=True):
            loss = self.loss(inputs, targets)
            (loss / PIECES).backward()
            total += loss.item() / PIECES
        norm = nn.utils.get_total_norm([p.grad for p in self.model.parameters()]).item()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.batches += 1
        self.scheduled += 1
        return total, norm, self.optimizer.param_groups[0]["lr"]

    @torch.no_grad()
    def evaluate(self) -> float:
        """Return the loss on 32 held-out windows, which are the same in each evaluation."""
        self.model.eval()
        loss = self.loss(*self.windows(self.held_out, 32, seed=0)).item()
        self.model.train()
        return loss

    def checkpoint(self) -> dict:
        """Return what a resumed run needs."""
        state = {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}
        return copy.deepcopy(state) | {"batches": self.batches, "scheduled": self.scheduled}

    def resume(self, saved: dict) -> None:
        """Begin as a new process does, and apply a checkpoint."""
        self.model = Model(self.vocab)
        self.optimizer = make_optimizer(self.model)
        self.model.load_state_dict(saved["model"])
        self.optimizer.load_state_dict(copy.deepcopy(saved["optimizer"]))
        self.batches = saved["batches"]
        self.scheduled = saved["scheduled"]
