"""Each check of notebook 10b passes the right answer and names the mistake of a wrong one."""

from collections import Counter, namedtuple
from decimal import Decimal

import numpy as np
import torch
from verdicts import assert_verdicts, stub, verdict

from cs336_course.checks import model_bills as checks
from cs336_lib import accounting

# The right answers


def attention_of(c, out=True):
    queries = c["num_attention_heads"] * c["head_dim"]
    pairs = c["num_key_value_heads"] * c["head_dim"]
    return c["hidden_size"] * (queries + 2 * pairs + out * queries)


def count(c, experts, attention=None, router=None, expert=None, embeddings=None, layers=None):
    """Count the parameters, where each part may be replaced."""
    width = c["hidden_size"]
    attention = attention_of(c) if attention is None else attention
    router = width * c["num_experts"] if router is None else router
    expert = 3 * width * c["moe_intermediate_size"] if expert is None else expert
    embeddings = 2 * c["vocab_size"] * width if embeddings is None else embeddings
    layers = c["num_hidden_layers"] if layers is None else layers
    return layers * (attention + router + experts * expert) + embeddings


def sizes(c, **parts):
    return count(c, c["num_experts"], **parts), count(c, c["num_experts_per_tok"], **parts)


def kept(c, tokens):
    window = c["sliding_window"]
    return [tokens if "full" in kind else min(tokens, window) for kind in c["layer_types"]]


def cache(c, tokens, keep=kept):
    return sum(keep(c, tokens)) * 4 * c["num_key_value_heads"] * c["head_dim"]


# Right answers that are written differently

Sizes = namedtuple("Sizes", "total active")


def sizes_by_shape(config):
    """The shapes of all matrices, in a loop over the layers."""
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
    return Sizes(total=total + outer, active=active + outer)


def sizes_by_idle(config):
    """All parameters less those of the experts that rest."""
    total = count(config, config["num_experts"])
    rest = config["num_experts"] - config["num_experts_per_tok"]
    expert = 3 * config["hidden_size"] * config["moe_intermediate_size"]
    return [np.int64(total), np.int64(total - config["num_hidden_layers"] * rest * expert)]


def sizes_by_elements(config):
    """The elements of tensors without memory."""
    width, head = config["hidden_size"], config["head_dim"]
    heads, groups = config["num_attention_heads"], config["num_key_value_heads"]
    experts, inner = config["num_experts"], config["moe_intermediate_size"]
    with torch.device("meta"):
        qkv = torch.empty(width, heads + 2 * groups, head).numel()
        out = torch.empty(heads, head, width).numel()
        expert = torch.empty(3, width, inner).numel()
        router = torch.empty(width, experts).numel()
        outer = torch.empty(2, config["vocab_size"], width).numel()
    layers = config["num_hidden_layers"]
    return tuple(
        outer + layers * (qkv + out + router + visited * expert)
        for visited in (experts, config["num_experts_per_tok"])
    )


def cache_by_counter(config, tokens):
    number = Counter(config["layer_types"])
    window = tokens if tokens < config["sliding_window"] else config["sliding_window"]
    both = number["full_attention"] * tokens + number["sliding_attention"] * window
    return 2 * both * config["num_key_value_heads"] * config["head_dim"] * torch.bfloat16.itemsize


def cache_by_saving(config, tokens):
    """The full cache less what the windows save."""
    a_token = 2 * 2 * config["num_key_value_heads"] * config["head_dim"]
    full = config["num_hidden_layers"] * tokens * a_token
    saved = max(0, tokens - config["sliding_window"]) * a_token
    return full - saved * config["layer_types"].count("sliding_attention")


def cache_by_array(config, tokens):
    keep = np.array([kind[0] == "f" for kind in config["layer_types"]])
    kept = np.where(keep, tokens, np.minimum(tokens, config["sliding_window"]))
    return kept.sum() * np.prod([2, config["num_key_value_heads"], config["head_dim"], 2])


def cache_by_slices(config, tokens):
    total = 0
    for kind in config["layer_types"]:
        seen = range(tokens)
        if kind == "sliding_attention":
            seen = seen[-config["sliding_window"] :]
        for _ in ("keys", "values"):
            total += len(seen) * config["num_key_value_heads"] * config["head_dim"] * 16 / 8
    return total


