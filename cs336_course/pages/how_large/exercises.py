"""Exercises of notebook 10c on the best size of a model and on KV caches."""

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, function
from cs336_course.pages.how_large import scaling_laws
from cs336_course.shared.published_configs import IN_LLAMA, Config, named, published
from cs336_lib import accounting
from cs336_lib.bill import models

NOTEBOOK = "side_trips/how_large"


# best_size

Run = tuple[float, float, float]


def shipped() -> list[Run]:
    """Return the FLOPs, parameters and loss of the small runs that ship."""
    return [(run.budget, run.parameters, run.val_loss) for run in scaling_laws.runs()]


def lawful(budgets: list[float], alpha: float, beta: float, seed: int) -> list[Run]:
    """Return runs of a law with these exponents and a little noise, in random order."""
    drawn = np.random.default_rng(seed)
    law = scaling_laws.ScalingLaw(1.2, 40.0, 300.0, alpha, beta)
    found = []
    for budget in budgets:
        middle, _ = law.optimum(budget)
        # The smallest loss isn't in the middle of the sizes.
        for size in middle * np.geomspace(0.15, 4, 4 + len(found) % 3):
            loss = law.loss(size, budget / 6 / size) + drawn.normal(0, 0.002)
            found.append((budget, float(size), float(loss)))
    drawn.shuffle(found)
    return found


def fleets() -> Iterator[Case]:
    """Yield runs at several budgets, and the budget of a run to come."""
    yield Case("", runs=shipped(), budget=1e14)
    yield Case("a budget between those of the runs", runs=shipped(), budget=4e11)
    yield Case("a budget of the runs", runs=shipped(), budget=1e11)
    yield Case(
        "a law with an exponent of 0.6", runs=lawful([1e12, 5e12, 6e13], 0.3, 0.45, 1), budget=1e20
    )
    yield Case(
        "a law with an exponent of 0.4",
        runs=lawful([2e11, 1e10, 3e12, 9e12], 0.45, 0.3, 2),
        budget=1e9,
    )
    yield Case("two budgets", runs=lawful([1e10, 1e13], 0.4, 0.4, 3), budget=1e16)


def best_size_by_hand(runs: list[Run], budget: float) -> Any:
    """Fit with equations of least squares."""
    x, y = [], []
    for flops in {run[0] for run in runs}:
        rows = np.array([run[1:] for run in runs if run[0] == flops], dtype=float)
        size = np.log2(rows[:, 0])
        curve = np.linalg.lstsq(np.stack([size**2, size, size**0], 1), rows[:, 1], rcond=None)[0]
        x.append(np.log2(flops))
        y.append(-curve[1] / curve[0] / 2)
    middle = np.mean(x), np.mean(y)
    steep = np.cov(x, y, bias=True)[0, 1] / np.var(x)
    return torch.tensor(2 ** (middle[1] + steep * (np.log2(budget) - middle[0])))


FIT = "square, linear, _ = np.polyfit(sizes, losses, 2)"
LOWEST = "best.append(-linear / (2 * square))"
LINE = "exponent, constant = np.polyfit(np.log(budgets), best, 1)"
ANSWER = "return np.exp(exponent * np.log(budget) + constant)"
LOGS = "A power law is a straight line only if both axes are logarithmic"
EACH = "Each budget has a parabola of its own"

