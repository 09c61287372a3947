"""Exercises of notebook 10b on the sizes of a mixture of experts and on the price of a token."""

from collections.abc import Iterator
from decimal import Decimal

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_course.shared.published_configs import IN_LLAMA, Config, named, published
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


def mixtures() -> Iterator[Case]:
    """Yield configs of mixtures of experts."""
    yield Case("", config=published("qwen3-30b-a3b"))
    yield Case("qwen3-235b-a22b", config=published("qwen3-235b-a22b"))
    # The large odd numbers need more digits than float32 has.
    rows = [(4995, 61, 45, 15, 113, 11007, 1406, 135, 9, 100_279)]
    shapes = sizes(3, width=(1, 7), layers=(2, 9), group=(2, 5), pairs=(2, 6), head=(3, 17))
    experts = sizes(3, chosen=(2, 5), idle=(1, 9), inner=(3, 30), dense=(31, 60), vocab=(60, 99))
    for shape, mlp in zip(shapes, experts, strict=True):
        heads = shape.pairs * shape.group
        inner = mlp.dense, mlp.inner, mlp.chosen + mlp.idle, mlp.chosen
        attention = heads, shape.pairs, shape.head
        rows.append((shape.width * heads, shape.layers, *attention, *inner, mlp.vocab))
    rows.append((30, 1, 6, 3, 7, 41, 8, 5, 1, 64))  # one layer, and one expert for a token
    rows.append((30, 4, 6, 6, 7, 41, 8, 3, 3, 64))  # as many heads of keys, and all experts
    for row in rows:
        config = published("qwen3-30b-a3b") | dict(zip(FIELDS, row, strict=True))
        yield Case(named(config, *FIELDS), config=config)


def sizes_by_shape(config: Config) -> list[int]:
    """Add up the shapes of all matrices, in a loop over the layers."""
    width, head = config["hidden_size"], config["head_dim"]
    total = active = 0
    for _ in range(config["num_hidden_layers"]):
        shapes = [(width, config["num_attention_heads"] * head)] * 2
        shapes += [(width, config["num_key_value_heads"] * head)] * 2
        shapes += [(width, config["num_experts"])]
        shared = sum(rows * columns for rows, columns in shapes)
        expert = sum([width * config["moe_intermediate_size"]] * 3)
        total += shared + config["num_experts"] * expert
        active += shared + config["num_experts_per_tok"] * expert
    outer = width * config["vocab_size"] * 2
    return [np.int64(total + outer), np.int64(active + outer)]


