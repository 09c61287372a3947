"""Exercise of the side trip on thousands of GPUs: a plan for a customer."""

from collections.abc import Iterator
from typing import Any

from cs336_course.engine import Case, Exercise, edits
from cs336_course.engine.records import Record
from cs336_course.pages.thousands_of_gpus import capstone
from cs336_lib.bill import simulate
from cs336_lib.bill.traffic import Layout, Recompute

NOTEBOOK = "side_trips/thousands_of_gpus"


def order() -> Iterator[Case]:
    """Yield the order, which is the only question."""
    yield Case("")


def bill(layout: Layout, recompute: Recompute) -> tuple[float, float, float]:
    """Return days, dollars, and the share of the time that makes progress, as the page does."""
    seconds = simulate.simulate(capstone.workload(layout, recompute), capstone.CLUSTER).seconds
    interval = simulate.best_interval(layout.devices, capstone.SAVE)
    share = simulate.goodput(layout.devices, capstone.SAVE, capstone.RESTART, interval)
    days = capstone.TOKENS / layout.batch / capstone.SEQ * seconds / share / 86_400
    return days, days * 24 * layout.devices * capstone.PRICE, share


def fits(layout: Layout, recompute: Recompute) -> bool:
    """Tell whether a layout fits into the usable memory of a GPU."""
    needed = sum(simulate.memory(capstone.workload(layout, recompute)).values())
    return needed <= capstone.USABLE * capstone.CLUSTER.device.memory


def fsdp_alone() -> float:
    """Return the dollars of FSDP on all GPUs that recomputes no more than it must."""
    layout = Layout(dp=capstone.GPUS, zero=3)
    tried: tuple[Recompute, ...] = ("none", "selective", "full")
    return bill(layout, next(recompute for recompute in tried if fits(layout, recompute)))[1]


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
    _, dollars, share = bill(layout, recompute)
    ends = simulate.interval_of(dollars)
    return {
        "GPUs": layout.devices,
        "sequences": layout.batch,
        "fits": fits(layout, recompute),
        "dollars_range": [over(*pair) for pair in zip(plan["dollars_range"], ends, strict=True)],
        "budget": kept(dollars, ends[1]),
        "fsdp_alone": over(plan["fsdp_alone"], fsdp_alone()),
        "failures": over(plan["failures"], (1 - share) * dollars, 0.05),
    }


FAST = "layout = Layout(dp=256, tp=2, zero=3, micro_batches=2)"
SOME = 'recompute = "selective"'
ENDS = '"dollars_range": simulate.interval_of(dollars)'
ALONE = 'bill(Layout(dp=512, zero=3), "full")[1]'
LOST = '"failures": (1 - share) * dollars'

plan = Exercise(
    NOTEBOOK,
    "plan",
    order,
    observe=defended,
    is_part=True,
    smaller="Take the layout Layout(dp=512, zero=3). Which `recompute` makes it fit into 72 GB? "
    "What does `bill` say of it, and what does it say of eight GPUs to a matrix?",
    says={
        "GPUs": "Your layout has another number of GPUs than you rent.",
        "sequences": "Your step has another number of sequences than the order's 512.",
        "fits": "Your layout doesn't fit into 90 % of a GPU's memory; split or recompute more.",
        "dollars_range": "Your range isn't `simulate.interval_of` your dollars.",
        "budget": "Your plan doesn't keep within the budget; find a faster layout.",
        "fsdp_alone": "The first objection's number isn't the bill of FSDP alone.",
        "failures": "The second objection's number isn't what failures cost.",
    },
    wrong={
        "The layout fits, and its expected bill is within the budget. But the upper end of the "
        "interval isn't, so it may run out of money; find a faster layout.": edits(
            (FAST, "layout = Layout(dp=16, tp=8, pp=4, zero=1, micro_batches=32)"),
            (SOME, 'recompute = "none"'),
        ),
        "The range is of the dollars; yours is of the days.": (
            ENDS,
            '"dollars_range": simulate.interval_of(days)',
        ),
        "The lower end of the range comes first.": (
            ENDS,
            '"dollars_range": simulate.interval_of(dollars)[::-1]',
        ),
        "Your range has no width; how far was the simulator off for papers that it hadn't seen?": (
            ENDS,
            '"dollars_range": (dollars, dollars)',
        ),
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
    },
)
