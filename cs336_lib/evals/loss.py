"""How good a model is: its mean loss over the same tokens each time, also in bits per byte."""

import math
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from cs336_lib.config import require
from cs336_lib.data.loader import Loader
from cs336_lib.data.tokenizer import CharTokenizer, Tokenizer, load_tokenizer
from cs336_lib.distributed import World
from cs336_lib.io import Bar

OVERFLOWS = 700.0  # nats; exp(710) is more than a float holds


@dataclass(frozen=True)
class Score:
    """Loss in nats per token over `tokens` tokens, and how many `bytes` of text they stand for.

    <|endoftext|> is a token to predict and no text: its loss counts, bytes it has none.
    """

    loss: float
    tokens: int
    bytes: int

    @property
    def perplexity(self) -> float:
        """Between how many equally likely tokens the model hesitates, on average."""
        return math.inf if self.loss > OVERFLOWS else math.exp(self.loss)

    @property
    def bits_per_byte(self) -> float:
        """All the loss over all the text: comparable between tokenizers, which a token's is not."""
        if self.bytes == 0:  # nothing but <|endoftext|>
            return math.inf
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
    for first, size in Bar(
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

    The loss is over all of them; <|endoftext|>, which no document contains, counts as no bytes.

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
    text = ([token for token in ids if token != tokenizer.end_of_text] for ids in targets)
    size = sum(len(tokenizer.decode_bytes(ids)) for ids in text)
    return Score(loss, len(starts) * loader.block_size, size)


def check_tokenizer(run_dir: Path, data: Tokenizer) -> None:
    """Refuse data whose ids mean something else than those that a run was trained on.

    Raises:
        ValueError: the run's tokenizer is another one, or is missing.
    """
    ours = load_tokenizer(run_dir / "tokenizer.json")
    require(
        ours == data,
        f"{run_dir} was trained with tokenizer {described(ours)}, and its data now has "
        f"{described(data)}; put back the data and the tokenizer.json it was trained with",
    )


def described(tokenizer: Tokenizer) -> str:
    """A tokenizer's name, and the characters that make it this one."""
    if isinstance(tokenizer, CharTokenizer):
        return f"char of {tokenizer.vocab_size} characters ({tokenizer.alphabet!r:.60})"
    return tokenizer.name
