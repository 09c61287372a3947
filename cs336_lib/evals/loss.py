"""Measure validation loss, perplexity and bits per byte on a fixed set of tokens."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cs336_lib.data.loader import Loader
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.io import Bar
from cs336_lib.system.processes import World


@dataclass(frozen=True)
class Score:
    """Result of an evaluation.

    The loss includes <|endoftext|> tokens, but the number of bytes doesn't, because they aren't
    text.

    Attributes:
        loss: Mean loss in nats per token.
        tokens: Number of predicted tokens.
        bytes: Number of bytes in the decoded tokens.
    """

    loss: float
    tokens: int
    bytes: int

    @property
    def perplexity(self) -> float:
        """The perplexity, exp(loss)."""
        return torch.tensor(self.loss, dtype=torch.float64).exp().item()  # inf on overflow

    @property
    def bits_per_byte(self) -> float:
        """The total loss in bits per byte of text, for comparing models with any tokenizer."""
        bits = self.loss * self.tokens / math.log(2)
        return bits / self.bytes if self.bytes else math.inf  # 0 bytes if all is <|endoftext|>

    def __str__(self) -> str:
        return (
            f"tokens         {self.tokens:,} ({self.bytes:,} bytes)\n"
            f"loss           {self.loss:.4f} nats per token\n"
            f"perplexity     {self.perplexity:.2f}\n"
            f"bits per byte  {self.bits_per_byte:.4f}"
        )


@torch.no_grad()
def validation_loss(
    model: nn.Module,
    loader: Loader,
    tokens: int,
    *,
    micro_batch_size: int,
    device: torch.device,
    autocast: AbstractContextManager,
    world: World | None = None,
) -> float:
    """Return the mean loss in nats per token over fixed windows of the validation data.

    Every call uses the same windows, which are split between the ranks. Evaluation doesn't draw
    random numbers, so it doesn't affect training.

    Args:
        model: A GPT that returns the loss for inputs and targets.
        loader: The validation data.
        tokens: Number of tokens to predict, rounded down to complete windows (at least one).
        micro_batch_size: Windows per forward pass.
        device: Device of the model.
        autocast: Context that sets the precision of the forward pass.
        world: The ranks that split the windows, by default a single process.
    """
    world = world or World()
    starts = loader.validation_starts(tokens)
    was_training = model.training
    model.eval()
    total = 0.0
    pieces = world.pieces(len(starts), micro_batch_size)
    for first, size in Bar(pieces, desc="validation", disable=not world.is_main):
        x, y = (t.to(device) for t in loader.windows(starts[first : first + max(size, 1)]))
        with autocast:
            total += model(x, y).item() * size
    model.train(was_training)
    return world.sum(total, device=device)[0] / len(starts)


def score(
    model: nn.Module, loader: Loader, tokenizer: Tokenizer, tokens: int, **settings: Any
) -> Score:
    """Measure the validation loss, and count the bytes of the target tokens.

    `tokenizer` decodes the targets. See `validation_loss` for the other arguments.
    """
    loss = validation_loss(model, loader, tokens, **settings)
    return scored(loss, loader, tokenizer, tokens)


def scored(loss: float, loader: Loader, tokenizer: Tokenizer, tokens: int) -> Score:
    """Count the bytes of the target tokens that a validation loss was measured on."""
    starts = loader.validation_starts(tokens)
    size = 0
    for start in starts:
        targets = loader.windows([start])[1][0].tolist()
        text = [token for token in targets if token != tokenizer.end_of_text]
        size += len(tokenizer.decode_bytes(text))
    return Score(loss, len(starts) * loader.block_size, size)
