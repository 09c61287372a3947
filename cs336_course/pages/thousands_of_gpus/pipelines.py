"""Timelines of pipelines, drawn from the events of the simulator."""

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from cs336_course.drawing.style import BLACK, BLUE, ORANGE, RUST, SKY, YELLOW, figure, label
from cs336_lib.bill.simulate import Event

COLOURS = {"forward": SKY, "backward": ORANGE, "weights": YELLOW}
DARKER = {"forward": BLUE, "backward": RUST}  # of a stage's second slice
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
