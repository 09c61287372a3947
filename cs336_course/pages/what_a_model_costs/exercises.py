"""Exercises of the side trip on what a model costs: a token's price, and the best size."""

from collections.abc import Iterator

import numpy as np

from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_course.pages.what_a_model_costs import story
from cs336_course.shared.published_configs import named, published
from cs336_lib import accounting
from cs336_lib.bill import models

NOTEBOOK = "side_trips/what_a_model_costs"


# mixture_sizes

FIELDS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "moe_intermediate_size",
    "num_experts",
    "num_experts_per_tok",
    "vocab_size",
)


ATTENTION = "width * (queries + 2 * kv_width) + queries * width"
TOTAL, ACTIVE = 'count(config["num_experts"])', 'count(config["num_experts_per_tok"])'
COUNTED = "* layer + embeddings\n"
SHARE = 'config["num_experts_per_tok"] / config["num_experts"]'
LAYERS = 'config["num_hidden_layers"]'
NARROW = "head_dim is a field of its own and isn't hidden_size / num_attention_heads"
ONLY = "Only the experts scale with num_experts_per_tok / num_experts"


# training_flops

LLAMA = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
)


def llamas() -> Iterator[Case]:
    """Yield configs of dense models and lengths of sequences."""
    yield Case("", config=published("llama3-8b"), seq=8192)
    yield Case("llama3-8b, long", config=published("llama3-8b"), seq=131_072)
    yield Case("llama3-70b", config=published("llama3-70b"), seq=1)
    rows = [(30, 1, 6, 3, 41, 64), (28, 3, 4, 4, 50, 99), (36, 2, 6, 1, 31, 70)]
    bounds = {"group": (2, 5), "pairs": (2, 6), "head": (3, 17), "layers": (2, 9)}
    for size in sizes(3, **bounds, inner=(3, 90), vocab=(60, 99)):
        heads = size.group * size.pairs
        rows.append((heads * size.head, size.layers, heads, size.pairs, size.inner, size.vocab))
    for seq, row in zip((1, 2, 5, 16, 33, 100), rows, strict=True):
        config = published("llama3-8b") | dict(zip(LLAMA, row, strict=True))
        yield Case(f"seq={seq}, {named(config, *LLAMA)}", config=config, seq=seq)
        tied = config | {"tie_word_embeddings": True}
        yield Case(f"tied embeddings, seq={seq}, {named(config, *LLAMA)}", config=tied, seq=seq)


KEYS = "keys = (seq + 1) / 2"
SCORES = "scores = layers * 2 * 2 * width * keys"
WEIGHTS = 'weights = layers * matrices + config["vocab_size"] * width'
MATRICES = "2 * width * width + 2 * width * kv_width"
WHOLE = "return 3 * (2 * weights + scores)"
ALL_WEIGHTS = f"{WEIGHTS} * 2"
TABLE = "Looking up a row of the input embedding is no matmul"

