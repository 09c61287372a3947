"""How much faster a text grows with guesses from its own n-grams (`use_lookup`).

    python -m benchmarks.lookup [--dtype float32]

GPT-2 124M with random weights, which can't write code, so it is made to say a given text: it
computes all logits and draws a token, and the given token replaces the drawn one. So it makes the
passes of a model that would write this text. The loop is what the random weights say themselves,
greedily. With guesses and without take turns. The last line, `ratio R`, is the time without guesses
as a multiple of the time with them, for the text that gains least.
"""

import contextlib
import itertools
import sys
from typing import Literal
from unittest import mock

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import torch
import tyro
from torch import Tensor

from benchmarks import common
from cs336_course.shared import stopwatch
from cs336_lib import sampling
from cs336_lib.config import GPTConfig, UserError
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.system import hardware

FILES = {  # file, and the place of its first character
    "code": ("cs336_lib/config.py", 9000),
    "log": ("data/shakespeare_gpt/metrics.jsonl", 0),
    "verse": ("data/shakespeare.txt", 200_000),
    "prose": ("docs/decisions.md", 20_000),
}


def texts(prompt: int, new: int) -> dict[str, Tensor]:
    """Return texts of `prompt + new` tokens by name. The quote says the prompt's end again."""
    tokenizer, found = GPT2Tokenizer(), {}
    for name, (file, first) in FILES.items():
        text = (common.ROOT / file).read_text(encoding="utf-8")[first : first + 20_000]
        found[name] = torch.from_numpy(tokenizer.encode(text).astype("int64"))[: prompt + new]
    verse = found["verse"][:prompt]
    return {"quote": torch.cat((verse, verse[-new:])), **found}


def saying(text: Tensor, prompt: int) -> contextlib.AbstractContextManager[object]:
    """Return a context in which the tokens of `text` replace those that are drawn."""
    draw, tokens = sampling.choose, itertools.count(prompt)

    def given(*arguments: object) -> Tensor:
        draw(*arguments)  # type: ignore[arg-type]
        return text[next(tokens)][None]

    return mock.patch.object(sampling, "choose", given)


def main(
    dtype: Literal["float32", "bfloat16", "float16"] = "bfloat16",
    prompt_tokens: int = 400,
    new_tokens: int = 150,
    rounds: int = 3,
    threads: int | None = None,
) -> None:
    """Measure the guesses.

    Args:
        dtype: what weights are kept in.
        prompt_tokens: how long a text is at the beginning.
        new_tokens: how many tokens are added.
        rounds: how often each text is written, with guesses and without.
        threads: how many the CPU uses (None: one per core).
    """
    if threads is not None:
        torch.set_num_threads(threads)
    torch.manual_seed(0)
    model, where = GPT(GPTConfig()).eval(), torch.device("cpu")
    sampling.store_weights(model, getattr(torch, dtype))
    print(f"124M, {dtype}, {hardware.device_name(where)}; {prompt_tokens} + {new_tokens} tokens")
    rows, slowest = {}, float("inf")
    for name, text in {**texts(prompt_tokens, new_tokens), "loop": None}.items():

        def write(use_lookup: bool, text: Tensor | None = text) -> Tensor:
            start = torch.zeros(1, 4, dtype=torch.long)
            how = {"temperature": 0.0, "use_lookup": use_lookup}
            if text is None:
                return sampling.generate(model, start, new_tokens, **how)
            with saying(text, prompt_tokens):
                return sampling.generate(model, text[None, :prompt_tokens], new_tokens, **how)

        ways = {"with": lambda: write(True), "without": lambda: write(False)}
        same = torch.equal(*(way() for way in ways.values()))
        seconds = stopwatch.seconds_in_turns(ways, where, rounds=rounds, warmup=0)
        ms = {w: [1000 * s / new_tokens for s in values] for w, values in seconds.items()}
        times = common.ratio(ms["without"], ms["with"])
        slowest = min(slowest, times)
        rows[name] = {way: common.spread(values) for way, values in ms.items()} | {"times": times}
        print(
            f"{name:6} {rows[name]['with']['median']:6.1f} ms a token, without guesses "
            f"{rows[name]['without']['median']:6.1f}; {times:.2f} x  "
            f"{'same tokens' if same else 'OTHER TOKENS'}",
            flush=True,
        )
    setup = {"dtype": dtype, "prompt_tokens": prompt_tokens, "new_tokens": new_tokens}
    result = {"machine": common.machine(where), "setup": setup, "ms_per_token": rows}
    print(common.write(f"lookup_{dtype}", result))
    print(f"ratio {slowest:.2f}")


if __name__ == "__main__":
    try:
        tyro.cli(main)
    except UserError as error:
        sys.exit(str(error))
