"""Figures of a model of today: GPT-2 and SmolLM2 to scale, and rotated pairs."""

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from numpy.typing import ArrayLike

from cs336_course.drawing.style import (
    GREY,
    LINES,
    ORANGE,
    RED,
    SKY,
    figure,
    ink,
    label,
    show_cover,
)
from cs336_course.shared.model_of_today import SMOLLM2
from cs336_lib.accounting import Architecture, architecture_of, parameter_counts
from cs336_lib.config import GPTConfig


def to_scale(axes: Axes, a: Architecture, top: float) -> float:
    """Draw tables and blocks so that each area is a number of parameters; return the right end.

    A part is as high as the model is wide, and `top` is where it begins.
    """
    counts = parameter_counts(a)
    tables = (counts["wte"] + counts["wpe"]) / a.n_embd
    block = (counts.total() / a.n_embd - tables) / a.n_layer
    parts = [(0.0, tables, SKY), *((tables + n * block, block, ORANGE) for n in range(a.n_layer))]
    for left, width, colour in parts:
        axes.add_patch(Rectangle((left, top - a.n_embd), width, a.n_embd, facecolor=colour))
    style = {"ha": "center", "va": "center", "size": 15}
    axes.text(tables / 2, top - a.n_embd / 2, "token table", **style)
    return tables + a.n_layer * block


def cover() -> None:
    """Draw GPT-2 and SmolLM2 to scale, with what the second one answers."""
    _, axes = figure(10, 3.2)
    old, new = architecture_of(GPTConfig()), SMOLLM2
    for a, top, name in ((old, 2250, "GPT-2, 2019"), (new, 900, "SmolLM2, 2024")):
        to_scale(axes, a, top)
        millions = parameter_counts(a).total() / 1e6
        about = f"{name}: {a.n_layer} blocks of width {a.n_embd}, {millions:.0f} million parameters"
        axes.text(0, top + 40, about, size=16, va="bottom")
    style = {"size": 17, "va": "center", "color": ink(RED)}
    axes.text(170_000, 1866, "continues a text", **style)
    asked, answered = "“What is the capital of France?”", "“The capital of France is Paris.”"
    axes.text(0, 140, f"{asked}   {answered}", **style)
    label(axes, "Two models to scale, five years apart", "", "")
    axes.set(xlim=(-500, 236_000), ylim=(0, 2560))
    axes.axis("off")
    show_cover()


def hands(angles: Mapping[str, ArrayLike], title: str) -> Figure:
    """Draw the angle of each pair at each position as the hand of a clock.

    Args:
        angles: Angles in radians at positions 0, 1, 2, ..., by name of the pair.
        title: The title of the figure.
    """
    drawing, axes = figure(13, 1.3 + 1.3 * len(angles))
    circle = np.linspace(0, 2 * np.pi, 100)
    for row, (turned, colour) in enumerate(zip(angles.values(), LINES, strict=False)):
        for place, angle in enumerate(np.asarray(turned)):
            rim = (place + 0.38 * np.cos(circle), -row + 0.38 * np.sin(circle))
            axes.plot(*rim, color=GREY, lw=1)
            tip = (place + 0.36 * np.cos(angle), -row + 0.36 * np.sin(angle))
            arrow = {"arrowstyle": "-|>", "lw": 2.5, "color": colour, "shrinkA": 0, "shrinkB": 0}
            axes.annotate("", tip, (place, -row), arrowprops=arrow)
        axes.set_xticks(range(len(np.asarray(turned))))
    axes.set_yticks([-row for row in range(len(angles))], list(angles))
    axes.set_aspect("equal")
    axes.grid(visible=False)
    axes.set_ylim(-len(angles) + 0.5, 0.5)
    label(axes, title, "position [tokens]", "")
    return drawing
