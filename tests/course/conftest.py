"""Every figure that a test draws must be readable."""

import sys
from collections.abc import Generator

import pytest

from cs336_course.drawing.contrast import low_contrast


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Fail a test that leaves a figure with text or graphics of low contrast."""
    result = yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        found = [text for number in plt.get_fignums() for text in low_contrast(plt.figure(number))]
        assert found == [], f"{item.name} draws with too little contrast: {found}"
    return result
