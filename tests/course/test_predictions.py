"""Predictions are recorded for a learner, counted for a classroom, and compared by topic."""

import json

import pytest
from nbformat import write
from nbformat.v4 import new_code_cell, new_notebook

from cs336_course.learner import study
from cs336_course.widgets.predictions import HANDS, predict


def pick(widget, option: str) -> None:
    """Do what the page does when an option is clicked."""
    widget._handle_custom_msg({"name": "pick", "value": option}, [])


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A learner's folder, with one notebook that asks two questions of one topic."""
    course = tmp_path / "notebooks"
    course.mkdir()
    cells = [
        new_code_cell(metadata={"cs336": {"prediction": name, "answer": "2", "topic": "sums"}})
        for name in ("one", "two")
    ]
    write(new_notebook(cells=cells), course / "00_start.ipynb")
    mine = tmp_path / "my_notebooks"
    study.update(course, mine)
    monkeypatch.chdir(mine)
    return mine


def test_the_first_guess_counts(mine):
    assert study.intuition(mine) == ""
    widget = predict("one", "1", "2", "3")
    pick(widget, "2")
    pick(widget, "3")
    assert widget.said == "You chose 3. Run the next cell to see."
    pick(predict("two", "1", "2"), "1")
    assert study.intuition(mine).splitlines()[1].split() == ["sums", "1", "of", "2"]


def test_a_broken_line_of_the_record_is_left_out(mine):
    pick(predict("one", "1", "2"), "2")
    with open(mine / study.GUESSES, "a") as file:
        file.write('{"prediction": "tw')
    assert study.intuition(mine).splitlines()[1].split() == ["sums", "1", "of", "1"]


def test_hands_are_counted_and_not_recorded(mine):
    widget = predict("one", "1", "2")
    widget._handle_custom_msg({"name": "mode", "value": HANDS}, [])
    for option in ("2", "2", "1"):
        pick(widget, option)
    assert widget.values["hands"] == "1,2"
    assert widget.said.startswith("3 hands")
    assert not (mine / study.GUESSES).exists()


def test_outside_a_learners_folder_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    pick(predict("one", "1", "2"), "2")
    assert list(tmp_path.iterdir()) == []


def test_the_stored_output_is_the_same_whatever_was_clicked(mine):
    widget = predict("one", "<4000>", "256")
    before, _ = widget._repr_mimebundle_()
    pick(widget, "256")
    after, metadata = widget._repr_mimebundle_()
    assert before["text/plain"] == after["text/plain"] == "A <4000>   B 256"
    assert before["image/png"] == after["image/png"]
    assert len(metadata["image/png"]["alt"]) >= 40
    assert "&lt;4000&gt;" in widget.html
    assert json.dumps(widget.values)


@pytest.mark.parametrize("options", [(), ("1",), ("1", "1"), tuple("1234567")])
def test_options_that_cannot_be_chosen_from_are_refused(options):
    with pytest.raises(ValueError, match="two to six different options"):
        predict("one", *options)
