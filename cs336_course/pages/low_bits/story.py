"""Store tensors in fp8, fp4 and int4, decode Q4_1, and train a small GPT whose matmuls use them."""

import json
import re
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from cs336_course.shared.low_precision import Run, batches, cosine, plays, small_gpt
from cs336_lib.data.corpus import DATA
from cs336_lib.data.loader import Loader, open_data
from cs336_lib.model import GPT

E4M3_MAX, E2M1_MAX = 448.0, 6.0
SMALLEST = 1e-30  # replaces a scale of 0
SHIPPED = DATA / "smollm2_q4_1"

Quantize = Callable[[Tensor, bool], Tensor]
"""Rounds a tensor to a format and back. The flag asks for stochastic rounding."""


def keep(x: Tensor, stochastic: bool = False) -> Tensor:
    """Return the tensor in fp32."""
    return x


def e4m3(x: Tensor, stochastic: bool = False) -> Tensor:
    """Round to E4M3 without a scale."""
    return x.clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn).float()


def e2m1(x: Float[Tensor, "..."], stochastic: bool = False) -> Float[Tensor, "..."]:
    """Round to the fifteen fp4 numbers, to the nearest or stochastically."""
    size = x.abs()
    gap = torch.where(size < 2, 0.5, torch.where(size < 4, 1.0, 2.0))
    steps = size / gap
    steps = torch.floor(steps + torch.rand_like(steps)) if stochastic else torch.round(steps)
    return (steps * gap).clamp(max=E2M1_MAX).copysign(x)


def int4(x: Float[Tensor, "..."], stochastic: bool = False) -> Float[Tensor, "..."]:
    """Round to the integers from -7 to 7, to the nearest or stochastically."""
    whole = torch.floor(x + torch.rand_like(x)) if stochastic else torch.round(x)
    return whole.clamp(-7, 7)


def scaled(stairs: Quantize, group: int = 0) -> Quantize:
    """Return rounding to `int4`, `e2m1` or `e4m3` with an fp32 scale for the tensor.

    With a group, that many neighbors have an E4M3 scale of their own.
    """
    largest = stairs(torch.tensor(999.0), False)

    def quantize(x: Tensor, stochastic: bool = False) -> Tensor:
        groups = x.reshape(-1, group or x.numel())
        scale = groups.abs().amax(dim=1, keepdim=True) / largest + SMALLEST
        if group:
            of_tensor = scale.max() / E4M3_MAX
            scale = e4m3(scale / of_tensor).clamp(min=2**-9) * of_tensor
        return (stairs(groups / scale, stochastic) * scale).reshape(x.shape)

    return quantize


@dataclass(frozen=True)
class Recipe:
    """How the matmuls of a linear layer are quantized.

    Attributes:
        quantize: Rounds both operands of each matmul along the dimension that is summed.
        stochastic: Whether gradients are rounded stochastically.
        only: "forward" leaves backward in fp32, and "gradients" rounds nothing but gradients.
        layers: Pattern for the names of the layers that follow the recipe, by default all.
    """

    quantize: Quantize = keep
    stochastic: bool = False
    only: str = ""
    layers: str = ""


class QuantizedMatmul(torch.autograd.Function):
    """Linear layer whose three matmuls have quantized operands and fp32 sums."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, recipe: Recipe) -> Tensor:
        """Return the output, from a quantized input and weight."""
        ctx.save_for_backward(x, weight)
        ctx.recipe = recipe
        quantize = keep if recipe.only == "gradients" else recipe.quantize
        return quantize(x, False) @ quantize(weight, False).T

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor, None]:  # type: ignore[override]
        """Return the gradients of the input and the weight."""
        x, weight = ctx.saved_tensors
        recipe: Recipe = ctx.recipe
        operand = keep if recipe.only else recipe.quantize
        rounded = keep if recipe.only == "forward" else recipe.quantize
        flat, inputs = gradient.flatten(0, -2), x.flatten(0, -2).T.contiguous()
        d_input = rounded(flat, recipe.stochastic) @ operand(weight.T.contiguous(), False).T
        d_weight = rounded(flat.T.contiguous(), recipe.stochastic) @ operand(inputs, False).T
        return d_input.view_as(x), d_weight, None


class QuantizedLinear(nn.Linear):
    """Linear layer that follows a recipe."""

    recipe = Recipe()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer with quantized operands."""
        y = QuantizedMatmul.apply(x, self.weight, self.recipe)
        return y if self.bias is None else y + self.bias


