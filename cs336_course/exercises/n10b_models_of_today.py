"""Exercises of notebook 10b on the sizes and KV caches of today's models."""

import random
from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import numpy as np
import torch

from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_lib import accounting
from cs336_lib.bill import models
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json

NOTEBOOK = "10b_models_of_today"
Config = dict[str, Any]


def published(name: str) -> Config:
    """Return the config of a published model."""
    return read_json(DATA / "models.json")[name]["config"]


def named(config: Config, *names: str) -> str:
    """Return fields of a config in words."""
    return ", ".join(f"{name}={config[name]}" for name in names)


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
IN_LLAMA = 'config["hidden_size"] // config["num_attention_heads"]'


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