RIGHT = {
    checks.mixture_sizes: [
        sizes,
        sizes_by_shape,
        sizes_by_idle,
        sizes_by_elements,
        lambda c: np.array(sizes(c)),
        lambda c: torch.tensor(sizes(c)),
        lambda c: tuple(map(Decimal, sizes(c))),
        lambda c: [torch.tensor([float(n)], dtype=torch.float64) for n in sizes(c)],
    ],
    checks.cache_bytes: [
        cache,
        cache_by_counter,
        cache_by_saving,
        cache_by_array,
        cache_by_slices,
        lambda c, tokens: torch.tensor([cache(c, tokens)]),
        lambda c, tokens: Decimal(cache(c, tokens)),
        lambda c, tokens: np.float64(cache(c, tokens)),
    ],
}


def test_answers_that_are_written_differently():
    for check, answers in RIGHT.items():
        assert_verdicts(check, [(answer, "passed") for answer in answers])


def test_no_two_mistakes_give_the_same_numbers_for_all_inputs():
    mixtures = [config for _, config in checks.mixtures()]
    tables = {
        "total": [
            checks.size_mistakes(c, c["num_experts"]) | {"": sizes(c)[0], "first": sizes(c)[1]}
            for c in mixtures
        ],
        "active": [checks.active_mistakes(c) | {"": sizes(c)[1]} for c in mixtures],
        "cache": [checks.cache_mistakes(c, n) | {"": cache(c, n)} for _, c, n in checks.caches()],
    }
    for name, cases in tables.items():
        said = {diagnosis for mistakes in cases for diagnosis in mistakes}
        columns = {diagnosis: tuple(m.get(diagnosis) for m in cases) for diagnosis in said}
        same = [{d for d in said if columns[d] == columns[one]} for one in said]
        assert len(said) > 20
        assert not [names for names in same if len(names) > 1], name


def test_right_untouched_and_broken():
    different = []
    for check, (answer, *_) in RIGHT.items():
        cases = {
            "passed": answer,
            "not attempted yet": stub,
            "your code raised ZeroDivisionError": lambda *_: 1 / 0,
            "not right yet. ": lambda *_: None,
        }
        said = {expected: verdict(check, answer) for expected, answer in cases.items()}
        different += [line for expected, line in said.items() if f": {expected}" not in line]
    assert different == []


