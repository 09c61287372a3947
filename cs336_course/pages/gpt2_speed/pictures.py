"""Figures of notebook 10's cover and of a scoreboard."""

import textwrap
from collections.abc import Mapping

from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, NullFormatter

from cs336_course.drawing.style import (
    BLUE,
    FILLS,
    ORANGE,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.pages.gpt2_speed.story import A6000_LOSS, A6000_MS


def cover() -> None:
    """Draw the first step of the A6000 above that of its last rung, and the time between them."""
    _, axes = figure(10, 3.2)
    rungs = ("fp32", "padded vocabulary")
    slow, fast = (A6000_MS[rung] for rung in rungs)
    axes.barh([0, 1], [slow, fast], 0.62, color=[ORANGE, BLUE])
    axes.barh(1, slow - fast, 0.62, left=fast, facecolor="none", edgecolor=BLUE, ls="--", lw=2)
    middle = {"va": "center", "ha": "center", "fontweight": "bold"}
    axes.text(slow / 2, 0, f"{slow:.0f} ms", color="black", fontsize=21, **middle)
    axes.text(fast / 2, 1, f"{fast:.0f} ms", color="white", fontsize=21, **middle)
    gone = f"{slow:.0f} − {fast:.0f} = {round(slow) - round(fast)} ms. Where did they go?"
    axes.text((slow + fast) / 2, 1, gone, color=ink(BLUE), fontsize=19, **middle)
    names = ("at first", "after four changes")
    ticks = [f"{name}\nloss {A6000_LOSS[r]:.2f}" for name, r in zip(names, rungs, strict=True)]
    axes.set_yticks([0, 1], ticks, fontsize=15)
    axes.set_ylim(1.45, -0.45)
    axes.set_xlim(0, 1.01 * slow)
    axes.grid(False)
    label(axes, "A step of GPT-2 on an RTX A6000, in the lecture notes", "time [ms]", "")
    show_cover()


def beside_others(times: Mapping[str, Mapping[str, float]], title: str) -> Figure:
    """Plot the time of others relative to ours for each job, on a logarithmic axis."""
    peers = list(dict.fromkeys(peer for found in times.values() for peer in found))
    colours = dict(zip(peers, FILLS, strict=False))
    drawing, axes = figure(13, 1.6 + 0.4 * sum(len(found) for found in times.values()))
    place, ticks = 0.0, []
    for found in times.values():
        ticks.append(place + (len(found) - 1) / 2)
        for peer, factor in found.items():
            axes.barh(place, factor - 1, 0.8, left=1, color=colours[peer], label=peer)
            beyond = {"ha": "left" if factor >= 1 else "right", "va": "center", "fontsize": 13}
            axes.text(factor, place, f" {factor:.3g} x ", **beyond)
            place += 1
        place += 0.8
    axes.axvline(1, color="black")
    axes.set_xscale("log")
    highest = max(factor for found in times.values() for factor in found.values())
    axes.set_xlim(0.4, 2 * highest)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_yticks(ticks, [textwrap.fill(name, 34) for name in times])
    axes.set_ylim(place - 1.2, -0.8)
    axes.grid(False, axis="y")
    handles = [Patch(facecolor=colours[peer], label=peer) for peer in peers]
    axes.legend(handles=handles, loc="upper right")
    label(axes, title, "time, in multiples of ours", "")
    return drawing
