"""Comparison of a small training step on a device with the same step on the CPU."""

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from cs336_lib.io import Log

# Two correct fp32 implementations differ by about 1e-6 of the largest entry here.
TOLERANCE = 1e-3
HEADS, WIDTH, LENGTH, VOCABULARY = 4, 32, 16, 64


def tiny_step(device: torch.device) -> dict[str, Tensor]:
    """Run one forward and backward pass with a GPT's operations; return loss and gradients.

    All random numbers come from the CPU, so every device computes the same step.
    """
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "embedding": (VOCABULARY, WIDTH),
        "norm": (WIDTH,),
        "attention": (3 * WIDTH, WIDTH),
        "projection": (WIDTH, WIDTH),
        "up": (4 * WIDTH, WIDTH),
        "down": (WIDTH, 4 * WIDTH),
    }
    weights = {
        name: torch.randn(shape, generator=generator).mul(0.3).to(device).requires_grad_()
        for name, shape in shapes.items()
    }
    idx = torch.randint(VOCABULARY, (2, LENGTH), generator=generator).to(device)
    x = weights["embedding"][idx]
    qkv = F.linear(F.layer_norm(x, (WIDTH,), weights["norm"]), weights["attention"])
    q, k, v = qkv.view(2, LENGTH, 3 * HEADS, -1).transpose(1, 2).split(HEADS, dim=1)
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2)
    x = x + F.linear(y, weights["projection"])
    hidden = F.gelu(F.linear(F.layer_norm(x, (WIDTH,), weights["norm"]), weights["up"]))
    x = x + F.linear(hidden, weights["down"])
    logits = F.linear(x, weights["embedding"])
    loss = F.cross_entropy(logits.flatten(0, 1), idx.roll(-1, 1).flatten())
    gradients = torch.autograd.grad(loss, list(weights.values()))
    results = dict(zip(weights, gradients, strict=True)) | {"loss": loss.detach()}
    return {name: value.cpu() for name, value in results.items()}


@cache
def agrees_with_cpu(device: torch.device) -> bool:
    """Return whether a device computes the CPU's loss and gradients; if not, log the reason."""
    expected = tiny_step(torch.device("cpu"))
    try:
        actual = tiny_step(device)
    except (RuntimeError, NotImplementedError) as error:
        wrong = f"fails in a small training step ({str(error).splitlines()[0]})"
    else:
        off = {
            name: ((actual[name] - value).abs().max() / value.abs().max()).item()
            for name, value in expected.items()
        }
        far = [name for name, error in off.items() if not error <= TOLERANCE]  # NaN is far too
        if not far:
            return True
        wrong = f"differs from the CPU in a small training step ({', '.join(far)})"
    print(f"{device.type} {wrong}: using the CPU; --device {device.type} insists", file=Log())
    return False
