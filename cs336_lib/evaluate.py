"""How good a model is: its mean loss over the same tokens each time, also in bits per byte."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import nn
from tqdm import tqdm

from cs336_lib.config import require
from cs336_lib.data import Loader
from cs336_lib.distributed import World
from cs336_lib.tokenizer import Tokenizer


@dataclass(frozen=True)
class Score:
    """Loss in nats per token over `tokens` tokens that are `bytes` bytes of text."""

    loss: float
    tokens: int
    bytes: int

    @property
    def perplexity(self) -> float:
        """Between how many equally likely tokens the model hesitates, on average."""
        return math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """Comparable between tokenizers, which the loss per token is not."""
        return self.loss * self.tokens / math.log(2) / self.bytes


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
    """Mean loss in nats per token over fixed windows of the validation data.

    The windows are the same each time and shared out between the processes; no randomness is used,
    so training goes on as if nothing had happened.
    """
    world = world or World()
    starts = loader.validation_starts(tokens)
    was_training = model.training
    model.eval()
    total = 0.0
    pieces = world.pieces(len(starts), micro_batch_size)
    # Only where it takes longer than a second is there something to see.
    for first, size in tqdm(
        pieces, desc="validation", leave=False, delay=1, disable=not world.is_main
    ):
        x, y = (t.to(device) for t in loader.windows(starts[first : first + max(size, 1)]))
        with autocast:
            total += model(x, y).item() * size
    model.train(was_training)
    return world.sum(total, device=device)[0] / len(starts)


def score(
    model: nn.Module,
    loader: Loader,
    tokenizer: Tokenizer,
    tokens: int,
    *,
    micro_batch_size: int,
    device: torch.device,
    autocast: AbstractContextManager,
) -> Score:
    """The validation loss, with the number of bytes that its target tokens stand for.

    Raises:
        ValueError: there are no tokens to score, or no sequences in a forward pass.
    """
    require(tokens >= 1, f"eval_tokens is {tokens}; at least 1 needed")
    require(micro_batch_size >= 1, f"micro_batch_size is {micro_batch_size}; at least 1 needed")
    loss = validation_loss(
        model,
        loader,
        tokens,
        micro_batch_size=micro_batch_size,
        device=device,
        autocast=autocast,
    )
    starts = loader.validation_starts(tokens)
    targets = (loader.windows([start])[1][0].tolist() for start in starts)
    size = sum(len(tokenizer.decode_bytes(ids)) for ids in targets)
    return Score(loss, len(starts) * loader.block_size, size)
