"""Print the tables of docs/published_runs.md: python -m tools.published_tables."""

from cs336_course.demos import published_runs
from cs336_lib import accounting
from cs336_lib.bill.simulate import simulate
from cs336_lib.text import duration


def run_table() -> str:
    """Format the runs as a Markdown table, with the predicted and the stated speed."""
    rows = [
        "| run | devices | layout | MFU | tokens/s a device, predicted | stated | ratio | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in published_runs.runs().values():
        several = run.devices is not None and run.devices > 1
        devices = f"{run.devices:,} x {run.device.upper()}" if several else run.device.upper()
        cells = [run.title, devices, run.layout]
        cells += ["-" if run.mfu is None else f"{run.mfu:.1%}", speed(run.predicted_speed)]
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
        "| step | devices | layout | simulated | stated | off by |",
        "|---|---|---|---|---|---|",
    ]
    for name, step in published_runs.steps().items():
        layout = step.work.layout
        found = simulate(step.work, step.cluster).mfu
        counts = (layout.tp, layout.pp, layout.cp, layout.ep, layout.dp)
        ways = zip(("tensor", "pipeline", "context", "expert", "data"), counts, strict=True)
        parts = [f"{count}-way {way}" for way, count in ways if count > 1]
        devices = f"{layout.devices:,} x {step.cluster.device.name.split()[1]}"
        cells = [name, devices, ", ".join(parts), f"{found:.1%}", f"{step.mfu:.1%}"]
        rows.append(f"| {' | '.join(cells)} | {found / step.mfu - 1:+.1%} |")
    return "\n".join(rows)


if __name__ == "__main__":
    print(f"{run_table()}\n\n{step_table()}")
