import subprocess
import sys
from datetime import datetime
from pathlib import Path

import nbformat
import pytest

from cs336_course import cli
from cs336_course.engine import Case, Exercise, exercise, value
from cs336_course.learner import study

ROOT = Path(__file__).parents[2]


def an_exercise(name, solution, wrong, **more) -> Exercise:
    """An exercise as the notebooks have them, whose solution stands here."""
    made = Exercise("", name, more.pop("cases"), wrong, **more)
    made.solution = f"{name} = {solution}"
    return made


def threes():
    yield Case(number=3)


def questions():
    yield Case()


double = an_exercise(
    "double",
    "lambda number: 2 * number",
    {"that is the square": "double = lambda number: number * number"},
    cases=threes,
)
halve = an_exercise(
    "halve",
    "1.0",
    {"you doubled it.": "halve = 4.0"},
    cases=questions,
    observe=value(),
    smaller="What is 2 / 2?",
)


def stub(x):
    raise NotImplementedError


def write(path: Path, *sources: str, names: tuple[str, ...] = ()) -> None:
    """A notebook with these code cells; the last ones are stubs of the exercises `names`."""
    cells = [nbformat.v4.new_code_cell(source) for source in sources]
    for cell, name in zip(reversed(cells), reversed(names), strict=False):
        cell.metadata.cs336 = {"exercise": name}
    nbformat.write(nbformat.v4.new_notebook(cells=cells), path)


def edit(path: Path, source: str) -> None:
    """What a learner does: write something into the first cell."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].source = source
    nbformat.write(notebook, path)


def run_and_save(path: Path) -> None:
    """What running does: outputs and numbers, no sources."""
    notebook = nbformat.read(path, as_version=4)
    for number, cell in enumerate(notebook.cells, start=7):
        cell.execution_count = number
        cell.outputs = [nbformat.v4.new_output("stream", text="4 GFLOP/s\n")]
    nbformat.write(notebook, path)


def sources(path: Path) -> list[str]:
    return [cell.source for cell in nbformat.read(path, as_version=4).cells]


@pytest.fixture
def course(tmp_path, monkeypatch) -> Path:
    """A course of two notebooks, in the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notebooks").mkdir()
    write(tmp_path / "notebooks/00_start_here.ipynb", "a = 1", "double", names=("double",))
    write(tmp_path / "notebooks/01_dtypes.ipynb", "b = 1", "x", "y", names=("halve", "treble"))
    monkeypatch.setattr(study, "SHIPPED", tmp_path / "notebooks")
    return tmp_path / "notebooks"


@pytest.fixture
def mine(course) -> Path:
    """A learner's copy of it."""
    assert study.update() == []
    return course.parent / "my_notebooks"


def test_the_first_start_copies_everything(course, mine):
    for path in course.iterdir():
        copy, original = (nbformat.read(f / path.name, as_version=4) for f in (mine, course))
        assert copy.metadata.pop("language_info") == study.LANGUAGE
        assert copy == original
    assert sorted(path.name for path in mine.glob("*.ipynb")) == [
        "00_start_here.ipynb",
        "01_dtypes.ipynb",
    ]
    assert not list(mine.glob(".tmp*"))


def test_after_an_update_untouched_notebooks_follow_and_touched_ones_are_named(course, mine):
    edit(mine / "00_start_here.ipynb", "a = 2  # mine")
    run_and_save(mine / "01_dtypes.ipynb")
    before = (mine / "01_dtypes.ipynb").read_bytes()
    assert study.update() == []  # the course has nothing newer
    assert (mine / "01_dtypes.ipynb").read_bytes() == before
    for path in course.iterdir():
        edit(path, "newer = 1")
    write(course / "02_strides_and_views.ipynb", "c = 1")
    assert study.update() == study.update() == ["00_start_here"]
    assert sources(mine / "00_start_here.ipynb")[0] == "a = 2  # mine"
    assert sources(mine / "01_dtypes.ipynb")[0] == "newer = 1"
    assert sources(mine / "02_strides_and_views.ipynb") == ["c = 1"]
    (mine / "02_strides_and_views.ipynb").unlink()
    edit(course / "01_dtypes.ipynb", "newest = 1")
    study.update()
    assert sources(mine / "02_strides_and_views.ipynb") == ["c = 1"]
    assert sources(mine / "01_dtypes.ipynb")[0] == "newest = 1"