training_flops = Exercise(
    NOTEBOOK,
    "training_flops",
    llamas,
    observe=function(
        by_hand=[
            (accounting, name)
            for name in (
                "train_flops_per_token",
                "forward_flops_per_token",
                "attention_flops",
                "matmul_parameters",
                "count_parameters",
                "active_parameters",
                "parameter_counts",
                "keys_per_query",
            )
        ]
    ),
    smaller="Take one layer, one head of width 2, and a sequence of three tokens. How many keys "
    "does each of the three see, and how many FLOPs is a dot product of width 2?",
    given={"models": models},
    wrong={
        f"{TABLE}; count only the output embedding.": (WEIGHTS, ALL_WEIGHTS),
        "The output embedding is a matmul, too: hidden_size x vocab_size, once.": (
            ' + config["vocab_size"] * width',
            "",
        ),
        "Tied embeddings are one matrix in memory, and the output still multiplies by it.": (
            'config["vocab_size"] * width',
            'config["vocab_size"] * width * (1 - config["tie_word_embeddings"])',
        ),
        "Grouped-query attention makes fewer keys and values to store; each query head still "
        "compares its query with every key that it sees.": (
            SCORES,
            SCORES.replace("width", "kv_width"),
        ),
        "The causal mask lets the first query see one key and the last one all; you count all "
        "keys for each.": (KEYS, "keys = seq"),
        "A query also sees its own token, so the numbers of keys are 1 to seq; what is their "
        "mean?": [
            (KEYS, "keys = seq / 2"),
            (KEYS, "keys = (seq - 1) / 2"),
            (KEYS, "keys = seq // 2"),
        ],
        "Your mean number of keys is rounded down.": (KEYS, "keys = (seq + 1) // 2"),
        "Attention has two products with the keys it sees, the scores and the weighted sum of the "
        "values; you count one.": (SCORES, "scores = layers * 2 * width * keys"),
        "Attention's scores are missing; they grow with seq.": (WHOLE, "return 6 * weights"),
        "That is 6 times all parameters; the input embedding is no matmul, and attention's scores "
        "are missing.": edits((WEIGHTS, ALL_WEIGHTS), (WHOLE, "return 6 * weights")),
        "Each layer has scores; you count those of one.": (
            SCORES,
            "scores = 2 * 2 * width * keys",
        ),
        "Each layer has matrices of its own; you count those of one.": (
            WEIGHTS,
            WEIGHTS.replace("layers * ", ""),
        ),
        "That is the forward pass; the backward pass takes twice as much.": (
            WHOLE,
            "return 2 * weights + scores",
        ),
        "That is the backward pass; the forward pass comes on top.": (
            WHOLE,
            "return 2 * (2 * weights + scores)",
        ),
        "Attention's scores have a backward pass, too.": (WHOLE, "return 6 * weights + scores"),
        "A multiplication and an addition are two FLOPs for each weight.": [
            (WHOLE, "return 3 * (weights + scores)"),
            (WHOLE, "return 3 * (weights + scores / 2)"),
        ],
        "SwiGLU has three matrices; your MLP has two.": ("3 * width * inner", "2 * width * inner"),
        "SwiGLU has three matrices; your MLP has one.": ("3 * width * inner", "width * inner"),
        "Keys and values have a matrix each.": ("2 * width * kv_width", "width * kv_width"),
        "The matrices of keys and values are missing.": (MATRICES, "2 * width * width"),
        "Keys and values have num_key_value_heads heads, fewer than the queries.": (
            MATRICES,
            "4 * width * width",
        ),
        "Attention has an output projection beside the queries, keys and values.": (
            MATRICES,
            "width * width + 2 * width * kv_width",
        ),
        "Attention's four matrices are missing.": (f"{MATRICES} + ", ""),
        "That is the price of a whole sequence; give that of one token.": (
            WHOLE,
            f"{WHOLE} * seq",
        ),
        "You count norms; leave them out.": [
            (WEIGHTS, f"{WEIGHTS} + 2 * layers * width"),
            (WEIGHTS, f"{WEIGHTS} + (2 * layers + 1) * width"),
        ],
        "Those are billions of FLOPs; return the number itself.": (WHOLE, f"{WHOLE} / 1e9"),
        "Your function returns the same number for each length; the scores depend on seq.": (
            KEYS,
            "keys = (8192 + 1) / 2",
        ),
        "Your function returns the same number for each config; compute it from its fields.": (
            "    width,",
            "    config = published('llama3-8b')\n    width,",
        ),
    },
)


# best_size

Run = tuple[float, float, float]


def shipped() -> list[Run]:
    """Return the FLOPs, parameters and loss of the small runs that ship."""
    return [(run.budget, run.parameters, run.val_loss) for run in story.runs()]


def lawful(budgets: list[float], alpha: float, beta: float, seed: int) -> list[Run]:
    """Return runs of a law with these exponents and a little noise, in random order."""
    drawn = np.random.default_rng(seed)
    law = story.ScalingLaw(1.2, 40.0, 300.0, alpha, beta)
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
        by_hand=[(story, name) for name in ("isoflop", "size_exponent", "power_law", "fit")]
    ),
    smaller="At one budget, the losses of sizes 1, 10 and 100 are 2.2, 2.0 and 2.1. Is the best "
    "size a bit more or a bit less than 10? Which curve says so?",
    given={"scaling_laws": story},
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
)
