"""Map of the course: the road, and the side trips below the pages that they follow."""

import textwrap
from itertools import pairwise
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text

from cs336_course import course
from cs336_course.course import Page
from cs336_course.drawing.style import BLUE, GREY, RED, figure

IN_A_ROW = 6  # pages of the road beside each other
WIDTH, HEIGHT = 2.1, 1.12  # of a box with its distance to the next, in inches


def course_map(notebooks: Path) -> Figure:
    """Draw the road as a line that turns once, and its side trips as branches below their pages."""
    legs = course.legs(notebooks)
    rows = [legs[start : start + IN_A_ROW] for start in range(0, len(legs), IN_A_ROW)]
    depths = [1 + max(len(side_trips) for _, side_trips in row) for row in rows]
    fig, axes = figure(WIDTH * IN_A_ROW, HEIGHT * sum(depths))
    axes.set(xlim=(-0.5, IN_A_ROW - 0.5), ylim=(0.5 - sum(depths), 0.5))
    axes.axis("off")
    road: list[Text] = []
    branches = []
    for number, row in enumerate(rows):
        top = -sum(depths[:number])
        for column, (page, side_trips) in enumerate(row):
            road.append(box(axes, column, top, page, notebooks))
            below = [
                box(axes, column, top - depth, side_trip, notebooks)
                for depth, side_trip in enumerate(side_trips, start=1)
            ]
            branches.append([road[-1], *below])
    fig.canvas.draw()  # computes the size of the boxes, where the arrows end
    for start, end in pairwise(road):
        if start.get_position()[1] == end.get_position()[1]:
            connect(axes, start, end, RED, "-|>,head_width=0.35,head_length=0.6")
    for branch in branches:
        for start, end in pairwise(branch):
            connect(axes, start, end, GREY, "-")
    return fig


def box(axes: Axes, x: float, y: float, page: Page, notebooks: Path) -> Text:
    """Write a page's title and its minutes into a box."""
    title = textwrap.fill(page.heading(notebooks), 16)
    return axes.text(
        x,
        y,
        f"{title}\n{page.minutes(notebooks)} min",
        ha="center",
        va="center",
        size=13,
        bbox={
            "boxstyle": "round,pad=0.35",
            "facecolor": "white",
            "edgecolor": BLUE if page.is_side_trip else RED,
            "linewidth": 1.5 if page.is_side_trip else 3,
        },
    )


def connect(axes: Axes, start: Text, end: Text, colour: str, style: str) -> None:
    """Draw an arrow or a line from one box to another."""
    axes.annotate(
        "",
        xy=end.get_position(),
        xytext=start.get_position(),
        arrowprops={
            "arrowstyle": style,
            "color": colour,
            "linewidth": 2,
            "patchA": start.get_bbox_patch(),
            "patchB": end.get_bbox_patch(),
        },
    )


def description(notebooks: Path) -> str:
    """Return the map as text, which is stored in the picture so that a test can check it."""
    pages = course.written(notebooks)
    return "; ".join(f"{page.heading(notebooks)}, {page.minutes(notebooks)} min" for page in pages)
