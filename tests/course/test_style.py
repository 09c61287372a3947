"""Figures have enough contrast, and readers with any colour vision can tell lines apart."""

from itertools import combinations

import numpy as np
import pytest
from contrast import GRAPHICS, TEXT, over, ratio

from cs336_course.figures.style import FILLS, GREY, LINES, ink

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


def test_lines_and_their_names_stand_out_from_white():
    assert all(ratio(over(colour)) >= GRAPHICS for colour in LINES)
    assert all(ratio(over(ink(colour))) >= TEXT for colour in LINES)
    assert ratio(over(GREY)) >= TEXT


@pytest.mark.parametrize("vision", VISION)
def test_lines_are_told_apart(vision):
    for one, other in combinations(LINES, 2):
        apart = np.linalg.norm(appearance(one, vision) - appearance(other, vision))
        assert apart > 0.08, (one, other, apart)


def test_black_or_white_digits_are_readable_on_every_area():
    for colour in FILLS:
        assert max(ratio(over(colour)), ratio(over(colour), over("black"))) >= TEXT, colour
