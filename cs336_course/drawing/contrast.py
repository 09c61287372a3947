"""Contrast of a figure's text and graphics, as in the Web Content Accessibility Guidelines.

The tests of the notebooks check every figure with it (see tools/nbval.py).
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.collections import Collection, LineCollection, PathCollection
from matplotlib.colors import to_rgba
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.text import Text

WHITE = np.ones(3)
TEXT, LARGE_TEXT, GRAPHICS = 4.5, 3, 3
LARGE, LARGE_BOLD = 24, 18.66  # pixels
DARK = np.array([0x13, 0x14, 0x16]) / 255  # the site's dark ground; JupyterLab's is #111
# Filter Effects, the section on feColorMatrix: the matrix of hue-rotate(180deg).
HUE_ROTATE_180 = np.array(
    [[-0.574, 1.430, 0.144], [0.426, 0.430, 0.144], [0.426, 1.430, -0.856]],
)
TINT = 0.6  # areas with less opacity only shade a region


def luminance(colour: np.ndarray) -> float:
    """Return the relative luminance of an sRGB colour."""
    linear = np.where(colour <= 0.04045, colour / 12.92, ((colour + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def ratio(one: np.ndarray, other: np.ndarray = WHITE) -> float:
    """Return the contrast ratio of two colours, from 1 to 21."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def in_dark(colour: np.ndarray) -> np.ndarray:
    """Return what a colour of a figure becomes in a dark theme, as in drawing/custom/custom.css."""
    turned = np.clip(HUE_ROTATE_180 @ (1 - colour), 0, 1)
    return 1 - (1 - turned) * (1 - DARK)


def least_ratio(one: np.ndarray, other: np.ndarray = WHITE) -> float:
    """Return the smaller of the contrasts of two colours in a light and in a dark theme."""
    return min(ratio(one, other), ratio(in_dark(one), in_dark(other)))


def over(colour: Any, ground: np.ndarray = WHITE, alpha: float | None = None) -> np.ndarray:
    """Return what is seen of a colour on a ground."""
    *rgb, opacity = to_rgba(colour, alpha)
    return opacity * np.array(rgb) + (1 - opacity) * ground


def check(figure: Figure) -> None:
    """Check that everything in a figure stands out, in a light and in a dark theme.

    Raises:
        ValueError: If something doesn't.
    """
    if found := low_contrast(figure):
        raise ValueError(f"too little contrast: {'; '.join(found)}")


def low_contrast(figure: Figure) -> list[str]:
    """Return the texts and graphics of a figure that don't stand out from what is behind them."""
    figure.canvas.draw()
    found = [f"{text!r} {seen:.1f}:1" for text, seen in texts(figure) if seen < least(text)]
    for axes in figure.axes:
        for artist in (*axes.lines, *axes.patches, *axes.collections):
            seen = [least_ratio(colour) for colour in colours(artist)]
            if artist.get_visible() and seen and max(seen) < GRAPHICS:
                found.append(f"{artist} {artist.get_label()!r} {max(seen):.1f}:1")
    return found


def texts(figure: Figure) -> Iterator[tuple[Text, float]]:
    """Yield each visible text with its contrast to what is behind its centre."""
    grids = [axis for axes in figure.axes if axes.axison for axis in (axes.xaxis, axes.yaxis)]
    written = [label for axis in grids for label in (axis.label, *axis.get_ticklabels())]
    for axes in figure.axes:
        titles = (axes.get_legend(), axes.title, axes._left_title, *axes.texts)
        written += [text for title in titles if title for text in title.findobj(Text)]
    written += [text for legend in figure.legends for text in legend.get_texts()]
    for text in (*written, *figure.texts):
        if text.get_visible() and text.get_text().strip():
            ground = behind(text, text.axes)
            yield text, least_ratio(over(text.get_color(), ground, text.get_alpha()), ground)


def behind(text: Text, axes: Axes | None) -> np.ndarray:
    """Return the colour of the areas behind the centre of a text."""
    box = text.get_window_extent()
    centre = (box.x0 + box.x1) / 2, (box.y0 + box.y1) / 2
    ground = WHITE
    for area in sorted(axes.patches if axes else (), key=Artist.get_zorder):
        if area.contains_point(centre):
            ground = over(area.get_facecolor(), ground)
    return over(text.get_bbox_patch().get_facecolor(), ground) if text.get_bbox_patch() else ground


def least(text: Text) -> float:
    """Return the contrast that a text needs, which depends on its size."""
    pixels = text.get_fontsize() * text.get_figure(root=True).dpi / 72
    is_large = pixels >= (LARGE_BOLD if text.get_fontweight() == "bold" else LARGE)
    return LARGE_TEXT if is_large else TEXT


def colours(artist: Line2D | Patch | Collection) -> Iterator[np.ndarray]:
    """Yield the colours that show a line, an area or points. Shaded regions have none."""
    if isinstance(artist, Line2D):
        if artist.get_linestyle() != "None":
            yield over(artist.get_color(), alpha=artist.get_alpha())
        elif artist.get_marker() != "None":
            yield over(artist.get_markerfacecolor(), alpha=artist.get_alpha())
            yield over(artist.get_markeredgecolor(), alpha=artist.get_alpha())
    elif isinstance(artist, Patch):
        face, edge = artist.get_facecolor(), artist.get_edgecolor()
        if not 0 < face[3] < TINT:
            yield from (over(face), over(edge if artist.get_linewidth() else "none"))
    elif isinstance(artist, PathCollection | LineCollection):
        yield from map(over, (*artist.get_facecolor(), *artist.get_edgecolor()))
