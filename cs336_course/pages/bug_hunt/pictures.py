"""Figures of the bug hunt: the losses of its cases, and the proof that a line was wrong."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from cs336_course.drawing.style import BLUE, GREEN, GREY, RED, figure, ink, label, show_cover
from cs336_course.drawing.training import with_zero
from cs336_course.pages.bug_hunt import script_tests, story
from cs336_course.pages.bug_hunt.hunted_script import SAVED_EVERY, STEPS
from cs336_course.pages.bug_hunt.story import Record

LOWEST, HIGHEST = 2.2, 4.5  # losses that are drawn
EQUAL, FAR = 1e-6, 100.0  # the linear part of an axis of differences, and its upper end


def losses(axes: Axes, record: Record, colour: str, width: float) -> None:
    """Plot training losses as a line, and validation losses as points."""
    axes.plot(record.loss, color=colour, linewidth=width)
    steps = SAVED_EVERY * np.arange(len(record.val_loss))
    axes.plot(steps, record.val_loss, "o", color=colour, markersize=4)


def cover() -> None:
    """Draw the losses of two runs, of which one never sees half of its data."""
    _, axes = figure(10, 3.2)
    blind = story.edited_script(script_tests.UNSEEN["sees half of the text"])
    for name, record, colour, dashes, x in (
        ("run 1", story.run_of(blind), BLUE, "-", 22),
        ("run 2", story.run(), RED, "--", 60),
    ):
        axes.plot(record.loss, color=colour, ls=dashes, label=name, lw=3)
        note = {"size": 22, "fontweight": "bold", "color": ink(colour), "ha": "center"}
        side = 0.32 if colour == BLUE else -0.42
        axes.text(x, np.mean(record.loss[x - 3 : x + 4]) + side, name, **note)
    axes.set_ylim(LOWEST, HIGHEST)
    title = "One of these two runs never sees half of its data"
    label(axes, title, "step", "loss [nats/token]")
    show_cover()


def curves(cases: Mapping[str, Record], twin: Record) -> Figure:
    """Plot the losses of each case over those of the healthy twin, with one panel per case."""
    drawing, panels = figure(13, 6.4, nrows=2, ncols=3, sharex=True, sharey=True)
    panels.flat[-1].set_axis_off()
    for place, (axes, (case, record)) in enumerate(zip(panels.flat, cases.items(), strict=False)):
        losses(axes, twin, GREY, 4)
        losses(axes, record, RED, 1.8)
        axes.set(ylim=(LOWEST, HIGHEST), yticks=(2.5, 3, 3.5, 4, 4.5))
        if record.end() < LOWEST:
            note = {"ha": "center", "fontweight": "bold", "color": ink(RED)}
            axes.text(74, LOWEST + 0.1, f"on to {record.end():.2f}", **note)
        axes.tick_params(labelbottom=place > 1)
        label(axes, case, "step" if place > 1 else "", "" if place % 3 else "loss [nats/token]")
    legend = [
        Line2D([], [], color=RED, marker="o", markersize=5, label="case"),
        Line2D([], [], color=GREY, linewidth=4, marker="o", markersize=5, label="healthy twin"),
    ]
    title = "Five cases and their twin (lines: training loss; points: validation loss)"
    drawing.suptitle(title, fontsize=17, fontweight="bold", x=0.01, ha="left")
    drawing.legend(handles=legend, loc="outside lower right", ncols=2)
    return drawing


def proof(cases: Mapping[str, Record], repaired: Mapping[str, Record], twin: Record) -> Figure:
    """Plot how far each step of the cases is from the twin's, before and after the repairs."""
    columns = min(3, len(cases))
    rows = -(-len(cases) // columns)
    drawing, panels = figure(13, 3.1 * rows, nrows=rows, ncols=columns, sharey=True, squeeze=False)
    for axes in panels.flat[len(cases) :]:
        axes.set_visible(False)
    for place, (axes, (case, record)) in enumerate(zip(panels.flat, cases.items(), strict=False)):
        axes.plot(record.apart(twin), "o-", color=RED, ms=3, lw=1.8)
        if case in repaired:
            axes.plot(repaired[case].apart(twin), "o-", color=GREEN, ms=3, lw=3)
        with_zero(axes, EQUAL, FAR)
        label(axes, case, "step", "" if place % columns else "relative difference")
        axes.set_xlim(-3, STEPS + 2)
    title = "How far is each case from its twin? (0: equal bit for bit)"
    drawing.suptitle(title, fontsize=17, fontweight="bold", x=0.01, ha="left")
    legend = [
        Line2D([], [], color=RED, label="case"),
        Line2D([], [], color=GREEN, linewidth=3, label="repaired as accused"),
    ]
    drawing.legend(handles=legend, loc="outside lower right", ncols=2)
    return drawing


def caught(found: Mapping[str, Sequence[str]], tests: Sequence[str], title: str) -> Figure:
    """Draw which tests fail for each bug, as marks in a grid."""
    drawing, axes = figure(12, 5.6)
    for column, failed in enumerate(found.values()):
        rows = [tests.index(name) for name in failed]
        axes.plot([column] * len(rows), rows, "s", color=RED, markersize=15)
    axes.set_xticks(range(len(found)), [name.replace("_", " ") for name in found], rotation=38)
    for text in axes.get_xticklabels():
        text.set(ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(tests)), tests)
    axes.set(xlim=(-0.6, len(found) - 0.4), ylim=(len(tests) - 0.4, -0.6))
    label(axes, title, "script with this bug", "test that fails")
    return drawing
