"""A trained attention layer, slips in it, two small runs, and a split by name and by hand."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.model import GPT, CausalSelfAttention
from cs336_lib.sampling import encode

VALIDATION = 0.1  # the last tenth of the text, which the shipped model hasn't trained on
CONTEXT = HEADS = 8  # of the small runs, in which one size hides another
WIDTH, BATCH, STEPS, EVERY = 64, 48, 250, 25

Attend = Callable[[Tensor], Tensor]  # from the output of c_attn to the input of c_proj


def error_of(work: Callable[..., object], *arguments: object) -> Exception:
    """Return the error that `work(*arguments)` raises, so that its message can be shown."""
    try:
        work(*arguments)
    except (RuntimeError, TypeError, ValueError, AssertionError) as error:
        return error
    raise AssertionError("this was expected to fail")


@torch.no_grad()
def first_input(model: GPT, tokenizer: Tokenizer, text: str) -> Float[Tensor, "1 seq width"]:
    """Return what the first attention layer of a model receives for a text."""
    ids = encode(tokenizer, text)
    parts = model.transformer
    return parts.h[0].ln_1(parts.wte(ids) + parts.wpe.weight[: len(ids)])[None]


def queries_and_keys(
    model: GPT, tokenizer: Tokenizer, text: str
) -> tuple[Float[Tensor, "1 seq head dim"], Float[Tensor, "1 seq head dim"]]:
    """Return the queries and keys of the first layer, in the layout batch seq head dim."""
    layer = model.transformer.h[0].attn
    with torch.no_grad():
        qkv = layer.c_attn(first_input(model, tokenizer, text))
    names = "batch seq (three head dim) -> three batch seq head dim"
    q, k, _ = rearrange(qkv, names, three=3, head=layer.n_head)
    return q, k


def last_row(model: GPT, tokenizer: Tokenizer, text: str) -> list[float]:
    """Return the first layer's attention weights of a text's last letter, in head 0."""
    q, k = queries_and_keys(model, tokenizer, text)
    scores = k[0, :, 0] @ q[0, -1, 0] / q.size(-1) ** 0.5
    return scores.softmax(-1).tolist()


def held_out(tokenizer: Tokenizer, windows: int = 24, seq: int = 256) -> Int[Tensor, "windows all"]:
    """Return windows of seq + 1 letters from the end of the text, which no run has trained on."""
    return encode(tokenizer, shakespeare()[-windows * seq - 1 :]).unfold(0, seq + 1, seq)


@contextmanager
def attending(model: GPT, attend: Attend) -> Iterator[None]:
    """Let all layers of a model attend by another function, as long as the block runs."""
    changed = [block.attn for block in model.transformer.h]
    for layer in changed:

        def forward(x: Tensor, _cache: None = None, layer: CausalSelfAttention = layer) -> Tensor:
            return layer.c_proj(attend(layer.c_attn(x)))

        layer.forward = forward  # type: ignore[method-assign]
    try:
        yield
    finally:
        for layer in changed:
            del layer.forward


@torch.no_grad()
def loss_with(model: GPT, windows: Int[Tensor, "windows all"], attend: Attend) -> float:
    """Return the loss of a model whose layers attend by `attend`, in nats per letter."""
    with attending(model, attend):
        return model(windows[:, :-1], windows[:, 1:]).item()


def with_heads(attend: Callable[[Tensor, Tensor, Tensor], Tensor], n_head: int = 6) -> Attend:
    """Return what splits the output of c_attn into heads, lets them attend, and merges them."""

    def split_and_merge(qkv: Float[Tensor, "batch seq width3"]) -> Tensor:
        parts = "batch seq (three head dim) -> three batch head seq dim"
        mixed = attend(*rearrange(qkv, parts, three=3, head=n_head))
        return rearrange(mixed, "batch head seq dim -> batch seq (head dim)")

    return split_and_merge


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attend causally by PyTorch's function."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def by_position(qkv: Float[Tensor, "batch seq width3"], n_head: int = HEADS) -> Tensor:
    """Attend with `q @ k.transpose(-2, -1)` in the layout batch seq head dim."""
    parts = "batch seq (three head dim) -> three batch seq head dim"
    q, k, v = rearrange(qkv, parts, three=3, head=n_head)
    scores = q @ k.transpose(-2, -1) / q.size(-1) ** 0.5
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return (scores.masked_fill(future, -torch.inf).softmax(-1) @ v).flatten(-2)


@torch.no_grad()
def rows_moved(
    layer: CausalSelfAttention, attend: Attend, x: Float[Tensor, "1 seq width"], changed: int = -1
) -> list[int]:
    """Return the rows of a layer's output that move when only row `changed` of its input does."""
    other = x.clone()
    other[:, changed] += 1
    before, after = (layer.c_proj(attend(layer.c_attn(y))) for y in (x, other))
    return torch.where((before - after).abs().amax((0, 2)) > 1e-5)[0].tolist()


def spelled(rows: list[int]) -> str:
    """Return neighboring numbers as a range, as in "0 to 18"."""
    return f"{rows[0]} to {rows[-1]}" if len(rows) > 1 else ", ".join(map(str, rows)) or "none"


def table_loss(tokens: Int[Tensor, " all"]) -> float:
    """Return the held-out loss of a table that counts which letter follows which."""
    end, n = int((1 - VALIDATION) * len(tokens)), int(tokens.max()) + 1
    pairs = n * tokens[:-1] + tokens[1:]
    counts = torch.bincount(pairs[: end - 1], minlength=n * n).view(n, n) + 0.1
    chances = counts / counts.sum(1, keepdim=True)
    return -chances.flatten()[pairs[end:]].log().mean().item()


def small_run(tokens: Int[Tensor, " all"], attend: Attend, seed: int = 0) -> list[float]:
    """Train one block on 8 letters at a time, and return its held-out loss every 25 steps.

    The run takes place on the CPU. Both kinds of attention start from the same weights and see the
    same batches.
    """
    end, span = int((1 - VALIDATION) * len(tokens)), torch.arange(CONTEXT + 1)
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(end - CONTEXT, (STEPS, BATCH), generator=random)
    held = tokens[
        end + torch.randint(len(tokens) - end - CONTEXT, (512,), generator=random)[:, None] + span
    ]
    shape = {"n_layer": 1, "n_head": HEADS, "n_embd": WIDTH, "block_size": CONTEXT}
    model = GPT(GPTConfig(vocab_size=int(tokens.max()) + 1, **shape), seed=seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    losses = [loss_with(model, held, attend)]
    for first in range(0, STEPS, EVERY):
        with attending(model, attend):
            for start in starts[first : first + EVERY]:
                window = tokens[start[:, None] + span]
                optimizer.zero_grad()
                model(window[:, :-1], window[:, 1:]).backward()
                optimizer.step()
        losses.append(loss_with(model, held, attend))
    return losses