def test_parts_of_a_mixture():
    def part(**wrong):
        return lambda c: sizes(c, **{name: compute(c) for name, compute in wrong.items()})

    def attention(queries, pairs):
        return part(attention=lambda c: 2 * c["hidden_size"] * (queries(c) + pairs(c)))

    def q(c):
        return c["num_attention_heads"] * c["head_dim"]

    def kv(c):
        return c["num_key_value_heads"] * c["head_dim"]

    def narrow(c):
        return c["num_key_value_heads"] * (c["hidden_size"] // c["num_attention_heads"])

    def share(c):
        return c["num_attention_heads"] // c["num_key_value_heads"] * c["head_dim"]

    def dense(c):
        return 3 * c["hidden_size"] * c["intermediate_size"]

    def norms(c):
        return 2 * c["vocab_size"] * c["hidden_size"] + (
            (2 * c["num_hidden_layers"] + 1) * c["hidden_size"]
        )

    cases = [
        (attention(q, q), "fewer than the queries"),
        (attention(kv, kv), "only keys and values have num_key_value_heads"),
        (attention(lambda c: c["hidden_size"], narrow), "head_dim is a field of its own"),
        (attention(lambda c: c["hidden_size"], lambda c: c["hidden_size"]), "and there are fewer"),
        (attention(lambda c: c["hidden_size"], kv), "not hidden_size x hidden_size"),
        (
            attention(lambda c: (q(c) + c["hidden_size"]) / 2, kv),
            "one of yours is hidden_size x hidden_size",
        ),
        (attention(q, share), "the number of queries that share one"),
        (attention(q, lambda c: c["head_dim"]), "heads of keys and values, not one"),
        (attention(q, lambda c: kv(c) / 2), "keys and values as one"),
        (attention(q, lambda c: 0), "left out the keys and values"),
        (part(attention=lambda c: attention_of(c, out=False)), "left out the one of the queries"),
        (part(attention=lambda c: 0), "Attention is missing"),
        (
            part(attention=lambda c: attention_of(c) + q(c) + 2 * kv(c)),
            "biases of queries, keys and values",
        ),
        (part(attention=lambda c: attention_of(c) + 2 * c["head_dim"]), "the norms of queries"),
        (part(router=lambda c: 0), "The router is missing"),
        (
            part(router=lambda c: c["hidden_size"] * c["num_experts_per_tok"]),
            "also for those that a token doesn't visit",
        ),
        (part(expert=lambda c: 2 * c["hidden_size"] * c["moe_intermediate_size"]), "have two"),
        (part(expert=dense), "moe_intermediate_size, not intermediate_size"),
        (part(attention=lambda c: attention_of(c) + dense(c)), "a dense MLP beside the experts"),
        (part(embeddings=lambda c: c["vocab_size"] * c["hidden_size"]), "are separate"),
        (part(embeddings=lambda c: 0), "The embeddings are missing"),
        (part(layers=lambda c: 1), "Those are one layer's"),
        (part(embeddings=norms), "You count norms; leave them out"),
    ]
    assert_verdicts(checks.mixture_sizes, cases)


def test_sizes_of_a_mixture():
    def active(wrong):
        return lambda c: (sizes(c)[0], wrong(c))

    def share(c):
        return c["num_experts_per_tok"] / c["num_experts"]

    def outer(c):
        return 2 * c["vocab_size"] * c["hidden_size"]

    def chosen_columns(c):
        return count(
            c, c["num_experts_per_tok"], router=c["hidden_size"] * c["num_experts_per_tok"]
        )

    changed = "Your function changes the config"
    large = {
        "the total": lambda c: (float(np.float32(sizes(c)[0])), sizes(c)[1]),
        "the active": lambda c: (sizes(c)[0], float(np.float32(sizes(c)[1]))),
    }
    cases = [
        (lambda c: sizes(c)[::-1], "you return the active parameters there"),
        (lambda c: [n / 1e9 for n in sizes(c)], "billions"),
        (lambda c: sizes(c)[0], "Return two numbers"),
        (lambda c: (*sizes(c), 0), "Return two numbers"),
        (lambda c: dict(enumerate(sizes(c))), "Return two numbers"),
        (lambda c: (sizes(c), 0), "a number is expected, not tuple"),
        (lambda c: (c.pop("head_dim"), *sizes(c))[:2], "your code raised KeyError: 'head_dim'"),
        (lambda c: (sizes(c), c.clear())[0], changed),
        (active(lambda c: sizes(c)[0]), "Those are all parameters"),
        (active(lambda c: sizes(c)[0] - sizes(c)[1]), "a token doesn't use"),
        (active(lambda c: share(c) * sizes(c)[0]), "the router and the embeddings"),
        (
            active(lambda c: share(c) * (sizes(c)[0] - outer(c)) + outer(c)),
            "all of attention and the router",
        ),
        (active(chosen_columns), "also for those that a token doesn't visit"),
        (active(lambda c: sizes(c, embeddings=0)[1]), "The embeddings are missing"),
        (active(lambda c: sizes(c, embeddings=outer(c) / 2)[1]), "are separate"),
        (active(lambda c: sizes(c, router=0)[1]), "The router is missing"),
        (active(lambda c: count(c, 1)), "a single expert"),
        (active(lambda c: count(c, 8)), "off for the active parameters of hidden_size="),
        (lambda c: accounting.count_parameters(c), "write it by hand"),
        (
            lambda c: sizes(checks.published("qwen3-30b-a3b")),
            "the same two numbers for each config",
        ),
        *(
            (wrong, f"right to six digits, but not exact for {part} parameters")
            for part, wrong in large.items()
        ),
    ]
    assert_verdicts(checks.mixture_sizes, cases)


def with_layers(full):
    """Answer with another number of full layers, which `full` computes from the right kinds."""

    def keep(c, tokens):
        layers, short = len(c["layer_types"]), min(tokens, c["sliding_window"])
        number = full([kind == "full_attention" for kind in c["layer_types"]])
        return [number * tokens, (layers - number) * short]

    return lambda c, tokens: cache(c, tokens, keep)


def with_window(seen):
    """Answer with another number of tokens in a sliding layer."""

    def keep(c, tokens):
        window = seen(tokens, c["sliding_window"])
        return [tokens if "full" in kind else window for kind in c["layer_types"]]

    return lambda c, tokens: cache(c, tokens, keep)


def with_numbers(numbers):
    """Answer with other numbers for a token of a layer."""
    return lambda c, tokens: sum(kept(c, tokens)) * numbers(c)


def test_caches():
    cases = [
        (with_layers(len), "in every layer; a sliding layer keeps sliding_window at most"),
        (with_layers(lambda full: 0), "a window in every layer"),
        (with_layers(lambda full: len(full) - sum(full)), "The other way round"),
        (with_layers(lambda full: len(full) // 2), "you make half of the layers full"),
        (with_layers(lambda full: -(-len(full) // 2)), "give half of the layers a window"),
        (with_layers(lambda full: len(full) * full[0]), "you treat all like the first"),
        (
            lambda c, n: cache(
                c, n, lambda c, n: len(c["layer_types"]) // 2 * [n, min(n, c["sliding_window"])]
            ),
            "half of the layers as full and as many as sliding",
        ),
        (lambda c, n: cache(c, n, lambda c, n: kept(c, n)[:1]), "Only the first layer is counted"),
        (with_window(max), "so take the smaller"),
        (with_window(lambda tokens, window: window), "with few tokens it keeps them all"),
        (with_window(lambda tokens, window: 0), "Sliding layers are missing"),
        (with_window(lambda tokens, window: tokens - min(tokens, window)), "before the window"),
        (with_window(lambda tokens, window: min(tokens, window - 1)), "one token too short"),
        (with_window(lambda tokens, window: min(tokens, window + 1)), "one token too long"),
        (with_window(lambda tokens, window: min(tokens, 128)), "off for tokens=40, sliding_window"),
        (lambda c, n: cache(c, n) / len(c["layer_types"]), "Each layer has its own cache"),
        (lambda c, n: cache(c, n) * c["num_hidden_layers"], "after adding them up"),
        (lambda c, n: cache(c, n) / 2, "That is half"),
        (lambda c, n: cache(c, n) / 4, "That is a quarter"),
        (lambda c, n: cache(c, n) * 2, "twice too much"),
        (lambda c, n: cache(c, n) * 8, "a byte has 8"),
        (lambda c, n: cache(c, n) / 1e9, "GB"),
        (lambda c, n: cache(c, n) / 2**20, "Those are MiB"),
        (lambda c, n: cache(c, n) / 2**10, "Those are KiB"),
        (lambda c, n: cache(c, n) / 1e6, "(MB)"),
        (lambda c, n: cache(c, n) / 1e3, "Those are kB"),
        (with_window(lambda tokens, window: tokens % window), "You keep the remainder"),
        (
            with_numbers(lambda c: 4 * c["num_attention_heads"] * c["head_dim"]),
            "one for each query",
        ),
        (with_numbers(lambda c: 4 * c["head_dim"]), "num_key_value_heads heads; you count one"),
        (with_numbers(lambda c: 4 * c["hidden_size"]), "not hidden_size"),
        (
            with_numbers(
                lambda c: (
                    4 * c["num_key_value_heads"] * (c["hidden_size"] // c["num_attention_heads"])
                )
            ),
            "head_dim is a field of its own",
        ),
        (
            lambda c, n: 4 * len(c["layer_types"]) * c["num_key_value_heads"] * c["head_dim"],
            "one t",
        ),
        (lambda c, n: accounting.kv_cache_bytes(c, n), "write it by hand"),
        (lambda c, n: (cache(c, n), c["layer_types"].sort())[0], "changes the config"),
        (lambda c, n: float(np.float32(cache(c, n))), "off for tokens="),
        (lambda c, n: str(cache(c, n)), "not str"),
    ]
    assert_verdicts(checks.cache_bytes, cases)
