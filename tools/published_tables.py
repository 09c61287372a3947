"""Print the tables of docs/published_runs.md: python -m tools.published_tables."""

import statistics
from collections.abc import Iterable, Sequence

from cs336_course.shared import published_runs
from cs336_lib import accounting
from cs336_lib.bill.simulate import interval_of, memory, simulate
from cs336_lib.bill.stacks import STACKS
from cs336_lib.formatting import duration


def markdown(header: str, rows: Iterable[Sequence[str]]) -> str:
    """Format a Markdown table. The header has a bar between the names of columns."""
    lines = [f"| {header} |", "|---" * (header.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(cells)} |" for cells in rows)])


def run_table() -> str:
    """Format the runs with the predicted and the stated speed."""
    rows = []
    for run in published_runs.runs().values():
        several = run.devices is not None and run.devices > 1
        devices = f"{run.devices:,} x {run.device.upper()}" if several else run.device.upper()
        cells = [run.title, devices, run.layout]
        cells += ["-" if mfu is None else f"{mfu:.1%}" for mfu in (run.mfu, run.palm_mfu)]
        cells.append(speed(run.predicted_speed))
        cells += [speed(run.stated_speed), "-" if run.ratio is None else f"{run.ratio:.3f}"]
        days = run.days(run.stated_speed or run.predicted_speed)
        seconds = days and days * accounting.SECONDS_PER_DAY
        rows.append([*cells, "-" if seconds is None else duration(seconds)])
    return markdown(
        "run | devices | layout | MFU, stated | as in PaLM | tokens/s a device, predicted | "
        "stated | ratio | time",
        rows,
    )


def speed(value: float | None) -> str:
    """Format a speed with four digits, or a dash."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def step_table() -> str:
    """Format the published steps with the simulated and the stated MFU."""
    rows, apart = [], published_runs.left_out()
    for name, step in published_runs.steps().items():
        layout = step.work.layout
        found = simulate(step.work, step.cluster).mfu
        counts = (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp)
        ways = zip(("tensor", "pipeline", "context", "expert", "data"), counts, strict=True)
        parts = [f"{count}-way {way}" for way, count in ways if count > 1]
        devices = f"{layout.devices:,} x {step.cluster.device.name.split()[1]}"
        cells = [f"**{name}**" if step.held_out else name, step.stack, devices, ", ".join(parts)]
        cells += [f"{found:.1%}", f"{step.mfu:.1%}", f"{found / step.mfu - 1:+.1%}"]
        rows.append([*cells, f"{apart[name] - 1:+.1%}"])
    header = "step | program | devices | layout | simulated | stated | off by | when left out"
    return markdown(header, rows)


def stack_table() -> str:
    """Format the errors of steps whose paper was left out of the fit, by family of programs."""
    groups: dict[str, list[float]] = {}
    papers: dict[str, set[str]] = {}
    apart = published_runs.left_out()
    for name, step in published_runs.steps().items():
        if not step.held_out:
            for stack in (step.stack, "all"):
                groups.setdefault(stack, []).append(apart[name] - 1)
                papers.setdefault(stack, set()).add(step.paper)
    groups["all"] = groups.pop("all")  # the last row
    rows = []
    for stack, group in groups.items():
        errors = (statistics.median(map(abs, group)), max(group, key=abs), statistics.mean(group))
        middle, worst, bias = errors
        cells = [stack, str(len(papers[stack])), str(len(group)), f"{middle:.0%}"]
        rows.append([*cells, f"{worst:+.0%}", f"{bias:+.0%}"])
    return markdown("program | papers | steps | median error | worst | bias", rows)


def held_out_table() -> str:
    """Format the steps that are in no fit, with the interval in which they were expected."""
    rows, apart = [], published_runs.left_out()
    for name, step in published_runs.steps().items():
        if not step.held_out:
            continue
        layout = step.work.layout
        flops = layout.batch * step.work.seq / layout.devices / step.mfu
        flops *= accounting.train_flops_per_token(step.work.architecture, step.work.seq)
        stated = flops / step.cluster.device.peak_flops["bf16"]
        simulated = stated / apart[name]
        low, high = interval_of(simulated)
        cells = [name, f"{stated:.3g} s", f"{simulated:.3g} s", f"{low:.3g} to {high:.3g} s"]
        rows.append([*cells, f"{apart[name] - 1:+.1%}"])
    return markdown("step | stated | simulated | expected | off by", rows)


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
        split = "also splits norms" if stack.sequence else "matrices only"
        overlap = "yes" if stack.overlap else "no"
        cells = [
            name,
            stack.attention,
            split,
            stack.recompute,
            overlap,
            str(stack.zero),
            stack.source,
        ]
        rows.append(cells)
    header = "stack | attention | tensor parallelism | recomputation | overlap | ZeRO | source"
    return markdown(header, rows)


def spread() -> tuple[float, float]:
    """Return the stated over the simulated seconds, as the 10th and 90th percentile of papers.

    A paper counts once, by the median of its steps. Steps that are held out don't count.
    """
    papers: dict[str, list[float]] = {}
    apart = published_runs.left_out()
    for name, step in published_runs.steps().items():
        if not step.held_out:
            papers.setdefault(step.paper, []).append(apart[name])
    tenths = statistics.quantiles(map(statistics.median, papers.values()), n=10)
    return round(tenths[0], 2), round(tenths[-1], 2)


def source_table() -> str:
    """Format the sources of the published steps."""
    names: dict[str, list[str]] = {}
    for name, step in published_runs.steps().items():
        assumed = f". Assumed: {step.assumed}" if step.assumed else ""
        names.setdefault(step.source + assumed, []).append(name)
    return markdown("steps | source", ([", ".join(g), source] for source, g in names.items()))


TABLES = (
    stack_table,
    held_out_table,
    program_table,
    memory_table,
    step_table,
    run_table,
    source_table,
)


def main() -> None:
    """Print all tables."""
    print(*(table() for table in TABLES), spread(), sep="\n\n")


if __name__ == "__main__":
    main()
