"""The figures of the errata: two runs, of which one has a mistake."""

from cs336_course.drawing.style import BLUE, RED, figure, ink, label, show_cover
from cs336_course.pages.errata.story import READERS


def cover() -> None:
    """Draw the losses of two readers, and don't say which one reads a broken file."""
    _, axes = figure(10, 3.2)
    steps = [20 * place + 10 for place in range(len(READERS["letters"]))]
    looks = zip(READERS.values(), "AB", (BLUE, RED), ("-", "--"), strict=True)
    for losses, name, colour, dashes in looks:
        axes.plot(steps, losses, color=colour, ls=dashes, lw=3.5)
        look = {"color": ink(colour), "va": "center", "fontsize": 22, "fontweight": "bold"}
        axes.text(steps[-1] + 6, losses[-1], f"run {name}", **look)
    axes.set(xlim=(0, 345), xticks=range(0, 301, 100), ylim=(0, 3.6), yticks=range(4))
    title = "No error message. One of these runs reads a broken file."
    label(axes, title, "step", "loss [nats/token]")
    show_cover()
