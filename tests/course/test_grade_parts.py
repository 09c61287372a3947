"""Test parts of `cs336 grade` that need no learner's process."""

import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from cs336_course.course import PAGES
from cs336_course.engine import records
from cs336_course.grading import answers, container, report, submissions
from cs336_course.one_file import cell_slice, processes, worker
from cs336_course.pages.einops.exercises import query_gradient

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_einops.ipynb"


LIMITS = answers.Limits(memory_gb=2)
DEEP = "[" * 100_000
TENSOR = {"tensor": "float32", "shape": [2, 2], "device": "cpu", "data": "AAAA"}


def test_a_forged_result_is_an_error():
    tensors = [json.dumps([TENSOR | {"tensor": t}]) for t in ("float32", "quint8", "list")]
    texts = [["observed", text] for text in ("x", DEEP, "5", "[5]", *tensors)]
    for found in (None, 7, "x", ["passed", ""], ["observed", 5], [["x"], 5], ["first", ""], *texts):
        assert worker.judged(query_gradient, found)[0] == "error", found


def judged(result: object) -> str:
    """The verdict on records that all have this result."""
    forged = [{"left": [], "result": result} for _ in query_gradient.cases()]
    found = [worker.OBSERVED, json.dumps(records.encode(forged))]
    return worker.judged(query_gradient, found)[0]


@pytest.mark.parametrize("fact", [10**400, -(10**400), [[]], {}, "\x00", 1e999])
def test_forged_facts_are_wrong(fact):
    assert judged(fact) == "not right yet"


def test_the_records_of_the_solution_pass():
    found = [worker.OBSERVED, json.dumps(records.encode(query_gradient.expected))]
    assert worker.judged(query_gradient, found) == ("passed", "", "")


def test_solutions_are_read_before_an_answer_can_overwrite_them():
    code = "import sys; from cs336_course.one_file import worker; worker.serve()\n"
    code += "from cs336_course.learner import study; sys.exit(study.shipped.cache_info().currsize)"
    ended = subprocess.run([sys.executable, "-c", code], stdin=subprocess.DEVNULL)
    assert ended.returncode == len(PAGES)


def test_copies_are_limited_by_apparent_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "FOLDER_BYTES", 1000)
    folder = tmp_path / "ada"
    (folder / "week 2" / "deep").mkdir(parents=True)
    for name in ("a.txt", "b.txt", "week 2/c.txt", "week 2/d.ipynb", ".hidden"):
        (folder / name).write_text("x" * (400 if "c" in name else 600))
    with open(folder / "sparse.bin", "wb") as file:
        file.truncate(10**12)
    (folder / "link").symlink_to("/nowhere")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    left_out = submissions.copy_files(folder, tmp_path / "to")
    assert left_out == ["b.txt", "link", "loop", "pipe", "sparse.bin", "week 2/d.ipynb"]
    found = sorted(str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*"))
    assert found == ["a.txt", "week 2", "week 2/c.txt", "week 2/deep"]


def test_the_command_of_a_container(tmp_path, monkeypatch):
    (tmp_path / "podman").touch(mode=0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    found = container.command("course", tmp_path, LIMITS)
    assert found[:4] == ["podman", "run", "--rm", "--interactive"]
    for part in (
        "--network none",
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        "--pids-limit 512",
        "--memory 5000000000b --memory-swap 5000000000b",
        "--pull never",
        "--user 1000:1000",
        f"--volume {tmp_path}:/answers:ro,Z",
        "--entrypoint python course -Ps -c",
    ):
        assert part in " ".join(found), part
    with pytest.raises(ValueError, match="name of an image"):
        container.command("--privileged", tmp_path, LIMITS)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="needs docker or podman"):
        container.command("course", tmp_path, LIMITS)


def test_what_an_ended_container_leaves_is_an_error(tmp_path, monkeypatch):
    said = "print('version'); print('[\"passed\", \"\"]')"
    monkeypatch.setattr(container, "command", lambda *_: [sys.executable, "-c", said])
    first, *others = container.graded("course", tmp_path, LIMITS)
    assert (first.page, first.exercise, first.verdict) == ("00_start_here", "cheapest", "passed")
    assert {(one.verdict, one.said) for one in others} == {("error", processes.NO_RESULT)}


def test_a_name_cannot_change_the_terminal_or_be_a_formula():
    assert report.on_one_line("a\x1b[2J\n b\u202ec") == "a\\x1b[2J b\\u202ec"
    file = io.StringIO()
    report.write(file, ["=1", "-1", "Zoë, A.", ""])
    assert file.getvalue() == "'=1,'-1,\"Zoë, A.\",\n"


def test_the_newest_copy_is_graded(tmp_path):
    for age, name in enumerate(["03_einops.ipynb", "03_einops (1).ipynb", "03_einopsx.ipynb"]):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (age, age))
    (tmp_path / ".ipynb_checkpoints").mkdir()
    shutil.copy(tmp_path / "03_einops.ipynb", tmp_path / ".ipynb_checkpoints")

    def found(course: Path = NOTEBOOK) -> Path | None:
        return cell_slice.newest_copy(submissions.notebooks(tmp_path), course)

    assert found() == tmp_path / "03_einops (1).ipynb"
    assert found(NOTEBOOK.with_stem("01_dtypes")) is None
    shutil.copyfile(NOTEBOOK, tmp_path / "03_einops.ipynb")  # pulled again, and not edited
    assert found() == tmp_path / "03_einops (1).ipynb"
    (tmp_path / "03_einops (1).ipynb").unlink()
    assert found() == tmp_path / "03_einops.ipynb"
