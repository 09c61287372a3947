"""Write the measurements into docs/benchmarks.md, and draw docs/benchmarks.png.

    python -m benchmarks.report

The script reads results/*.json and replaces what stands between the two marks of the page.
"""

import json
import math
import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tyro
from matplotlib.figure import Figure

from benchmarks import common
from benchmarks.texts import TEXTS
from cs336_course.pages.gpt2_speed import pictures as plots

BEGIN = "<!-- measured: python -m benchmarks.report -->"
END = "<!-- end of what was measured -->"
PAGE = common.ROOT / "docs" / "benchmarks.md"
PEERS = ("transformers", "nanoGPT", "nanoGPT, bf16")


@dataclass(frozen=True)
class Line:
    """One measurement: our result as text, and each peer's time as a multiple of ours."""

    what: str
    ours: str
    times: dict[str, float]
    command: str
    machine: str = ""


def training_step(result: dict[str, Any], _: Path) -> Line:
    """Return the line for a result of train_step."""
    setup, mfu = result["setup"], result["mfu"]["ours"]
    shape = f"{setup['batch']} x {setup['seq']}"
    share = "" if mfu is None else f", {mfu:.0%} MFU"
    return Line(
        f"training step, 124M, {shape} tokens, {setup['dtype']}",
        f"{result['tokens_per_second']['ours']:,.0f} tokens/s{share}",
        result["times_ours"],
        f"`benchmarks.train_step --batch {setup['batch']} --seq {setup['seq']}`",
    )


def generation(result: dict[str, Any], folder: Path) -> Line:
    """Return the line for a result of generate, with every peer in its faster precision.

    A CPU without native 16-bit matmul slows the peers down in 16 bits, so their own 16-bit mode
    would flatter our 16-bit weights.
    """
    setup, ours = result["setup"], result["ms_per_token"]["ours"]["median"]
    times, note = result["times_ours"], ""
    dtype = "" if setup["dtype"] == "float32" else f" --dtype {setup['dtype']}"
    capability = result["machine"]["cpu_capability"].lower()
    reference = folder / f"generate_{capability}_float32_prompt{setup['prompt_tokens']}.json"
    if dtype and reference.exists():
        fp32 = json.loads(reference.read_text(encoding="utf-8"))
        scale = fp32["ms_per_token"]["ours"]["median"] / ours
        factors = fp32["times_ours"]
        in_fp32 = {peer: factors[peer] * scale for peer in PEERS if peer in factors}
        if any(factor < times.get(peer, math.inf) for peer, factor in in_fp32.items()):
            times = {peer: min(in_fp32[peer], times.get(peer, math.inf)) for peer in in_fp32}
            note = " weights (others float32)"
    return Line(
        f"generation, 124M, {setup['prompt_tokens']} + {setup['new_tokens']} tokens, "
        f"{setup['dtype']}{note}",
        f"{ours:.1f} ms a token",
        times,
        f"`benchmarks.generate --prompt-tokens {setup['prompt_tokens']}{dtype}`",
    )


def loading(result: dict[str, Any], _: Path) -> Line:
    """Return the line for a result of loader."""
    return Line(
        f"reading batches from {result['setup']['bytes'] / 1e9:.0f} GB of shards",
        f"{result['tokens_per_second']['ours'] / 1e6:.1f}M tokens/s",
        {"nanoGPT": result["ratio"]},
        "`benchmarks.loader`",
    )


KINDS = {
    "train_step_*": training_step,
    "generate_*": generation,
    "loader": loading,
}


def read_lines(folder: Path = common.RESULTS) -> list[Line]:
    """Return a line for every result in the folder, in the order of KINDS."""
    lines = []
    for pattern, line in KINDS.items():
        for path in sorted(folder.glob(f"{pattern}.json")):
            result = json.loads(path.read_text(encoding="utf-8"))
            machine = result["machine"]
            name = f"{machine['cpu']}, {machine['cpu_capability']}"
            lines.append(replace(line(result, folder), machine=name))
    return lines


