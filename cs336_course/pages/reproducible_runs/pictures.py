"""Figures of the page on reproducible runs: a resumed run, and incomplete ones."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from cs336_course.drawing.style import GREEN, GREY, RED, figure, ink, label, show_cover
from cs336_course.drawing.training import with_zero
from cs336_course.pages.reproducible_runs import story


def cover_resumed() -> None:
    """Draw a resumed run's loss over that of one that never stopped, and the bits that differ."""
    straight, resumed, bits = story.looks_fine(stop=20, end=40, weights=60)
    _, (left, right) = figure(10, 3.2, ncols=2, width_ratios=(1, 1.25))
    left.plot(straight, color=GREY, lw=8)
    left.text(9, 3.55, "never\nstopped", size=15, color=ink(GREY))
    left.plot(range(20, 40), resumed, color=RED)
    left.axvline(20, color="black", ls=":", lw=2)
    left.text(21, 4.05, "2:00 am,\nkilled and\nresumed", size=15, va="top", color=ink(RED))
    label(left, "The loss looks fine", "step", "loss [nats/token]")
    right.imshow(np.where(bits[..., None], (213, 94, 0), (229, 229, 229)), aspect="auto")
    right.set_yticks((0, 4.5, 20), ("sign", "exponent", "mantissa"))
    right.set_xticks([])
    right.grid(visible=False)
    label(right, "The bits that changed are orange", "60 of the weights, 32 bits each", "")
    show_cover()


def divergence(
    losses: Mapping[str, Sequence[float]],
    straight: Sequence[float],
    first_step: int,
    smallest: float,
    title: str,
) -> Figure:
    """Plot the losses of resumed runs over those of a run that never stopped, and how far apart.

    There is one column per run. The axis of differences is logarithmic above `smallest` and linear
    below it, so that 0 has a place.
    """
    drawing, panels = figure(
        14, 6.2, nrows=2, ncols=len(losses), sharex=True, sharey="row", squeeze=False
    )
    for (top, bottom), (name, values) in zip(panels.T, losses.items(), strict=True):
        steps = range(first_step, first_step + len(values))
        apart = np.abs(np.subtract(values, straight))
        colour = RED if apart.any() else GREEN
        top.plot(steps, straight, color=GREY, linewidth=5)
        top.plot(steps, values, color=colour, linewidth=1.8)
        bottom.plot(steps, apart, color=colour, marker="o", markersize=4)
        with_zero(bottom, smallest, 5)
        top.set_title(name.replace(" ", "\n"), fontsize=14, fontweight="bold")
        bottom.set_xlabel("step")
    panels[0, 0].set_ylabel("loss [nats/token]\n(grey: never stopped)")
    panels[1, 0].set_ylabel("difference in loss\n[nats/token]")
    drawing.suptitle(title, fontsize=17, fontweight="bold")
    return drawing
