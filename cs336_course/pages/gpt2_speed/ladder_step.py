"""One training step of GPT-2 in a variant for each rung of the ladder, all with equal weights.

`Settings` choose how a step is computed, `Shape` how much it computes, and `Parts` hold the model
that the learner wrote. The step itself is `Step(settings, shape, device, parts)`.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_lib import accounting, optim
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.system import hardware

SEED = 1337
LEARNING_RATE = 3e-4
FAST = 2e12  # FLOP/s in fp32 with which 14 TFLOP take seconds, not minutes


@dataclass(frozen=True)
class Shape:
    """The size of a step, given by a GPT-2 and `batch` sequences of its full block size."""

    config: GPTConfig
    batch: int

    @property
    def tokens(self) -> int:
        """The number of tokens in a step."""
        return self.batch * self.config.block_size

    @property
    def flops(self) -> int:
        """The FLOPs of a step, forward and backward."""
        return self.tokens * accounting.train_flops_per_token(self.config)

    def __str__(self) -> str:
        c = self.config
        return (
            f"{self.batch} x {c.block_size} tokens, {c.n_layer} layer{'s' * (c.n_layer > 1)}, "
            f"{c.n_head} head{'s' * (c.n_head > 1)}, "
            f"{c.n_embd} wide, {c.vocab_size} ids"
        )


# 2001 is an odd number like 50257. It leaves the 2000 commonest tokens and one id for all others.
SMALL = Shape(GPTConfig(block_size=512, vocab_size=2001, n_layer=1, n_head=2, n_embd=128), batch=2)
# For arithmetic without hardware support on the device, such as bf16 on most CPUs.
TINY = Shape(GPTConfig(block_size=64, vocab_size=257, n_layer=1, n_head=1, n_embd=64), batch=2)


def shape_for(device: torch.device) -> Shape:
    """Return GPT-2 124M with 16 x 1024 tokens for a fast CUDA GPU, and SMALL for other devices.

    The batch is halved until it fits into the GPU's memory.
    """
    if device.type != "cuda" or hardware.measured_matmul_flops(device, torch.float32) < FAST:
        return SMALL
    free = torch.cuda.mem_get_info(device)[0]
    shape = Shape(GPTConfig(), batch=16)
    while shape.batch > 1 and 1.5 * needed_bytes(shape) > free:
        shape = replace(shape, batch=shape.batch // 2)
    return shape


def needed_bytes(shape: Shape) -> float:
    """Return the predicted memory of the first rung, which needs the most.

    Temporary buffers of the backward pass come on top.
    """
    return sum(accounting.training_memory(shape.config, shape.batch, attention="eager").values())


@dataclass(frozen=True)
class Settings:
    """The choices that change how a step is computed but not its result.

    Attributes:
        precision: "fp32", "tf32" or "bf16".
        compiled: Compile the model.
        attention: "written out" or "flash".
        padded: Pad the vocabulary to a multiple of 64.
        fused: Use the fused AdamW.
        library: Use the library's own `GPT` and `make_optimizer`.
    """

    precision: str = "fp32"
    compiled: bool = False
    attention: str = "written out"
    padded: bool = False
    fused: bool = False
    library: bool = False


@dataclass(frozen=True)
class Parts:
    """A learner's GPT-2, as modules that `assemble.module` returns.

    Attributes:
        before: The parts up to notebook 08, with attention written out.
        after: The same with the `attention` and the `make_optimizer` of notebook 09.
    """

    before: ModuleType
    after: ModuleType


def build_model(parts: Parts, config: GPTConfig, settings: Settings) -> nn.Module:
    """Build a GPT from SEED, with the attention and vocabulary of `settings`."""
    module = parts.after if settings.attention == "flash" else parts.before
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = module.GPT(config)
    if settings.library:
        weights = model.state_dict()
        model = GPT(config)
        model.load_state_dict(weights)
    if not settings.padded:  # cut the rows beyond vocab_size off
        weight = nn.Parameter(model.lm_head.weight[: config.vocab_size].detach().clone())
        model.transformer.wte.weight = model.lm_head.weight = weight
    return model


def build_optimizer(parts: Parts, model: nn.Module, settings: Settings) -> torch.optim.Optimizer:
    """Return AdamW, from `make_optimizer` if it is to be fused, else with PyTorch's defaults."""
    config = TrainConfig(learning_rate=LEARNING_RATE)
    if settings.library:
        return optim.make_optimizer(model, config)
    if settings.fused:
        return parts.after.make_optimizer(model, config)
    groups = parts.before.parameter_groups(model, config.weight_decay)
    return torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=(0.9, 0.95))


def training_batch(
    shape: Shape, device: torch.device
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"]]:
    """Return the first tokens of the plays as inputs, and the tokens shifted by one as targets.

    If the model has a smaller vocabulary, the commonest tokens get its ids and all others share
    the last id.
    """
    text, vocab = shakespeare(), shape.config.vocab_size
    encoded = GPT2Tokenizer().encode(text[: 8 * (shape.tokens + 1)])[: shape.tokens + 1]
    ids = torch.from_numpy(encoded.astype(np.int64))
    if ids.max() >= vocab:
        by_count = torch.bincount(ids).argsort(descending=True, stable=True)
        rank = torch.empty_like(by_count)
        rank[by_count] = torch.arange(len(by_count))
        ids = rank[ids].clamp(max=vocab - 1)
    x, y = (part.view(shape.batch, -1).to(device) for part in (ids[:-1], ids[1:]))
    return x, y


class Step:
    """One training step that always uses the same batch.

    Calling it runs a whole step and returns the loss, which stays on the device. A profiler can
    also call the forward pass, the backward pass and the update one by one.
    """

    def __init__(self, settings: Settings, shape: Shape, device: torch.device, parts: Parts):
        self.settings, self.shape, self.device = settings, shape, device
        self.model = build_model(parts, shape.config, settings).to(device)
        self.optimizer = build_optimizer(parts, self.model, settings)
        self.x, self.y = training_batch(shape, device)
        self._forward = torch.compile(self.model) if settings.compiled else self.model

    def __call__(self) -> Float[Tensor, ""]:
        with matmul_precision(self.settings.precision):
            loss = self.forward()
            loss.backward()
            self.update()
        return loss.detach()

    def forward(self) -> Float[Tensor, ""]:
        """Compute the loss, under autocast if the precision is bf16."""
        low = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low):
            return self._forward(self.x, self.y)

    def update(self) -> None:
        """Update the weights and clear the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """Run fp32 matmuls in TF32 within the block if `precision` is tf32, else in full fp32."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
