"""Curves of training runs: the losses of several, and everything that one has measured."""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter

from cs336_lib.report.palette import BLACK, BLUE, LINES, RED
from cs336_lib.training.metrics import METRICS

MARKERS = "osD^vP*X"
STYLE: Any = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlesize": 17,
    "axes.labelsize": 15,
    "figure.dpi": 80,
    "font.size": 14,
    "grid.alpha": 0.3,
    "legend.fontsize": 13,
    "legend.frameon": False,
    "lines.linewidth": 2.5,
    "lines.markersize": 8,
}
LONGEST_CURVE = 400  # points; more aren't visible
INK = "#010203"  # stands for the page's text colour

Rows = Sequence[Mapping[str, Any]]


@mpl.rc_context(STYLE)
def compared(runs: Mapping[str, Rows]) -> Figure:
    """Plot the losses of several runs against tokens.

    Training losses are drawn as thin lines, and validation losses as thick lines.
    """
    fig, axes = over_tokens("Validation loss of each run", "loss [nats per token]", 12, 6)
    looks = zip(cycle(LINES), cycle(MARKERS), strict=False)
    for (name, rows), (colour, marker) in zip(runs.items(), looks, strict=False):
        steps = [row for row in rows if row["train_loss"] is not None]
        tokens = np.array([row["tokens"] for row in steps])
        losses = np.array([row["train_loss"] for row in steps])
        width = max(1, len(losses) // 50)
        smooth = np.convolve(losses, np.ones(width) / width, mode="valid")
        axes.plot(tokens[width - 1 :], smooth, color=colour, linewidth=0.8)
        measured = [row for row in rows if "val_loss" in row]
        axes.plot(
            [row["tokens"] for row in measured],
            [row["val_loss"] for row in measured],
            color=colour,
            marker=marker,
            label=name,
        )
    axes.plot([], [], color=BLACK, linewidth=0.8, label="thin: in training, smoothed")
    for text in axes.legend().get_texts():
        text.set_parse_math(False)  # a run's name may have dollars
    return fig


@mpl.rc_context(STYLE)
def progress(rows: Rows, grad_clip: float = 0) -> list[Figure]:
    """Plot what a run measured against tokens, with one figure for each quantity.

    A quantity without a value has no figure.

    Args:
        rows: Rows of metrics.
        grad_clip: Gradient norm at which the run clips. 0 means that it doesn't.
    """
    figures = [losses(rows)]
    for metric in METRICS:
        tokens, values = curve(rows, metric.name)
        if not metric.drawn or not len(values):
            continue
        fig, axes = over_tokens(metric.title, metric.unit)
        axes.plot(tokens, values * metric.factor, metric.drawn, color=BLUE)
        if metric.name == "grad_norm":
            axes.set_yscale("log")
            if grad_clip:
                clipped = f"clipped at {grad_clip:g}"
                axes.axhline(grad_clip, color=RED, linestyle="--", label=clipped)
                axes.legend()
        else:
            axes.set_ylim(bottom=0)
        if metric.name == "tokens_per_sec":
            axes.yaxis.set_major_formatter(EngFormatter())
        figures.append(fig)
    return figures


def losses(rows: Rows) -> Figure:
    """Plot the training and validation loss, and mark loss spikes and skipped steps."""
    fig, axes = over_tokens("Loss", "loss [nats per token]")
    axes.plot(*curve(rows, "train_loss"), color=BLUE, linewidth=1.5, label="training")
    tokens, measured = curve([row for row in rows if "val_loss" in row], "val_loss")
    if len(measured):
        axes.plot(tokens, measured, "o-", color=RED, label="validation")
    spikes = [row for row in rows if row.get("spike") and row["train_loss"] is not None]
    if spikes:
        places = [row["tokens"] for row in spikes], [row["train_loss"] for row in spikes]
        axes.plot(*places, "x", color=INK, label="spike")
    if skipped := [row["tokens"] for row in rows if row.get("skipped")]:
        bottom = axes.get_xaxis_transform()
        axes.plot(skipped, [0] * len(skipped), "|", color=INK, transform=bottom, label="skipped")
    axes.legend()
    return fig


def over_tokens(title: str, unit: str, width: float = 8, height: float = 4) -> tuple[Figure, Axes]:
    """Make a figure with one empty panel over tokens."""
    fig = Figure(figsize=(width, height), layout="constrained")
    axes = fig.subplots()
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("tokens")
    axes.set_ylabel(unit)
    axes.xaxis.set_major_formatter(EngFormatter())
    return fig, axes


def curve(rows: Rows, key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and values of a quantity, averaged to at most `LONGEST_CURVE` points."""
    known = np.array([(row["tokens"], row[key]) for row in rows if row.get(key) is not None], float)
    if not len(known):
        return np.empty(0), np.empty(0)
    pieces = np.array_split(known, min(len(known), LONGEST_CURVE))
    tokens, values = np.transpose([piece.mean(axis=0) for piece in pieces])
    return tokens, values


def inline_svg(fig: Figure) -> tuple[str, str]:
    """Return a figure as an SVG element in the colours of a web page, and its alternative text."""
    for text in fig.findobj(Text):
        text.set_color(INK)
    for axes in fig.axes:
        axes.tick_params(color=INK, which="both")
        for spine in axes.spines.values():
            spine.set_color(INK)
    written = io.StringIO()
    # A salt for each figure, as ids must differ within a page.
    settings: Any = {"svg.fonttype": "none", "svg.hashsalt": fig.axes[0].get_title("left")}
    with mpl.rc_context(settings):
        fig.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    svg = written.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg ") :], flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor"), in_words(fig.axes[0])


def in_words(axes: Axes) -> str:
    """Describe a panel for screen readers: title, unit, and where each curve begins and ends."""
    curves = []
    for line in axes.get_lines():
        values = np.asarray(line.get_ydata(), float)
        if line.get_transform() == axes.transData and len(values):
            name = str(line.get_label())
            name = "" if name.startswith("_") else f"{name} "
            curves.append(f"{name}from {values[0]:.4g} to {values[-1]:.4g}")
    return f"{axes.get_title('left')}. {axes.get_ylabel()}: {'; '.join(curves)}."
