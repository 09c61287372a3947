"""README shows a picture drawn from its recorded run, and small ones from the notebooks."""

import re
import xml.etree.ElementTree as ET

from tools import learning_picture

README = learning_picture.PICTURE.parents[1] / "README.md"


def test_the_moving_picture_shows_its_run():
    run = learning_picture.recorded()
    assert learning_picture.PICTURE.read_text() == learning_picture.draw(run)
    assert learning_picture.PICTURE.stat().st_size < 1.5e6
    assert list(map(int, run["texts"])) == list(learning_picture.SHOWN)
    assert len(run["losses"]) == learning_picture.RUN.max_steps
    shown = [learning_picture.loss_at(run["losses"], step) for step in learning_picture.SHOWN]
    assert shown == sorted(shown, reverse=True)
    millions = re.search(r"A GPT with ([\d.]+) million", README.read_text())[1]
    assert millions == f"{run['parameters'] / 1e6:.1f}"


def test_the_moving_picture_is_a_picture_for_everyone():
    root = ET.parse(learning_picture.PICTURE).getroot()
    name = "{http://www.w3.org/2000/svg}"
    assert "loss falls" in root.find(f"{name}title").text
    steps = [each.get("class") for each in root.iter(f"{name}g")]
    assert steps == ["step"] * (len(steps) - 1) + ["step last"]  # what a still picture shows
    style = root.find(f"{name}style").text
    assert style.index("prefers-reduced-motion: no-preference") < style.index("animation")
    assert "http" not in style
