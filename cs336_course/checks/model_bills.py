"""Exercise checks for notebook 10b on the sizes and KV caches of today's models."""

import copy
import random
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from cs336_course.checks.accounting import COUNTS, Found, Mistakes, expect_numbers, gather, items
from cs336_course.checks.draws import sizes
from cs336_course.checks.report import by_hand, exercise, expect
from cs336_lib import accounting
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json

Config = dict[str, Any]
CHANGED = "Your function changes the config; work on a copy."


def published(name: str) -> Config:
    """Return the config of a published model."""
    return read_json(DATA / "models.json")[name]["config"]


def fields(config: Config, *names: str) -> str:
    """Format fields of a config for a message."""
    return ", ".join(f"{name}={config[name]}" for name in names)


# mixture_sizes

SIZE_FIELDS = (
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


class Mixture(NamedTuple):
    """Parameters of a mixture of experts.

    Attributes:
        layers: Number of layers.
        attention: Parameters of one layer's attention.
        router: Parameters of one layer's router.
        expert: Parameters of one expert.
        embeddings: Parameters of the input and output embedding.
    """

    layers: int
    attention: int
    router: int
    expert: int
    embeddings: int

    def count(self, experts: int) -> int:
        """Count the parameters with this number of experts in each layer."""
        layer = self.attention + self.router + experts * self.expert
        return self.layers * layer + self.embeddings


def mixture(config: Config) -> Mixture:
    """Count the parameters of each part."""
    width, head = config["hidden_size"], config["head_dim"]
    queries, pairs = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    return Mixture(
        config["num_hidden_layers"],
        attention=2 * width * (queries + pairs),
        router=width * config["num_experts"],
        expert=3 * width * config["moe_intermediate_size"],
        embeddings=2 * config["vocab_size"] * width,
    )


def attention_mistakes(config: Config) -> Mistakes:
    """Return the parameters of one layer's attention that typical mistakes give."""
    width, head = config["hidden_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    queries, pairs = heads * head, groups * head
    four = "Attention has four matrices: queries, keys, values and the output projection"
    narrow = "head_dim is a field of its own and isn't hidden_size / num_attention_heads"
    return {
        f"{four}; you left out the one of the queries or the output.": width
        * (queries + 2 * pairs),
        f"{four}; you count the keys and values as one.": width * (2 * queries + pairs),
        f"{four}; you left out the keys and values.": 2 * width * queries,
        "Attention is missing: each layer has it once.": 0,
        "Keys and values have num_key_value_heads heads, fewer than the queries.": 4
        * width
        * queries,
        "Queries have num_attention_heads heads; only keys and values have num_key_value_heads.": 4
        * width
        * pairs,
        "There are num_key_value_heads heads of keys and values, not one.": 2
        * width
        * (queries + head),
        "num_key_value_heads is the number of heads; you take it for the number of queries that "
        "share one.": 2 * width * (queries + heads // groups * head),
        f"{narrow}.": 2 * width * (width + groups * width / heads),
        f"{narrow}, and there are fewer heads of keys and values than of queries.": 4 * width**2,
        "The matrices of the queries and the output are hidden_size x (heads x head_dim); one of "
        "yours is hidden_size x hidden_size.": width * (width + queries + 2 * pairs),
        "The matrices of the queries and the output are hidden_size x (heads x head_dim), not "
        "hidden_size x hidden_size.": 2 * width * (width + pairs),
        "You count biases of queries, keys and values; this model has none.": 2
        * width
        * (queries + pairs)
        + queries
        + 2 * pairs,
        "You count the norms of queries and keys; leave them out.": 2 * width * (queries + pairs)
        + 2 * head,
        "You count biases in attention; this model has none.": 2 * width * (queries + pairs)
        + queries
        + 2 * pairs
        + width,
    }


def size_mistakes(config: Config, experts: int) -> Mistakes:
    """Return the parameters with `experts` experts that typical mistakes give."""
    parts = mixture(config)
    layers, width, head = parts.layers, config["hidden_size"], config["head_dim"]
    dense = 3 * width * config["intermediate_size"]
    chosen = width * config["num_experts_per_tok"]
    want = parts.count(experts)

    def slip(**changed: float) -> float:
        return parts._replace(**changed).count(experts)  # type: ignore[arg-type]

    return {said: slip(attention=wrong) for said, wrong in attention_mistakes(config).items()} | {
        "The router is missing: hidden_size x num_experts in each layer.": slip(router=0),
        "The router has a column for each of the num_experts experts, also for those that a token "
        "doesn't visit.": slip(router=chosen),
        "Each layer has a router of its own; you count one.": want - (layers - 1) * parts.router,
        "SwiGLU has three matrices; your experts have two.": slip(expert=parts.expert * 2 // 3),
        "SwiGLU has three matrices; your experts have one.": slip(expert=parts.expert // 3),
        "An expert's inner width is moe_intermediate_size, not intermediate_size.": slip(
            expert=dense
        ),
        "You count a dense MLP beside the experts; every layer has only experts.": want
        + layers * dense,
        "You count a shared expert; this model has none.": parts.count(experts + 1),
        "Each layer has experts of its own; you count those of one layer.": want
        - (layers - 1) * experts * parts.expert,
        "You count a single expert.": parts.count(1),
        "The input and output embeddings are separate; count both.": slip(
            embeddings=parts.embeddings // 2
        ),
        "The embeddings are missing: vocab_size x hidden_size, twice.": slip(embeddings=0),
        "The embeddings aren't in every layer; add them once.": slip(
            embeddings=layers * parts.embeddings
        ),
        "Those are one layer's; there are num_hidden_layers of them.": slip(layers=1),
        "You count norms; leave them out.": want + (2 * layers + 1) * width,
        "You count each layer's norms; leave them out.": want + 2 * layers * width,
        "You count norms, also those of queries and keys; leave them out.": want
        + (2 * layers + 1) * width
        + 2 * layers * head,
        "That is twice too much, as if you return bytes in bf16; parameters are expected.": 2
        * want,
        "Those are billions; return the number itself.": want / 1e9,
    }


def active_mistakes(config: Config) -> Mistakes:
    """Return the active parameters that typical mistakes give."""
    parts = mixture(config)
    every, chosen = config["num_experts"], config["num_experts_per_tok"]
    total, active = parts.count(every), parts.count(chosen)
    attention, routers = parts.layers * parts.attention, parts.layers * parts.router
    only = "Only the experts scale with num_experts_per_tok / num_experts"
    shares = {
        f"{only}; a token uses all of attention, the router and the embeddings.": total,
        f"{only}; a token uses all of attention and the router.": total - parts.embeddings,
        f"{only}; a token uses all of attention.": total - parts.embeddings - routers,
        f"{only}; a token uses all of the embeddings.": total - attention - routers,
    }
    return size_mistakes(config, chosen) | {
        "Those are all parameters; a token visits num_experts_per_tok experts.": total,
        "Those are the parameters that a token doesn't use.": total - active,
        "The embeddings and the router are missing; a token uses all of them.": active
        - parts.embeddings
        - routers,
        "Attention and the router are missing; a token uses all of both.": active
        - attention
        - routers,
        "You count only the experts; a token also uses attention, the router and the embeddings.": (
            active - attention - routers - parts.embeddings
        ),
        **{
            said: total - scaled + scaled * chosen // every
            for said, scaled in shares.items()
            if scaled * chosen % every == 0  # a learner may use / or //
        },
    }


def mixtures() -> Iterator[tuple[str, Config]]:
    """Yield the configs of mixtures of experts with their description."""
    for name in ("qwen3-30b-a3b", "qwen3-235b-a22b"):
        yield name, published(name)
    # The large odd numbers need more digits than float32 has.
    rows = [(4995, 61, 45, 15, 113, 11007, 1406, 135, 9, 100_279)]
    shapes = sizes(3, width=(1, 7), layers=(2, 9), group=(2, 5), pairs=(2, 6), head=(3, 17))
    experts = sizes(3, chosen=(2, 5), idle=(1, 9), inner=(3, 30), dense=(31, 60), vocab=(60, 99))
    for shape, mlp in zip(shapes, experts, strict=True):
        heads = shape.pairs * shape.group
        inner = mlp.dense, mlp.inner, mlp.chosen + mlp.idle, mlp.chosen
        rows.append(
            (shape.width * heads, shape.layers, heads, shape.pairs, shape.head, *inner, mlp.vocab)
        )
    rows.append((30, 1, 6, 3, 7, 41, 8, 5, 1, 64))  # one layer, and one expert for a token
    rows.append((30, 4, 6, 6, 7, 41, 8, 3, 3, 64))  # as many heads of keys, and all experts
    for row in rows:
        config = published("qwen3-30b-a3b") | dict(zip(SIZE_FIELDS, row, strict=True))
        yield fields(config, *SIZE_FIELDS), config


@exercise(
    "Take hidden_size = 4, head_dim = 3, two query heads, and one head of keys and values. Which "
    "matrices does attention have, and how many entries has each?"
)
def mixture_sizes(size: Callable[[Config], tuple[int, int]]) -> None:
    """Check the total and the active parameters of mixtures of experts."""

    def answers() -> Iterator[tuple[Found, Found]]:
        for case, config in mixtures():
            given = copy.deepcopy(config)
            wish = "Return two numbers: the total and the active parameters."
            got = items(size(given), 2, wish)
            expect(given == config, CHANGED)
            every, chosen = config["num_experts"], config["num_experts_per_tok"]
            total, active = (mixture(config).count(experts) for experts in (every, chosen))
            first = "The first number is for all experts; you return the active parameters there."
            mistakes = size_mistakes(config, every) | {first: active}
            yield (
                Found(got[0], total, f"the total parameters of {case}", mistakes),
                Found(got[1], active, f"the active parameters of {case}", active_mistakes(config)),
            )

    names = "count_parameters", "active_parameters", "parameter_counts", "matmul_parameters"
    with by_hand(accounting, *names):
        found, error = gather(answers())
    pairs = [(total.got, active.got) for total, active in found]
    expect(
        len(pairs) < 2 or any(pair != pairs[0] for pair in pairs),
        "Your function returns the same two numbers for each config; compute them from its fields.",
    )
    for column in zip(*found, strict=True):
        expect_numbers(column, COUNTS)
    if error:
        raise error


# cache_bytes

FULL, SLIDING = "full_attention", "sliding_attention"


def kept_tokens(config: Config, tokens: int) -> int:
    """Return the sum of the tokens that each layer keeps."""
    window = config["sliding_window"]
    return sum(tokens if kind == FULL else min(tokens, window) for kind in config["layer_types"])


def kept_mistakes(config: Config, tokens: int) -> Mistakes:
    """Return the sums of kept tokens that typical mistakes give."""
    kinds, window = config["layer_types"], config["sliding_window"]
    layers, full = len(kinds), kinds.count(FULL)
    windows, short = layers - full, min(tokens, window)
    order = "Look up each layer in layer_types"

    def kept(sees_all: Callable[[int], bool]) -> int:
        return sum(tokens if sees_all(number) else short for number in range(layers))

    return {
        "You keep all tokens in every layer; a sliding layer keeps sliding_window at most.": layers
        * tokens,
        "You keep a window in every layer; a full layer keeps all tokens.": layers * short,
        "The other way round: full layers keep all tokens, and sliding layers the last "
        "sliding_window.": full * short + windows * tokens,
        "A sliding layer keeps at most sliding_window tokens, so take the smaller number.": (
            full * tokens + windows * max(tokens, window)
        ),
        "A sliding layer can't keep more than there are; with few tokens it keeps them all.": (
            full * tokens + windows * window
        ),
        "Sliding layers are missing; they keep the last sliding_window tokens.": full * tokens,
        "Full layers are missing; they keep all tokens.": windows * short,
        "You keep the tokens before the window; keep those in it.": full * tokens
        + windows * (tokens - short),
        "You keep the remainder of tokens / sliding_window; keep the smaller of the two.": full
        * tokens
        + windows * (tokens % window),
        "Your window is one token too short.": full * tokens + windows * min(tokens, window - 1),
        "Your window is one token too long.": full * tokens + windows * min(tokens, window + 1),
        f"{order}; you give half of the layers a window.": kept(lambda layer: layer % 2 == 0),
        f"{order}; you make half of the layers full.": kept(lambda layer: layer % 2 == 1),
        f"{order}; you take half of the layers as full and as many as sliding.": (
            layers // 2 * (tokens + short)
        ),
        "Only the first layer is counted; is the `return` inside the loop?": (
            tokens if kinds[0] == FULL else short
        ),
        f"{order}; you treat all like the first one.": kept(lambda layer: kinds[0] == FULL),
        "Count every layer; you count each kind once.": (full > 0) * tokens + (windows > 0) * short,
        "Each layer has its own cache; add up over the layers.": kept_tokens(config, tokens)
        / layers,
        "You multiply by the number of layers after adding them up.": kept_tokens(config, tokens)
        * layers,
    }


def cache_mistakes(config: Config, tokens: int) -> Mistakes:
    """Return the bytes that typical mistakes give."""
    groups, head, heads = (
        config[name] for name in ("num_key_value_heads", "head_dim", "num_attention_heads")
    )
    kept, width = kept_tokens(config, tokens), config["hidden_size"]
    want = 4 * kept * groups * head
    by_kept = kept_mistakes(config, tokens)
    return {said: 4 * wrong * groups * head for said, wrong in by_kept.items()} | {
        "That is half: a token has a key and a value, and each number takes 2 bytes.": want / 2,
        "That is a quarter: a token has a key and a value, and each number takes 2 bytes.": want
        / 4,
        "That is twice too much: count keys and values once each, with 2 bytes a number.": 2 * want,
        "Those are bits; a byte has 8.": 8 * want,
        "The cache has num_key_value_heads heads, not one for each query.": 4 * kept * heads * head,
        "num_key_value_heads is the number of heads; you take it for the number of queries that "
        "share one.": 4 * kept * (heads // groups) * head,
        "There are num_key_value_heads heads; you count one.": 4 * kept * head,
        "Each head has head_dim numbers; you count one.": 4 * kept * groups,
        "head_dim is a field of its own and isn't hidden_size / num_attention_heads.": (
            4 * kept * groups * width / heads
        ),
        "A token's key has num_key_value_heads x head_dim numbers, not hidden_size.": 4
        * kept
        * width,
        "Those are one token's bytes; every kept token takes as many.": 4
        * len(config["layer_types"])
        * groups
        * head,
        "Those are billions of bytes (GB); return bytes.": want / 1e9,
        "Those are GiB; return bytes.": want / 2**30,
        "Those are millions of bytes (MB); return bytes.": want / 1e6,
        "Those are MiB; return bytes.": want / 2**20,
        "Those are kB; return bytes.": want / 1e3,
        "Those are KiB; return bytes.": want / 2**10,
    }


def cache_config(pattern: str, window: int, groups: int, head: int) -> Config:
    """Return a config with a layer for each letter, where F is full and S is sliding."""
    return published("gpt-oss-120b") | {
        "hidden_size": 7 * groups * (head + 1),
        "num_hidden_layers": len(pattern),
        "num_attention_heads": 7 * groups,
        "num_key_value_heads": groups,
        "head_dim": head,
        "sliding_window": window,
        "layer_types": [FULL if letter == "F" else SLIDING for letter in pattern],
    }


def caches() -> Iterator[tuple[str, Config, int]]:
    """Yield configs and numbers of tokens with their description."""
    published_config = published("gpt-oss-120b")
    layers = published_config["num_hidden_layers"]
    alternating = {"layer_types": [SLIDING, FULL] * (layers // 2)}  # as in its config.json
    yield "100,000 tokens of gpt-oss-120b", published_config | alternating, 100_000
    drawn = random.Random(0)
    rows = [("SSFSSSF", 16, 3, 5, tokens) for tokens in (40, 16, 10, 17, 15, 1, 0)]
    rows += [("FSSSSSFS", 5, 2, 9, 1000), ("SSS", 8, 1, 4, 30), ("FFFF", 8, 5, 3, 30)]
    rows += [("S", 4, 2, 6, 9), ("F", 4, 2, 6, 9), ("SFFFF", 1, 3, 4, 2)]
    for _ in range(4):
        pattern = "".join(drawn.choices("FS", weights=(1, 2), k=drawn.randint(9, 80)))
        window, groups, head = (drawn.randint(2, most) for most in (3000, 12, 300))
        rows.append((pattern, window, groups, head, drawn.randint(2, 10 * window)))
    for pattern, *shape, tokens in rows:
        config = cache_config(pattern, *shape)
        named = fields(config, "sliding_window", "num_key_value_heads", "head_dim")
        case = f"tokens={tokens}, {named} and the layers {pattern} (F is full, S is sliding)"
        yield case, config, tokens


@exercise(
    "One layer is full, and another has a window of 4 tokens. How many tokens does each keep after "
    "3 tokens, and after 10?"
)
def cache_bytes(answer: Callable[[Config, int], float]) -> None:
    """Check the bytes of the KV cache with full and sliding layers."""

    def answers() -> Iterator[Found]:
        for case, config, tokens in caches():
            given = copy.deepcopy(config)
            got = answer(given, tokens)
            expect(given == config, CHANGED)
            heads, head = config["num_key_value_heads"], config["head_dim"]
            want = 4 * kept_tokens(config, tokens) * heads * head
            yield Found(got, want, case, cache_mistakes(config, tokens))

    with by_hand(accounting, "kv_cache_bytes"):
        found, error = gather(answers())
    expect_numbers(found, COUNTS)
    if error:
        raise error
