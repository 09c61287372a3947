"""Bad values of flags: exit 2, an explanation, nothing written."""

import shlex
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints
from unittest.mock import Mock

import pytest
import torch

from cs336_course import cli as course
from cs336_lib import cli
from cs336_lib.config import BOUNDS, GPTConfig, TrainConfig

TINY = shlex.split(
    "--n-layer 1 --n-head 2 --n-embd 16 --block-size 8 --batch-tokens 64 --micro-batch-size 8 "
    "--max-steps 2 --warmup-steps 1 --eval-tokens 64 --device cpu"
)
TRAIN = ["train", "shakespeare-char", *TINY]
SHELL = "$(touch pwned); `touch pwned` | touch pwned"
HUGE = "9" * 30
LONG = "a" * 5000


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a few things in it that are not what a flag needs."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "important").write_text("do not touch")
    (tmp_path / "file.txt").write_text("It was the best of times.\n" * 100)
    (tmp_path / "empty.txt").touch()
    (tmp_path / "nul.txt").write_bytes(b"abc\0def\n" * 100)
    (tmp_path / "latin.txt").write_bytes("é".encode("latin1") * 100)
    (tmp_path / "bad.jsonl").write_text("[1]\n")
    return tmp_path


def content(folder: Path) -> dict[str, bytes]:
    """Everything below a folder."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else b""
        for path in folder.rglob("*")
    }


def check_refused(capsys: pytest.CaptureFixture, arguments: list[str], folder: Path) -> str:
    """Run a command that must exit with 2, say why in one line, and write nothing."""
    before = content(folder)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        course.main(arguments)
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, ""), arguments
    assert err.startswith("cs336: "), (arguments, err)
    assert err.count("\n") == 1, (arguments, err)
    assert err.endswith("\n"), (arguments, err)
    assert err[:-1].isprintable(), (arguments, err)
    assert len(err) > len("cs336: ") + 10, (arguments, err)
    assert content(folder) == before, arguments
    return err


@pytest.mark.parametrize("kind", [TrainConfig, GPTConfig])
def test_every_field_of_a_config_refuses_what_it_cannot_be(kind):
    """Values of a wrong type, and the nearest ones outside of the bounds."""
    for field, of in get_type_hints(kind).items():
        wrong: list[Any] = [None, [], {}, object(), b"1", 1j, float("nan")]
        if of in (int, float):
            low, high = BOUNDS.get(field, (0, 2**63 if of is int else float("inf")))
            wrong += ["1", True, low - 1, high, 10**400]
            wrong += [1.5] if of is int else [low - 1e-9]
        elif get_origin(of) is Literal:
            wrong += [value for value in ("", "x", "\n", SHELL) if value not in get_args(of)]
        else:
            wrong += [1]
        for value in wrong:
            with pytest.raises(ValueError, match=f"^{field} is ") as error:
                kind(**{field: value})
            assert "\n" not in str(error.value), (field, value)


RUN_DIRS = ["", "missing", "taken", "/dev/null", "a\nb", LONG]
NEW_DIRS = ["", "taken", "file.txt/run", "/proc/run", LONG]
DATA = ["missing", "taken", "/dev/zero", "[", SHELL, "a\x00b"]
DEVICES = ["", "tpu", "cuda:99", "cuda:" + HUGE, "mps:7:7"]
FILES = ["", "missing", "empty.txt", "/dev/zero", "nul.txt", "latin.txt", "bad.jsonl"]
# Command lines that would work, by a flag with values that it can't have.
TRAINED = ["sample", "--run-dir", "run", "--max-new-tokens", "1", "--device", "cpu"]
BAD: list[tuple[list[str], dict[str, list[str]]]] = [
    ([*TRAIN, "--run-dir", "new"], {"run-dir": NEW_DIRS, "train-data": DATA, "device": DEVICES}),
    ([*TRAIN, "--run-dir", "new"], {"init-from": DATA[:3], "hellaswag": FILES[1:4]}),
    (TRAINED, {"run-dir": RUN_DIRS, "prompt": ["é", "\0"], "top-p": ["0", "nan"], "seed": [HUGE]}),
    (TRAINED, {"num-samples": ["0"], "max-new-tokens": ["-1", HUGE], "temperature": ["1e-320"]}),
    (["eval", "--run-dir", "run"], {"model": ["x"], "val-data": ["x"], "eval-tokens": ["0"]}),
    (["prepare", "--out", "new", "file.txt"], {"out": NEW_DIRS, "val-fraction": ["0", "nan"]}),
    (["prepare", "--out", "new", "file.txt"], {"workers": ["0", HUGE], "shard-tokens": ["1"]}),
    (["prepare", "--out", "new", "--tokenizer", "char"], {"": FILES}),
    (["estimate", "--params", "1e9"], {"mfu": ["0", "nan"], "gpus": [HUGE]}),
    (["simulate", "--tp", "2"], {"model": RUN_DIRS[1:], "outer": ["", "\n"]}),
    (["export", "--run-dir", "run", "--out", "new"], {"out": NEW_DIRS}),
    (["compare"], {"": RUN_DIRS}),
    (["compare", "run"], {"out": ["", "file.txt", "new.jpeg", "file.txt/a.png"]}),
    (["race", "--minutes", "1"], {"minutes": ["0", "61", "nan"], "run-dir": NEW_DIRS[1:]}),
    (["report"], {"": RUN_DIRS}),
    (["report", "run"], {"out": ["", ".", "taken", "/proc/a.html"], "price": ["0", "1e7"]}),
]


def test_a_bad_value_is_one_line_and_nothing_is_written(here, capsys):
    cli.main([*TRAIN, "--run-dir", "run"])
    for good, flags in BAD:
        for flag, values in flags.items():
            for value in values:
                check_refused(capsys, [*good, f"--{flag}={value}" if flag else value], here)


CONTRADICTIONS = [
    ([*TRAIN, "--n-head", "5"], "does not divide n_embd"),
    ([*TRAIN, "--batch-tokens", "1001"], "try 1000"),
    ([*TRAIN, "--batch-tokens", str(8 * 2**20 + 8)], "at most 1048576 expected"),
    ([*TRAIN, "--learning-rate", "0"], "learning_rate > 0 expected"),
    ([*TRAIN, "--min-learning-rate", "1"], "min_learning_rate <= learning_rate"),
    ([*TRAIN, "--warmup-steps", "99"], "more than max_steps"),
    ([*TRAIN, "--initial-batch-tokens", "8"], "a growing batch needs both"),
    ([*TRAIN, "--optimizer", "muon", "--parallel", "fsdp"], "use one of the two"),
    ([*TRAIN, "--val-data", "x"], "val_data without train_data"),
    ([*TRAIN, "--tokenizer", "char", "--train-data", "x.bin"], "x.bin: no file matches"),
    (["train", "shakespeare-char", "--n-embd", "1000002"], "needs"),
    (["lab", "--port", "65536"], "1 to 65535 expected"),
    (["lab", "--reset", "../00"], "no notebook '../00'"),
    (["prepare", "--out", "new"], "name text"),
    (["prepare", "file.txt", "--out", "new", "--hub", "x"], "or else"),
    (["prepare", "a.bin", "--out", "new"], ".bin files hold no text"),
    (["prepare", "a.csv", "--out", "new"], ".csv files are not supported"),
    (["estimate", "--tokens", "1e9"], "days of training need both"),
    ([*TRAIN, "--run-dir", "a\nb", "--train-data", "c\nd"], "no file matches"),
]


def test_contradictions(here, capsys):
    for arguments, message in CONTRADICTIONS:
        assert message in check_refused(capsys, arguments, here)


def test_a_lack_of_memory_is_one_line_and_another_error_keeps_its_traceback(
    here, capsys, monkeypatch
):
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"),
        RuntimeError("[enforce fail] data. DefaultCPUAllocator: can't allocate memory: you"),
        RuntimeError("MPS backend out of memory (MPS allocated: 5.5 GB)"),
    ):
        monkeypatch.setattr(cli.Estimate, "run", Mock(side_effect=error))
        assert "out of memory" in check_refused(capsys, ["estimate"], here)
    for error in (RuntimeError("spans two memory locations"), ValueError("ours")):
        monkeypatch.setattr(cli.Estimate, "run", Mock(side_effect=error))
        with pytest.raises(type(error), match=str(error)):
            cli.main(["estimate"])
