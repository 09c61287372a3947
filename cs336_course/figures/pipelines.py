"""Timelines of pipelines, drawn from the events of the simulator."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cs336_course.figures.style import BLACK, ORANGE, SKY, YELLOW, figure, label
from cs336_lib.bill.simulate import Event

COLOURS = {"forward": SKY, "backward": ORANGE, "weights": YELLOW}
HATCH = "///"  # of a stage's second chunk
NAMED = 0.016  # share of the width from which a pass has room for its number


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
    if any(event.operation.chunk for events in schedules.values() for event in events):
        patches.append(Patch(facecolor="white", hatch=HATCH, label="second slice of a stage"))
    fig.legend(handles=patches, loc="outside lower center", ncols=len(patches))
    fig.suptitle(title, x=0.01, ha="left", fontweight="bold", fontsize=17)
    return fig


def draw(axes: Axes, events: Sequence[Event], end: float) -> None:
    """Draw the passes of all stages as boxes, until `end` in seconds."""
    for stage, (kind, number, chunk), start, stop in events:
        axes.barh(
            stage,
            1e3 * (stop - start),
            left=1e3 * start,
            height=0.92,
            color=COLOURS[kind],
            hatch=HATCH if chunk else "",
        )
        if stop - start > NAMED * end:
            axes.text(
                1e3 * (start + stop) / 2,
                stage,
                str(number),
                ha="center",
                va="center",
                color=BLACK,
                bbox={"boxstyle": "round,pad=0.1", "facecolor": COLOURS[kind], "edgecolor": "none"}
                if chunk
                else None,
            )
    stages = sorted({event.stage for event in events})
    axes.set(xlim=(0, 1e3 * end), ylim=(max(stages) + 0.5, -0.5), yticks=stages)
    axes.grid(False)