def table(lines: list[Line], texts: dict[str, Any]) -> str:
    """Return Markdown with the lines by machine, and sentences on units and texts."""
    rows = [
        f"| | ours | {' | '.join(PEERS)} | `python -m ...` |",
        f"|---|---{'|---' * len(PEERS)}|---|",
    ]
    for machine in sorted({line.machine for line in lines}):
        rows.append(f"| **{machine}** |{' |' * (len(PEERS) + 2)}")
        for line in (line for line in lines if line.machine == machine):
            peers = [f"{line.times[p]:.2f} x" if p in line.times else "" for p in PEERS]
            rows.append(f"| {' | '.join((line.what, line.ours, *peers, line.command))} |")
    rows += [
        "",
        "A factor of 2.00 x means that the other program takes twice as long as ours. Each factor "
        "is the median over alternating rounds on a shared machine with two cores. nanoGPT ran "
        "from a checkout (`--nanogpt PATH`), with its own settings, and with bf16 and fused AdamW. "
        f"{summary(texts)}",
    ]
    return "\n".join(rows)


def summary(texts: dict[str, Any]) -> str:
    """Return a sentence on the preset's loss and speed on many texts."""
    ratios = [found["ratio"] for found in texts.values()]
    reached = sum(found["reached"] for found in texts.values())
    return (
        f"`cs336 train shakespeare-char` reaches the loss of nanoGPT's CPU recipe on {reached} of "
        f"{len(texts)} texts, {statistics.median(ratios):.1f} times as fast in the median and "
        f"{min(ratios):.1f} times at worst (`benchmarks.speedrun`)."
    )


def text_table(texts: dict[str, Any]) -> str:
    """Return Markdown with the preset's time and loss beside nanoGPT's, by text."""
    rows = [
        "| text | | loss | nanoGPT's loss | seconds | nanoGPT's seconds | factor |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, text in TEXTS.items():
        if name not in texts:
            continue
        found, losses = texts[name], sorted(texts[name]["losses"])
        loss = f"{statistics.median(losses):.3f} ({losses[0]:.3f} to {losses[-1]:.3f})"
        rows.append(
            f"| {name} | {'tuned' if text.tuned else 'judged'} | {loss}"
            f"{'' if found['reached'] else ', **not reached**'} | {found['nanogpt_loss']:.3f} | "
            f"{found['seconds']['median']:.1f} | {found['nanogpt_seconds']:.0f} | "
            f"{found['ratio']:.2f} x |"
        )
    loads = [found["machine"]["load_average"] for found in texts.values()]
    machine = next(iter(texts.values()))["machine"]
    rows += [
        "",
        f"{summary(texts)} We tuned on the texts marked so, and chose all of them before. Losses "
        "are the median and range over three seeds in nats per character of the same validation "
        "text. Seconds are those of whole processes, in the median of three runs before and after "
        f"one of nanoGPT, on {machine['cpu']} ({machine['cpu_capability']}) at load averages of "
        f"{min(loads):.0f} to {max(loads):.0f} from other programs of lower priority.",
        "",
        "| text | characters (different) | content | package | licence |",
        "|---|---|---|---|---|",
    ]
    for name, text in TEXTS.items():
        if name in texts:
            count, kinds = texts[name]["length"], texts[name]["characters"]
            package = f"`{text.package}`" if text.package else ""
            rows.append(
                f"| {name} | {count:,} ({kinds:,}) | {text.what} | {package} | {text.licence} |"
            )
    return "\n".join(rows)


def draw(lines: list[Line]) -> Figure:
    """Draw each peer's time as a multiple of ours. Labels end in the CPU's instruction set."""
    times = {
        line.what + line.machine[line.machine.rfind(",") :]: {
            peer: line.times[peer] for peer in PEERS if peer in line.times
        }
        for line in sorted(lines, key=lambda line: line.machine)
    }
    return plots.beside_others(times, "Time of the others, as a multiple of ours")


def with_table(page: str, made: str) -> str:
    """Return the page's text with this between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}\n{END}{after}"


def page(lines: list[Line]) -> str:
    """Return the page with its tables."""
    many = json.loads((common.RESULTS / "texts.json").read_text(encoding="utf-8"))
    parts = (
        "## Training, sampling and loading beside others",
        table(lines, many),
        "## The small preset on many texts",
        text_table(many),
    )
    return with_table(PAGE.read_text(encoding="utf-8"), "\n\n".join(parts))


def main() -> None:
    """Write the tables into the page and draw the figure."""
    lines = read_lines()
    PAGE.write_text(page(lines), encoding="utf-8")
    draw(lines).savefig(PAGE.with_suffix(".png"), dpi=100, metadata={"Software": None})
    print(PAGE)


if __name__ == "__main__":
    tyro.cli(main)
