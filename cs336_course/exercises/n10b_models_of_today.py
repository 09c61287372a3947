"""Exercises of notebook 10b on the sizes of models, on pipelines and on a plan."""

from collections import Counter
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

import numpy as np
import torch

from cs336_course.demos import capstone
from cs336_course.engine import Case, Exercise, edits, function, sizes
from cs336_course.engine.records import Record
from cs336_course.exercises.published_configs import IN_LLAMA, Config, named, published
from cs336_lib import accounting
from cs336_lib.bill import models, simulate
from cs336_lib.bill.memory import Recompute
from cs336_lib.bill.traffic import Layout

NOTEBOOK = "10b_models_of_today"


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


# one_f_one_b


def pipelines() -> Iterator[Case]:
    """Yield stages of pipelines."""
    for stages, micro_batches in ((4, 8), (4, 2), (2, 5), (1, 3), (7, 7), (8, 3), (3, 1), (16, 40)):
        for stage in sorted({0, stages // 2, stages - 1, 1 % stages}):
            what = f"stage {stage} of {stages} with {micro_batches} micro-batches"
            inputs = {"stage": stage, "stages": stages, "micro_batches": micro_batches}
            yield Case("" if (stage, stages, micro_batches) == (0, 4, 8) else what, **inputs)


def passes(kinds: str) -> list[tuple[str, int]]:
    """Return passes by their letters, such as F for forward, each with the next micro-batch."""
    seen: Counter[str] = Counter()
    found = []
    for kind in kinds:
        found.append(({"F": "forward", "B": "backward"}[kind], seen[kind]))
        seen[kind] += 1
    return found


def by_letters(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Write the passes as letters, beginning with all forward passes that are in flight."""
    flight = min(stages - stage, micro_batches)
    return passes("F" * flight + "BF" * (micro_batches - flight) + "B" * flight)


def by_counting(stage: int, stages: int, micro_batches: int) -> list[tuple[str, int]]:
    """Run a backward pass as soon as enough micro-batches are in flight."""
    found: list[tuple[str, int]] = []
    forward = backward = 0
    while backward < micro_batches:
        if forward - backward < min(stages - stage, micro_batches - backward):
            found.append(("forward", forward))
            forward += 1
        else:
            found.append(("backward", backward))
            backward += 1
    return found


WARM = "ahead = min(stages - 1 - stage, micro_batches)"
PAIRS = "range(ahead, micro_batches)"
PAIR_FORWARD = 'order.append(("forward", number))'
PAIR_BACK = 'order.append(("backward", number - ahead))'
COOL = "range(micro_batches - ahead, micro_batches)"

one_f_one_b = Exercise(
    NOTEBOOK,
    "one_f_one_b",
    pipelines,
    is_part=True,
    smaller="Take two stages and two micro-batches. In which order does the last stage run its "
    "four passes? When can the first stage run its first backward pass?",
    wrong={
        "That is GPipe, which holds the activations of all micro-batches; a backward pass can run "
        "much earlier.": [
            (WARM, "ahead = micro_batches"),
            lambda stage, stages, micro_batches: passes("F" * micro_batches + "B" * micro_batches),
        ],
        "GPipe's order with the last micro-batch first; a backward pass can run much earlier, and "
        "the oldest micro-batch comes first.": (
            lambda stage, stages, micro_batches: (
                passes("F" * micro_batches)
                + [("backward", n) for n in reversed(range(micro_batches))]
            )
        ),
        "Your stage runs one forward pass too many before its first backward pass, so it holds one "
        "micro-batch too many. The last stage needs none ahead.": (
            WARM,
            "ahead = min(stages - stage, micro_batches)",
        ),
        "Your stage runs one forward pass too few before its first backward pass, so it waits "
        "while the first micro-batch comes back.": (
            WARM,
            "ahead = max(0, min(stages - 2 - stage, micro_batches))",
        ),
        "The other way round: the first stage is farthest from the loss and needs most forward "
        "passes ahead.": (WARM, "ahead = min(stage, micro_batches)"),
        "Your stage has no forward passes ahead, so it waits for each micro-batch to come back "
        "before it starts the next.": (WARM, "ahead = 0"),
        "All of your stages run as many forward passes ahead; a later stage needs fewer, because "
        "the loss is nearer.": [
            (WARM, "ahead = min(stages - 1, micro_batches)"),
            (WARM, "ahead = min(stages, micro_batches)"),
        ],
        "There may be fewer micro-batches than stages; a stage can't run more forward passes ahead "
        "than there are.": (WARM, "ahead = stages - 1 - stage"),
        "The backward passes at the end are missing: those of the micro-batches that are still in "
        "flight.": (COOL, "range(0)"),
        "The forward passes before the first backward pass are missing.": (
            "in range(ahead)]",
            "in range(0)]",
        ),
        "In the middle, your backward pass comes before the forward pass of the pair, and the last "
        "stage would start with the backward pass of a micro-batch that it hasn't seen.": edits(
            (PAIR_BACK, ""), (PAIR_FORWARD, f"{PAIR_BACK}\n        {PAIR_FORWARD}")
        ),
        "The backward pass of a pair belongs to the oldest micro-batch in flight, not to the one "
        "that just went forward.": (PAIR_BACK, 'order.append(("backward", number))'),
        "The backward passes at the end take the micro-batches from the oldest to the newest.": (
            COOL,
            "reversed(range(micro_batches - ahead, micro_batches))",
        ),
        "Micro-batches count from 0.": edits(
            ('("forward", number)', '("forward", number + 1)'),
            ('("backward", number - ahead)', '("backward", number - ahead + 1)'),
            ('("backward", number)', '("backward", number + 1)'),
        ),
        "The middle is missing: there, a forward and a backward pass alternate.": (
            PAIRS,
            "range(0)",
        ),
        "Return the passes of one stage; you return those of all stages.": (
            lambda stage, stages, micro_batches: [
                each for one in range(stages) for each in by_letters(one, stages, micro_batches)
            ]
        ),
        "Each pass is a pair of its kind and its micro-batch; you return the kinds only.": (
            "return order",
            "return [kind for kind, _ in order]",
        ),
        "That is the same order for each stage and pipeline; it depends on the stage.": (
            WARM,
            f"stage, stages, micro_batches = 0, 4, 8\n    {WARM}",
        ),
    },
    refused=[
        (PAIRS, "range(ahead, micro_batches - 1)"),
        ('"backward", number - ahead', '"forward", number - ahead'),
        lambda stage, stages, micro_batches: None,
        lambda stage, stages, micro_batches: 1 / 0,
    ],
    right=[by_letters, by_counting, lambda *where: list(map(list, by_letters(*where)))],
)


# plan


def order() -> Iterator[Case]:
    """Yield the order, which is the only question."""
    yield Case("")


class Bill(NamedTuple):
    """What a run costs, and the part of it that buys no progress."""

    days: float
    dollars: float
    lost: float


def bill_of(layout: Layout, recompute: Recompute) -> Bill:
    """Return the bill of the order in a layout, with failures and checkpoints."""
    seconds = simulate.simulate(capstone.workload(layout, recompute), capstone.CLUSTER).seconds
    interval = simulate.best_interval(layout.devices, capstone.SAVE)
    share = simulate.goodput(layout.devices, capstone.SAVE, capstone.RESTART, interval)
    hours = capstone.TOKENS / layout.batch / capstone.SEQ * seconds / share / 3600
    dollars = hours * layout.devices * capstone.PRICE
    return Bill(hours / 24, dollars, (1 - share) * dollars)


def fits(layout: Layout, recompute: Recompute) -> bool:
    """Tell whether a layout fits into the usable memory of a GPU."""
    needed = sum(simulate.memory(capstone.workload(layout, recompute)).values())
    return needed <= capstone.USABLE * capstone.CLUSTER.device.memory


def fsdp_alone() -> Bill:
    """Return the bill of FSDP on all GPUs that recomputes no more than it must."""
    layout = Layout(dp=capstone.GPUS, zero=3)
    tried: tuple[Recompute, ...] = ("none", "selective", "full")
    return bill_of(layout, next(recompute for recompute in tried if fits(layout, recompute)))


def over(given: float, right: float, near: float = 0.01) -> float:
    """Return a number over the right one, which is 1 if they agree."""
    ratio = float(given) / right
    return 1.0 if abs(ratio - 1) < near else float(f"{ratio:.3g}")


def kept(expected: float, upper: float) -> str:
    """Tell whether a plan keeps within the budget, risks it, or breaks it."""
    if expected > capstone.BUDGET:
        return "breaks it"
    return "risks it" if upper > capstone.BUDGET else "keeps it"


def defended(plan: Any, case: Case) -> Record:
    """Observe a plan: what it breaks, and its numbers over those of its own layout."""
    if plan is ...:
        raise NotImplementedError
    layout, recompute = plan["layout"], plan["recompute"]
    right = bill_of(layout, recompute)
    ends = simulate.interval_of(right.dollars)
    return {
        "GPUs": layout.devices,
        "sequences": layout.batch,
        "fits": fits(layout, recompute),
        "days": over(plan["days"], right.days),
        "dollars": over(plan["dollars"], right.dollars),
        "interval": [over(*pair) for pair in zip(plan["interval"], ends, strict=True)],
        "budget": kept(right.dollars, ends[1]),
        "fsdp_alone": over(plan["fsdp_alone"], fsdp_alone().dollars),
        "failures": over(plan["failures"], right.lost, 0.05),
        "hurry": over(plan["hurry"], bill_of(capstone.HURRY, "none").dollars),
    }


FAST = "layout = Layout(dp=256, tp=2, zero=3, micro_batches=2)"
SOME = 'recompute = "selective"'
DAYS = "days = steps * seconds / share / 86_400"
PAID = "return days, days * 24 * layout.devices * capstone.PRICE, share"
ENDS = '"interval": simulate.interval_of(dollars)'
ALONE = 'bill(Layout(dp=512, zero=3), "full")[1]'
LOST = '"failures": (1 - share) * dollars'
HURRIED = 'bill(capstone.HURRY, "none")[1]'

plan = Exercise(
    NOTEBOOK,
    "plan",
    order,
    observe=defended,
    smaller="Take the layout Layout(dp=512, zero=3). Which `recompute` makes it fit into 72 GB? "
    "How many steps are 1e12 tokens, and how many days do they take without failures?",
    says={
        "GPUs": "Your layout has another number of GPUs than you rent.",
        "sequences": "Your step has another number of sequences than the order's 512.",
        "fits": "Your layout doesn't fit into 90 % of a GPU's memory.",
        "days": "Your days aren't those of your layout.",
        "dollars": "Your dollars aren't those of your layout.",
        "interval": "Your interval isn't `simulate.interval_of` your dollars.",
        "budget": "Your plan doesn't keep within the budget.",
        "fsdp_alone": "The first objection's number isn't the bill of FSDP alone.",
        "failures": "The second objection's number isn't what failures cost.",
        "hurry": "The third objection's number isn't the bill of 4,096 GPUs.",
    },
    wrong={
        "Your layout doesn't fit into 90 % of a GPU's memory; split more, or recompute more.": [
            (FAST, "layout = Layout(dp=512, zero=3)"),
            (SOME, 'recompute = "none"'),
        ],
        "The layout fits, and its expected bill is within the budget. But the upper end of the "
        "interval isn't, so it may run out of money; find a faster layout.": edits(
            (FAST, "layout = Layout(dp=16, tp=8, pp=4, zero=1, micro_batches=32)"),
            (SOME, 'recompute = "none"'),
        ),
        "The layout fits, but its expected bill is above the budget; find a faster layout.": (
            FAST,
            "layout = Layout(dp=64, tp=8, zero=3, micro_batches=8)",
        ),
        "Your layout has 256 GPUs; the rent is for 512.": (
            FAST,
            FAST.replace("dp=256", "dp=128").replace("batches=2", "batches=4"),
        ),
        "Your step has 1,024 sequences; the order says 512.": (
            FAST,
            FAST.replace("batches=2", "batches=4"),
        ),
        "Failures and checkpoints are missing in your days; divide by the goodput.": (
            DAYS,
            "days = steps * seconds / 86_400",
        ),
        "You multiply by the goodput; less progress means more days, so divide.": (
            DAYS,
            "days = steps * seconds * share / 86_400",
        ),
        "Those are hours, and not days.": edits(
            (DAYS, DAYS.replace("86_400", "3600")), ("days * 24 *", "days *")
        ),
        "A step has 512 sequences of 8,192 tokens each; you divide the tokens by the sequences.": (
            "(layout.batch * capstone.SEQ)",
            "layout.batch",
        ),
        "Those are the dollars of one GPU.": ("24 * layout.devices *", "24 *"),
        "The price is for an hour, and you pay it for a day.": ("days * 24 *", "days *"),
        "The interval is of the dollars; yours is of the days.": (
            ENDS,
            '"interval": simulate.interval_of(days)',
        ),
        "The interval is of the dollars; yours is of a step.": (
            ENDS,
            '"interval": simulate.interval_of(days * 86_400 / 238_419)',
        ),
        "The lower end of the interval comes first.": (
            ENDS,
            '"interval": simulate.interval_of(dollars)[::-1]',
        ),
        "Your interval has no width; how far was the simulator off for papers that it hadn't "
        "seen?": (ENDS, '"interval": (dollars, dollars)'),
        "Objection 1: FSDP alone doesn't fit without recomputing all blocks, so that isn't its "
        "bill.": [
            (ALONE, 'bill(Layout(dp=512, zero=3), "none")[1]'),
            (ALONE, 'bill(Layout(dp=512, zero=3), "selective")[1]'),
        ],
        "Objection 1: you give the bill of your own layout.": (ALONE, "dollars"),
        "Objection 1: you give the difference of the two bills; give FSDP's bill.": (
            ALONE,
            f"{ALONE} - dollars",
        ),
        "Objection 2: that is the share of the time; give the dollars that it costs.": (
            LOST,
            '"failures": 1 - share',
        ),
        "Objection 2: those are the dollars that do buy progress.": (
            LOST,
            '"failures": share * dollars',
        ),
        "Objection 3: more GPUs fail more often, and they wait more; the bill doesn't stay as it "
        "is.": (HURRIED, "dollars"),
        "Objection 3: eight times as many GPUs don't make the bill eight times as high, because "
        "the run is shorter.": (HURRIED, "8 * dollars"),
    },
    refused=[
        ('"recompute": recompute', '"recompute": "full"'),
        (LOST, '"failures": 0'),
        lambda: None,
    ],
    right=[
        edits(
            (FAST, "layout = Layout(dp=128, tp=4, zero=3, micro_batches=4)"),
            (SOME, 'recompute = "none"'),
        ),
        edits((FAST, "layout = Layout(dp=512, zero=3)"), (SOME, 'recompute = "full"')),
        (LOST, '"failures": dollars / share - dollars'),
    ],
)