def sizes_by_elements(config: Config) -> tuple[int, ...]:
    """Count the elements of tensors without memory."""
    width, head = config["hidden_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    with torch.device("meta"):
        qkv = torch.empty(width, heads + 2 * groups, head).numel()
        out = torch.empty(heads, head, width).numel()
        expert = torch.empty(3, width, config["moe_intermediate_size"]).numel()
        router = torch.empty(width, config["num_experts"]).numel()
        outer = torch.empty(2, config["vocab_size"], width).numel()
    return tuple(
        outer + config["num_hidden_layers"] * (qkv + out + router + visited * expert)
        for visited in (config["num_experts"], config["num_experts_per_tok"])
    )


ATTENTION = "width * (queries + 2 * kv_width) + queries * width"
LAYER = "layer = attention + router + experts * expert"
TOTAL, ACTIVE = 'count(config["num_experts"])', 'count(config["num_experts_per_tok"])'
COUNTED = "* layer + embeddings\n"
SHARE = 'config["num_experts_per_tok"] / config["num_experts"]'
LAYERS = 'config["num_hidden_layers"]'
FOUR = "Attention has four matrices: queries, keys, values and the output projection"
NARROW = "head_dim is a field of its own and isn't hidden_size / num_attention_heads"
ONLY = "Only the experts scale with num_experts_per_tok / num_experts"
BIASES = "You count biases in attention; this model has none."


def shared(kept: str) -> tuple[str, str]:
    """Return the idea that everything but `kept` scales with the share of the experts."""
    return (
        f"return {TOTAL}, {ACTIVE}",
        f"total, kept = {TOTAL}, {kept}\n    return total, (total - kept) * {SHARE} + kept",
    )


mixture_sizes = Exercise(
    NOTEBOOK,
    "mixture_sizes",
    mixtures,
    observe=function(
        by_hand=[
            (accounting, name)
            for name in (
                "count_parameters",
                "active_parameters",
                "parameter_counts",
                "matmul_parameters",
            )
        ]
    ),
    answers=("sizes",),
    smaller="Take hidden_size = 4, head_dim = 3, two query heads, and one head of keys and values. "
    "Which matrices does attention have, and how many entries has each?",
    given={"models": models},
    wrong={
        f"{FOUR}; you left out the one of the output.": (" + queries * width", ""),
        f"{FOUR}; you count the keys and values as one.": ("2 * kv_width", "kv_width"),
        f"{FOUR}; you left out the keys and values.": ("queries + 2 * kv_width", "queries"),
        "Attention is missing: each layer has it once.": (LAYER, LAYER.replace("attention + ", "")),
        "Keys and values have num_key_value_heads heads, fewer than the queries.": (
            'config["num_key_value_heads"]',
            'config["num_attention_heads"]',
        ),
        "Queries have num_attention_heads heads; only keys and values have num_key_value_heads.": (
            'config["num_attention_heads"]',
            'config["num_key_value_heads"]',
        ),
        "There are num_key_value_heads heads of keys and values, not one.": (
            'config["num_key_value_heads"] * head',
            "head",
        ),
        "num_key_value_heads is the number of heads; you take it for the number of queries that "
        "share one.": ("kv_width =", 'kv_width = config["num_attention_heads"] //'),
        f"{NARROW}.": ('config["head_dim"]', IN_LLAMA),
        f"{NARROW}, and there are fewer heads of keys and values than of queries.": (
            ATTENTION,
            "4 * width**2",
        ),
        "The matrices of the queries and the output are hidden_size x (heads x head_dim); one of "
        "yours is hidden_size x hidden_size.": [
            ("(queries + 2 * kv_width)", "(width + 2 * kv_width)"),
            ("+ queries * width", "+ width * width"),
        ],
        "The matrices of the queries and the output are hidden_size x (heads x head_dim), not "
        "hidden_size x hidden_size.": (ATTENTION, "2 * width * (width + kv_width)"),
        BIASES: [
            (LAYER, f"{LAYER} + queries + 2 * kv_width"),
            (LAYER, f"{LAYER} + queries + 2 * kv_width + width"),
        ],
        "You count norms; leave them out.": [
            (LAYER, f"{LAYER} + 2 * width"),
            (LAYER, f"{LAYER} + 2 * head"),
            (COUNTED, "* layer + embeddings + width\n"),
            (COUNTED, f"* layer + embeddings + (2 * {LAYERS} + 1) * width\n"),
            (COUNTED, f"* layer + embeddings + (2 * {LAYERS} + 1) * width + 2 * {LAYERS} * head\n"),
        ],
        "The router is missing: hidden_size x num_experts in each layer.": ("+ router +", "+"),
        "The router has a column for each of the num_experts experts, also for those that a token "
        "doesn't visit.": [
            ("+ router +", "+ width * experts +"),
            ('width * config["num_experts"]\n', 'width * config["num_experts_per_tok"]\n'),
        ],
        "Each layer has a router of its own; you count one.": edits(
            ("+ router +", "+"), (COUNTED, "* layer + embeddings + router\n")
        ),
        "SwiGLU has three matrices; your experts have two.": ("3 * width", "2 * width"),
        "SwiGLU has three matrices; your experts have one.": ("3 * width", "width"),
        "An expert's inner width is moe_intermediate_size, not intermediate_size.": (
            'config["moe_intermediate_size"]',
            'config["intermediate_size"]',
        ),
        "You count a dense MLP beside the experts; every layer has only experts.": (
            LAYER,
            f'{LAYER} + 3 * width * config["intermediate_size"]',
        ),
        "You count a shared expert; this model has none.": (
            "experts * expert",
            "(experts + 1) * expert",
        ),
        "Each layer has experts of its own; you count those of one layer.": edits(
            (" + experts * expert", ""), (COUNTED, "* layer + experts * expert + embeddings\n")
        ),
        "You count a single expert.": ("experts * expert", "expert"),
        "The input and output embeddings are separate; count both.": [
            ("embeddings = 2 *", "embeddings ="),
            ("embeddings = 2 *", 'embeddings = (2 if config["tie_word_embeddings"] else 1) *'),
        ],
        "The embeddings are missing: vocab_size x hidden_size, twice.": (COUNTED, "* layer\n"),
        "The embeddings aren't in every layer; add them once.": edits(
            (LAYER, f"{LAYER} + embeddings"), (COUNTED, "* layer\n")
        ),
        "Those are one layer's; there are num_hidden_layers of them.": (
            f"{LAYERS} * layer",
            "layer",
        ),
        "That is twice too much, as if you return bytes in bf16; parameters are expected.": edits(
            ("    return config", "    return 2 * config"), ("+ emb", "+ 2 * emb")
        ),
        "Those are billions; return the number itself.": (
            "* layer + embeddings",
            "* layer / 1e9 + embeddings / 1e9",
        ),
        "Your total has only the 24 bits of float32; Python's own integers are exact.": edits(
            ("    return config", "    return np.float32(config"), (COUNTED, COUNTED[:-1] + ")\n")
        ),
        "The first number is for all experts; the second is for those that a token visits.": (
            f"{TOTAL}, {ACTIVE}",
            f"{ACTIVE}, {TOTAL}",
        ),
        "Return two numbers: the total and the active parameters.": [
            (f"{TOTAL}, {ACTIVE}", TOTAL),
            (f"{TOTAL}, {ACTIVE}", f"{TOTAL}, {ACTIVE}, 0"),
            (f"{TOTAL}, {ACTIVE}", f"dict(enumerate(({TOTAL}, {ACTIVE})))"),
        ],
        f"{ONLY}; a token uses all of attention, the router and the embeddings.": shared("0"),
        f"{ONLY}; a token uses all of attention and the router.": shared("embeddings"),
        f"{ONLY}; a token uses all of attention.": shared(f"embeddings + {LAYERS} * router"),
        f"{ONLY}; a token uses all of the embeddings.": shared(f"{LAYERS} * (attention + router)"),
        "Those are all parameters; a token visits num_experts_per_tok experts.": (ACTIVE, TOTAL),
        "Those are the parameters that a token doesn't use.": (ACTIVE, f"{TOTAL} - {ACTIVE}"),
        "A token uses all of the embeddings, too.": [
            (ACTIVE, f"{ACTIVE} - embeddings"),
            (ACTIVE, f"{ACTIVE} - embeddings // 2"),
        ],
        "A token uses all of the router, too.": (ACTIVE, f"{ACTIVE} - {LAYERS} * router"),
        "A token uses all of attention, too.": (ACTIVE, f"{ACTIVE} - {LAYERS} * attention"),
        "The embeddings and the router are missing; a token uses all of them.": (
            ACTIVE,
            f"{ACTIVE} - embeddings - {LAYERS} * router",
        ),
        "Attention and the router are missing; a token uses all of both.": (
            ACTIVE,
            f"{ACTIVE} - {LAYERS} * (attention + router)",
        ),
        "You count only the experts; a token also uses attention, the router and the embeddings.": (
            ACTIVE,
            f'{LAYERS} * config["num_experts_per_tok"] * expert',
        ),
        "A token visits num_experts_per_tok experts, not one.": (
            'config["num_experts_per_tok"]',
            "1",
        ),
        "Your function returns the same two numbers for each config; compute them from its "
        "fields.": ("    width,", "    config = published('qwen3-30b-a3b')\n    width,"),
    },
    refused=[
        ("+ router +", '+ router + config["num_experts"] +'),
        ('config["head_dim"]', "128"),
        (f"return {TOTAL}, {ACTIVE}", "return count(128), count(8)"),
        (ACTIVE, "count(8)"),
        (
            ACTIVE,
            'count(config["num_experts"] '
            '// (config["num_experts"] // config["num_experts_per_tok"]))',
        ),
        (ACTIVE, 'count(config["num_experts"] - config["num_experts_per_tok"])'),
        ("* layer + emb", "* layer + layer + emb"),
        ("* layer + embeddings", "* np.int64(layer).astype(np.int32) + embeddings"),
        ('config["vocab_size"]', '(-(-config["vocab_size"] // 128) * 128)'),
        ("    def count", '    config["hidden_size"] = width * 2\n\n    def count'),
        (TOTAL, f"({TOTAL}, 0)"),
        (TOTAL, f"float(np.float32({TOTAL}))"),
        (ACTIVE, f"float(np.float32({ACTIVE}))"),
        lambda config: None,
        lambda config: 1 / 0,
        lambda config: (config.pop("head_dim"), sizes_by_shape(config))[1],
        lambda config: (sizes_by_shape(config), config.clear())[0],
        "def sizes(config):\n"
        "    found = models.from_hugging_face(config)\n"
        "    return accounting.count_parameters(found), accounting.active_parameters(found)\n",
        "def sizes(config):\n"
        "    found = models.from_hugging_face(config)\n"
        "    counts = accounting.parameter_counts(found)\n"
        '    total = sum(counts.values()) - counts["norms"]\n'
        '    idle = 1 - config["num_experts_per_tok"] / config["num_experts"]\n'
        '    return total, total - counts["experts"] * idle\n',
        "def sizes(config):\n"
        "    found = models.from_hugging_face(config)\n"
        "    outer = config['vocab_size'] * config['hidden_size']\n"
        "    active = accounting.matmul_parameters(found) + outer\n"
        '    rest = config["num_experts"] - config["num_experts_per_tok"]\n'
        '    expert = 3 * config["hidden_size"] * config["moe_intermediate_size"]\n'
        '    return active + config["num_hidden_layers"] * rest * expert, active\n',
    ],
    right=[
        sizes_by_shape,
        sizes_by_elements,
        lambda config: tuple(map(Decimal, sizes_by_elements(config))),
        lambda config: [torch.tensor([n]) for n in sizes_by_elements(config)],
    ],
)


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


def flops_by_query(config: Config, seq: int) -> float:
    """Add up the FLOPs of each token of a sequence, and divide by their number."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    kv_width = width // heads * config["num_key_value_heads"]
    shapes = [(width, width + 2 * kv_width), (width, width)]
    shapes += [(width, config["intermediate_size"])] * 3
    weights = sum(rows * columns for rows, columns in shapes)
    total = 0
    for keys in (1, seq):  # the mean of an arithmetic series is that of its ends
        total += 2 * weights + 4 * width * keys
    return 3 * (config["num_hidden_layers"] * total / 2 + 2 * width * config["vocab_size"])


def flops_in_integers(config: Config, seq: int) -> int:
    """Compute twelve halves, so that no number is a fraction."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    narrow = width * config["num_key_value_heads"] // config["num_attention_heads"]
    block = 2 * width * (width + narrow) + 3 * width * config["intermediate_size"]
    return 6 * (layers * (block + width * (seq + 1)) + config["vocab_size"] * width)


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
    refused=[
        (KEYS, "keys = 4096.5"),
        (WHOLE, "return 4 * (2 * weights + scores)"),
        lambda config, seq: None,
        lambda config, seq: 1 / 0,
        lambda config, seq: (flops_by_query(config, seq), config.clear())[0],
        "def training_flops(config, seq):\n"
        "    found = models.from_hugging_face(config)\n"
        "    return accounting.train_flops_per_token(found, seq, 'causal')\n",
    ],
    right=[
        flops_by_query,
        flops_in_integers,
        lambda config, seq: np.float64(flops_by_query(config, seq)),
        lambda config, seq: Decimal(flops_in_integers(config, seq)),
    ],
)
