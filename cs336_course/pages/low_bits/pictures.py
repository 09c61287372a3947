"""Pictures of the page low_bits: texts in few bits, two rulers, and what four bits cost."""

from collections.abc import Mapping, Sequence
from textwrap import wrap

import torch

from cs336_course.drawing.dtypes import bare
from cs336_course.drawing.style import BLACK, BLUE, GREY, RED, figure, ink, label, show_cover
from cs336_course.pages.low_bits import story as four_bits
from cs336_lib.sampling import stream_text
from cs336_lib.training import checkpoint


def cover() -> None:
    """Print what a model writes when its weights are stored in 32, 4 and 2 bits."""
    _, axes = figure(10, 3.2)
    model, tokenizer = checkpoint.load_shipped()
    formats = {32: four_bits.keep, 4: four_bits.integers(4, 32), 2: four_bits.integers(2, 32)}
    for column, (bits, quantize) in enumerate(formats.items()):
        rounded = four_bits.rounded_blocks(model, quantize)
        pieces = stream_text(rounded, tokenizer, "JULIET:\n", 54, temperature=0.7, seed=0)
        colour = RED if bits == 2 else BLACK
        axes.text(column, 0.98, f"{bits} bits", va="top", fontsize=27, fontweight="bold")
        lines = [part for line in "".join(pieces).split("\n") for part in wrap(line, 19) or [""]]
        text = "JULIET:\n" + "\n".join(lines)
        spot = {"va": "top", "family": "monospace", "linespacing": 1.3}
        axes.text(column, 0.74, text, fontsize=18, color=ink(colour), **spot)
    axes.set(xlim=(-0.02, 3), ylim=(0, 1))
    bare(axes)
    label(axes, "One model, with its blocks' weights in fewer and fewer bits", "", "")
    show_cover()


def rulers(values: torch.Tensor) -> None:
    """Draw the numbers of int4 and fp4 on rulers of one length, with values to be rounded."""
    _, axes = figure(11, 3.2)
    for row, stairs in enumerate((four_bits.int4, four_bits.e2m1)):
        marks = stairs(torch.linspace(0, 9, 1001), False).unique()
        marks /= marks.max()
        axes.barh(row, marks[1] / 2, 0.7, color=GREY, edgecolor="none")
        axes.plot(marks, [row] * len(marks), "|", color=BLUE, markersize=34, markeredgewidth=4)
    for value in (values / values.max()).abs().tolist():
        axes.axvline(value, color=RED, linestyle=":", zorder=0)
    axes.set(ylim=(1.6, -0.6), yticks=range(2), yticklabels=["int4", "fp4"])
    axes.grid(False)
    label(axes, "What lies in the grey part becomes 0", "share of the largest value", "")


def grid(costs: Mapping[tuple[str, str], Sequence[torch.Tensor]]) -> None:
    """Draw a panel for each place: what int4 and fp4 cost there with fewer values for a scale."""
    _, panels = figure(13, 4.4, ncols=3)
    places = dict(zip(("stored", "forward", "gradients"), panels, strict=True))
    for (place, name), row in costs.items():
        means = [more.mean().item() for more in row]
        errors = [more.std().item() / len(more) ** 0.5 for more in row]
        style = {"marker": {"int4": "s", "fp4": "o"}.get(name, "*"), "label": name, "capsize": 6}
        places[place].errorbar(range(len(row)), means, errors, **style)
    for place, axes in places.items():
        axes.set_xticks(range(3), ["tensor", "32", "16"])
        axes.set(xlim=(-0.3, 2.3), ylim=(-0.006, 0.12) if place == "stored" else (-0.04, 0.8))
        label(axes, place, "values for each scale", "loss above fp32 [nats]")
    panels[2].legend()
