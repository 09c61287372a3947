"""Test parts of `cs336 grade` that need no learner's process."""

import ast
import json
import os
from pathlib import Path

import pytest
import torch

from cs336_course.grading import container, grade, graded_run, tampering

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "03_einops.ipynb"
LIMITS = grade.Limits(3, 2)


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
    assert grade.verdict_of(line, "nonce") is None
    assert grade.verdict_of(b'["nonce", "passed", ""]', "nonce") == ("passed", "")


@pytest.mark.parametrize("text", ['[["x"], 5]', '["first", ""]', "7", "x", '["passed", 5]'])
def test_a_forged_result_is_an_error(text):
    assert graded_run.parse(text)[0] == "error"
    assert graded_run.parse('["passed", ""]') == ("passed", "")


def test_copies_are_limited_by_apparent_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(grade, "FOLDER_BYTES", 1000)
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
    assert grade.copy_files(folder, tmp_path / "to") == ["b.txt", "pipe", "sparse.bin"]
    found = sorted(str(path.relative_to(tmp_path / "to")) for path in (tmp_path / "to").rglob("*"))
    assert found == ["a.txt", "link", "loop", "week 2", "week 2/c.txt", "week 2/deep"]


def test_the_default_type_is_no_replaced_part():
    snapshot = tampering.Snapshot()
    try:
        torch.set_default_dtype(torch.float64)
        assert snapshot.changed() == ""
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize(
    ("code", "name"),
    [
        ("class F(float):\n    def __float__(self):\n        return 1.0", "__float__"),
        ("class F:\n    __index__ = lambda self: 1", "__index__"),
        ("F.__int__ = f", "__int__"),
        ("type('F', (complex,), {'__complex__': f})", "__complex__"),
        ("type('F', (), dict(__array__=f))", "__array__"),
        ("setattr(F, '__eq__', f)", "__eq__"),
        ("setattr(F, name := '__lt__', f)", "__lt__"),
        ("'__eq__'", ""),
        ("name = '__eq__'", ""),
        ("print('__eq__', hasattr(x, '__float__'))", ""),
        ("x.__bool__()", ""),
        ('def f():\n    "__eq__"', ""),
    ],
)
def test_code_that_defines_a_comparison(code, name):
    assert tampering.own_comparison(ast.parse(code).body) == name


def lies() -> type:
    """A class of numbers that become another number, whose methods are named at run time."""
    return type("F", (float,), {"__flo" + "at__": lambda self: 7.0})


def test_a_result_of_an_own_class_that_decides_how_it_is_compared():
    def check(answer: object) -> None:
        assert callable(answer)
        assert answer(1) == 1.0
        assert float(answer(2)) == 7.0

    known = tampering.classes()
    own = lies()
    honest = {1: 1.0, 2: 7.0}
    assert tampering.own_results(check, [honest.__getitem__], known) == ""
    liar = {1: 1.0, 2: own(3)}
    assert tampering.own_results(check, [liar.__getitem__], known) == "F.__float__"
    assert (
        tampering.own_results(check, [lambda n: n and {"a": [own(n)]}["a"][0]], known)
        == "F.__float__"
    )
    assert tampering.own_results(check, [own(3)], known) == "F.__float__"
    assert tampering.own_results(check, [torch.ones(1)], known) == ""


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
