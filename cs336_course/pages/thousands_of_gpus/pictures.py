"""Figures of one training step on several GPUs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cs336_course.drawing.style import BLUE, GREEN, ORANGE, RED, SKY, figure, label
from cs336_course.pages.thousands_of_gpus.parallel_step import GPU, LINK, Span, length

KINDS = {
    "forward": SKY,
    "backward": BLUE,
    "all-gather": GREEN,
    "reduce-scatter": ORANGE,
    "all-reduce": RED,
}


def draw_spans(
    axes: Axes, spans: Sequence[Span], lanes: Sequence[str], edge: str, least: float = 0.0
) -> None:
    """Draw each span as a box in its lane, with the first lane on top.

    A box on the link is at least `least` seconds wide where that leaves gaps, and no box is snapped
    to pixels, so that equal short spans look equal.
    """
    for kind, colour in KINDS.items():
        for row, lane in enumerate(lanes[::-1]):
            own = [span for span in spans if span.lane == lane and span.kind == kind]
            apart = min((b.start - a.start for a, b in pairwise(own)), default=0.0)
            shortest = least if lane == LINK and apart > 2 * least else 0.0
            boxes = [(span.start, max(span.seconds, shortest)) for span in own]
            if boxes:
                axes.broken_barh(
                    boxes, (row - 0.4, 0.8), facecolor=colour, edgecolor=edge, lw=0.5, snap=False
                )
    axes.set_yticks(range(len(lanes)), lanes[::-1])
    axes.set_ylim(-0.6, len(lanes) - 0.4)
    axes.grid(False, axis="y")


def add_legend(axes: Axes, spans: Sequence[Span], below: float) -> None:
    """Add a legend of the kinds of work that occur."""
    found = {span.kind for span in spans}
    handles = [Patch(color=colour, label=kind) for kind, colour in KINDS.items() if kind in found]
    axes.legend(handles=handles, loc="upper left", bbox_to_anchor=(0, below), ncols=5)


def steps(panels: Mapping[str, Sequence[Span]]) -> Figure:
    """Draw the GPU and its link through a step, with a panel for each name."""
    fig, all_axes = figure(12.5, 1.45 * len(panels) + 1.1, nrows=len(panels), squeeze=False)
    longest = max(map(length, panels.values()))
    for axes, (name, spans) in zip(all_axes[:, 0], panels.items(), strict=True):
        draw_spans(axes, spans, [GPU, LINK], "none", least=0.003 * longest)
        axes.set_xlim(0, 1.02 * longest)
        label(axes, f"{name}: {length(spans):.2f} s", "time [s]", "")
        if axes is not all_axes[-1, 0]:
            axes.set_xlabel("")
            axes.tick_params(labelbottom=False)
    everything = [span for spans in panels.values() for span in spans]
    add_legend(all_axes[-1, 0], everything, -0.75)
    return fig


def pipelines(panels: Mapping[str, Sequence[Span]]) -> Figure:
    """Draw the GPUs of pipelines over time, side by side. White is idle."""
    fig, all_axes = figure(14, 3.6, ncols=len(panels), squeeze=False)
    for axes, (name, spans) in zip(all_axes[0], panels.items(), strict=True):
        draw_spans(axes, spans, sorted({span.lane for span in spans}), "black")
        axes.set_xlim(0, length(spans))
        label(axes, name, "time [passes of a stage]", "")
    add_legend(all_axes[0, 0], next(iter(panels.values())), -0.22)
    return fig