def train(recipe: Recipe, loss_scale: float = 1.0, seed: int = 0) -> Run:
    """Train a GPT of one block, whose linear layers follow the recipe, for 200 steps.

    Weights, moments and everything outside these matmuls stay in fp32. The gradients are divided by
    the loss scale before the step.
    """
    torch.manual_seed(seed)
    model = small_gpt(1, seed)
    for name, layer in model.named_modules():
        if isinstance(layer, nn.Linear) and re.search(recipe.layers, name):
            layer.__class__ = QuantizedLinear
            layer.recipe = recipe  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(
        model.parameters(), betas=(0.9, 0.95), weight_decay=0.0, fused=True
    )
    losses = []
    for step, (x, y) in enumerate(batches(200, seed)):
        optimizer.param_groups[0]["lr"] = cosine(step, 200, 1.5e-3)
        loss = F.cross_entropy(model(x).flatten(0, 1), y.flatten())
        optimizer.zero_grad()
        (loss * loss_scale).backward()
        for weight in model.parameters():
            weight.grad = weight.grad / loss_scale if weight.grad is not None else None
        optimizer.step()
        losses.append(loss.item())
    return Run(losses, model)


def gradients(model: GPT) -> dict[str, Float[Tensor, "positions outputs"]]:
    """Return the gradient that flows into each linear layer, for the first batch of a run."""
    found, trained = {}, deepcopy(model)
    names = {layer: name for name, layer in trained.named_modules()}

    def record(layer: nn.Module, _: object, dy: tuple[Tensor, ...] | Tensor) -> None:
        found[names[layer].removeprefix("transformer.h.0.")] = dy[0].flatten(0, 1)

    for layer in names:
        if isinstance(layer, nn.Linear):
            layer.register_full_backward_hook(record)
    x, y = next(batches(1, 0))
    F.cross_entropy(trained(x).flatten(0, 1), y.flatten()).backward()
    return dict(reversed(found.items()))


def letter_tables() -> tuple[float, float]:
    """Return the loss of a table of the letters' frequencies, and of a table of letter pairs."""
    ids, letters = plays()
    pairs = torch.bincount(ids[:-1] * letters + ids[1:], minlength=letters**2)
    alone, both = (
        torch.special.entr(x / x.sum()).sum().item() for x in (torch.bincount(ids), pairs)
    )
    return alone, both - alone


def shipped_blocks() -> tuple[dict, UInt8[np.ndarray, "blocks bytes"]]:
    """Return what is known of the shipped 4-bit matrix, and its blocks of 20 bytes."""
    about = json.loads((SHIPPED / "about.json").read_text(encoding="utf-8"))
    data = np.fromfile(SHIPPED / f"{about['tensor']}.q4_1", dtype=np.uint8)
    return about, data.reshape(-1, 20)


def q4_1_decode(blocks: UInt8[np.ndarray, "blocks bytes"]) -> Float[Tensor, "blocks 32"]:
    """Return the 32 weights of each block, scale x q + minimum."""
    scale, minimum = np.ascontiguousarray(blocks[:, :4]).view("<f2").astype(np.float32).T
    q = np.concatenate((blocks[:, 4:] & 15, blocks[:, 4:] >> 4), axis=1)
    return torch.from_numpy(scale[:, None] * q + minimum[:, None])


def integers(bits: int, group: int) -> Quantize:
    """Return symmetric rounding to integers, with an fp32 scale for each group of neighbors."""
    largest = 2 ** (bits - 1) - 1

    def quantize(x: Tensor, stochastic: bool = False) -> Tensor:
        groups = x.reshape(-1, group)
        scale = groups.abs().amax(dim=1, keepdim=True) / largest + SMALLEST
        return (torch.round(groups / scale) * scale).reshape(x.shape)

    return quantize


@torch.no_grad()
def rounded_blocks(model: GPT, quantize: Quantize) -> GPT:
    """Return a copy of the model in which the blocks' matrices are rounded."""
    rounded = deepcopy(model)
    for weight in rounded.transformer.h.parameters():
        if weight.ndim == 2:
            weight.copy_(quantize(weight, False))
    return rounded


@torch.no_grad()
def losses_with(model: GPT, quantize: Quantize, windows: int = 64) -> Float[Tensor, " windows"]:
    """Return the loss of each validation window after rounding the blocks' matrices."""
    _, stream, _ = open_data("", "", "char")
    loader = Loader(stream, model.config.block_size, model.config.vocab_size, 1337)
    x, y = loader.windows(loader.validation_starts(windows * model.config.block_size))
    scores = rounded_blocks(model, quantize)(x)
    return F.cross_entropy(scores.transpose(1, 2), y, reduction="none").mean(1)
