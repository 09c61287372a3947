"""Train a small GPT on the plays in simulated number formats.

Every tensor is computed in fp32 and then rounded to the format. This is as good as the format's own
arithmetic with fp32 accumulation, and much faster on a CPU, which has no fp16 units.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.func import functional_call

from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.model import GPT

Rounding = Callable[[Tensor], Tensor]
BATCH, CONTEXT, WARMUP = 8, 32, 20
POSITIONS, RATE = 2**19, 6e-4  # of one of GPT-2's batches, and the peak learning rate


@dataclass(frozen=True)
class Run:
    """Record of a small training run.

    Attributes:
        losses: Loss in nats per character at each step.
        model: The trained model, with the gradients of its last step.
        moved: Share of the weights in the blocks' matrices that the last step changed.
    """

    losses: list[float]
    model: GPT | None = None
    moved: float = math.nan

    @property
    def end(self) -> float:
        """The mean loss of the last 50 steps."""
        return sum(self.losses[-50:]) / len(self.losses[-50:])

    @property
    def silent(self) -> float:
        """The share of 0 among the last gradients of the blocks' matrices."""
        zeros = [(w.grad == 0).flatten() for w in matrices(self.model)]
        return torch.cat(zeros).float().mean().item()


def matrices(model: GPT) -> list[nn.Parameter]:
    """Return the matrices in a model's blocks."""
    return [w for name, w in model.named_parameters() if ".h." in name and w.ndim == 2]


@cache
def plays() -> tuple[Int[Tensor, " chars"], int]:
    """Return the plays' first million characters as ids, and the size of the vocabulary."""
    text = shakespeare()
    tokenizer = CharTokenizer(text)
    return torch.from_numpy(
        tokenizer.encode(text[:1_000_000]).astype("int64")
    ), tokenizer.vocab_size


def shares() -> Float[Tensor, " letters"]:
    """Return how much of the plays each letter is."""
    ids, letters = plays()
    return torch.bincount(ids, minlength=letters) / len(ids)


@torch.no_grad()
def beliefs(model: GPT) -> Float[Tensor, "positions letters"]:
    """Return a model's probabilities at all positions of 64 windows of the plays."""
    windows = plays()[0][: 64 * CONTEXT].view(64, CONTEXT)
    return model(windows).softmax(-1).flatten(0, 1)


def batches(
    steps: int, seed: int
) -> Iterator[tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"]]]:
    """Yield inputs and targets, which are the same for every run with this seed."""
    ids = plays()[0]
    random = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        starts = torch.randint(len(ids) - CONTEXT - 1, (BATCH, 1), generator=random)
        windows = ids[starts + torch.arange(CONTEXT + 1)]
        yield windows[:, :-1], windows[:, 1:]


def small_gpt(n_layer: int, seed: int) -> GPT:
    """Return a GPT of width 64 for the plays' letters, on the CPU."""
    sizes = {"n_embd": 64, "block_size": CONTEXT, "vocab_size": plays()[1]}
    return GPT(GPTConfig(n_layer=n_layer, n_head=2, **sizes), seed=seed)


def cosine(step: int, steps: int, peak: float) -> float:
    """Return the rate of a cosine schedule with warm-up, which ends at a tenth of the peak."""
    decay = 0.55 + 0.45 * math.cos(math.pi * step / steps)
    return peak * decay * min(1.0, (step + 1) / WARMUP)


class Rounded(torch.autograd.Function):
    """Round a tensor in the forward pass, and its gradient in the backward pass."""

    @staticmethod
    def forward(ctx, x: Tensor, values: Rounding, gradients: Rounding) -> Tensor:
        """Round the values."""
        ctx.rounding = gradients
        return values(x)

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, None, None]:  # type: ignore[override]
        """Round the gradient."""
        return ctx.rounding(gradient), None, None


def exact(x: Tensor) -> Tensor:
    """Return fp32 numbers as they are."""
    return x


def round_outputs(
    model: nn.Module, values: Rounding, gradients: Rounding, only: tuple[str, ...]
) -> None:
    """Round what leaves the linear layers, embeddings and norms, and the gradients coming back."""
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear | nn.Embedding | nn.LayerNorm) and name.startswith(only):
            layer.register_forward_hook(lambda _layer, _in, x: Rounded.apply(x, values, gradients))


@torch.no_grad()
def store_rounded(optimizer: torch.optim.Optimizer, rounding: Rounding) -> None:
    """Round the weights and AdamW's two averages in place."""
    for group in optimizer.param_groups:
        for weight in group["params"]:
            weight.copy_(rounding(weight))
            for name, kept in optimizer.state[weight].items():
                if name.startswith("exp"):
                    kept.copy_(rounding(kept))


def train(
    compute: Rounding = exact,
    store: Rounding = exact,
    loss_scale: float = 1.0,
    *,
    only: tuple[str, ...] = (),
    steps: int = 300,
    seed: int = 0,
) -> Run:
    """Train the small GPT with AdamW.

    The loss is divided by GPT-2's 2^19 positions, as if our 256 were one micro-batch of them. AdamW
    divides each gradient by its own size, so this changes nothing until a format is too small for
    the gradients. (Its eps is so small that it doesn't matter.)

    Args:
        compute: Rounds weights, activations and gradients where they are used.
        store: Rounds weights and AdamW's two averages after each step.
        loss_scale: Factor of the loss. The gradients are divided by it before the step.
        only: How names of layers begin whose outputs' gradients `compute` rounds, and nothing else.
        steps: Number of steps.
        seed: Seed of the weights, the batches and the rounding.
    """
    torch.manual_seed(seed)
    model = small_gpt(2, seed)
    weights = dict(model.named_parameters())
    blocks = matrices(model)
    values = exact if only else compute
    round_outputs(model, values, compute, only or ("",))
    optimizer = torch.optim.AdamW(
        weights.values(), lr=RATE, betas=(0.9, 0.95), eps=1e-15, weight_decay=0.0
    )
    store_rounded(optimizer, store)
    losses = []
    for step, (x, y) in enumerate(batches(steps, seed)):
        optimizer.param_groups[0]["lr"] = cosine(step, steps, RATE)
        low = {name: Rounded.apply(weight, values, values) for name, weight in weights.items()}
        logits = functional_call(model, low, (x,))
        loss = F.cross_entropy(logits.flatten(0, 1).float(), y.flatten(), reduction="sum")
        optimizer.zero_grad()
        (loss * (loss_scale / POSITIONS)).backward()
        for weight in weights.values():
            weight.grad = weight.grad / loss_scale if weight.grad is not None else None
        before = [weight.detach().clone() for weight in blocks] if step == steps - 1 else []
        optimizer.step()
        store_rounded(optimizer, store)
        losses.append(loss.item() / y.numel())
    moved = [(old != new).flatten() for old, new in zip(before, blocks, strict=True)]
    return Run(losses, model, torch.cat(moved).float().mean().item())
