"""Print the tables of docs/published_runs.md: python -m tools.published_tables."""

import statistics
from collections.abc import Mapping

from cs336_course.shared import published_runs
from cs336_lib import accounting
from cs336_lib.bill.simulate import interval_of, simulate
from cs336_lib.bill.stacks import STACKS
from cs336_lib.formatting import duration


def run_table() -> str:
    """Format the runs as a Markdown table, with the predicted and the stated speed."""
    rows = [
        "| run | devices | layout | MFU, stated | as in PaLM | tokens/s a device, predicted | "
        "stated | ratio | time |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for run in published_runs.runs().values():
        several = run.devices is not None and run.devices > 1
        devices = f"{run.devices:,} x {run.device.upper()}" if several else run.device.upper()
        cells = [run.title, devices, run.layout]
        cells += ["-" if mfu is None else f"{mfu:.1%}" for mfu in (run.mfu, run.palm_mfu)]
        cells.append(speed(run.predicted_speed))
        cells += [speed(run.stated_speed), "-" if run.ratio is None else f"{run.ratio:.3f}"]
        days = run.days(run.stated_speed or run.predicted_speed)
        seconds = days and days * accounting.SECONDS_PER_DAY
        cells.append("-" if seconds is None else duration(seconds))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def speed(value: float | None) -> str:
    """Format a speed with four digits, or a dash."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"


def step_table() -> str:
    """Format the published steps as a Markdown table, with the simulated and the stated MFU."""
    rows = [
        "| step | program | devices | layout | simulated | stated | off by | when left out |",
        "|---|---|---|---|---|---|---|---|",
    ]
    apart = published_runs.left_out()
    for name, step in published_runs.steps().items():
        layout = step.work.layout
        found = simulate(step.work, step.cluster).mfu
        counts = (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp)
        ways = zip(("tensor", "pipeline", "context", "expert", "data"), counts, strict=True)
        parts = [f"{count}-way {way}" for way, count in ways if count > 1]
        devices = f"{layout.devices:,} x {step.cluster.device.name.split()[1]}"
        cells = [f"**{name}**" if step.held_out else name, step.stack, devices, ", ".join(parts)]
        cells += [f"{found:.1%}", f"{step.mfu:.1%}", f"{found / step.mfu - 1:+.1%}"]
        rows.append(f"| {' | '.join(cells)} | {apart[name] - 1:+.1%} |")
    return "\n".join(rows)


def by_stack(errors: Mapping[str, float]) -> dict[str, list[float]]:
    """Return the errors of the steps that aren't held out, by the family of their programs."""
    found: dict[str, list[float]] = {}
    for name, step in published_runs.steps().items():
        if not step.held_out:
            found.setdefault(step.stack, []).append(errors[name])
    return found


def stack_table() -> str:
    """Format the errors of steps whose paper was left out of the fit, by family of programs."""
    rows = [
        "| program | papers | steps | median error | worst | bias |",
        "|---|---|---|---|---|---|",
    ]
    errors = {name: ratio - 1 for name, ratio in published_runs.left_out().items()}
    papers: dict[str, set[str]] = {}
    for step in published_runs.steps().values():
        if not step.held_out:
            papers.setdefault(step.stack, set()).add(step.paper)
    groups = by_stack(errors)
    everything = [error for group in groups.values() for error in group]
    for stack, group in {**groups, "all": everything}.items():
        number = len(papers[stack] if stack in papers else set().union(*papers.values()))
        worst = max(group, key=abs)
        middle, bias = statistics.median(map(abs, group)), statistics.mean(group)
        cells = f"{stack} | {number} | {len(group)} | {middle:.0%} | {worst:+.0%} | {bias:+.0%}"
        rows.append(f"| {cells} |")
    return "\n".join(rows)


def held_out_table() -> str:
    """Format the steps that are in no fit, with the interval in which they were expected."""
    rows = ["| step | stated | simulated | expected | off by |", "|---|---|---|---|---|"]
    apart = published_runs.left_out()
    for name, step in published_runs.steps().items():
        if not step.held_out:
            continue
        layout = step.work.layout
        flops = layout.batch * step.work.seq / layout.devices / step.mfu
        flops *= accounting.train_flops_per_token(step.work.architecture, step.work.seq)
        stated = flops / step.cluster.device.peak_flops["bf16"]
        simulated = stated / apart[name]
        low, high = interval_of(simulated)
        cells = f"{name} | {stated:.3g} s | {simulated:.3g} s"
        cells += f" | {low:.3g} to {high:.3g} s | {apart[name] - 1:+.1%}"
        rows.append(f"| {cells} |")
    return "\n".join(rows)


def program_table() -> str:
    """Format what `cs336 simulate --stack` sets."""
    rows = [
        "| stack | attention | tensor parallelism | recomputation | overlap | ZeRO | source |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, stack in STACKS.items():
        attention = "fused" if stack.fused_attention else "eager"
        split = "also splits norms" if stack.sequence else "matrices only"
        overlap = "yes" if stack.overlap else "no"
        cells = (name, attention, split, stack.recompute, overlap, str(stack.zero), stack.source)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


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
    """Format the sources of the published steps as a Markdown table."""
    names: dict[str, list[str]] = {}
    for name, step in published_runs.steps().items():
        assumed = f". Assumed: {step.assumed}" if step.assumed else ""
        names.setdefault(step.source + assumed, []).append(name)
    rows = [f"| {', '.join(group)} | {source} |" for source, group in names.items()]
    return "\n".join(["| steps | source |", "|---|---|", *rows])


def main() -> None:
    """Print all tables."""
    tables = (stack_table, held_out_table, program_table, step_table, run_table, source_table)
    print(*(table() for table in tables), spread(), sep="\n\n")


if __name__ == "__main__":
    main()
