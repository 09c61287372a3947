"""Faster operators for bf16 on a CPU: attention and loss for training, a linear layer for sampling.

PyTorch's own operators lose time there. The flash attention doesn't use the CPU's bf16 instructions
well, and the cross-entropy converts all logits to fp32 (docs/decisions.md). `accelerate` puts these
operators into a model.

All private operators of PyTorch that this package calls are here.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import BFloat16, Float, Int
from torch import Tensor
from torch.backends import mkldnn, quantized

from cs336_lib.model import GPT, CausalSelfAttention, KVCache

QUERIES = 256  # in one tile of attention
CHUNK = 2**21  # fp32 probabilities at a time, which fit into the cache
PACKED_FOR = 8  # rows of the input that oneDNN should expect
FEWEST_ROWS = 4
FBGEMM = "fbgemm"

in_bf16 = torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
as_in_forward = torch.amp.custom_bwd(device_type="cpu")


def applies(x: Tensor) -> bool:
    """Return whether the operators in this module apply to `x`.

    `x` must be on a CPU, and bf16 autocast must be active. The compiler has its own operators.
    """
    return (
        x.device.type == "cpu"
        and torch.is_autocast_enabled("cpu")
        and torch.get_autocast_dtype("cpu") == torch.bfloat16
        and not torch.compiler.is_compiling()
    )


class FastAttention(CausalSelfAttention):
    """Attention by `causal_attention`, where that applies."""

    def forward(
        self, x: Float[Tensor, "batch seq n_embd"], cache: KVCache | None = None
    ) -> Float[Tensor, "batch seq n_embd"]:
        """Apply attention. It takes neither a cache nor dropout, which the original does."""
        drops = self.training and self.dropout > 0
        if cache is not None or drops or not applies(x):
            return super().forward(x, cache)
        return self.c_proj(causal_attention(self.c_attn(x), self.n_head))


class FastGPT(GPT):
    """GPT with `cross_entropy`, where that applies."""

    def loss(
        self, logits: Float[Tensor, "tokens padded_vocab_size"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, ""]:
        """Return the loss. The logits of `forward` are neither a leaf nor a view."""
        if not applies(logits) or targets.min() < -1:  # PyTorch says what is wrong with those
            return super().loss(logits, targets)
        return cross_entropy(logits, targets, self.config.vocab_size)


def accelerate(model: GPT) -> GPT:
    """Let a model use the operators of this module wherever they apply, and return it.

    The model stays the same object with the same weights. Only its classes change, as FSDP's do.
    """
    model.__class__ = FastGPT
    for block in model.transformer.h.children():
        block.get_submodule("attn").__class__ = FastAttention
    return model


def causal_attention(
    qkv: Float[Tensor, "batch seq three_n_embd"], n_head: int
) -> BFloat16[Tensor, "batch seq n_embd"]:
    """Apply causal self-attention to the output of c_attn, with all heads.

    The backward pass recomputes the attention weights, so memory grows linearly with `seq`.
    """
    batch = qkv.size(0)
    pattern = "batch seq (three head head_dim) -> three (batch head) seq head_dim"
    y = CausalAttention.apply(rearrange(qkv, pattern, three=3, head=n_head).contiguous())
    return rearrange(y, "(batch head) seq head_dim -> batch seq (head head_dim)", batch=batch)


def attention_weights(
    q: Float[Tensor, "heads queries head_dim"], k: Float[Tensor, "heads keys head_dim"]
) -> Float[Tensor, "heads queries keys"]:
    """Return the attention weights of the last positions. The last query is at the last key."""
    scores = torch.bmm(q * q.size(-1) ** -0.5, k.mT)
    queries = q.size(1)
    future = torch.full((queries, queries), float("-inf"), dtype=q.dtype).triu_(1)
    scores[:, :, -queries:] += future
    return scores.softmax(-1)


class CausalAttention(torch.autograd.Function):
    """Causal attention by batched matmuls of tiles, which skips the tiles above the diagonal."""

    @staticmethod
    @in_bf16
    def forward(
        ctx: Any, qkv: Float[Tensor, "3 heads seq head_dim"]
    ) -> Float[Tensor, "heads seq head_dim"]:
        """Compute the output, and save only `qkv`."""
        ctx.save_for_backward(qkv)
        q, k, v = qkv
        y = torch.empty_like(q)
        for first in range(0, q.size(1), QUERIES):
            rows, keys = slice(first, first + QUERIES), slice(first + QUERIES)
            y[:, rows] = torch.bmm(attention_weights(q[:, rows], k[:, keys]), v[:, keys])
        return y

    @staticmethod
    @as_in_forward
    def backward(
        ctx: Any, grad: Float[Tensor, "heads seq head_dim"]
    ) -> Float[Tensor, "3 heads seq head_dim"]:
        """Compute the gradients tile by tile. Sums over tiles are in fp32."""
        (qkv,) = ctx.saved_tensors
        q, k, v = qkv
        sums = torch.zeros_like(qkv, dtype=torch.float32)
        dq, dk, dv = sums
        for first in range(0, q.size(1), QUERIES):
            rows, keys = slice(first, first + QUERIES), slice(first + QUERIES)
            weights = attention_weights(q[:, rows], k[:, keys])
            dv[:, keys] += torch.bmm(weights.mT, grad[:, rows])
            dweights = torch.bmm(grad[:, rows], v[:, keys].mT)
            dscores = torch._softmax_backward_data(dweights, weights, -1, weights.dtype)
            dq[:, rows] = torch.bmm(dscores, k[:, keys])
            dk[:, keys] += torch.bmm(dscores.mT, q[:, rows])
        sums[:2] *= q.size(-1) ** -0.5
        return sums.to(qkv.dtype)


def cross_entropy(
    logits: Float[Tensor, "tokens padded_vocab_size"],
    targets: Int[Tensor, " tokens"],
    vocab_size: int,
) -> Float[Tensor, ""]:
    """Return the mean cross-entropy in nats per token, in fp32. Targets of -1 are ignored.

    If a gradient is needed, it overwrites `logits`, which must therefore be neither a leaf nor a
    view. Raises `ValueError` in the backward pass if the logits were used again after this call.
    """
    return CrossEntropy.apply(logits.bfloat16(), targets, vocab_size)[0]


class CrossEntropy(torch.autograd.Function):
    """Cross-entropy that computes the gradient of the logits in the forward pass.

    The softmax is in fp32, a few tokens at a time, so it stays in the cache. Only the gradient of
    the logits is saved, in bf16. This takes a quarter of the memory that F.cross_entropy needs.
    """

    @staticmethod
    @in_bf16
    def forward(
        ctx: Any,
        logits: Float[Tensor, "tokens padded_vocab_size"],
        targets: Int[Tensor, " tokens"],
        vocab_size: int,
    ) -> tuple[Float[Tensor, ""], Tensor | None]:
        """Compute the loss, and replace the logits by the gradient if it is needed."""
        needs_grad = ctx.needs_input_grad[0]
        counted = targets >= 0
        shares = counted / counted.sum()  # weight of each token in the mean
        losses = torch.empty_like(shares)
        rows = -(-CHUNK // vocab_size)
        tensors = logits, targets.clamp(min=0), shares, losses
        for low, target, share, loss in zip(*(t.split(rows) for t in tensors), strict=True):
            at_target = torch.arange(len(target)), target
            x = low[:, :vocab_size].float()
            p = x.softmax(-1)
            # The largest p is 1 / sum(exp(x - max)). The target's own p may underflow.
            torch.sub(x.amax(-1) - x[at_target], p.amax(-1).log(), out=loss)
            if needs_grad:
                p[at_target] -= 1
                low[:, :vocab_size] = p.mul_(share[:, None])
                low[:, vocab_size:] = 0
        if not needs_grad:
            return losses[counted].mean(), None
        ctx.mark_dirty(logits)
        ctx.set_materialize_grads(False)  # zeros for the logits would be as large as they are
        ctx.save_for_backward(logits)
        return losses[counted].mean(), logits

    @staticmethod
    @as_in_forward
    def backward(
        ctx: Any, grad: Float[Tensor, ""], of_overwritten: Tensor | None
    ) -> tuple[Tensor, None, None]:
        """Scale the gradient, unless `grad` is 1."""
        if of_overwritten is not None:
            raise ValueError("the logits hold their gradient now; pass a copy of them")
        (saved,) = ctx.saved_tensors
        return (saved if grad == 1 else saved * grad), None, None


Layer = Callable[[Float[Tensor, "batch seq n_in"]], Float[Tensor, "batch seq n_out"]]


def packed_linear(
    weight: Float[Tensor, "n_out n_in"], bias: Float[Tensor, " n_out"] | None, dtype: torch.dtype
) -> Layer | None:
    """Return a linear layer of fp32 tensors whose weight is packed in `dtype` for a few rows.

    A row's result is the same, bit by bit, whether it is alone or one of several. Return `None`
    if PyTorch has no such layer for this CPU.
    """
    weight, bias = weight.detach(), None if bias is None else bias.detach()
    if dtype == torch.float16:
        return fbgemm_linear(weight, bias) if FBGEMM in quantized.supported_engines else None
    if mkldnn.is_available() and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return onednn_linear(weight, bias, dtype)
    return None


def half_linear(
    weight: Float[Tensor, "n_out n_in"], bias: Float[Tensor, " n_out"] | None, dtype: torch.dtype
) -> Layer:
    """Return a linear layer with 16-bit weights and 32-bit activations, for any CPU.

    With a single input row, the layer is memory-bound, so 16-bit weights are twice as fast. With
    several rows, the weights are first converted to 32 bits, because most CPUs have no native
    16-bit matmul.
    """
    weight, bias = weight.to(dtype), None if bias is None else bias.to(dtype)

    def layer(x: Float[Tensor, "batch seq n_in"]) -> Float[Tensor, "batch seq n_out"]:
        kind = dtype if x.numel() == x.size(-1) else x.dtype
        own = None if bias is None else bias.to(kind)
        return F.linear(x.to(kind), weight.to(kind), own).to(x.dtype)

    return layer


def fbgemm_linear(weight: Float[Tensor, "n_out n_in"], bias: Tensor | None) -> Layer:
    """Return a linear layer of FBGEMM, which converts fp16 weights in registers."""
    packed = torch.ops.quantized.linear_prepack_fp16(weight.float(), bias)
    return lambda x: torch.ops.quantized.linear_dynamic_fp16(x, packed)


def onednn_linear(
    weight: Float[Tensor, "n_out n_in"], bias: Tensor | None, dtype: torch.dtype
) -> Layer:
    """Return a linear layer of oneDNN.

    oneDNN multiplies four rows in less time than one (docs/decisions.md), so a single row is
    repeated.
    """
    packed = torch.ops.mkldnn._reorder_linear_weight(weight.to(dtype), PACKED_FOR)
    bias = None if bias is None else bias.to(dtype)

    def layer(x: Float[Tensor, "batch seq n_in"]) -> Float[Tensor, "batch seq n_out"]:
        single = x.numel() == x.size(-1)
        rows = x.to(dtype).expand(-1, FEWEST_ROWS, -1) if single else x.to(dtype)
        # PyTorch's compiler uses this operator, too.
        y = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "none", [], "")
        return (y[:, :1] if single else y).to(x.dtype)

    return layer
