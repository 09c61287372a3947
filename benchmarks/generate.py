"""How fast one text grows: ours, transformers' `generate` with its cache, and nanoGPT without one.

    python -m benchmarks.generate [--nanogpt PATH] [--prompt-tokens 512] [--dtype bfloat16]

GPT-2 124M with random weights, the same in all, batch 1, greedy. Such a model soon repeats itself,
and our guesses from n-grams would all be right. So ours doesn't guess here, and what guesses save
is measured apart, on text that the trained model of the repository writes. Threads spin while they
wait, in all (OMP_WAIT_POLICY=ACTIVE), which is the faster way on idle cores; ours would let them
sleep. The limit is the time to read all weights once at the bandwidth of a plain sum with the same
threads. The last line, `ratio R`, says how many times as long transformers takes.
"""

import copy
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

os.environ.setdefault("OMP_WAIT_POLICY", "ACTIVE")  # OpenMP reads it once, when torch is loaded

# isort: split
import torch
import tyro
from torch import Tensor

from benchmarks import common, peers
from cs336_course.shared import stopwatch
from cs336_lib import accounting
from cs336_lib.config import GPTConfig, UserError
from cs336_lib.model import GPT
from cs336_lib.sampling import generate, store_weights
from cs336_lib.system import hardware
from cs336_lib.training.checkpoint import load_shipped

Contender = Callable[[], Tensor]


def transformers_contender(model: GPT, idx: Tensor, new_tokens: int) -> Contender:
    """transformers' GPT2LMHeadModel with our weights; its cache is on by default."""
    theirs = peers.transformers_model(model).eval()
    theirs.generation_config.eos_token_id = None  # ours does not stop either
    how: dict[str, Any] = {"do_sample": False, "use_cache": True, "pad_token_id": 0}
    seen = torch.ones_like(idx)
    return lambda: theirs.generate(idx, attention_mask=seen, max_new_tokens=new_tokens, **how)


def nanogpt_contender(checkout: Path, model: GPT, idx: Tensor, new_tokens: int) -> Contender:
    """nanoGPT's model with our weights; `top_k=1` makes its sampling greedy."""
    theirs = peers.nanogpt_model(checkout, model).eval()
    return lambda: theirs.generate(idx, new_tokens, top_k=1)


def measure_guesses(where: torch.device, new_tokens: int, rounds: int) -> dict[str, list[float]]:
    """Measure and print the ms a letter of the shipped model with and without guesses."""
    model, letters = load_shipped()
    model.to(where)
    prompt = torch.from_numpy(letters.encode("ROMEO:\n").astype("int64"))[None].to(where)
    letter = partial(generate, model, prompt, new_tokens, seed=0)
    contenders = {"guessing": letter, "without guesses": partial(letter, use_lookup=False)}
    seconds = stopwatch.seconds_in_turns(contenders, where, rounds=rounds)
    found = {name: [1000 * s / new_tokens for s in values] for name, values in seconds.items()}
    for name, values in found.items():
        print(f"a letter of the shipped model, {name}: {median(values):.2f} ms")
    return found


