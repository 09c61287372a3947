"""Sampling: temperature, top-k and top-p, with a key-value cache, token by token."""

import codecs
import math
from collections.abc import Iterator, Sequence
from typing import overload

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_lib.config import require
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.io import Bar
from cs336_lib.model import GPT, KVCache

MOST_TOKENS = 2**20  # room for them is made before the first
COLDEST = 1e-6  # divided by less, logits could overflow
WEIGHTS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}

# Prompts of one length are a matrix, of different lengths a list of vectors.
Prompts = Int[Tensor, "batch seq"] | Sequence[Int[Tensor, " seq"]]


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
    if top_p is not None and top_p < 1:  # rounded, a part of all tokens has a sum of 1 already
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


def align(
    prompts: Prompts, room: int, device: torch.device
) -> tuple[Int[Tensor, "batch longest_and_room"], list[int]]:
    """The prompts in one matrix, all ending in the same column, with `room` more columns.

    Also how many columns each has on its left that are not its own.
    """
    longest = max(len(prompt) for prompt in prompts)
    padding = [longest - len(prompt) for prompt in prompts]
    text = torch.zeros(len(prompts), longest + room, dtype=torch.long, device=device)
    for row, left, prompt in zip(text, padding, prompts, strict=True):
        row[left:longest] = prompt
    return text, padding


