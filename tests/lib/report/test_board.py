"""The line of a race for the board."""

import json

import pytest

from cs336_lib import cli
from cs336_lib.config import UserError
from cs336_lib.report import board
from cs336_lib.training.loop import train
from cs336_lib.training.race import RESULT

WON = {"minutes": 5, "seconds": 299.6, "bits_per_byte": 2.1234, "cores": 2, "load": 1.9}


@pytest.fixture
def folder(tiny_run):
    """A run folder with the result of a race."""
    path = train(tiny_run).run_dir
    (path / RESULT).write_text(json.dumps(WON))
    return path


def test_the_line_has_class_result_and_machine(folder, capsys):
    cells = [cell.strip() for cell in board.line(folder).strip("|").split("|")]
    assert cells[:3] == ["CPU, up to 4 cores", "2.123", "5 (300 s)"]
    assert cells[3].endswith("2 cores")
    assert cells[4:6] == ["1.9", "2 x 16, 12 steps"]
    assert cells[6].startswith("torch ")
    capsys.readouterr()
    cli.main(["report", str(folder)])
    assert board.line(folder) in capsys.readouterr().out


def test_classes():
    assert board.device_class({"device": "CPU, 8 threads"}, 8) == "CPU, more than 4 cores"
    assert board.device_class({"device": "NVIDIA H100"}, 16) == "GPU"


def test_an_ordinary_run_has_none(folder):
    (folder / RESULT).unlink()
    assert board.line(folder) == ""


def test_a_machine_may_not_know_its_load(folder):
    (folder / RESULT).write_text(json.dumps(WON | {"load": None}))
    assert "| unknown |" in board.line(folder)


@pytest.mark.parametrize("name", board.NUMBERS)
@pytest.mark.parametrize("value", [None, "2", -1, float("nan"), [1]])
def test_a_damaged_result_is_one_line(folder, name, value):
    (folder / RESULT).write_text(json.dumps(WON | {name: value}))
    with pytest.raises(UserError, match=f"{name} is "):
        board.line(folder)
