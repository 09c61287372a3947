"""Sample from a GPT with temperature, top-k, top-p and a KV cache."""

import codecs
import math
import secrets
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_lib.config import UserError
from cs336_lib.data.tokenizer import END_OF_TEXT, Tokenizer
from cs336_lib.io import Bar
from cs336_lib.model import GPT, KVCache
from cs336_lib.system import cpu, hardware
from cs336_lib.system.lookup import PromptLookup

MAX_NEW_TOKENS = 2**20  # their memory is allocated before the first one is drawn
MIN_TEMPERATURE = 1e-6  # dividing by less could overflow
WEIGHTS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass(frozen=True)
class SamplingConfig:
    """Settings for sampling.

    Args:
        max_new_tokens: Maximum number of tokens to generate.
        temperature: Divisor of the logits. 0 always picks the most likely token.
        top_k: Number of most likely tokens to sample from (default: all).
        top_p: Total probability of the most likely tokens to sample from (default: all).
        seed: Random seed. Prompt i of a batch uses seed + i (default: a random seed).
        stop_token: Token that ends a row (default: `None`, which never ends a row early).
        use_cache: Whether to use a KV cache, which is faster and gives the same tokens.
        use_lookup: Whether to guess the next tokens of a single prompt from its own n-grams, and
            read all guesses in one pass. It is faster in repetitive text and gives the same tokens.
            It needs the cache.

    Raises:
        UserError: If a setting is out of range.
    """

    max_new_tokens: int
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None
    stop_token: int | None = None
    use_cache: bool = True
    use_lookup: bool = True

    def __post_init__(self) -> None:
        count_fits = 0 <= self.max_new_tokens <= MAX_NEW_TOKENS
        divisible = self.temperature == 0 or MIN_TEMPERATURE <= self.temperature < math.inf
        for name, valid, expected in (
            ("max_new_tokens", count_fits, f"0 to {MAX_NEW_TOKENS}"),
            ("temperature", divisible, f"0 (greedy) or at least {MIN_TEMPERATURE}"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "above 0 and up to 1"),
            ("seed", self.seed is None or 0 <= self.seed < 2**62, "0 to 2**62 - 1"),
        ):
            if not valid:
                raise UserError(f"{name} is {getattr(self, name)}; {expected} expected")


