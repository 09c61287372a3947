"""The cover of the page low_bits: texts in few bits."""

from collections.abc import Mapping
from textwrap import wrap

from torch import Tensor

from cs336_course.drawing.dtypes import bare
from cs336_course.drawing.style import BLACK, BLUE, RED, figure, ink, label, show_cover
from cs336_course.pages.low_bits import story as four_bits
from cs336_lib.sampling import stream_text
from cs336_lib.training import checkpoint


def cover() -> None:
    """Print what a model writes when its weights are stored in 32, 4 and 2 bits."""
    _, axes = figure(10, 3.2)
    model, tokenizer = checkpoint.load_shipped()
    formats = {32: four_bits.keep, 4: four_bits.integers(4, 32), 2: four_bits.integers(2, 32)}
    for column, (bits, quantize) in enumerate(formats.items()):
        with four_bits.rounded_blocks(model, quantize):
            pieces = stream_text(model, tokenizer, "JULIET:\n", 54, temperature=0.7, seed=0)
            written = "".join(pieces)
        colour = RED if bits == 2 else BLACK
        axes.text(column, 0.98, f"{bits} bits", va="top", fontsize=27, fontweight="bold")
        lines = [part for line in written.split("\n") for part in wrap(line, 19) or [""]]
        text = "JULIET:\n" + "\n".join(lines)
        spot = {"va": "top", "family": "monospace", "linespacing": 1.3}
        axes.text(column, 0.74, text, fontsize=18, color=ink(colour), **spot)
    axes.set(xlim=(-0.02, 3), ylim=(0, 1))
    bare(axes)
    label(axes, "One model, with its blocks' weights in fewer and fewer bits", "", "")
    show_cover()


def loss_scales(ends: Mapping[int, float], fp32: float) -> None:
    """Draw the loss at a run's end against the exponent of the loss scale, and the two walls."""
    _, axes = figure(10, 3.8)
    for name, first, last in (("too small", 3.5, 4.5), ("clipped", 17.5, 18.5)):
        axes.axvspan(first, last, color=RED, alpha=0.2, lw=0)
        axes.text((first + last) / 2, 3.45, name, ha="center", va="top")
    axes.plot(list(ends), list(ends.values()), "o-", color=BLUE, markersize=10)
    axes.axhline(fp32, color=BLACK, ls="--", label="fp32")
    axes.legend(loc="center")
    axes.set(xlim=(2.5, 19.5), ylim=(2.4, 3.5), xticks=list(ends))
    label(axes, "E4M3 with a loss scale of 2^k", "k", "loss at the end [nats]")


def three_jobs(jobs: Mapping[str, Mapping[tuple[str, int], Tensor]]) -> None:
    """Draw what each four-bit format adds to the loss in each job, with error bars."""
    _, panels = figure(13, 4.6, ncols=3)
    for axes, (job, costs) in zip(panels, jobs.items(), strict=True):
        for name, shift, style in (("int4", -0.1, {"color": BLUE}), ("fp4", 0.1, {"color": RED})):
            found = [more for (format_name, _), more in costs.items() if format_name == name]
            means = [more.mean().item() for more in found]
            below = [(m.mean() - m.min()).item() for m in found]
            above = [(m.max() - m.mean()).item() for m in found]
            if job == "stored":
                below = above = [m.std().item() / len(m) ** 0.5 for m in found]
            places = [place + shift for place in range(3)]
            marks = {"fmt": "o" if name == "int4" else "s", "capsize": 6, "markersize": 9}
            axes.errorbar(places, means, (below, above), label=name, **style, **marks)
        axes.axhline(0, color=BLACK, lw=1)
        axes.set_xticks(range(3), ["all", "32", "16"])
        label(axes, job, "numbers that share a scale", "nats above fp32" if job == "stored" else "")
    panels[0].legend()
