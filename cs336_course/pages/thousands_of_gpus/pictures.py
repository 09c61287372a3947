"""Figures of one training step on several GPUs."""

from collections.abc import Mapping, Sequence
from itertools import pairwise

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from cs336_course.drawing.style import (
    BLACK,
    BLUE,
    GREEN,
    ORANGE,
    RED,
    RUST,
    SKY,
    YELLOW,
    figure,
    label,
)
from cs336_course.pages.thousands_of_gpus.story import GPU, LINK, Span, length
from cs336_lib.bill.simulate import Event

KINDS = {
    "forward": SKY,
    "backward": BLUE,
    "all-gather": GREEN,
    "reduce-scatter": ORANGE,
    "all-reduce": RED,
}
COLOURS = {"forward": SKY, "backward": ORANGE, "weights": YELLOW}
DARKER = {"forward": BLUE, "backward": RUST}  # of a stage's second slice
NAMED = 0.016  # share of the width from which a pass has room for its number


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


def whole_units(moments: Sequence[tuple[str, Sequence[str]]], title: str) -> Figure:
    """Draw which units' weights are whole at which moment, and which are shards.

    Args:
        moments: What runs, and the names of the units that are whole, as `fsdp_units.watch` notes.
        title: Title of the figure.
    """
    names = sorted({name for _, units in moments for name in units})
    drawing, axes = figure(11, 0.7 * len(names) + 1.9)
    for x, (_, units) in enumerate(moments):
        for y, name in enumerate(names):
            colour = BLUE if name in units else "white"
            axes.add_patch(Rectangle((x - 0.5, y - 0.38), 1, 0.76, facecolor=colour))
            text, ink_ = ("whole", "white") if name in units else ("shard", "black")
            axes.text(x, y, text, ha="center", va="center", size=13, color=ink_)
    axes.set_xlim(-0.5, len(moments) - 0.5)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_yticks(range(len(names)), names)
    axes.set_xticks(range(len(moments)), [what.replace(" ", "\n") for what, _ in moments])
    axes.grid(visible=False)
    label(axes, title, "what runs", "")
    return drawing


def timelines(schedules: Mapping[str, Sequence[Event]], title: str) -> Figure:
    """Draw a row of stages for each schedule, on one axis of time.

    Each box is a pass with the number of its micro-batch. Gaps are the bubble.

    Args:
        schedules: Events by title of a row.
        title: Title of the figure.
    """
    rows = len(schedules)
    fig, found = figure(13, 0.7 + 1.75 * rows, nrows=rows, sharex=True, squeeze=False)
    end = max(event.end for events in schedules.values() for event in events)
    for (name, events), axes in zip(schedules.items(), found[:, 0], strict=True):
        draw(axes, events, end)
        label(axes, name, "", "stage")
    found[-1, 0].set_xlabel("time [ms]")
    kinds = {event.operation.kind for events in schedules.values() for event in events}
    names = {"forward": "forward", "backward": "backward", "weights": "gradients of weights"}
    patches = [Patch(facecolor=COLOURS[kind], label=names[kind]) for kind in names if kind in kinds]
    fig.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=17)
    return fig


def draw(axes: Axes, events: Sequence[Event], end: float) -> None:
    """Draw the passes of all stages as boxes, until `end` in seconds."""
    for stage, (kind, number, chunk), start, stop in events:
        colour = DARKER[kind] if chunk else COLOURS[kind]
        axes.barh(stage, 1e3 * (stop - start), left=1e3 * start, height=0.92, color=colour)
        if stop - start > NAMED * end:
            middle, ink = 1e3 * (start + stop) / 2, "white" if chunk else BLACK
            axes.text(middle, stage, str(number), ha="center", va="center", color=ink)
    stages = sorted({event.stage for event in events})
    slices = {event.operation.chunk for event in events}
    for chunk in sorted(slices) if len(slices) > 1 else []:  # written above stage 0's first boxes
        first = min(
            event.start for event in events if event.stage == 0 and event.operation.chunk == chunk
        )
        axes.text(1e3 * first, -0.95, f" slice {chunk}", va="center")
    top = -1.3 if len(slices) > 1 else -0.5
    axes.set(xlim=(0, 1e3 * end), ylim=(max(stages) + 0.5, top), yticks=stages)
    axes.grid(False)
