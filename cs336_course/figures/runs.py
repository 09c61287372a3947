"""Figures of the metrics of training runs."""

import io
import re
from collections.abc import Mapping, Sequence
from itertools import cycle
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter

from cs336_course.figures.alt import describe
from cs336_course.figures.style import BLACK, BLUE, LINES, PINK, RED, figure, label

MARKERS = "osD^vP*X"


def compared(runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Plot the losses of several runs against tokens.

    Training losses are drawn as thin lines, and validation losses as thick lines.
    """
    fig, axes = figure(12, 6)
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
    axes.xaxis.set_major_formatter(EngFormatter())
    label(axes, "Validation loss of each run", "tokens", "loss [nats per token]")
    for text in axes.legend().get_texts():
        text.set_parse_math(False)  # a run's name may have dollars
    return fig


LONGEST_CURVE = 400  # points; more aren't visible
INK = "#010203"  # stands for the page's text colour


def progress(rows: Sequence[Mapping[str, Any]], grad_clip: float = 0) -> list[Figure]:
    """Plot what a run measured against tokens, with one figure for each quantity.

    A quantity without a value has no figure.

    Args:
        rows: Rows of metrics.
        grad_clip: Gradient norm at which the run clips. 0 means that it doesn't.
    """
    figures = [losses(rows)]
    panels = (
        ("hellaswag", "HellaSwag", "accuracy [%]", 100, "o-"),
        ("lr", "Learning rate", "learning rate", 1, "-"),
        ("grad_norm", "Gradient norm before clipping", "norm", 1, "-"),
        ("tokens_per_sec", "Throughput", "tokens per second", 1, "-"),
        ("mfu", "Model FLOPs utilization", "MFU [%]", 100, "-"),
    )
    for key, title, unit, factor, look in panels:
        tokens, values = curve(rows, key)
        if not len(values):
            continue
        fig, axes = figure(8, 4)
        axes.plot(tokens, values * factor, look, color=BLUE)
        if key == "grad_norm":
            axes.set_yscale("log")
            if grad_clip:
                axes.axhline(
                    grad_clip, color=RED, linestyle="--", label=f"clipped at {grad_clip:g}"
                )
                axes.legend()
        else:
            axes.set_ylim(bottom=0)
            if key == "tokens_per_sec":
                axes.yaxis.set_major_formatter(EngFormatter())
        axes.xaxis.set_major_formatter(EngFormatter())
        label(axes, title, "tokens", unit)
        figures.append(fig)
    return figures


def losses(rows: Sequence[Mapping[str, Any]]) -> Figure:
    """Plot the training and validation loss, and mark loss spikes and skipped steps."""
    fig, axes = figure(8, 4)
    axes.plot(*curve(rows, "train_loss"), color=BLUE, linewidth=1.5, label="training")
    tokens, measured = curve([row for row in rows if "val_loss" in row], "val_loss")
    if len(measured):
        axes.plot(tokens, measured, "o-", color=RED, label="validation")
    spikes = [row for row in rows if row.get("spike") and row["train_loss"] is not None]
    if spikes:
        places = [row["tokens"] for row in spikes], [row["train_loss"] for row in spikes]
        axes.plot(*places, "x", color=PINK, label="spike")
    if skipped := [row["tokens"] for row in rows if row.get("skipped")]:
        bottom = axes.get_xaxis_transform()
        axes.plot(skipped, [0] * len(skipped), "|", color=PINK, transform=bottom, label="skipped")
    axes.xaxis.set_major_formatter(EngFormatter())
    label(axes, "Loss", "tokens", "loss [nats per token]")
    axes.legend()
    return fig


def curve(rows: Sequence[Mapping[str, Any]], key: str) -> tuple[np.ndarray, np.ndarray]:
    """Return tokens and values of a quantity, averaged to at most `LONGEST_CURVE` points."""
    known = np.array([(row["tokens"], row[key]) for row in rows if row.get(key) is not None], float)
    if not len(known):
        return np.empty(0), np.empty(0)
    pieces = np.array_split(known, min(len(known), LONGEST_CURVE))
    tokens, values = np.transpose([piece.mean(axis=0) for piece in pieces])
    return tokens, values


def inline_svg(fig: Figure) -> tuple[str, str]:
    """Return a figure as an SVG element in the colours of a web page, and its alternative text."""
    alternative = describe(fig)
    for text in fig.findobj(Text):
        text.set_color(INK)
    for axes in fig.axes:
        axes.tick_params(color=INK, which="both")
        for spine in axes.spines.values():
            spine.set_color(INK)
    written = io.StringIO()
    # A salt for each figure, as ids must differ within a page.
    settings = {"svg.fonttype": "none", "svg.hashsalt": fig.axes[0].get_title("left")}
    with plt.rc_context(settings):
        fig.savefig(written, format="svg", transparent=True, metadata={"Date": None})
    plt.close(fig)
    svg = written.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg[svg.index("<svg ") :], flags=re.DOTALL)
    return re.sub(r'<g id="[^"]*"', "<g", svg).replace(INK, "currentColor"), alternative