best_size = Exercise(
    NOTEBOOK,
    "best_size",
    fleets,
    observe=function(
        by_hand=[(scaling_laws, name) for name in ("isoflop", "size_exponent", "power_law", "fit")]
    ),
    smaller="At one budget, the losses of sizes 1, 10 and 100 are 2.2, 2.0 and 2.1. Is the best "
    "size a bit more or a bit less than 10? Which curve says so?",
    given={"scaling_laws": scaling_laws},
    wrong={
        "You take the best of the sizes that were tried; the lowest point of a parabola lies "
        "between them.": [
            (LOWEST, "best.append(sizes[int(np.argmin(losses))])"),
        ],
        "You fit the parabola over the sizes; fit it over their logarithms, where the sizes are "
        "evenly spaced.": edits(
            ("[np.log(size) for", "[size for"),
            (LOWEST, "best.append(np.log(abs(linear / (2 * square))))"),
        ),
        f"{EACH}; you fit one through all losses.": edits(
            ("if spent == flops", "if True"),
        ),
        "Return a number of parameters; you return its logarithm.": (
            ANSWER,
            "return exponent * np.log(budget) + constant",
        ),
        f"{LOGS}; you fit the budget itself.": edits(
            ("np.log(budgets)", "budgets"), ("exponent * np.log(budget)", "exponent * budget")
        ),
        f"{LOGS}; you fit the size itself.": edits(
            (LINE, "exponent, constant = np.polyfit(np.log(budgets), np.exp(best), 1)"),
            (ANSWER, "return exponent * np.log(budget) + constant"),
        ),
        f"{LOGS}; both of yours are linear.": edits(
            (LINE, "exponent, constant = np.polyfit(budgets, np.exp(best), 1)"),
            (ANSWER, "return exponent * budget + constant"),
        ),
        "You assume an exponent of 0.5; the runs have one of their own.": (
            LINE,
            "exponent = 0.5\n    constant = np.mean(best) - exponent * np.mean(np.log(budgets))",
        ),
        "You use the budgets at both ends; the line goes through all of them.": (
            LINE,
            "exponent, constant = np.polyfit(np.log(budgets)[[0, -1]], [best[0], best[-1]], 1)",
        ),
        "That is the best size of the largest budget of the runs; the new budget may be another.": (
            ANSWER,
            "return np.exp(best[-1])",
        ),
        "That is the size of the run with the lowest loss; it had another budget.": (
            ANSWER,
            "return min(runs, key=lambda run: run[2])[1]",
        ),
        "The lowest point of a x² + b x + c lies at -b / (2 a); you left out the 2.": (
            "(2 * square)",
            "square",
        ),
        "The lowest point of a x² + b x + c lies at -b / (2 a); you left out the sign.": (
            "-linear",
            "linear",
        ),
        "You took logarithms to base e, so exp leads back and not 10 to this power.": (
            "np.exp(exponent * np.log(budget) + constant)",
            "10 ** (exponent * np.log(budget) + constant)",
        ),
        "You return the tokens; the number of parameters is asked.": (
            ANSWER,
            "return budget / 6 / np.exp(exponent * np.log(budget) + constant)",
        ),
        "Your line through the best sizes takes the budgets in the order of the runs, and the "
        "sizes in another.": (
            LINE,
            "seen = list(dict.fromkeys(flops for flops, _, _ in runs))\n"
            "    exponent, constant = np.polyfit(np.log(seen), best, 1)",
        ),
    },
    refused=[
        (LINE, "exponent, constant = np.polyfit(np.log(budgets), sorted(best), 1)[0], 0.0"),
        (FIT, "square, linear, _ = np.polyfit(sizes[:3], losses[:3], 2)"),
        ("    budgets =", "    runs.sort()\n    budgets ="),
        lambda runs, budget: 721522.2858,
        lambda runs, budget: None,
        "def best_size(runs, budget):\n"
        "    Run = scaling_laws.ScalingRun\n"
        "    rows = [Run(r[0], 1, 1, r[1], r[1], 1, 1, r[2], '') for r in runs]\n"
        "    optima = scaling_laws.isoflop(rows)\n"
        "    fitted = scaling_laws.power_law(\n"
        "        [o.budget for o in optima], [o.parameters for o in optima])\n"
        "    return fitted[1] * budget ** fitted[0]\n",
    ],
    right=[best_size_by_hand],
)


# cache_bytes


def with_layers(pattern: str, window: int, groups: int, head: int) -> Config:
    """Return a config with a layer for each letter, where F is full and S is sliding."""
    return published("gpt-oss-120b") | {
        "hidden_size": 7 * groups * (head + 1),
        "num_hidden_layers": len(pattern),
        "num_attention_heads": 7 * groups,
        "num_key_value_heads": groups,
        "head_dim": head,
        "sliding_window": window,
        "layer_types": [
            "full_attention" if letter == "F" else "sliding_attention" for letter in pattern
        ],
    }