@pytest.mark.parametrize("record", [None, "", "[1]", "{"])
def test_without_a_good_record_nothing_is_overwritten(course, mine, record):
    (mine / study.COPIES).unlink()
    if record is not None:
        (mine / study.COPIES).write_text(record)
    edit(mine / "00_start_here.ipynb", "a = 2  # mine")
    (mine / "01_dtypes.ipynb").write_text("{not JSON")
    assert study.update() == ["00_start_here", "01_dtypes"]
    assert sources(mine / "00_start_here.ipynb")[0] == "a = 2  # mine"
    assert (mine / "01_dtypes.ipynb").read_text() == "{not JSON"
    assert [e.name for e in study.progress(mine)["01_dtypes"]] == ["halve", "treble"]


@pytest.mark.parametrize("name", ["00_start_here", "00_start_here.ipynb", "00"])
def test_reset_restores_a_notebook_and_keeps_the_old_one(course, mine, name):
    edit(mine / "00_start_here.ipynb", "a = 2  # mine")
    fresh, old = study.reset(name)
    assert sources(fresh)[0] == "a = 1"
    assert sources(old)[0] == "a = 2  # mine"
    assert old.parent == fresh.parent
    edit(course / "00_start_here.ipynb", "newer = 1")
    assert study.update() == []  # what was reset is untouched
    assert sources(mine / "00_start_here.ipynb")[0] == "newer = 1"
    assert sources(old.resolve())[0] == "a = 2  # mine"


def test_make_lab_says_one_line_at_most(course, mine, capsys):
    study.main([])
    assert capsys.readouterr().out == ""
    edit(mine / "00_start_here.ipynb", "a = 2  # mine")
    edit(course / "00_start_here.ipynb", "newer = 1")
    study.main([])
    (said,) = capsys.readouterr().out.splitlines()
    assert "make reset NOTEBOOK=00_start_here" in said


@pytest.mark.parametrize(
    ("name", "message"),
    [("", "no notebook ''"), ("09", "00_start_here, 01_dtypes"), ("../x", "'../x'")],
)
def test_a_wrong_name_for_reset_is_one_line(course, mine, name, message):
    with pytest.raises(SystemExit) as ended:
        study.main(["--reset", name])
    assert message in ended.value.code
    assert "\n" not in ended.value.code
    assert len(list(mine.glob("*.ipynb"))) == 2


def test_two_resets_in_one_second_keep_both_edited_notebooks(course, mine, monkeypatch):
    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 1, 1)

    monkeypatch.setattr(study, "datetime", Clock)
    kept = []
    for edited in ("first", "second", "third"):
        edit(mine / "00_start_here.ipynb", edited)
        kept.append(study.reset("00")[1])
    assert [sources(path)[0] for path in kept] == ["first", "second", "third"]


def test_many_first_starts_at_once_all_succeed(course):
    code = "from cs336_course.learner import study; print('ready', flush=True)\n"
    code += "input(); study.update()"
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", code]
    started = [subprocess.Popen(command, text=True, **pipes) for _ in range(8)]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[1] for process in started] == [""] * 8
    mine = course.parent / "my_notebooks"
    assert study.read_copies(mine).keys() == {"00_start_here.ipynb", "01_dtypes.ipynb", study.RULES}
    assert not list(mine.glob(".tmp*"))


def test_verdicts_are_noted_in_a_learners_folder(mine, monkeypatch, capsys):
    monkeypatch.chdir(mine)

    def state() -> tuple[str, str]:
        (found,) = study.progress(mine)["00_start_here"]
        return found.verdict, found.said

    double(stub)
    assert state() == (study.OPEN, "")
    double(lambda x: x * x)
    assert state() == (study.WRONG, "that is the square")
    double(eval("lambda x: {}['one\\ntwo']"))  # not in this file, where the check is
    assert state() == (study.WRONG, r"your code raised KeyError: 'one\ntwo'")
    double(lambda x: 2 * x)
    assert state() == (study.PASSED, "")
    double(lambda x: x * x)
    assert state() == (study.PASSED, "")  # passed once is passed
    assert "double: not right yet. That is the square\n" in capsys.readouterr().out


def test_a_damaged_line_is_left_out(mine, monkeypatch):
    monkeypatch.chdir(mine)
    double(lambda x: 2 * x)
    with open(mine / study.VERDICTS, "a") as file:
        file.write('[1]\n{"exercise": "halve"}\n{"exerc')
    assert [e.verdict for e in study.progress(mine)["00_start_here"]] == [study.PASSED]
    assert [e.verdict for e in study.progress(mine)["01_dtypes"]] == [study.OPEN, study.OPEN]


