"""Figures of a trained GPT: what it says halfway, and how its text depends on the sampler."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from cs336_course.drawing.gpt2_model import DASHES, MARKERS, visible
from cs336_course.drawing.style import BLUE, GREEN, GREY, RED, figure, ink, label, show_cover
from cs336_course.pages.gpt2_speaks import gpt2_speaks

Point = tuple[str, float, float]  # its setting, x and y
SIDES: Mapping[str, dict[str, Any]] = {  # where the settings stand beside their points
    "temperature": {"xytext": (8, -14), "ha": "left"},
    "top-k": {"xytext": (-6, 8), "ha": "right"},
    "top-p": {"xytext": (-8, -17), "ha": "right"},
}


def cover() -> None:
    """Draw what a model writes before and after a careless reload, and how sure it is."""
    _, panels = figure(10, 3.2, nrows=2)
    written = gpt2_speaks.before_and_after("My lord, ", 38)
    titles = "A model writes …", "… and after its file was reloaded, without any error"
    for axes, title, (text, chances), colour in zip(
        panels, titles, written, (BLUE, RED), strict=True
    ):
        axes.bar(range(len(text) - len(chances), len(text)), chances, color=colour, width=0.9)
        axes.set_xticks(range(len(text)), map(visible, text), family="monospace", size=19)
        axes.tick_params(axis="x", length=0)
        axes.grid(visible=False)
        axes.set(xlim=(-0.7, len(text) - 0.3), ylim=(0, 1), yticks=(0, 1))
        label(axes, title, "", "certainty")
    show_cover()


def read_early(losses: Mapping[str, Sequence[float]], guess: float, title: str) -> Figure:
    """Plot the losses of logits that are read from the stream before and after each block.

    Args:
        losses: Losses in nats by what the logits should predict, before block h.0 first.
        guess: The loss of guessing, ln V.
        title: The title of the figure.
    """
    drawing, axes = figure(11, 5)
    for (name, values), colour, dashes, marker in zip(
        losses.items(), (BLUE, RED), DASHES, MARKERS, strict=False
    ):
        axes.plot(values, color=colour, ls=dashes, marker=marker, label=name)
        for place in (0, len(values) - 1):
            note = {"xytext": (0, 10), "textcoords": "offset points", "ha": "center", "size": 14}
            value = (place, values[place])
            axes.annotate(f"{values[place]:.2f}", value, color=ink(colour), **note)
    axes.axhline(guess, color=GREY, ls=":", lw=2)
    note = {"xytext": (0, 6), "textcoords": "offset points", "ha": "right", "size": 13}
    axes.annotate(f"guessing, {guess:.2f}", (1, guess), xycoords=("axes fraction", "data"), **note)
    longest = max(map(len, losses.values()))
    axes.set_xticks(range(longest), ["embedding", *(f"h.{n}" for n in range(longest - 1))])
    axes.margins(x=0.06, y=0.14)
    axes.set_ylim(bottom=0)
    axes.legend(loc="upper center")
    label(axes, title, "read out after", "loss [nats/letter]")
    return drawing


def samplers(families: Mapping[str, Sequence[Point]], real: tuple[float, float]) -> Figure:
    """Plot how many words of a text are made up against how many are distinct.

    Args:
        families: Points by knob (temperature, top-k and top-p), each with its setting and the two
            shares in percent.
        real: The two shares of real text.
    """
    drawing, axes = figure(11, 5.6)
    looks = zip(families.items(), (BLUE, RED, GREEN), DASHES, MARKERS, strict=False)
    for (name, points), colour, dashes, marker in looks:
        settings, x, y = zip(*points, strict=True)
        axes.plot(x, y, color=colour, ls=dashes, marker=marker, label=name)
        side = {"textcoords": "offset points", "size": 13, "color": ink(colour), "zorder": 4}
        side |= SIDES[name] | {"path_effects": [withStroke(linewidth=3, foreground="white")]}
        for setting, *place in zip(settings, x, y, strict=True):
            axes.annotate(setting, place, **side)
    axes.scatter(*real, color="black", marker="*", s=320, zorder=3, label="real text")
    axes.margins(x=0.08, y=0.1)
    axes.set_ylim(bottom=-0.9)
    axes.legend(loc="upper left")
    title = "Each knob trades repetition for accidents"
    label(axes, title, "distinct words, of all words [%]", "made-up words, of all words [%]")
    return drawing