def measure(
    where: torch.device,
    config: GPTConfig,
    prompt_tokens: int = 16,
    new_tokens: int = 128,
    rounds: int = 5,
    dtype: str = "float32",
    nanogpt: Path | None = None,
) -> dict[str, Any]:
    """Measure and print how fast each contender samples.

    Args:
        where: Device of the peers.
        config: Shape of the peers.
        prompt_tokens: Tokens in the prompt.
        new_tokens: Tokens that are sampled.
        rounds: Measured texts of each contender, after one of warm-up.
        dtype: Data type of the weights.
        nanogpt: A checkout of karpathy/nanoGPT, or `None` to leave nanoGPT out.
    """
    torch.manual_seed(0)
    model = GPT(config).to(where).eval()
    idx = torch.randint(model.config.vocab_size, (1, prompt_tokens), device=where)
    as_loaded = copy.deepcopy(model)
    as_loaded.to(getattr(torch, dtype))
    store_weights(model, getattr(torch, dtype))  # as `cs336 sample --weights` does
    contenders: dict[str, Contender] = {
        "ours": lambda: generate(model, idx, new_tokens, temperature=0.0, use_lookup=False),
        "transformers": transformers_contender(as_loaded, idx, new_tokens),
    }
    if nanogpt:
        contenders["nanoGPT"] = nanogpt_contender(nanogpt, as_loaded, idx, new_tokens)
    with torch.inference_mode():
        texts = {name: work() for name, work in contenders.items()}
        seconds = stopwatch.seconds_in_turns(contenders, where, rounds=rounds, warmup=0)
        read = torch.ones(2**26, device=where)  # 268 MB, more than the caches hold
        bandwidth = read.nbytes / hardware.best_seconds(read.sum, where)
    per_token = {
        name: [1000 * value / new_tokens for value in measured]
        for name, measured in seconds.items()
    }
    weights = (
        sum(p.nbytes for p in as_loaded.parameters()) - as_loaded.transformer.wpe.weight.nbytes
    )
    limit = 1000 * weights / bandwidth
    ratios = {name: common.ratio(per_token[name], per_token["ours"]) for name in contenders}
    spreads = {name: common.spread(values) for name, values in per_token.items()}

    size = f"{accounting.count_parameters(config):,} parameters"
    print(f"{size}, {dtype}, {hardware.device_name(where)}, batch 1, greedy")
    print(f"{prompt_tokens} tokens + {new_tokens} new ones; {rounds} alternating rounds, medians")
    for name, found in spreads.items():
        same = "same tokens" if torch.equal(texts[name], texts["ours"]) else "OTHER TOKENS"
        print(
            f"{name:20} {found['median']:8.1f} ms/token ({found['lowest']:.1f} to "
            f"{found['highest']:.1f})  {ratios[name]:5.2f} x ours  {same}"
        )
    print(
        f"limit                {limit:8.1f} ms/token: {weights / 1e6:.0f} MB of weights at "
        f"{bandwidth / 1e9:.1f} GB/s, as a sum reads; ours reaches "
        f"{limit / spreads['ours']['median']:.0%} of this speed"
    )
    return {
        "machine": common.machine(where, ("transformers",)),
        "setup": {
            "model": f"{size}, random weights",
            "dtype": dtype,
            "prompt_tokens": prompt_tokens,
            "new_tokens": new_tokens,
            "nanogpt": common.commit(nanogpt) if nanogpt else "absent",
        },
        "ms_per_token": spreads,
        "times_ours": ratios,
        "same_tokens": {name: torch.equal(text, texts["ours"]) for name, text in texts.items()},
        "weight_bytes_per_token": weights,
        "read_bytes_per_second": bandwidth,
        "limit_ms_per_token": limit,
        "trained_letters_ms": measure_guesses(where, 256, rounds),
    }


def main(
    nanogpt: Path | None = None,
    prompt_tokens: int = 16,
    new_tokens: int = 128,
    rounds: int = 5,
    dtype: Literal["float32", "bfloat16", "float16"] = "float32",
    device: str = "cpu",
    threads: int | None = None,
) -> None:
    """Measure how fast one text grows.

    Args:
        nanogpt: a checkout of karpathy/nanoGPT; left out, it is not measured.
        prompt_tokens: how long the text is at the beginning.
        new_tokens: how many tokens are added.
        rounds: how often each contender runs, after one round of warm-up.
        dtype: what weights are kept in, in all contenders, as each of them does it.
        device: auto, cpu, cuda or mps.
        threads: how many the CPU uses (None: one per core).
    """
    where = hardware.select_device(device)
    if threads is not None:
        torch.set_num_threads(threads)
    result = measure(where, GPTConfig(), prompt_tokens, new_tokens, rounds, dtype, nanogpt=nanogpt)
    capability = result["machine"]["cpu_capability"].lower()
    place = capability if where.type == "cpu" else where.type
    print(common.write(f"generate_{place}_{dtype}_prompt{prompt_tokens}", result))
    print(f"ratio {result['times_ours']['transformers']:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
