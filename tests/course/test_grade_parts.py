"""Test parts of `cs336 grade` that need no learner's process."""

import json
import os
from pathlib import Path

import pytest

from cs336_course.engine import records
from cs336_course.grading import answer_process, container, grade, runner, submissions
from cs336_course.pages.einops.exercises import head_scores

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_einops.ipynb"
LIMITS = runner.Limits(3, 2)


def never(job: object) -> tuple[str, str]:
    """A runner of answers that isn't asked."""
    raise AssertionError(job)


def test_a_notebook_that_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    (tmp_path / NOTEBOOK.name).write_bytes(NOTEBOOK.read_bytes())
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        if path.parent == tmp_path:
            raise OSError(5, "Input/output error", str(path))
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    results = list(grade.grade_notebook(NOTEBOOK, tmp_path, LIMITS, never))
    assert {result.verdict for result in results} == {"error"}
    assert all("Input/output error" in result.said for result in results)


@pytest.mark.parametrize(
    "line",
    [
        b'["passed", ""]',
        b'[["x"], 5]',
        b'["nonce", ["x"], 5]',
        b'["nonce", "passed"]',
        b'["other", "passed", ""]',
        b'{"nonce": 1}',
        b"7",
        b"\xff",
        b"[" * 100_000,
        b"",
    ],
)
def test_a_line_without_the_nonce_is_no_result(line):
    assert runner.verdict_of(line, "nonce") is None
    assert runner.verdict_of(b'["nonce", "passed", ""]', "nonce") == ("passed", "")


def observed(record: object) -> str:
    """What the process of an answer writes about one case."""
    return json.dumps(["observed", json.dumps(record)])


DEEP = "[" * 100_000
TENSOR = {"tensor": "float32", "shape": [2, 2], "device": "cpu", "data": "AAAA"}


@pytest.mark.parametrize(
    "text",
    [
        *('[["x"], 5]', '["first", ""]', "7", "x", '["passed", ""]', '["observed", 5]', DEEP),
        *('["observed", "x"]', json.dumps(["observed", DEEP]), observed(5), observed([5])),
        *(observed([TENSOR | {"tensor": t}]) for t in ("float32", "quint8", "list")),
    ],
)
def test_a_forged_result_is_an_error(text):
    assert answer_process.judged(head_scores, text.encode())[0] == "error"


@pytest.mark.parametrize("fact", [10**400, -(10**400), [[]], {}, "\x00", 1e999])
def test_forged_facts_are_wrong(fact):
    forged = [{"left": [], "result": fact} for _ in head_scores.cases()]
    written = json.dumps(["observed", json.dumps(records.encode(forged))])
    assert answer_process.judged(head_scores, written.encode())[0] == "not right yet"


def test_a_tensor_that_pytorch_cannot_compare_is_not_right():
    odd = TENSOR | {"tensor": "quint4x2", "shape": [3]}
    forged = [{"dict": {"left": [], "result": odd}} for _ in head_scores.cases()]
    assert answer_process.judged(head_scores, observed(forged).encode())[0] != "passed"


def test_the_records_of_the_solution_pass():
    written = json.dumps(["observed", json.dumps(records.encode(head_scores.expected))])
    assert answer_process.judged(head_scores, written.encode()) == ("passed", "")


def test_copies_are_limited_by_apparent_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(submissions, "FOLDER_BYTES", 1000)
    folder = tmp_path / "ada"
    (folder / "week 2" / "deep").mkdir(parents=True)
    (folder / "a.txt").write_text("x" * 600)
    (folder / "b.txt").write_text("x" * 600)
    (folder / "week 2" / "c.txt").write_text("x" * 400)
    (folder / "week 2" / "d.ipynb").write_text("{}")
    (folder / ".hidden").write_text("x")
    with open(folder / "sparse.bin", "wb") as file:
        file.truncate(10**12)
    (folder / "link").symlink_to("/nowhere")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe")
    assert submissions.copy_files(folder, tmp_path / "to") == ["b.txt", "pipe", "sparse.bin"]
    found = sorted(str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*"))
    assert found == ["a.txt", "link", "loop", "week 2", "week 2/c.txt", "week 2/deep"]


def test_the_command_of_a_container(tmp_path):
    found = container.command("podman", "name", "course", tmp_path, 2)
    text = " ".join(found)
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
        assert part in text, part
    assert json.dumps(found)


@pytest.mark.parametrize("image", ["", "--privileged"])
def test_a_container_needs_an_image_and_an_engine(image, monkeypatch):
    with pytest.raises(ValueError, match="name of an image"):
        container.Container(image, engine="docker")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ValueError, match="needs docker or podman"):
        container.Container("course")
