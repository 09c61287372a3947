"""Print the tables of docs/published_runs.md: python -m tools.published_tables."""

import itertools
import math
from collections.abc import Iterable, Sequence
from statistics import median

from cs336_course.shared import published_runs
from cs336_course.shared.published_runs import PublishedRun, PublishedStep
from cs336_lib import accounting
from cs336_lib.accounting import Convention
from cs336_lib.bill.simulate import memory
from cs336_lib.bill.text import STACKS
from cs336_lib.system.datasheets import DATASHEET

# What a paper's "FLOPs" are: a convention, and a factor. "recomputed" adds the second forward pass
# of full activation checkpointing.
CONVENTIONS: dict[str, tuple[Convention, float]] = {
    "palm": ("palm", 1.0),
    "causal": ("causal", 1.0),
    "recomputed": ("palm", 4 / 3),
}
SIZES = (8, 64, 256, 1024, 16_384)  # ends of the rows by scale, in devices


def markdown(header: str, rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table. The header has a bar between the names of columns."""
    lines = [f"| {header} |", "|---" * (header.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def error_table(header: str, groups: dict[str, dict[str, PublishedStep]]) -> str:
    """Format the errors of groups of steps, each by a fit without its source."""
    rows, apart = [], published_runs.left_out()
    for name, group in groups.items():
        off = [apart[step] - 1 for step in group]
        sources = len({step.paper for step in group.values()})
        ends = f"{min(off):+.0%} to {max(off):+.0%}"
        middle = f"{median(map(abs, off)):.0%}"
        rows.append([name, str(sources), str(len(group)), middle, f"{median(off):+.0%}", ends])
    return markdown(f"{header} | sources | steps | median error | bias | from, to", rows)


def stack_table() -> str:
    """Format the errors by stack."""
    steps = published_runs.steps()
    groups = {
        stack: {name: step for name, step in steps.items() if step.stack == stack}
        for stack in STACKS
    }
    return error_table("stack", {**groups, "all": steps})


def scale_table() -> str:
    """Format the errors by the number of devices."""
    groups, low = {}, 0
    for high in SIZES:
        group = {
            name: step
            for name, step in published_runs.steps().items()
            if low < step.work.layout.devices <= high
        }
        groups[f"{low + 1:,} to {high:,}"] = group
        low = high
    return error_table("devices", groups)


def source_table() -> str:
    """Format the ratio of stated to simulated seconds of each source that was left out."""
    groups: dict[str, list[str]] = {}
    for name, step in published_runs.steps().items():
        groups.setdefault(step.paper, []).append(name)
    rows, apart = [], published_runs.left_out()
    for paper, names in groups.items():
        ratios = [apart[name] for name in names]
        step = published_runs.steps()[names[0]]
        middle, ends = f"{median(ratios):.2f}", f"{min(ratios):.2f} to {max(ratios):.2f}"
        rows.append([paper, step.stack, str(len(names)), middle, ends])
    return markdown("source | stack | steps | median | from, to", rows)


def memory_table() -> str:
    """Format the steps for which we count more memory than a device has."""
    rows = []
    for name, step in published_runs.steps().items():
        if step.too_large:
            need = sum(memory(step.work).values()) / 1e9
            there = step.cluster.device.memory / 1e9
            rows.append([name, f"{need:.0f} of {there:.0f} GB", step.too_large])
    return markdown("step | memory | why", rows)


def program_table() -> str:
    """Format what `cs336 simulate --stack` sets."""
    rows = []
    for name, stack in STACKS.items():
        split = "also splits norms" if stack["sequence"] else "matrices only"
        overlap = "yes" if stack["overlap"] else "no"
        attention = "fused" if stack["fused_attention"] else "eager"
        rows.append([name, attention, split, stack["recompute"], overlap, str(stack["zero"])])
    header = "stack | attention | tensor parallelism | recomputation | overlap | ZeRO"
    return markdown(header, rows)


def spread() -> tuple[float, float]:
    """Return the interval of stated over simulated seconds, rounded outward to a twentieth.

    The ends are the 5th and 95th percentile of steps whose source was left out of the fit, and each
    source counts equally.
    """
    low, high = (published_runs.quantile(published_runs.left_out(), end) for end in (0.05, 0.95))
    return math.floor(20 * low) / 20, math.ceil(20 * high) / 20


def predicted_time(run: PublishedRun) -> float | None:
    """Return the time of a run as its stated MFU predicts it, over its stated time.

    It is `None` if one of them wasn't published.
    """
    sheet = DATASHEET.get(run.device)
    if None in (run.architecture, run.seq, run.mfu) or not sheet or "bf16" not in sheet.peak_flops:
        return None
    convention, passes = CONVENTIONS[run.convention]
    flops = passes * accounting.train_flops_per_token(run.architecture, run.seq, convention)
    predicted = run.mfu * sheet.peak_flops["bf16"] / flops  # tokens per second and device
    speed = stated_speed(run)
    return speed / predicted if speed else None


def stated_speed(run: PublishedRun) -> float | None:
    """Return the tokens per second and device that the stated time gives."""
    stated, devices = run.stated, run.devices
    if "tokens_per_second" in stated and devices:
        return stated["tokens_per_second"] / devices
    if "seconds_per_step" in stated and devices:
        return stated["batch_tokens"] / stated["seconds_per_step"] / devices
    hours = stated.get("device_hours")
    if "days" in stated and devices:
        hours = stated["days"] * 24 * devices
    return run.tokens / (3600 * hours) if hours and run.tokens else None


def order(apart: float = 0.1) -> tuple[int, float]:
    """Return the pairs of layouts of one model whose steps differ, and the share in right order.

    Args:
        apart: By how much their simulated steps differ at least, as a fraction.
    """
    steps, ratios, right = published_runs.steps(), published_runs.left_out(), []
    for one, other in itertools.combinations(steps, 2):
        a, b = steps[one], steps[other]
        same = a.paper == b.paper and a.work.architecture == b.work.architecture
        if same and a.cluster.device == b.cluster.device:
            fast, slow = a.mfu * ratios[one], b.mfu * ratios[other]  # simulated
            if abs(math.log(fast / slow)) > math.log(1 + apart):
                right.append((fast > slow) == (a.mfu > b.mfu))
    return len(right), sum(right) / len(right)


TABLES = (stack_table, scale_table, source_table, memory_table, program_table)


def main() -> None:
    """Print all tables."""
    print(*(table() for table in TABLES), spread(), order(), sep="\n\n")


if __name__ == "__main__":
    main()