def filter_logits(
    logits: Float[Tensor, "batch vocab"],
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> Float[Tensor, "batch vocab"]:
    """Divide logits by the temperature, and set the logits of unlikely tokens to -inf.

    `top_k` keeps the k most likely tokens (Fan et al. 2018). `top_p` keeps the smallest set of most
    likely tokens with a total probability of at least p (Holtzman et al. 2020).
    """
    logits = logits / temperature
    if top_k is not None:
        kth = logits.topk(min(top_k, logits.size(-1))).values[:, -1:]
        logits = logits.masked_fill(logits < kth, float("-inf"))
    if top_p is not None and top_p < 1:  # a rounded cumulative sum reaches 1 before the last token
        ordered, order = logits.sort(descending=True)
        probabilities = ordered.softmax(-1)
        before = probabilities.cumsum(-1) - probabilities  # 0 for the most likely token
        top_p = max(top_p, torch.finfo(before.dtype).tiny)  # less would be rounded to 0
        dropped = torch.zeros_like(before, dtype=torch.bool).scatter(1, order, before >= top_p)
        logits = logits.masked_fill(dropped, float("-inf"))
    return logits


def context_start(length: int, block_size: int) -> int:
    """Return the first position in the context for a text of `length` tokens.

    The context holds at most block_size tokens. When it is full, it moves forward by half a block.
    The KV cache is therefore rebuilt only once every block_size / 2 tokens.
    """
    jump = max(1, block_size // 2)
    return -(-max(0, length - block_size) // jump) * jump


def choose(
    logits: Float[Tensor, "batch vocab"],
    generators: list[torch.Generator],
    sampling: SamplingConfig,
) -> Int[Tensor, " batch"]:
    """Sample a token for each row, or take the argmax at temperature 0.

    Each row has its own random generator. Sampling runs on the CPU, so the random numbers don't
    depend on the device. Raises `UserError` if the logits aren't finite.
    """
    if not math.isfinite(logits.amax()):  # the largest of several is NaN if one is
        raise UserError(
            "the model's logits are not finite; use --weights fp32 or an earlier checkpoint"
        )
    if sampling.temperature == 0:
        return logits.argmax(-1)
    filtered = filter_logits(logits.float(), sampling.temperature, sampling.top_k, sampling.top_p)
    probabilities = filtered.softmax(-1).cpu()
    tokens = [
        torch.multinomial(row, 1, generator=generator)
        for row, generator in zip(probabilities, generators, strict=True)
    ]
    return torch.cat(tokens).to(logits.device)


@torch.no_grad()
def stream(
    model: GPT, prompts: Int[Tensor, "batch seq"], max_new_tokens: int, **options: Any
) -> Iterator[Int[Tensor, " batch"]]:
    """Generate one token per prompt at a time, until all rows have stopped.

    Each row has its own random generator, so its continuation doesn't depend on the rest of the
    batch. Row i of a batch with seed s gets the same tokens as a single prompt with seed s + i.

    With `use_lookup`, one pass may give several tokens of a single prompt. They are the same
    tokens, with the same random numbers, because a guess counts only if it is the token that was
    drawn. Logits may differ by rounding, so nearly equal probabilities can be an exception.

    Args:
        model: The model.
        prompts: Token ids, shape (batch, tokens).
        max_new_tokens: Maximum number of tokens to generate.
        options: The other fields of `SamplingConfig` by name.

    Yields:
        One token per row. After the stop token, a row repeats the stop token.

    Raises:
        UserError: If a setting is out of range or the logits aren't finite.
        ValueError: If the prompts aren't a batch of at least one token each.
    """
    sampling = SamplingConfig(max_new_tokens, **options)
    if prompts.ndim != 2 or prompts.numel() == 0:
        raise ValueError(
            f"the prompts have shape {tuple(prompts.shape)}; (batch, seq) expected, not empty"
        )
    seed = secrets.randbits(62) if sampling.seed is None else sampling.seed
    generators = [torch.Generator().manual_seed(seed + row) for row in range(len(prompts))]
    text = F.pad(prompts, (0, sampling.max_new_tokens)).to(model.device)
    block_size, dtype = model.config.block_size, model.transformer.wte.weight.dtype
    guessing = sampling.use_lookup and sampling.use_cache and len(prompts) == 1
    lookup = PromptLookup(prompts[0].tolist()) if guessing else None
    cache, begin, end = None, 0, prompts.size(1)
    stopped = torch.zeros(len(text), dtype=torch.bool, device=text.device)
    was_training = model.training
    model.eval()
    try:
        while end < text.size(1) and not stopped.all():
            start = context_start(end, block_size)
            if cache is None or start != begin or not sampling.use_cache:
                cache, begin = KVCache(model.config, len(text), text.device, dtype), start
            most = min(start + block_size, text.size(1) - 1) - end
            guesses = lookup.guess(most) if lookup and cache.length else []
            after = end + len(guesses)
            text[:, end:after] = torch.tensor(guesses, dtype=text.dtype)
            unread = text[:, start + cache.length : after]
            logits = model(unread, cache=cache, last_only=not guesses)
            # Each token is drawn from the model's probabilities, whether it was guessed or not. A
            # wrong guess only makes the later logits worthless.
            for right, at_end in enumerate(logits[:, -len(guesses) - 1 :].unbind(1)):
                token = choose(at_end, generators, sampling)
                if sampling.stop_token is not None:
                    token = token.masked_fill(stopped, sampling.stop_token)
                    stopped = token == sampling.stop_token
                text[:, end] = token
                end += 1
                if lookup:
                    lookup.append(int(token))
                yield token
                if stopped.all() or guesses[right : right + 1] != token.tolist():
                    break
            if lookup:
                lookup.learn(len(guesses), right)
            cache.length = end - 1 - start  # forget the wrong guesses
    finally:
        model.train(was_training)


class PackedLinear(nn.Module):
    """Linear layer of fp32 tensors, whose weight is stored for this CPU in another dtype."""

    def __init__(self, layer: cpu.Layer):
        super().__init__()
        self.layer = layer

    def forward(self, x: Float[Tensor, "batch seq n_in"]) -> Float[Tensor, "batch seq n_out"]:
        """Apply the layer."""
        return self.layer(x)


@torch.no_grad()
def store_weights(model: GPT, dtype: torch.dtype = torch.float32) -> None:
    """Convert the weights to `dtype`, in the fastest memory layout for generating a single text.

    After this call, use the model only for generation. On a CPU, FBGEMM multiplies fp16 weights. If
    the CPU has native bf16, oneDNN multiplies fp32 and bf16 weights. Otherwise, fp32 weights with
    at least as many outputs as inputs are stored in column-major order, and bf16 weights stay in
    row-major order (docs/decisions.md).
    """
    if model.device.type != "cpu":
        model.to(dtype)
        return
    packs = dtype == torch.float16 or hardware.has_bf16(model.device)
    linear_layers = {n: m for n, m in model.named_modules() if isinstance(m, nn.Linear)}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:  # FBGEMM packs with one thread
        pack = (lambda m: cpu.packed_linear(m.weight, m.bias, dtype)) if packs else (lambda m: None)
        packed = list(pool.map(pack, linear_layers.values()))
    for (name, linear), layer in zip(linear_layers.items(), packed, strict=True):
        if layer is None and dtype != torch.float32:
            layer = cpu.half_linear(linear.weight, linear.bias, dtype)
        if layer:
            model.set_submodule(name, PackedLinear(layer))
        elif linear.out_features >= linear.in_features:
            linear.weight.data = linear.weight.T.contiguous().T


def generate(
    model: GPT, prompts: Int[Tensor, "batch seq"], max_new_tokens: int, **options: Any
) -> Int[Tensor, "batch longer_seq"]:
    """Return the prompts followed by their continuations. See `stream` for the arguments.

    Rows that end early are padded with the stop token.
    """
    tokens = stream(model, prompts, max_new_tokens, **options)
    bar = Bar(tokens, total=max_new_tokens, desc="sampling", unit="tok")
    return torch.cat([prompts.to(model.device), *(token[:, None] for token in bar)], dim=1)


def encode(tokenizer: Tokenizer, prompt: str) -> Int[Tensor, " seq"]:
    """Encode a prompt as token ids. <|endoftext|>, or nothing at all, begins a new document.

    Raises `UserError` if the prompt has a character that isn't in the vocabulary.
    """
    first, *others = (tokenizer.encode(text).tolist() for text in prompt.split(END_OF_TEXT))
    for ids in others:
        first += [tokenizer.new_document, *ids]
    return torch.tensor(first or [tokenizer.new_document])


def first_prompt(tokenizer: Tokenizer, wanted: str) -> str:
    """Return `wanted` if the tokenizer can encode it, and otherwise the text of token 0."""
    try:
        tokenizer.encode(wanted)
    except UserError:
        return tokenizer.decode([0])
    return wanted


def stream_text(
    model: GPT,
    tokenizer: Tokenizer,
    prompt: str,
    max_new_tokens: int,
    *,
    stop: bool = True,
    **options: Any,
) -> Iterator[str]:
    """Yield the continuation of `prompt` as text, piece by piece.

    A character that spans several tokens is yielded as a whole. If `stop` is true, the text ends
    before <|endoftext|>. See `stream` and `encode` for the other arguments and errors.
    """
    stop_token = tokenizer.end_of_text if stop else None
    # A character may be spread over several tokens, so the decoder holds back its first bytes.
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    options["stop_token"] = stop_token
    for token in stream(model, encode(tokenizer, prompt)[None], max_new_tokens, **options):
        if token.item() != stop_token:
            yield decoder.decode(tokenizer.decode_bytes(token.tolist()))
    yield decoder.decode(b"", final=True)


def complete(
    model: GPT, tokenizer: Tokenizer, prompt: str, max_new_tokens: int, **options: Any
) -> str:
    """Return the prompt followed by its continuation. See `stream_text` for the arguments."""
    return prompt + "".join(stream_text(model, tokenizer, prompt, max_new_tokens, **options))
