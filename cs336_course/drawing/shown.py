"""Show figures in a notebook: sharp on every screen, described in words, and in a dark theme."""

import os
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from cs336_course.drawing import alt, contrast
from cs336_lib.io import TEMPORARY

CHECKED = "CS336_CHECK_FIGURES"  # a variable that is set where each figure's contrast is checked
DARK = (Path(__file__).parent / "custom" / "custom.css").read_text(encoding="utf-8")


def bundle(
    figure: Figure, words: str, bbox_inches: str | None = "tight"
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a figure's PNG with twice the pixels it is shown with, and its metadata.

    Only the width is stored, because a narrow page that shrinks a figure keeps its proportions.
    A figure without axes has no picture. `bbox_inches` is Matplotlib's: `None` keeps the margins.
    """
    from IPython.core.pylabtools import retina_figure

    if not (drawn := retina_figure(figure, base64=True, bbox_inches=bbox_inches)):
        return {}, {}
    picture, size = drawn
    return {"image/png": picture}, {"image/png": {"alt": words, "width": size["width"]}}


def install() -> None:
    """Register `show` in IPython, whatever Matplotlib registers there.

    Outside IPython, this function has no effect.
    """
    if shell := running_shell():
        shell.display_formatter.ipython_display_formatter.for_type(Figure, show)


def show(figure: Figure) -> None:
    """Display a figure with its description below the running cell."""
    from IPython.display import display

    data, how = as_data(figure)
    if os.environ.get(CHECKED):
        contrast.check(figure)  # which draws the figure, so its description comes first
    display(data, **how)


def as_data(figure: Figure) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a figure and the keywords with which IPython's `display` and its handle take it.

    Its plain text is the description, so the tests of the notebooks compare what it shows.

    A handle can't update a figure itself, because IPython leaves displaying it to `show`.
    """
    words = alt.describe(figure)
    picture, described = bundle(figure, words)
    return {"text/plain": words, **picture}, {"metadata": described, "raw": True}


def follow_theme() -> None:
    """Let the figures on JupyterLab's page follow its dark theme.

    The style is HTML that a notebook needn't store (see tools/notebooks.py and tools/nbval.py).
    Outside IPython, this function has no effect.
    """
    if running_shell():
        from IPython.display import display

        display({"text/html": f"<style {TEMPORARY}>{DARK}</style>"}, raw=True)


def running_shell() -> Any:
    """Return the running IPython shell, or `None`."""
    try:
        from IPython import get_ipython
    except ImportError:
        return None
    return get_ipython()
