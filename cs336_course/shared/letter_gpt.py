"""Small GPT that reads the plays letter by letter, trained on the CPU with any optimizers."""

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Int
from torch import Generator, Tensor, nn

from cs336_lib.config import GPTConfig
from cs336_lib.data import corpus, tokenizer
from cs336_lib.model import GPT

CONTEXT = 16  # letters that the model sees

Optimizers = Callable[[GPT], list[torch.optim.Optimizer]]


@cache
def letters() -> tuple[Int[Tensor, " letters"], int]:
    """Return the plays as letter numbers, and the size of the vocabulary."""
    text = corpus.shakespeare()
    characters = tokenizer.CharTokenizer(text)
    return torch.from_numpy(characters.encode(text)).long(), characters.vocab_size


def create(seed: int) -> GPT:
    """Create the model with one block of width 96."""
    torch.manual_seed(seed)
    size = letters()[1]
    return GPT(GPTConfig(block_size=CONTEXT, vocab_size=size, n_layer=1, n_head=4, n_embd=96))


def batch(
    generator: Generator, rows: int = 16
) -> tuple[Int[Tensor, "rows context"], Int[Tensor, "rows context"]]:
    """Draw windows of letters and, as targets, the letters that follow them."""
    ids, _ = letters()
    starts = torch.randint(len(ids) - CONTEXT - 1, (rows, 1), generator=generator)
    window = ids[starts + torch.arange(CONTEXT + 1)]
    return window[:, :-1], window[:, 1:]


def train(
    make: Optimizers,
    seed: int,
    steps: int = 50,
    decays: bool = True,
    spike_at: int | None = None,
) -> tuple[GPT, list[float]]:
    """Train a model, and return it with its training losses.

    The learning rates warm up over 10 steps, and gradients are clipped at a norm of 1.

    Args:
        make: Function that returns the optimizers of a model.
        seed: Seed of the weights and of the batches.
        steps: Number of steps.
        decays: Whether the learning rates decay to zero in the second half.
        spike_at: Step at which the gradient is 100 times too large, and isn't clipped.
    """
    model, generator = create(seed), Generator().manual_seed(seed)
    optimizers = make(model)
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    peaks = [group["lr"] for group in groups]
    losses = []
    for step in range(steps):
        share = min((step + 1) / 10, 1, (steps - step) / (steps / 2) if decays else 1)
        for group, peak in zip(groups, peaks, strict=True):
            group["lr"] = peak * share
        model.zero_grad()
        loss = model(*batch(generator))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        if step == spike_at:
            for p in model.parameters():
                p.grad *= 100
        for optimizer in optimizers:
            optimizer.step()
        losses.append(loss.item())
    return model, losses


@torch.no_grad()
def validation_loss(model: GPT) -> float:
    """Return the loss on 256 windows that are the same for every model, in nats per letter."""
    return model(*batch(Generator().manual_seed(99), rows=256)).item()
