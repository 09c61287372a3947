"""Pictures of how a model learned, and of the products of a training step."""

import json
import textwrap
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from cs336_course.drawing.style import BLUE, GREY, RUST, figure, ink, label
from cs336_lib.data.corpus import DATA

WEIGHTS, INPUTS, ERROR = (2, 0, -1), (1, 3, 4), 3  # the layer that fits on paper
FORWARD = tuple(f"{weight}·{value}" for weight, value in zip(WEIGHTS, INPUTS, strict=True))
OF_WEIGHTS = tuple(f"{ERROR}·{value}" for value in INPUTS)
OF_INPUTS = ("3·2", "3·0", "3·(−1)")


def learning(shown: Sequence[int] = (0, 40, 160, 400)) -> Figure:
    """Plot the loss of a recorded run, and what its model writes after some of its steps."""
    run = json.loads((DATA / "learning_run.json").read_text(encoding="utf-8"))
    drawn, (curve, texts) = figure(12, 5, ncols=2, width_ratios=(1, 1.35))
    curve.plot(run["losses"], color=BLUE, linewidth=1.5)
    label(curve, "Each letter surprises it less", "step", "loss [nats/letter]")
    curve.set_ylim(0, 4.9)
    texts.axis("off")
    for row, step in enumerate(shown):
        loss = run["losses"][min(step, len(run["losses"]) - 1)]
        curve.plot(step, loss, "o", color=RUST)
        curve.annotate(str(step), (step, loss), (5, 7), textcoords="offset points", size=12)
        said = run["texts"][str(step)].removeprefix("ROMEO:\n").replace("\n", " ")
        top = 1 - row / len(shown)
        texts.text(0, top, f"after {step} steps", va="top", weight="bold", size=13, color=ink(RUST))
        lines = "\n".join(textwrap.wrap(said, 48)[:2])
        texts.text(0, top - 0.07, lines, va="top", family="monospace", size=13)
    return drawn


def three_products() -> Figure:
    """Draw a layer of three weights forward, and its gradients backward, a product per weight."""
    drawn, panels = figure(12.5, 4.4, ncols=3)
    backward = {"colour": RUST, "result": f"error {ERROR}"}
    layer(panels[0], "forward: weight · input", edges=FORWARD)
    layer(panels[1], "backward, to the weights:\nerror · input", edges=OF_WEIGHTS, **backward)
    layer(panels[2], "backward, to the inputs:\nerror · weight", nodes=OF_INPUTS, **backward)
    return drawn


def layer(
    axes: Axes,
    title: str,
    *,
    edges: Sequence[str] | None = None,
    nodes: Sequence[str] | None = None,
    colour: str = BLUE,
    result: str = "result −2",
) -> None:
    """Draw three inputs, their weights and the result, and the products in one of the two places.

    Args:
        axes: Axes to draw on.
        title: Says which product is formed.
        edges: Products that stand at the weights, or None to show the weights.
        nodes: Products that stand at the inputs, or None to show the inputs.
        colour: Colour of the arrows and products.
        result: What stands at the result.
    """
    box = {"boxstyle": "round,pad=0.35", "facecolor": "white"}
    computed = {**box, "edgecolor": colour, "linewidth": 2}
    plain = {**box, "edgecolor": GREY}
    is_backward = result.startswith("error")
    for row, (weight, value) in enumerate(zip(WEIGHTS, INPUTS, strict=True)):
        height = 2 - row
        middle, at_result = 1 + 0.65 * (height - 1), (2.48, 1 + 0.12 * (height - 1))
        ends = [(0.62 if nodes else 0.45, height), at_result]
        start, end = reversed(ends) if is_backward else ends
        arrow = {"arrowstyle": "->", "color": colour, "linewidth": 2}
        if is_backward and edges:  # each arrow ends at its weight, where the input comes, too
            axes.plot((0.2, 1.3), (height, middle), color=GREY, linewidth=1)
            end, arrow = (1.3, middle), {**arrow, "shrinkB": 24}
        axes.annotate("", end, start, arrowprops=arrow)
        at_weight = edges[row] if edges else str(weight)
        at_input = nodes[row] if nodes else str(value)
        texts = ((1.3, middle, at_weight, edges), (0.2, height, at_input, nodes))
        for x, y, text, is_computed in texts:
            style = computed if is_computed else plain
            text = text.replace("-", "−")
            axes.text(x, y, text, ha="center", va="center", size=16, bbox=style)
    axes.text(2.95, 1, result, ha="center", va="center", size=14, bbox=plain)
    axes.set(xlim=(-0.3, 3.45), ylim=(-0.4, 2.5))
    axes.set_title(title, loc="left", size=15, fontweight="bold")
    axes.axis("off")
