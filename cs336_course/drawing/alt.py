"""Generate alternative text for figures, so that screen readers can read them aloud.

The text describes the titles, the axes, and the values of lines, bars, points and images. Notebooks
store the text in the output metadata as `{"image/png": {"alt": ...}}` (see shown.py).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.category import StrCategoryFormatter
from matplotlib.collections import PathCollection, QuadMesh
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import FixedFormatter

LONGEST = 600  # characters; a screen reader takes about 40 seconds to read them
MOST_SERIES, MOST_WORDS = 4, 12  # of one kind in one panel


def describe(figure: Figure) -> str:
    """Describe a figure in at most `LONGEST` characters.

    The description starts with the title, followed by each panel. If it is too long, the axes of
    later panels are omitted. If it is still too long, the end is cut off.
    """
    panels = [axes for axes in figure.axes if axes.get_visible() and not is_colorbar(axes)]
    head = sentence(figure.get_suptitle())
    if len(panels) > 1:
        head = f"{head} {len(panels)} panels.".strip()
    text = ""
    for with_axes in (len(panels), 1):
        parts = [describe_panel(axes, i < with_axes) for i, axes in enumerate(panels)]
        text = " ".join(filter(None, [head, *parts]))
        if len(text) <= LONGEST:
            return text
    return cut(text)


def describe_panel(axes: Axes, with_axes: bool) -> str:
    """Describe the title, the axes and the data of one panel, in one or two sentences each."""
    title = next(filter(None, (axes.get_title(loc) for loc in ("left", "center", "right"))), "")
    pictures = images(axes)
    data = [*bars(axes), *lines(axes), *points(axes), *pictures]
    if not data or (axes.texts and not axes.axison):
        data = [labels(axes)]
    ways = ""
    if with_axes and axes.axison:
        both = ((axes.xaxis, "x axis"), (axes.yaxis, "y axis"))
        ways = "; ".join(filter(None, (described_axis(*way, not pictures) for way in both)))
    return " ".join(filter(None, map(sentence, [title, ways, *data])))


def described_axis(axis: Axis, name: str, with_range: bool) -> str:
    """Describe an axis, as in "x axis: batch size, 1 to 512, logarithmic"."""
    label = plain(axis.get_label_text())
    if not label:
        return ""
    if words := categories(axis):
        return f"{name}: {label}, {len(words)} categories"
    low, high = axis.get_view_interval()
    is_said = "log" in label or axis.get_scale() != "log"
    scale = "" if is_said else ", logarithmic"
    return f"{name}: {label}" + (f", {number(low)} to {number(high)}{scale}" if with_range else "")


def bars(axes: Axes) -> list[str]:
    """Describe each series of bars by its number of bars and its smallest and largest value.

    All bars without a name are described as a single series.
    """
    series: dict[str, list[tuple[float, str]]] = {}
    for container in axes.containers:
        if isinstance(container, BarContainer):
            listed = series.setdefault(named(container), [])
            upright = container.orientation != "horizontal"
            axis = axes.yaxis if upright else axes.xaxis
            words = categories(axes.xaxis if upright else axes.yaxis)
            for bar in container.patches:
                x, y = np.transpose(bar.get_bbox().get_points()).tolist()
                along, across = (y, x) if upright else (x, y)
                size = along[1] if axis.get_scale() == "log" else along[1] - along[0]
                listed.append((size, nearest(words, sum(across) / 2)))
    found = [
        name + span([value for value, _ in listed], "bar", [name for _, name in listed])
        for name, listed in series.items()
        if listed
    ]
    return limited(found)


def lines(axes: Axes) -> list[str]:
    """Describe each line by its first, last, smallest and largest value."""
    found = []
    for line in axes.get_lines():
        y = numbers(line.get_ydata())
        if line.get_transform() != axes.transData or not line.get_visible() or not len(y):
            continue  # a guide line across the panel
        first, last, low, high = map(number, (y[0], y[-1], min(y), max(y)))
        if line.get_linestyle() in ("None", "", " ") or len(y) == 1:
            text = span(y, "point")
        elif low == high:
            text = f"a line at {low}"
        else:
            text = f"a line from {first} to {last}"
            if {low, high} != {first, last}:
                text += f", between {low} and {high}"
        found.append(named(line) + text)
    return limited(found)


def points(axes: Axes) -> list[str]:
    """Describe each scatter plot by its number of points and the range of y values."""
    found = []
    for drawn in axes.collections:
        if isinstance(drawn, PathCollection) and len(y := numbers(drawn.get_offsets()[:, 1])):
            found.append(named(drawn) + span(y, "point"))
    return limited(found)


def images(axes: Axes) -> list[str]:
    """Describe each image by its size and range of values."""
    found = []
    for drawn in (*axes.images, *axes.collections):
        if isinstance(drawn, AxesImage | QuadMesh):
            values = np.ma.asarray(drawn.get_array())
            shape = values.shape if values.ndim > 1 else (values.size,)
            text = f"an image of {' x '.join(map(str, shape[:2]))} cells"
            if values.ndim == 2 and len(known := numbers(values.compressed())):
                text += f", {number(min(known))} to {number(max(known))}"
            found.append(text)
    return limited(found)


def labels(axes: Axes) -> str:
    """Describe a drawing of boxes, arrows or tables by the text that it contains."""
    words = [plain(text.get_text()) for text in axes.texts if text.get_visible()]
    words = [word for word in dict.fromkeys(words) if word]
    if not words:
        return f"a drawing of {len(axes.patches)} shapes" if axes.patches else ""
    more = ", ..." if len(words) > MOST_WORDS else ""
    return f"a drawing labelled {', '.join(words[:MOST_WORDS])}{more}"


def span(values: Sequence[float], kind: str, names: Sequence[str] = ()) -> str:
    """Describe a series by count and range, as in "3 bars, from 1 (fp8) to 4 (fp32)"."""
    many = f"{len(values)} {kind}s" if len(values) > 1 else f"a {kind}"
    known = [(value, place) for place, value in enumerate(values) if np.isfinite(value)]
    if not known:
        return many
    ends = []
    for value, place in (min(known), max(known)):
        name = names[place] if names else ""
        ends.append((number(value), f" ({name})" if name else ""))
    (low, at_low), (high, at_high) = ends
    if low == high:
        return f"{many} at {low}{at_low if len(values) == 1 else ''}"
    return f"{many}, from {low}{at_low} to {high}{at_high}"


def named(artist: Any) -> str:
    """Return the legend label of an artist followed by a colon, or "" without a label."""
    label = plain(str(artist.get_label() or ""))
    return "" if not label or label.startswith("_") else f"{label}: "


def categories(axis: Axis) -> dict[float, str]:
    """Return the tick labels of a categorical axis by position. Ignore numeric tick labels."""
    formatter = axis.get_major_formatter()
    if not isinstance(formatter, FixedFormatter | StrCategoryFormatter):
        return {}
    ticks = zip(axis.get_majorticklocs(), axis.get_majorticklabels(), strict=False)
    found = {float(place): text for place, tick in ticks if (text := plain(tick.get_text()))}
    return found if any(letter.isalpha() for text in found.values() for letter in text) else {}


def nearest(words: dict[float, str], place: float) -> str:
    """Return the category within half a unit of a position, or ""."""
    found = min(words, key=lambda other: abs(other - place), default=None)
    return "" if found is None or abs(found - place) > 0.5 else words[found]


def is_colorbar(axes: Axes) -> bool:
    """Return whether `axes` is a colour bar."""
    return axes.get_label() == "<colorbar>"


def numbers(values: Any) -> list[float]:
    """Return the finite numbers in `values`, or an empty list if it isn't numeric."""
    try:
        found = np.ma.filled(np.ma.asarray(values, float), np.nan).ravel()
    except (TypeError, ValueError):
        return []
    return found[np.isfinite(found)].tolist()


def number(value: float) -> str:
    """Format a number with three digits for screen readers."""
    value = float(f"{value:.3g}") + 0.0  # turns -0 into 0
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e6 else f"{value:.3g}"


def cut(text: str) -> str:
    """Truncate a text to `LONGEST` characters at the end of a word."""
    return text if len(text) <= LONGEST else text[: LONGEST - 3].rsplit(" ", 1)[0] + " ..."


def plain(text: str) -> str:
    """Convert a text to a single line without mathematical markup."""
    return " ".join(text.replace("$", "").replace("\\\\", "").split())


def sentence(text: str) -> str:
    """Add a full stop, and capitalize the first word unless it is an identifier."""
    text = plain(text)
    if not text:
        return ""
    first = text.split()[0].rstrip(",:;")
    if first.isalpha() and first.islower():
        text = text[0].upper() + text[1:]
    return text + ("" if text[-1] in ".?!" else ".")


def limited(found: list[str]) -> list[str]:
    """Return the first few entries, followed by the number of omitted entries."""
    more = len(found) - MOST_SERIES
    return found if more <= 0 else [*found[:MOST_SERIES], f"and {more} more"]
