"""Measure validation loss, perplexity and bits per byte on a fixed set of tokens."""

import math
from dataclasses import dataclass

import torch
from torch import nn

from cs336_lib.data.loader import Loader
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.io import Bar
from cs336_lib.system.processes import Place


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
    micro_batch_size: int,
    place: Place,
) -> float:
    """Return the mean loss in nats per token over fixed windows of the validation data.

    Every call uses the same windows, which are split between the ranks. Evaluation doesn't draw
    random numbers, so it doesn't affect training.

    Args:
        model: A GPT that returns the loss for inputs and targets.
        loader: The validation data.
        tokens: Number of tokens to predict, rounded down to complete windows (at least one).
        micro_batch_size: Windows per forward pass.
        place: Device and precision of the model, and the ranks that split the windows.
    """
    world = place.world
    starts = loader.validation_starts(tokens)
    was_training = model.training
    model.eval()
    total = 0.0
    pieces = world.pieces(len(starts), micro_batch_size)
    for first, size in Bar(pieces, desc="validation", disable=not world.is_main):
        x, y = (t.to(place.device) for t in loader.windows(starts[first : first + max(size, 1)]))
        with place.autocast:
            total += model(x, y).item() * size
    model.train(was_training)
    return world.sum(total, device=place.device)[0] / len(starts)


def score(
    model: nn.Module,
    loader: Loader,
    tokenizer: Tokenizer,
    tokens: int,
    micro_batch_size: int,
    place: Place,
) -> Score:
    """Measure the validation loss, and count the bytes of the target tokens.

    `tokenizer` decodes the targets. See `validation_loss` for the other arguments.
    """
    loss = validation_loss(model, loader, tokens, micro_batch_size, place)
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
