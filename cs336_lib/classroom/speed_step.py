"""One training step of GPT-2 in as many variants as the ladder has rungs, all from equal weights.

`Settings` say how a step is computed, `Shape` what it works on; `Step(settings, shape, device)` is
the step, and the library's own model is one of the variants.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_lib import accounting, optim
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT, CausalSelfAttention, KVCache

Precision = Literal["fp32", "tf32", "bf16"]
Attention = Literal["written out", "flash"]

SEED = 1337
LEARNING_RATE = 3e-4


@dataclass(frozen=True)
class Shape:
    """What a step works on: a GPT-2 and `batch` sequences of its full block size."""

    config: GPTConfig
    batch: int

    @property
    def tokens(self) -> int:
        """Tokens per step."""
        return self.batch * self.config.block_size

    @property
    def flops(self) -> int:
        """FLOPs per step, forward and backward."""
        return self.tokens * accounting.train_flops_per_token(self.config)

    def __str__(self) -> str:
        c = self.config
        return (
            f"{self.batch} x {c.block_size} tokens, {c.n_layer} layer{'s' * (c.n_layer > 1)}, "
            f"{c.n_head} head{'s' * (c.n_head > 1)}, "
            f"{c.n_embd} wide, {c.vocab_size} ids"
        )


# 2001 is as odd a number as 50257: the 2000 commonest tokens, and one id for all others.
SMALL = Shape(GPTConfig(block_size=512, vocab_size=2001, n_layer=1, n_head=2, n_embd=128), batch=2)
# For arithmetic that a device has no circuits for, such as bf16 on most processors.
TINY = Shape(GPTConfig(block_size=64, vocab_size=257, n_layer=1, n_head=1, n_embd=64), batch=2)


def shape_for(device: torch.device) -> Shape:
    """GPT-2 124M with 16 x 1024 tokens on a CUDA GPU (fewer where memory is short); else SMALL."""
    if device.type != "cuda":
        return SMALL
    free = torch.cuda.mem_get_info(device)[0]
    shape = Shape(GPTConfig(), batch=16)
    while shape.batch > 1 and 1.5 * needed_bytes(shape) > free:
        shape = replace(shape, batch=shape.batch // 2)
    return shape


def needed_bytes(shape: Shape) -> float:
    """What the hungriest rung, the first, keeps in memory; it comes on top what backward makes."""
    return sum(accounting.training_memory(shape.config, shape.batch, attention="eager").values())


@dataclass(frozen=True)
class Settings:
    """How a step is computed, as opposed to what it computes."""

    precision: Precision = "fp32"
    compiled: bool = False
    attention: Attention = "written out"
    padded: bool = False
    fused: bool = False
    library: bool = False
    """Built from the library's own `GPT` and `make_optimizer`."""


# The model: the library's, with the two things undone that it always does.


class WrittenOutAttention(CausalSelfAttention):
    """Causal attention with the T x T scores made, masked, normalised and used, one by one."""

    def forward(
        self, x: Float[Tensor, "batch seq n_embd"], cache: KVCache | None = None
    ) -> Float[Tensor, "batch seq n_embd"]:
        """Mix information between positions."""
        q, k, v = rearrange(
            self.c_attn(x), "b t (three h d) -> three b h t d", three=3, h=self.n_head
        ).unbind(0)
        seq = x.size(1)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))
        future = torch.ones(seq, seq, dtype=torch.bool, device=x.device).triu(1)
        y = scores.masked_fill(future, -math.inf).softmax(-1) @ v
        return self.c_proj(rearrange(y, "b h t d -> b t (h d)"))


def build_model(config: GPTConfig, settings: Settings) -> GPT:
    """The library's GPT with SEED's weights; attention and vocabulary as `settings` say."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(SEED)
        model = GPT(config)
        if settings.attention == "written out":
            for layer, block in enumerate(model.transformer.h):
                written_out = WrittenOutAttention(config, layer)
                written_out.load_state_dict(block.attn.state_dict())
                block.attn = written_out
    if not settings.padded:  # the library's rows beyond vocab_size are zero and do nothing: drop
        weight = nn.Parameter(model.lm_head.weight[: config.vocab_size].detach().clone())
        model.transformer.wte.weight = model.lm_head.weight = weight
    return model


def build_optimizer(model: nn.Module, settings: Settings) -> torch.optim.AdamW:
    """AdamW; not fused means what PyTorch does by default, in view."""
    if settings.library:
        return optim.make_optimizer(model, TrainConfig(learning_rate=LEARNING_RATE))
    return torch.optim.AdamW(
        optim.parameter_groups(model, weight_decay=0.1),
        lr=LEARNING_RATE,
        betas=(0.9, 0.95),
        eps=1e-8,
        fused=True if settings.fused else None,
    )


def training_batch(
    shape: Shape, device: torch.device
) -> tuple[Int[Tensor, "batch seq"], Int[Tensor, "batch seq"]]:
    """The beginning of the plays as GPT-2 tokens, and the same one token further on.

    Where the model knows fewer ids, the commonest tokens get them, and all others share the last.
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
    """One training step, always on the same batch, in three parts that a profiler can tell apart.

    Call it for a whole step; it returns the loss, still on the device.
    """

    def __init__(self, settings: Settings, shape: Shape, device: torch.device):
        self.settings, self.shape, self.device = settings, shape, device
        self.model = build_model(shape.config, settings).to(device)
        self.optimizer = build_optimizer(self.model, settings)
        self.x, self.y = training_batch(shape, device)
        self._forward = torch.compile(self.model) if settings.compiled else self.model

    def __call__(self) -> Float[Tensor, ""]:
        with matmul_precision(self.settings.precision):
            loss = self.forward()
            loss.backward()
            self.update()
        return loss.detach()

    def forward(self) -> Float[Tensor, ""]:
        """The loss, under autocast where the settings say bf16."""
        low = self.settings.precision == "bf16"
        with torch.autocast(self.device.type, dtype=torch.bfloat16, enabled=low):
            return self._forward(self.x, self.y)

    def update(self) -> None:
        """Move the weights, forget the gradients."""
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


@contextmanager
def matmul_precision(precision: Precision) -> Iterator[None]:
    """TF32 matmuls for all fp32 ones if `precision` is tf32; PyTorch's setting comes back."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
