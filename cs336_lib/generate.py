"""Sampling: temperature, top-k and top-p, with a key-value cache, token by token."""

import codecs
from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs336_lib.config import require
from cs336_lib.model import GPT, KVCache
from cs336_lib.tokenizer import Tokenizer


def filter_logits(
    logits: Float[Tensor, "batch vocab"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Divide by the temperature, then put to -inf all but the likeliest tokens.

    `top_k` keeps the k likeliest (Fan et al. 2018); `top_p` the fewest whose probabilities reach p,
    the likeliest always (Holtzman et al. 2020).
    """
    logits = logits / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None:
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # the likeliest has 0 before it
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(dropped, float("-inf"))
    return logits


def context_start(length: int, block_size: int) -> int:
    """Where the context of a text of `length` tokens begins.

    Up to block_size everything is read. Past it the context moves on in jumps of half a block, so
    that a cache is rebuilt once every block_size / 2 tokens and not for each.
    """
    jump = max(1, block_size // 2)
    return -(-max(0, length - block_size) // jump) * jump


@torch.no_grad()
def stream(
    model: GPT,
    idx: Int[Tensor, "batch seq"],
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    use_cache: bool = True,
) -> Iterator[Int[Tensor, " batch"]]:
    """Yield the next token of every sequence, `max_new_tokens` times.

    Temperature 0 takes the likeliest token. The same seed gives the same tokens, with or without
    the cache; drawing happens on the CPU, so that it does not depend on the device.

    Raises:
        ValueError: an argument is out of range, or there is no token to begin with.
    """
    require(idx.size(1) > 0, "the prompt is empty; at least one token expected")
    require(max_new_tokens >= 0, f"max_new_tokens is {max_new_tokens}; 0 or more expected")
    require(temperature >= 0, f"temperature is {temperature}; 0 (greedy) or more expected")
    require(top_k is None or top_k >= 1, f"top_k is {top_k}; 1 or more expected")
    require(top_p is None or 0 < top_p <= 1, f"top_p is {top_p}; above 0 and up to 1 expected")
    was_training = model.training
    model.eval()
    generator = torch.Generator()
    generator.manual_seed(seed) if seed is not None else generator.seed()
    block_size = model.config.block_size
    cache, cached_from = None, 0
    idx = idx.to(model.device)
    for _ in range(max_new_tokens):
        start = context_start(idx.size(1), block_size)
        if not use_cache:
            logits = model(idx[:, start:])[:, -1]
        else:
            if cache is None or start != cached_from:
                cache = KVCache(model.config, idx.size(0), idx.device, model.lm_head.weight.dtype)
                cached_from = start
            logits = model(idx[:, start + cache.length :], cache=cache)[:, -1]
        if temperature == 0:
            token = logits.argmax(-1)
        else:
            probabilities = filter_logits(logits.float(), temperature, top_k, top_p).softmax(-1)
            token = torch.multinomial(probabilities.cpu(), 1, generator=generator)[:, 0]
        token = token.to(idx.device)
        idx = torch.cat((idx, token[:, None]), dim=1)
        yield token
    model.train(was_training)


def generate(
    model: GPT, idx: Int[Tensor, "batch seq"], max_new_tokens: int, **sampling: object
) -> Int[Tensor, "batch longer_seq"]:
    """The prompts with `max_new_tokens` more tokens each; `stream` says what `sampling` can be."""
    new = list(stream(model, idx, max_new_tokens, **sampling))  # type: ignore[arg-type]
    return torch.cat((idx.to(model.device), *[token[:, None] for token in new]), dim=1)


def stream_text(
    model: GPT, tokenizer: Tokenizer, prompt: str, max_new_tokens: int, **sampling: object
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, whole characters only.

    Raises:
        ValueError: the prompt is empty, or has a character the tokenizer does not know.
    """
    require(len(prompt) > 0, "the prompt is empty; at least one character expected")
    idx = torch.from_numpy(tokenizer.encode(prompt).astype("int64"))[None]
    # A character may be spread over several tokens: the decoder holds its first bytes back.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in stream(model, idx, max_new_tokens, **sampling):  # type: ignore[arg-type]
        yield decoder.decode(tokenizer.decode_bytes(token.tolist()))
    yield decoder.decode(b"", final=True)


def complete(
    model: GPT, tokenizer: Tokenizer, prompt: str, max_new_tokens: int, **sampling: object
) -> str:
    """The prompt and its continuation as one text."""
    return prompt + "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **sampling))