def test_cs336_check_tells_passed_wrong_and_open(mine, monkeypatch, capsys):
    study.record(mine, "double", study.PASSED)
    study.record(mine, "halve", study.WRONG, "that is twice as much")
    for folder in (mine, mine.parent):
        monkeypatch.chdir(folder)
        cli.main(["check"])
        assert capsys.readouterr().out.splitlines() == [
            "00_start_here          ██████████ 1 of 1",
            "    passed         double",
            "01_dtypes              ░░░░░░░░░░ 0 of 2",
            "    not attempted  treble",
            "    not right yet  halve: that is twice as much",
            "1 passed, 1 not right yet, 1 not attempted",
        ]


def test_on_a_jupyterhub_a_pulled_course_is_a_learners(course, monkeypatch, capsys):
    """Students of a hub work in the notebooks that nbgitpuller has pulled, without a copy."""
    monkeypatch.setattr(study, "SHIPPED", course)
    monkeypatch.chdir(course)
    before = sorted(course.iterdir())
    double(lambda x: 2 * x)
    assert sorted(course.iterdir()) == before  # a developer's clone
    assert study.bars(study.progress(course)).startswith("No progress yet")
    monkeypatch.setenv("JUPYTERHUB_USER", "ada")
    double(lambda x: 2 * x)
    study.record_guess(course, "sum", "256")
    assert (course / study.GUESSES).exists()
    assert study.bars(study.progress(course)).startswith("00_start_here          ██████████ 1 of 1")
    monkeypatch.chdir(course.parent)
    capsys.readouterr()
    cli.main(["check"])
    assert "    passed         double" in capsys.readouterr().out.splitlines()
    double(lambda x: 2 * x)
    assert not (course.parent / study.VERDICTS).exists()


def test_assistants_are_told_to_explain_and_not_to_solve(course, mine, monkeypatch, tmp_path):
    assert (mine / "AGENTS.md").read_bytes() == study.OUR_RULES.read_bytes()
    assert "AGENTS" not in study.progress(mine)
    newer = tmp_path / "newer.md"
    newer.write_text("newer rules")
    monkeypatch.setattr(study, "OUR_RULES", newer)
    study.update()
    assert (mine / "AGENTS.md").read_text() == "newer rules"
    (mine / "AGENTS.md").write_text("my own rules")
    newer.write_text("newest rules")
    study.update()
    assert (mine / "AGENTS.md").read_text() == "my own rules"
    (mine / "AGENTS.md").unlink()
    study.update()
    assert (mine / "AGENTS.md").read_text() == "newest rules"


def test_a_learner_gets_no_outputs_but_a_cover_and_a_teacher_does(course, mine):
    path = course / "00_start_here.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(nbformat.v4.new_code_cell("speak()", metadata={"tags": ["cover"]}))
    nbformat.write(notebook, path)
    run_and_save(path)
    lectures = mine.with_name("my_lectures")

    def shown(folder: Path) -> list[bool]:
        assert study.update(course, folder) == []  # since nobody has edited it
        copied = nbformat.read(folder / path.name, as_version=4)
        return [bool(cell.outputs) for cell in copied.cells]

    assert shown(mine) == [False, False, True]
    assert shown(lectures) == [True, True, True]
    edit(path, "2 + 2")
    assert shown(mine) == [False, False, True]
    assert shown(lectures) == [True, True, True]
    assert sources(mine / path.name) == sources(lectures / path.name) == sources(path)