class Reader:
    """Reads texts that `align` has put into one matrix, and says what could come next.

    `padding` counts the columns left of each. What has been read once is kept in a cache.
    """

    def __init__(self, model: GPT, padding: list[int], use_cache: bool = True):
        self.model, self.padding, self.use_cache = model, padding, use_cache
        self.cache: KVCache | None = None
        self.starts: list[int] = []

    def logits(self, text: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch vocab"]:
        """Logits of the token after the last column; `text` is longer from call to call."""
        length, block_size = text.size(1), self.model.config.block_size
        starts = [left + context_start(length - left, block_size) for left in self.padding]
        begin = min(starts)
        if self.cache is None or starts != self.starts or not self.use_cache:
            self.starts = starts
            self.cache = KVCache(
                self.model.config,
                len(starts),
                text.device,
                self.model.transformer.wte.weight.dtype,
                padding=[start - begin for start in starts],
            )
        unread = text[:, begin + self.cache.length :]
        return self.model(unread, cache=self.cache, last_only=True)[:, -1]


def choose(
    logits: Float[Tensor, "batch vocab"],
    generators: list[torch.Generator],
    temperature: float,
    top_k: int | None,
    top_p: float | None,
) -> Int[Tensor, " batch"]:
    """A token for each row, drawn with the row's own generator; the likeliest at temperature 0.

    Drawing happens on the CPU, so that it does not depend on the device.

    Raises:
        ValueError: there is no distribution to draw from.
    """
    if temperature == 0:
        return logits.argmax(-1)
    probabilities = filter_logits(logits.float(), temperature, top_k, top_p).softmax(-1).cpu()
    require_finite(probabilities[:, 0])  # softmax spreads NaN, and makes it of infinity
    drawn = [
        torch.multinomial(row, 1, generator=generator)
        for row, generator in zip(probabilities, generators, strict=True)
    ]
    return torch.cat(drawn).to(logits.device)


def require_finite(values: Float[Tensor, " batch"]) -> None:
    """Refuse to go on with what a model makes of weights that have grown without bound.

    Raises:
        ValueError: a value is NaN or infinite.
    """
    require(
        math.isfinite(values.amax()),  # which NaN outdoes
        "the model's logits are not finite; use --weights fp32 or an earlier checkpoint",
    )


@torch.no_grad()
def stream(
    model: GPT,
    prompts: Prompts,
    max_new_tokens: int,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    stop_token: int | None = None,
    use_cache: bool = True,
) -> Iterator[Int[Tensor, " batch"]]:
    """Yield the next token of every prompt, `max_new_tokens` times at most.

    Each prompt is continued as it would be alone. At temperature 0 that is with the likeliest
    token; else with random numbers of its own, so that row i of a batch with seed s is what the
    prompt gives alone with seed s + i. The cache changes the speed and not the tokens.

    A row that has drawn `stop_token` yields nothing else from then on; all have: the end.

    Raises:
        ValueError: an argument is out of range, there is no token to begin with, or the logits are
            not finite (at temperature 0 on a GPU, this is said at the end).
    """
    require(len(prompts) > 0, "there is no prompt; at least one expected")
    for prompt in prompts:
        require(prompt.ndim == 1, "a prompt is not a vector; a matrix or a list of them expected")
        require(len(prompt) > 0, "the prompt is empty; at least one token expected")
    require(
        0 <= max_new_tokens <= MOST_TOKENS,
        f"max_new_tokens is {max_new_tokens}; 0 to {MOST_TOKENS} expected",
    )
    require(
        temperature == 0 or COLDEST <= temperature < math.inf,
        f"temperature is {temperature}; 0 (greedy), or {COLDEST} or more expected",
    )
    require(top_k is None or top_k >= 1, f"top_k is {top_k}; 1 or more expected")
    require(top_p is None or 0 < top_p <= 1, f"top_p is {top_p}; above 0 and up to 1 expected")
    require(seed is None or 0 <= seed < 2**62, f"seed is {seed}; 0 to 2**62 - 1 expected")
    generators = [torch.Generator() for _ in prompts]
    for row, generator in enumerate(generators):
        generator.manual_seed(seed + row) if seed is not None else generator.seed()
    text, padding = align(prompts, max_new_tokens, model.device)
    stopped = torch.zeros(len(text), dtype=torch.bool, device=text.device)
    reader = Reader(model, padding, use_cache)
    highest = torch.zeros(len(text), device=text.device)
    was_training = model.training
    model.eval()
    try:
        for end in range(text.size(1) - max_new_tokens, text.size(1)):
            logits = reader.logits(text[:, :end])
            token = choose(logits, generators, temperature, top_k, top_p)
            if temperature == 0:
                highest = torch.maximum(highest, logits.amax(-1))
                if text.device.type == "cpu":  # elsewhere a look would wait for the device
                    require_finite(highest)
            if stop_token is not None:
                token = token.masked_fill(stopped, stop_token)
                stopped = token == stop_token
            text[:, end] = token
            yield token
            if stop_token is not None and stopped.all():
                break
        require_finite(highest)
    finally:
        model.train(was_training)


class HalfLinear(nn.Module):
    """A linear layer whose weights are kept in 16 bits, between activations of 32.

    A single row is as fast as the weights come from memory, and here they are half as many bytes.
    Several rows are arithmetic, for which most CPUs have no 16-bit circuits: weights are widened.
    """

    def __init__(self, linear: nn.Linear, dtype: torch.dtype):
        super().__init__()
        self.register_buffer("weight", linear.weight.to(dtype))
        self.register_buffer("bias", None if linear.bias is None else linear.bias.to(dtype))

    def forward(self, x: Float[Tensor, "batch seq n_in"]) -> Float[Tensor, "batch seq n_out"]:
        """The product, in the dtype of `x`."""
        if x.numel() == x.size(-1):
            return F.linear(x.to(self.weight.dtype), self.weight, self.bias).to(x.dtype)
        bias = None if self.bias is None else self.bias.to(x.dtype)
        return F.linear(x, self.weight.to(x.dtype), bias)


@torch.no_grad()
def store_weights(model: GPT, dtype: torch.dtype = torch.float32) -> None:
    """Store the weights in `dtype`, and so that the device has them soonest for a single token.

    After this the model is good for generation only. On a CPU, float32 keeps every value and puts
    the wide matrices by column, which are fetched 1.5 times as fast as by row; 16 bits are fetched
    best by row (docs/decisions.md).
    """
    if model.device.type != "cpu":
        model.to(dtype)
        return
    for parent in list(model.modules()):
        for name, layer in list(parent.named_children()):
            if not isinstance(layer, nn.Linear):
                continue
            if dtype != torch.float32:
                setattr(parent, name, HalfLinear(layer, dtype))
            elif layer.out_features >= layer.in_features:
                layer.weight.data = layer.weight.T.contiguous().T


@overload
def generate(
    model: GPT, prompts: Int[Tensor, "batch seq"], max_new_tokens: int, **sampling: object
) -> Int[Tensor, "batch longer_seq"]: ...


@overload
def generate(
    model: GPT, prompts: Sequence[Int[Tensor, " seq"]], max_new_tokens: int, **sampling: object
) -> list[Int[Tensor, " longer_seq"]]: ...


def generate(
    model: GPT, prompts: Prompts, max_new_tokens: int, **sampling: object
) -> Int[Tensor, "batch longer_seq"] | list[Int[Tensor, " longer_seq"]]:
    """The prompts with up to `max_new_tokens` more tokens; `stream` says what `sampling` can be.

    A matrix gives a matrix, in which rows that stopped early are filled up with the stop token; a
    list gives a list, in which they end with it.
    """
    found = stream(model, prompts, max_new_tokens, **sampling)  # type: ignore[arg-type]
    bar = Bar(found, total=max_new_tokens, desc="sampling", unit="tok", leave=False, delay=1)
    tokens = list(bar)
    columns = [token[:, None] for token in tokens]
    if isinstance(prompts, Tensor):
        return torch.cat((prompts.to(model.device), *columns), dim=1)
    new = torch.cat(columns, dim=1) if columns else torch.empty(len(prompts), 0, dtype=torch.long)
    kept = [until(row, sampling.get("stop_token")) for row in new.to(model.device)]
    return [torch.cat((p.to(model.device), row)) for p, row in zip(prompts, kept, strict=True)]


def until(row: Int[Tensor, " seq"], stop_token: object) -> Int[Tensor, " shorter_seq"]:
    """The tokens up to the first `stop_token`, that one included."""
    found = (row == stop_token).nonzero() if stop_token is not None else []
    return row[: int(found[0]) + 1] if len(found) else row


def encode(tokenizer: Tokenizer, prompt: str) -> Int[Tensor, " seq"]:
    """A prompt as token ids.

    Raises:
        ValueError: the prompt is empty, or has a character the tokenizer does not know.
    """
    require(len(prompt) > 0, "the prompt is empty; at least one character expected")
    return torch.from_numpy(tokenizer.encode(prompt).astype("int64"))


def first_prompt(tokenizer: Tokenizer, wanted: str) -> str:
    """`wanted`, where the tokenizer can encode it, else its first character or token."""
    try:
        tokenizer.encode(wanted)
    except ValueError:
        return tokenizer.decode([0])
    return wanted


def stream_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    max_new_tokens: int,
    *,
    stop: bool = True,
    **sampling: object,
) -> Iterator[str]:
    """Yield the continuation of `prompt` piece by piece, whole characters only.

    It ends before <|endoftext|>, if the tokenizer has it and unless `stop` is False.

    Raises:
        ValueError: the prompt is empty, or has a character the tokenizer does not know.
    """
    stop_token = tokenizer.end_of_text if stop else None
    idx = encode(tokenizer, prompt)[None]
    # A character may be spread over several tokens: the decoder holds its first bytes back.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    for token in stream(model, idx, max_new_tokens, stop_token=stop_token, **sampling):  # type: ignore[arg-type]
        if token.item() != stop_token:
            yield decoder.decode(tokenizer.decode_bytes(token.tolist()))
    yield decoder.decode(b"", final=True)


def complete(
    model: GPT, tokenizer: Tokenizer, prompt: str, max_new_tokens: int, **sampling: object
) -> str:
    """The prompt and its continuation as one text; `stream_text` says where it ends."""
    return prompt + "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **sampling))  # type: ignore[arg-type]


def complete_batch(
    model: GPT,
    tokenizer: Tokenizer,
    prompts: Sequence[str],
    max_new_tokens: int,
    *,
    stop: bool = True,
    **sampling: object,
) -> list[str]:
    """What `complete` gives for each prompt, the i-th with seed + i, but all computed together."""
    stop_token = tokenizer.end_of_text if stop else None
    ids = [encode(tokenizer, prompt) for prompt in prompts]
    rows = generate(model, ids, max_new_tokens, stop_token=stop_token, **sampling)
    texts = []
    for prompt, read, row in zip(prompts, ids, rows, strict=True):
        new = row[len(read) :].tolist()
        texts.append(prompt + tokenizer.decode([token for token in new if token != stop_token]))
    return texts
