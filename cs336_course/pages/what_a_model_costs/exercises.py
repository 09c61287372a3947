"""Exercise of the side trip on what a model costs: the price of a token of training."""

from collections.abc import Iterator

from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_course.shared.published_configs import named, published
from cs336_lib import accounting
from cs336_lib.bill import models

NOTEBOOK = "side_trips/what_a_model_costs"


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
        "You count norms; leave them out.": [
            (WEIGHTS, f"{WEIGHTS} + 2 * layers * width"),
            (WEIGHTS, f"{WEIGHTS} + (2 * layers + 1) * width"),
        ],
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
