"""Ruler of prices, from a coffee to an airliner."""

from matplotlib.figure import Figure

from cs336_course.drawing.style import BLACK, RED, figure, ink, label

# Rounded prices, which only say how large an amount is
THINGS = {
    "coffee": 5,
    "bicycle": 500,
    "car": 30_000,
    "house": 500_000,
    "private jet": 10e6,
    "airliner": 100e6,
}
LEFT, RIGHT = 1e-1, 1e10  # dollars at the ends of the ruler


def money(dollars: float) -> str:
    """Format an amount of dollars, such as $0.35, $21, $12,530 or $7.07M."""
    for size, letter in ((1e9, "B"), (1e6, "M")):
        if dollars >= size:
            return f"${dollars / size:.3g}{letter}"
    return f"${dollars:.2f}" if dollars < 10 else f"${dollars:,.0f}"


def price_ruler(run: str, dollars: float, title: str) -> Figure:
    """Draw the price of a run above a logarithmic ruler with everyday prices."""
    fig, axes = figure(12.5, 3)
    axes.axhline(0, color=BLACK, lw=3)
    for name, price in THINGS.items():
        axes.plot(price, 0, "|", color=BLACK, ms=18, mew=3)
        axes.text(price, -0.35, name, ha="center", va="top")
    at = min(max(dollars, LEFT), RIGHT)
    axes.plot([at, at], [0, 1], color=RED, lw=2)
    axes.plot(at, 1, "o", color=RED, ms=14)
    words = {"ha": "right" if dollars > 1e6 else "left", "va": "center", "fontweight": "bold"}
    axes.text(at, 1, f"   {run}: {money(dollars)}   ", color=ink(RED), size=17, **words)
    ticks = [10.0**power for power in range(0, 11, 2)]
    axes.set(xscale="log", xlim=(LEFT, RIGHT), ylim=(-1.2, 1.6), yticks=[])
    axes.set_xticks(ticks, ["$1", "$100", "$10,000", "$1M", "$100M", "$10B"])
    axes.spines["left"].set_visible(False)
    axes.grid(visible=False)
    label(axes, title, "price of the run", "")
    return fig