def old_edition(folder: Path) -> dict[str, str]:
    """Write a learner's folder of the third edition, and return the answers in it."""
    folder.mkdir()
    copies, answers = {}, {}

    def add(name: str, exercises: tuple[str, ...]) -> None:
        stub = "def {0}(x):\n    raise NotImplementedError\n\n\nchecks.{0}({0})"
        path = folder / f"{name}.ipynb"
        write(path, "import torch", *map(stub.format, exercises), names=exercises)
        copies[path.name] = study.describe(path)

    add("00_start_here", ("double",))
    add("02b_stride_costs", ("quarter",))
    add("05b_loss_and_muon", ("halve", "treble"))
    add("08_gpt2_training", ("train", "open_still"))
    add("10_gpt2_scale", ("sums",))
    for name, exercise_ in (("05b_loss_and_muon", "treble"), ("08_gpt2_training", "train")):
        path = folder / f"{name}.ipynb"
        notebook = nbformat.read(path, as_version=4)
        (cell,) = (c for c in notebook.cells if c.metadata.get("cs336") == {"exercise": exercise_})
        answers[exercise_] = cell.source = f"{exercise_} = 3  # mine\nchecks.{exercise_}(...)"
        nbformat.write(notebook, path)
    stride_costs = copies["02b_stride_costs.ipynb"]  # whose notes for teachers weren't copied
    stride_costs["shown"], stride_costs["cells"] = stride_costs["cells"], "with the notes"
    (folder / "11_errata.ipynb").write_text("{torn")
    copies["11_errata.ipynb"] = copies["10_gpt2_scale.ipynb"]
    study.write_copies(folder, copies)
    for name, verdict in (("treble", study.PASSED), ("train", study.WRONG)):
        row = {"exercise": name, "verdict": verdict, "said": "", "cell": name, "at": "2026-01-01"}
        study.append(folder / study.VERDICTS, row)
    return answers


def test_a_learner_of_the_third_edition_keeps_their_answers(course, tmp_path, capsys):
    mine = tmp_path / study.MINE
    answers = old_edition(mine)
    before = {path.name: path.read_bytes() for path in mine.glob("*.ipynb")}
    (course / "side_trips").mkdir()
    (course / "rise.css").write_text("")
    stub = "def {0}(x, y):\n    raise NotImplementedError"
    for name, exercises in {
        "06_training_loop": ("treble",),
        "09_gpt2_training": ("train", "open_still"),
        "side_trips/stride_costs": ("quarter",),
        "11_gpt2_scale": ("sums",),
    }.items():
        write(course / f"{name}.ipynb", *map(stub.format, exercises), names=exercises)
    study.update(Path("notebooks"))
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" is now ")[0] for line in said] == [
        "05b_loss_and_muon",
        "08_gpt2_training",
        "11_errata is no page any more, and your file stays.",
    ]
    assert said[1].endswith("is now 09_gpt2_training. Your answers are there, and your file stays.")

    assert sources(mine / "06_training_loop.ipynb") == [answers["treble"]]
    written = [answers["train"], stub.format("open_still")]
    assert sources(mine / "09_gpt2_training.ipynb") == written
    assert sources(mine / "side_trips/stride_costs.ipynb") == [stub.format("quarter")]
    assert (mine / "side_trips/rise.css").exists()  # RISE looks for it beside each notebook
    kept = {f"{line.split()[0]}.ipynb" for line in said}  # they have work in them
    assert {name for name in before if (mine / name).exists()} == {"00_start_here.ipynb", *kept}
    assert all((mine / name).read_bytes() == before[name] for name in kept)
    found = {e.name: e.verdict for listed in study.progress(mine).values() for e in listed}
    assert (found["treble"], found["train"]) == (study.PASSED, study.WRONG)
    study.update(Path("notebooks"))  # nothing happens twice
    assert capsys.readouterr().out == ""
    assert sources(mine / "09_gpt2_training.ipynb") == written
    edit(course / "09_gpt2_training.ipynb", "newer = 1")
    assert study.update() == ["09_gpt2_training"]


def test_help_grows_with_each_different_wrong_answer(mine, monkeypatch, capsys):
    monkeypatch.chdir(mine)
    path = mine / "01_dtypes.ipynb"
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell("# More\n\n## 1 Halves\n\nText."))
    names = [study.marks_of(cell).get("exercise") for cell in notebook.cells]
    hint = nbformat.v4.new_markdown_cell("Think of a cake.", metadata={"tags": ["hint"]})
    notebook.cells.insert(names.index("halve") + 1, hint)
    nbformat.write(notebook, path)
    monkeypatch.setattr(study, "SHIPPED", mine)
    said = []
    for answer in (0.5, 0.5, 3.0, 4.0, 5.0):
        monkeypatch.setattr(exercise, "cell", lambda source=str(answer): source)
        halve(answer)
        said.append(capsys.readouterr().out.removeprefix("halve: not right yet. ").splitlines())
    last = [lines[-1] for lines in said]  # the second answer is the same cell again
    assert ["hint below this cell" in line for line in last] == [False, False, True, True, False]
    assert ["What is 2 / 2?" in line for line in last] == [False] * 4 + [True]
    assert said[3][0] == "You doubled it."
    halve(1.0)
    (state, _) = study.progress(mine)["01_dtypes"]
    assert (state.verdict, state.section) == (study.PASSED, "1 Halves")
