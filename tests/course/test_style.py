"""Figures have enough contrast, and readers with any colour vision can tell lines apart."""

from itertools import combinations

import matplotlib.pyplot as plt
import numpy as np
import pytest

from cs336_course.drawing.contrast import (
    over,
)
from cs336_course.drawing.style import LINES, figure, ink, label_ends

# Machado, Oliveira and Fernandes 2009, for linear RGB and the severest form of each deficiency.
VISION = {
    "usual": np.eye(3),
    "protan": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "deutan": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "tritan": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}
# Ottosson 2020: from linear RGB to the cone responses, and from their cube roots to OKLab.
CONES = [[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]]
OKLAB = [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]


def appearance(colour: str, vision: str) -> np.ndarray:
    """Return how a colour looks, in OKLab. A distance of 0.02 is just noticeable."""
    srgb = over(colour)
    linear = np.where(srgb <= 0.04045, srgb / 12.92, ((srgb + 0.055) / 1.055) ** 2.4)
    seen = np.clip(np.array(VISION[vision]) @ linear, 0, 1)
    return np.array(OKLAB) @ np.cbrt(np.array(CONES) @ seen)


@pytest.mark.parametrize("vision", VISION)
def test_lines_are_told_apart(vision):
    for one, other in combinations(LINES, 2):
        apart = np.linalg.norm(appearance(one, vision) - appearance(other, vision))
        assert apart > 0.08, (one, other, apart)


@pytest.mark.parametrize("scale", ["linear", "log"])
def test_names_at_the_ends_of_lines_do_not_overlap(scale):
    ends = {"low": 1, "lower": 0.98, "high": 100, "no name": 50, "ended early": 1.01}
    drawn, axes = figure()
    for name, end in ends.items():
        values = [2, end, np.nan] if name == "ended early" else [2, 3, end]
        axes.plot(values, label="_no name" if name == "no name" else name)
    axes.set_yscale(scale)
    label_ends(axes)
    drawn.canvas.draw()
    names = sorted(axes.texts, key=lambda text: text.get_window_extent().y0)
    assert [text.get_text() for text in names] == ["lower", "low", "ended early", "high"]
    boxes = [text.get_window_extent() for text in names]
    assert not any(one.overlaps(other) for one, other in combinations(boxes, 2))
    assert all(box.x1 < drawn.bbox.x1 for box in boxes)
    colours = {line.get_label(): ink(line.get_color()) for line in axes.lines}
    assert all(text.get_color() == colours[text.get_text()] for text in names)
    plt.close()