def caches() -> Iterator[Case]:
    """Yield configs and numbers of tokens."""
    config = published("gpt-oss-120b")
    alternating = ["sliding_attention", "full_attention"] * (config["num_hidden_layers"] // 2)
    yield Case("", config=config | {"layer_types": alternating}, tokens=100_000)
    drawn = random.Random(0)
    rows = [("SSFSSSF", 16, 3, 5, tokens) for tokens in (40, 16, 10, 17, 15, 1, 0)]
    rows += [("FSSSSSFS", 5, 2, 9, 1000), ("SSS", 8, 1, 4, 30), ("FFFF", 8, 5, 3, 30)]
    rows += [("S", 4, 2, 6, 9), ("F", 4, 2, 6, 9), ("SFFFF", 1, 3, 4, 2)]
    for _ in range(4):
        pattern = "".join(drawn.choices("FS", weights=(1, 2), k=drawn.randint(9, 80)))
        window, groups, head = (drawn.randint(2, most) for most in (3000, 12, 300))
        rows.append((pattern, window, groups, head, drawn.randint(2, 10 * window)))
    for pattern, *shape, tokens in rows:
        config = with_layers(pattern, *shape)
        what = named(config, "sliding_window", "num_key_value_heads", "head_dim")
        yield Case(f"{what} and the layers {pattern}", config=config, tokens=tokens)


def cache_by_counter(config: Config, tokens: int) -> int:
    """Count the layers of each kind."""
    number = Counter(config["layer_types"])
    window = tokens if tokens < config["sliding_window"] else config["sliding_window"]
    both = number["full_attention"] * tokens + number["sliding_attention"] * window
    return 2 * both * config["num_key_value_heads"] * config["head_dim"] * torch.bfloat16.itemsize


def cache_by_saving(config: Config, tokens: int) -> int:
    """Subtract what the windows save from the full cache."""
    a_token = 2 * 2 * config["num_key_value_heads"] * config["head_dim"]
    full = config["num_hidden_layers"] * tokens * a_token
    saved = max(0, tokens - config["sliding_window"]) * a_token
    return full - saved * config["layer_types"].count("sliding_attention")


def cache_by_array(config: Config, tokens: int) -> Any:
    """Compute with NumPy."""
    is_full = np.array([kind[0] == "f" for kind in config["layer_types"]])
    kept = np.where(is_full, tokens, np.minimum(tokens, config["sliding_window"]))
    return kept.sum() * np.prod([2, config["num_key_value_heads"], config["head_dim"], 2])


BYTES = 'kept * 2 * config["num_key_value_heads"] * config["head_dim"] * 2'
WINDOW = 'min(tokens, config["sliding_window"])'
KIND = 'kind == "full_attention"'
ORDER = "Look up each layer in layer_types"


def by_number(is_full: str) -> Any:
    """Return the idea that a layer's number `n` of `layers` tells its kind."""
    return edits(
        ('for kind in config["layer_types"]', 'for n, kind in enumerate(config["layer_types"])'),
        (KIND, is_full),
    )


def times(factor: str) -> tuple[str, str]:
    """Return the idea that the bytes are to be multiplied."""
    return BYTES, f"{BYTES} * {factor}"


def per_token(numbers: str) -> tuple[str, str]:
    """Return the idea that a token of a layer has this many numbers in its key."""
    return 'config["num_key_value_heads"] * config["head_dim"]', numbers


cache_bytes = Exercise(
    NOTEBOOK,
    "cache_bytes",
    caches,
    observe=function(by_hand=[(accounting, "kv_cache_bytes")]),
    smaller="One layer is full, and another has a window of 4 tokens. How many tokens does each "
    "keep after 3 tokens, and after 10?",
    given={"models": models},
    wrong={
        "You keep all tokens in every layer; a sliding layer keeps sliding_window at most.": (
            "tokens if is_full else",
            "tokens if True else",
        ),
        "You keep a window in every layer; a full layer keeps all tokens.": (
            "tokens if is_full else ",
            "",
        ),
        "The other way round: full layers keep all tokens, and sliding layers the last "
        "sliding_window.": (KIND, 'kind != "full_attention"'),
        "A sliding layer keeps at most sliding_window tokens, so take the smaller number.": (
            "min(tokens,",
            "max(tokens,",
        ),
        "A sliding layer can't keep more than there are; with few tokens it keeps them all.": (
            WINDOW,
            'config["sliding_window"]',
        ),
        "Sliding layers are missing; they keep the last sliding_window tokens.": (WINDOW, "0"),
        "Full layers are missing; they keep all tokens.": ("tokens if", "0 if"),
        "You keep the tokens before the window; keep those in it.": (
            WINDOW,
            'max(0, tokens - config["sliding_window"])',
        ),
        "You keep the remainder of tokens / sliding_window; keep the smaller of the two.": (
            WINDOW,
            'tokens % config["sliding_window"]',
        ),
        "Your window is one token too short.": (
            'config["sliding_window"])',
            'config["sliding_window"] - 1)',
        ),
        "Your window is one token too long.": (
            'config["sliding_window"])',
            'config["sliding_window"] + 1)',
        ),
        f"{ORDER}; you give half of the layers a window.": by_number("n % 2 == 0"),
        f"{ORDER}; you make half of the layers full.": by_number("n % 2 == 1"),
        f"{ORDER}; you take half of the layers as full and as many as sliding.": (
            'for kind in config["layer_types"]:',
            'for kind in ("full_attention", "") * (len(config["layer_types"]) // 2):',
        ),
        "Only the first layer is counted; is the `return` inside the loop?": (
            "    return kept",
            "        break\n    return kept",
        ),
        f"{ORDER}; you treat all like the first one.": ("kind ==", 'config["layer_types"][0] =='),
        f"{ORDER}; you treat all like the last one.": ("kind ==", 'config["layer_types"][-1] =='),
        "Count every layer; you count each kind once.": (
            'in config["layer_types"]',
            'in set(config["layer_types"])',
        ),
        "Each layer has its own cache; add up over the layers.": times(
            '1 / config["num_hidden_layers"]'
        ),
        "You multiply by the number of layers after adding them up.": times(
            'config["num_hidden_layers"]'
        ),
        "That is half: a token has a key and a value, and each number takes 2 bytes.": [
            ("kept * 2 *", "kept *"),
            ('["head_dim"] * 2', '["head_dim"]'),
        ],
        "That is a quarter: a token has a key and a value, and each number takes 2 bytes.": times(
            "1 / 4"
        ),
        "That is twice too much: count keys and values once each, with 2 bytes a number.": times(
            "2"
        ),
        "Those are bits; a byte has 8.": times("8"),
        "The cache has num_key_value_heads heads, not one for each query.": (
            'config["num_key_value_heads"]',
            'config["num_attention_heads"]',
        ),
        "num_key_value_heads is the number of heads; you take it for the number of queries that "
        "share one.": (
            'config["num_key_value_heads"]',
            '(config["num_attention_heads"] // config["num_key_value_heads"])',
        ),
        "There are num_key_value_heads heads; you count one.": per_token('config["head_dim"]'),
        "Each head has head_dim numbers; you count one.": per_token(
            'config["num_key_value_heads"]'
        ),
        "head_dim is a field of its own and isn't hidden_size / num_attention_heads.": [
            ('config["head_dim"]', IN_LLAMA),
            ('config["head_dim"]', IN_LLAMA.replace("//", "/")),
        ],
        "A token's key has num_key_value_heads x head_dim numbers, not hidden_size.": per_token(
            'config["hidden_size"]'
        ),
        "Those are one token's bytes; every kept token takes as many.": (
            f"tokens if is_full else {WINDOW}",
            "1",
        ),
        **{
            f"Those are {name}; return bytes.": times(f"1 / {unit}")
            for name, unit in {
                "billions of bytes (GB)": "1e9",
                "GiB": "2**30",
                "millions of bytes (MB)": "1e6",
                "MiB": "2**20",
                "kB": "1e3",
                "KiB": "2**10",
            }.items()
        },
        "You count queries, too; the cache has keys and values.": ("kept * 2 *", "kept * 3 *"),
    },
    refused=[
        ('config["head_dim"]', "64"),
        ('config["num_key_value_heads"]', "8"),
        ('config["sliding_window"]', "128"),
        (WINDOW, 'config["sliding_window"] * max(1, tokens // config["sliding_window"])'),
        (
            WINDOW,
            '(tokens if tokens < config["sliding_window"] else config["sliding_window"] + 1)',
        ),
        by_number('n >= len(config["layer_types"]) // 2'),
        by_number("n % 4 == 3"),
        ('in config["layer_types"]', 'in config["layer_types"][:-1]'),
        ('in config["layer_types"]', 'in config["layer_types"][:36]'),
        ("kept +=", "kept ="),
        *(
            ("    kept = 0", f"    tokens = {most}\n    kept = 0")
            for most in (
                "max(tokens, 128)",
                "max(tokens, 1)",
                "min(tokens, 16_384)",
                "-(-tokens // 16) * 16",
            )
        ),
        (BYTES, f"torch.tensor(float({BYTES})).item()"),
        (BYTES, f"({BYTES} + 2**31) % 2**32 - 2**31"),
        (BYTES, f"str({BYTES})"),
        ("tokens if is_full", "tokens**2 if is_full"),
        ("    kept = 0", '    config["layer_types"].sort()\n    kept = 0'),
        lambda config, tokens: None,
        lambda config, tokens: 1 / 0,
        "def cache_bytes(config, tokens):\n"
        "    kept = 0\n"
        '    while config["layer_types"]:\n'
        '        is_full = config["layer_types"].pop() == "full_attention"\n'
        '        kept += tokens if is_full else min(tokens, config["sliding_window"])\n'
        '    return kept * 4 * config["num_key_value_heads"] * config["head_dim"]\n',
        "def cache_bytes(config, tokens):\n"
        "    found = models.from_hugging_face(config)\n"
        "    return accounting.kv_cache_bytes(found, tokens)\n",
    ],
    right=[
        cache_by_counter,
        cache_by_saving,
        cache_by_array,
        lambda config, tokens: torch.tensor([cache_by_saving(config, tokens)]),
        lambda config, tokens: Decimal(cache_by_saving(config, tokens)),
        lambda config, tokens: np.float64(cache_by_saving(config, tokens)),
    ],
)
