"""What was measured, as README's table and figure.

    python -m benchmarks.report

Reads results/*.json, puts the table between README's two marks and draws docs/benchmarks.png. Every
row names the command that made it.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tyro
from matplotlib.figure import Figure

from benchmarks import common
from cs336_lib.classroom.plots import gpt2_speed as plots

BEGIN = "<!-- measured: python -m benchmarks.report -->"
END = "<!-- end of what was measured -->"
PEERS = ("transformers", "nanoGPT")


@dataclass(frozen=True)
class Line:
    """One measurement: ours in words, and how many times as long each peer takes."""

    what: str
    ours: str
    times: dict[str, float]
    command: str


def training_step(result: dict[str, Any]) -> Line:
    """A line for what train_step wrote."""
    setup, mfu = result["setup"], result["mfu"]["ours"]
    shape = f"{setup['batch']} x {setup['seq']}"
    share = "" if mfu is None else f", {mfu:.0%} MFU"
    return Line(
        f"training step, 124M, {shape} tokens, {setup['dtype']}",
        f"{result['tokens_per_second']['ours']:,.0f} tokens/s{share}",
        result["times_ours"],
        f"`benchmarks.train_step --batch {setup['batch']} --seq {setup['seq']}`",
    )


def generation(result: dict[str, Any]) -> Line:
    """A line for what generate wrote."""
    setup, ms = result["setup"], result["ms_per_token"]["ours"]["median"]
    dtype = "" if setup["dtype"] == "float32" else f" --dtype {setup['dtype']}"
    return Line(
        f"generation, 124M, {setup['prompt_tokens']} + {setup['new_tokens']} tokens, "
        f"{setup['dtype']}",
        f"{ms:.1f} ms a token, {result['limit_ms_per_token'] / ms:.0%} of what memory allows",
        result["times_ours"],
        f"`benchmarks.generate --prompt-tokens {setup['prompt_tokens']}{dtype}`",
    )


def speedrun(result: dict[str, Any]) -> Line:
    """A line for what speedrun wrote."""
    return Line(
        f"from nothing to nanoGPT's loss on {result['text']['name']}, start-up included",
        f"{result['seconds']['ours']['median']:.1f} s"
        + ("" if result["reached"] else ", goal NOT reached"),
        {"nanoGPT": result["ratio"]},
        "`benchmarks.speedrun --text FILE`",
    )


def loading(result: dict[str, Any]) -> Line:
    """A line for what loader wrote."""
    return Line(
        f"reading batches from {result['setup']['bytes'] / 1e9:.0f} GB of shards",
        f"{result['tokens_per_second']['ours'] / 1e6:.1f}M tokens/s",
        {"nanoGPT": result["ratio"]},
        "`benchmarks.loader`",
    )


KINDS = {
    "train_step_*": training_step,
    "generate_*": generation,
    "speedrun": speedrun,
    "loader": loading,
}


def read_lines(folder: Path = common.RESULTS) -> list[Line]:
    """A line for every result in the folder, in the order of KINDS."""
    return [
        line(json.loads(path.read_text(encoding="utf-8")))
        for pattern, line in KINDS.items()
        for path in sorted(folder.glob(f"{pattern}.json"))
    ]


def table(lines: list[Line], course: dict[str, Any]) -> str:
    """Markdown: the lines, then a sentence on the course itself and one on the machine."""
    rows = ["| | ours | transformers | nanoGPT | `python -m ...` |", "|---|---|---|---|---|"]
    for line in lines:
        peers = [f"{line.times[p]:.2f} x" if p in line.times else "" for p in PEERS]
        rows.append(f"| {' | '.join((line.what, line.ours, *peers, line.command))} |")
    machine = course["machine"]
    rows += [
        "",
        "(2.00 x: takes twice as long as ours. Medians of alternating rounds; nanoGPT from a "
        "checkout, `--nanogpt PATH`.)",
        f"`import cs336_lib`'s modules add {course['import_adds_seconds']:.2f} s to `import "
        f"torch`; `make lab` serves its page after {course['lab_seconds']['median']:.1f} s"
        + (
            f"; `pytest --nbval notebooks/` takes {course['notebooks_seconds'] / 60:.1f} minutes"
            if "notebooks_seconds" in course
            else ""
        )
        + " (`benchmarks.course`).",
        f"Machine: {machine['cpu']}, {machine['cores']} cores, {machine['cpu_capability']}, "
        f"torch {machine['versions']['torch']}, shared with others.",
    ]
    return "\n".join(rows)


def draw(lines: list[Line]) -> Figure:
    """How many times as long each peer takes."""
    times = {
        line.what: {peer: line.times[peer] for peer in PEERS if peer in line.times}
        for line in lines
    }
    return plots.beside_others(times, "How many times as long others take")


def with_table(readme: str, made: str) -> str:
    """README's text with this table between the marks."""
    before, _, rest = readme.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def main() -> None:
    """Write the table into README and draw the figure."""
    lines = read_lines()
    course = json.loads((common.RESULTS / "course.json").read_text(encoding="utf-8"))
    readme = common.ROOT / "README.md"
    text = with_table(readme.read_text(encoding="utf-8"), table(lines, course))
    readme.write_text(text, encoding="utf-8")
    picture = common.ROOT / "docs" / "benchmarks.png"
    draw(lines).savefig(picture, dpi=100, metadata={"Software": None})
    print(f"{readme}: {len(lines)} rows; {picture}")


if __name__ == "__main__":
    tyro.cli(main)
