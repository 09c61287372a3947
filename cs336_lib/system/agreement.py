"""Compare a small training step on a device with the CPU."""

from functools import cache

import torch
from torch import Tensor

from cs336_lib.config import GPTConfig
from cs336_lib.io import Log
from cs336_lib.model import GPT

# Two correct fp32 implementations differ by about 1e-6 of the largest entry here.
TOLERANCE = 1e-3
SHAPE = GPTConfig(block_size=16, vocab_size=64, n_layer=1, n_head=4, n_embd=32)


def tiny_step(device: torch.device) -> dict[str, Tensor]:
    """Run the forward and backward pass of a small GPT, and return the loss and gradients.

    The results are moved to the CPU. All random numbers are drawn on the CPU, so every device
    computes the same step.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = GPT(SHAPE)
        for parameter in model.parameters():  # larger weights, so that each gradient matters
            torch.nn.init.normal_(parameter, std=0.3)
        idx = torch.randint(SHAPE.vocab_size, (2, SHAPE.block_size)).to(device)
    loss = model.to(device)(idx, idx.roll(-1, 1))
    loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return {name: value.detach().cpu() for name, value in {"loss": loss, **gradients}.items()}


@cache
def warn_unless_as_cpu(device: torch.device) -> None:
    """Warn if a device computes another loss or gradient than the CPU, or can't run the step."""
    try:
        expected, actual = tiny_step(torch.device("cpu")), tiny_step(device)
        torch.testing.assert_close(actual, expected, rtol=TOLERANCE, atol=TOLERANCE / 100)
    except (RuntimeError, AssertionError) as error:  # an operation is missing, or a result differs
        reason = f"{device.type} fails in a small training step ({' '.join(str(error).split())})"
        print(f"{reason}; use --device cpu", file=Log())
