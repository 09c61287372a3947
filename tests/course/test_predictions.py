"""Predictions are recorded for a learner, counted for a classroom, and compared by topic."""

import json
from pathlib import Path

import nbformat
import pytest
from IPython.core.interactiveshell import InteractiveShell
from nbformat import write
from nbformat.v4 import new_code_cell, new_notebook

from cs336_course.learner import study
from cs336_course.widgets.predictions import HANDS, Asked, asked, predict
from tools.page_predictions import options

NOTEBOOKS = sorted((Path(__file__).parents[2] / "notebooks").rglob("*.ipynb"))

WHY = {"why": {"3": "It counts the fence's posts."}}


def pick(widget, option: str) -> None:
    """Do what the page does when an option is clicked."""
    widget._handle_custom_msg({"pick": option}, [])


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A learner's folder, with one notebook that asks two questions of one topic."""
    course = tmp_path / "notebooks"
    course.mkdir()
    cells = [
        new_code_cell(
            metadata={"cs336": {"prediction": name, "answer": "2", "topic": "sums", **WHY}}
        )
        for name in ("one", "two")
    ]
    write(new_notebook(cells=cells[:1]), course / "00_start_here.ipynb")
    (course / "side_trips").mkdir()
    write(new_notebook(cells=cells[1:]), course / "side_trips" / "low_bits.ipynb")
    mine = tmp_path / "my_notebooks"
    study.update(course, mine)
    monkeypatch.setattr(study, "SHIPPED", course)
    monkeypatch.chdir(mine)
    return mine


def test_an_answer_is_found_on_the_road_and_beside_it(mine):
    assert asked(mine, "one") == asked(mine, "two") == Asked("2", {"3": WHY["why"]["3"]})
    assert asked(mine, "three") == Asked()


def test_the_first_guess_counts(mine):
    assert study.intuition(mine) == ""
    widget = predict("one", "1", "2", "3")
    pick(widget, "2")
    pick(widget, "3")
    assert widget.said == "You chose “2”. Run the next cell to see."
    pick(predict("two", "1", "2"), "1")
    assert study.intuition(mine).splitlines()[1].split() == ["sums", "1", "of", "2"]


@pytest.fixture
def shell(mine):
    """A kernel's shell in the learner's folder."""
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.starting_dir = str(mine)
    shell.run_cell("from cs336_course.widgets.predictions import predict", store_history=True)
    yield shell
    InteractiveShell.clear_instance()


@pytest.mark.parametrize(
    ("option", "said"),
    [
        ("2", "You chose “2”, and that is right."),
        ("3", "You chose “3”. It is “2”. It counts the fence's posts."),
        ("1", "You chose “1”. It is “2”."),
    ],
)
def test_the_next_cell_resolves_the_guess(shell, option, said):
    shell.run_cell("widget = predict('one', '1', '2', '3'); widget", store_history=True)
    widget = shell.user_ns["widget"]
    pick(widget, option)
    assert widget.said == f"You chose “{option}”. Run the next cell to see."
    assert "✓" not in widget.html
    shell.run_cell("1 + 1", store_history=True)
    assert widget.said == said
    assert widget.html.count("✓") == 1
    assert widget.html.count("✗") == (option != "2")


def test_a_broken_line_of_the_record_is_left_out(mine):
    pick(predict("one", "1", "2"), "2")
    with open(mine / study.GUESSES, "a") as file:
        file.write('{"prediction": "tw')
    assert study.intuition(mine).splitlines()[1].split() == ["sums", "1", "of", "1"]


def test_hands_are_counted_and_not_recorded(mine):
    widget = predict("one", "1", "2")
    widget._handle_custom_msg({"mode": HANDS}, [])
    for option in ("2", "2", "1"):
        pick(widget, option)
    assert widget.values["hands"] == "1,2"
    assert widget.said.startswith("3 hands")
    assert not (mine / study.GUESSES).exists()


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


def test_every_wrong_option_has_a_sentence_on_why_it_looked_right():
    for path in NOTEBOOKS:
        for cell in nbformat.read(path, as_version=4).cells:
            about = cell.metadata.get("cs336", {})
            if "prediction" in about:
                wrong = [each for each in options(cell.source) if each != about["answer"]]
                assert sorted(about.get("why", {})) == sorted(wrong), about["prediction"]
                assert all(why.endswith(".") for why in about["why"].values())


@pytest.mark.parametrize("line", ["In = 3", "del In", "In.clear()"])
def test_a_check_works_whatever_happened_to_in(shell, line):
    shell.run_cell(line, store_history=True)
    source = "from cs336_course.engine.exercise import cell\nsaid = cell()"
    assert shell.run_cell(source, store_history=True).success
    assert shell.user_ns["said"]
