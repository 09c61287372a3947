"""Every flag of every command with every bad value: exit 2, an explanation, nothing written."""

import dataclasses
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from cs336_course import cli as course
from cs336_lib import cli
from cs336_lib.config import TrainConfig

SIZE = "--n-layer 1 --n-head 2 --n-embd 16 --block-size 8 --batch-tokens 64 --micro-batch-size 8"
STEPS = "--max-steps 2 --warmup-steps 1 --eval-tokens 64 --device cpu"
TINY = f"{SIZE} {STEPS}".split()
TRAIN = ["train", "shakespeare-char", *TINY]

SHELL = "$(touch pwned); `touch pwned` | touch pwned"
HUGE = "9" * 30
NO_NUMBER = ["", " ", "x", "1;2", "0x10", "1_", "½", "1\n2", "--1", "None!", SHELL]
BAD_INTS = [*NO_NUMBER, "1.5", "nan", "inf", "1e309", "-1", "-" + HUGE, "9" * 5000]
BAD_FLOATS = [*NO_NUMBER, "nan", "inf", "-inf", "1e309", "-1", "-1e309"]
BAD_CHOICES = ["", "x", "\n", SHELL, "é"]
LONG = "a" * 5000

# Values that only this field cannot have. A field that is text or a path has no others: one that
# is new, and missing here, fails.
OWN: dict[str, dict[str, list[str]]] = {
    "train": {
        "run_dir": [
            "",
            ".",
            "file.txt",
            "taken",
            "file.txt/run",
            "/dev/null",
            "/dev/null/run",
            "/proc/run",
            LONG,
        ],
        "train_data": [
            "missing",
            "*.none",
            "taken",
            "file.txt",
            "/dev/zero",
            "[",
            "\n",
            "a\nb",
            SHELL,
            LONG,
            "a\x00b",
            "é",
            "/etc",
        ],
        "val_data": ["missing", "/dev/zero", "\n", SHELL],
        "init_from": ["missing", "taken", "file.txt", "/dev/zero", "a\nb", SHELL, LONG, "/etc"],
        "device": [
            "",
            "tpu",
            "meta",
            "cpu:x",
            "cuda:99",
            "cuda:-1",
            "cuda:" + HUGE,
            "cpu\n",
            "mps:7:7",
            SHELL,
            "é",
        ],
        "n_layer": ["0", "5000"],
        "n_head": ["0", "3"],
        "n_embd": ["0", "15", "1000000000"],
        "block_size": ["0", "7", "9999999"],
        "dropout": ["1", "1.5"],
        "max_steps": ["0"],
        "batch_tokens": ["0", "63", "8" + "0" * 15],
        "initial_batch_tokens": ["8", "7", "128"],
        "batch_growth_steps": ["1"],
        "micro_batch_size": ["0"],
        "learning_rate": ["0"],
        "min_learning_rate": ["1"],
        "warmup_steps": ["3"],
        "beta1": ["1"],
        "beta2": ["1"],
        "momentum": ["1"],
        "seed": [str(2**63)],
        "eval_tokens": ["0"],
        "keep_checkpoints": ["0"],
        "hellaswag": ["file.txt", "taken", "missing.jsonl", "/dev/zero", SHELL],
        "sample": ["é", "\0", "\x1b[2J"],
    },
    "sample": {
        "run_dir": ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG],
        "prompt": ["", "5", "é", "\0", "\x1b[2J", "🎭\n🎭"],
        "device": ["", "tpu", "cuda:99", "\n"],
        "num_samples": ["0", "-1"],
        "max_new_tokens": [HUGE, "10000000"],
        "temperature": ["1e-320", "1e-9"],
        "top_k": ["0"],
        "top_p": ["0", "1.1"],
        "seed": [HUGE],
    },
    "eval": {
        "run_dir": ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG],
        "model": ["x"],  # and a run as well
        "val_data": ["missing"],  # without --model
        "hellaswag": ["file.txt", "taken", "missing.jsonl", "/dev/zero", SHELL],
        "device": ["", "tpu", "cuda:99"],
        "eval_tokens": ["0"],
        "micro_batch_size": ["0"],
    },
    "prepare": {
        "out": ["", ".", "file.txt", "taken", "/dev/null/out", "/proc/out", "file.txt/out", LONG],
        "files": [
            "",
            "missing",
            "taken",
            "empty.txt",
            "/dev/zero",
            "a\nb",
            "nul.txt",
            "latin.txt",
            "bad.jsonl",
            SHELL,
            LONG,
        ],
        "hub": ["x"],  # and files as well
        "hub_config": [],
        "text_field": [],
        "val_fraction": ["0", "1", "1e-320"],
        "workers": ["0", "1025", HUGE],
        "shard_tokens": ["0", "1", str(2**31), HUGE],
    },
    "estimate": {
        "model": ["missing", "file.txt", "a\nb", SHELL, LONG],
        "price": ["0", "-1", "1e308"],
        "hardware": ["", "x", "\n", SHELL],
        "dtype": ["", "fp4", "\n"],
        "optimizer": ["", "x", "\n"],
        "precision": ["", "fp64", "\n"],
        "params": ["0", "1e-300", "1e308"],
        "tokens": ["0", "1e-300", "1e308"],
        "gpus": ["0", "9" * 400],
        "mfu": ["0", "1.1", "1e-320"],
        "memory": ["0", "1e-300", "1e308"],
        "config": ["missing", "a\nb", SHELL, LONG],  # without --here
    },
    "simulate": {
        "model": ["missing", "file.txt", "a\nb", SHELL, LONG],
        "hardware": ["", "x", "\n", SHELL],
        "inner": ["", "x", "\n", SHELL],
        "outer": ["", "x", "\n", SHELL],
        "straggler": ["0", "0.5", "1e308"],
        "save": ["0", "1e308"],
        "restart": ["0", "1e308"],
    },
    "export": {
        "run_dir": ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG],
        "out": ["", ".", "taken", "file.txt", "/dev/null/out", "/proc/out", "file.txt/out", LONG],
        "license": ["MIT License", "mit\n", "é", SHELL, LONG + "!"],
        "data_license": [],
    },
    "assemble": {
        "out": ["", ".", "taken", "file.txt", "/proc/out", "file.txt/out.py", LONG],
        "notebooks": ["", "missing", "file.txt", "a\nb", SHELL, LONG],
    },
    "compare": {
        "runs": ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG],
        "out": ["", ".", "taken", "file.txt", "new.jpeg", "/proc/a.png", "file.txt/a.png", LONG],
    },
    "race": {
        "minutes": ["0", "0.05", "61", "1e308"],
        "run_dir": ["", ".", "taken", "file.txt", "file.txt/run", "/dev/null", "/proc/run", LONG],
        "device": ["tpu", "cuda:99", "\n", SHELL],
    },
    "report": {
        "run_dir": ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG],
        "out": ["", ".", "taken", "file.txt", "/proc/a.html", "file.txt/a.html", LONG],
        "price": ["0", "1e7"],
    },
    "grade": {
        "folder": ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG],
        "out": ["", ".", "taken", "file.txt", "/proc/a.csv", "file.txt/a.csv", LONG + ".csv"],
        "container": ["-x", "no/such/image"],
        "seconds": ["0", "1e7"],
        "memory_gb": ["0", "1e7"],
    },
}
NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
# Very many of these are fine. Where there are fewer, all are taken, and samples come one by one.
HARMLESS = {
    *(("sample", "top_k"), ("sample", "num_samples")),
    *(("eval", "eval_tokens"), ("eval", "micro_batch_size")),
}
COMMANDS = {
    "train": TrainConfig,
    "sample": cli.Sample,
    "eval": cli.Eval,
    "prepare": cli.Prepare,
    "estimate": cli.Estimate,
    "simulate": cli.Simulate,
    "export": cli.Export,
    "assemble": course.Assemble,
    "compare": cli.Compare,
    "race": cli.Race,
    "report": cli.Report,
    "grade": course.Grade,
}


def bad_values(command: str, field: str, kind: Any) -> list[str]:
    """What a field of this type cannot be."""
    own = OWN[command].get(field)
    if get_origin(kind) in (Union, UnionType, tuple):
        kind = next(part for part in get_args(kind) if part is not NoneType)
    if kind is bool:
        return [*BAD_CHOICES, "1"]
    if get_origin(kind) is Literal:
        return [value for value in BAD_CHOICES if value not in get_args(kind)]
    if kind is int:
        return [*BAD_INTS, *([] if (command, field) in HARMLESS else [HUGE]), *(own or [])]
    if kind is float:
        return [*BAD_FLOATS, *(own or [])]
    assert own is not None, f"{command} has a new flag {field}: which values are bad?"
    return own


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for the commands that need one, next to a class of one learner."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    cli.main([*TRAIN, "--run-dir", str(folder)])
    (folder.parent / "class" / "ada").mkdir(parents=True)
    shutil.copy(NOTEBOOKS / "00_start_here.ipynb", folder.parent / "class" / "ada")
    return folder


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


BOXES = (
    *("Unrecognized options", "Value error", "Required options", "Missing argument"),
    *("Missing subcommand", "Invalid choice"),
)


def check_refused(capsys: pytest.CaptureFixture, arguments: list[str], folder: Path) -> str:
    """Run a command that must exit with 2, say why, and write nothing; return what it said.

    That is one line, unless the arguments can't be read: then tyro explains them in a box.
    """
    before = content(folder)
    capsys.readouterr()
    with pytest.raises(SystemExit) as ended:
        course.main(arguments)
    out, err = capsys.readouterr()
    assert ended.value.code == 2, arguments
    assert out == "", arguments
    assert err.endswith("\n"), arguments
    lines = err.splitlines()
    if is_box(err):
        assert " --help" in err, (arguments, err)
    else:
        assert err.startswith("cs336: "), (arguments, err)
        assert len(lines) == 1, (arguments, err)
        assert len(err) > len("cs336: ") + 10, (arguments, err)
        assert lines[0].isprintable(), (arguments, err)
    assert content(folder) == before, arguments
    return err


def is_box(said: str) -> bool:
    """Whether tyro explains arguments that it couldn't read."""
    return said.lstrip("╭─ ").startswith(BOXES)


def base(command: str, trained: Path) -> list[str]:
    """The command without the bad flag, which would work."""
    return {
        "train": [*TRAIN, "--run-dir", "new"],
        "sample": ["sample", "--run-dir", str(trained), "--max-new-tokens", "1", "--device", "cpu"],
        "eval": ["eval", "--run-dir", str(trained), "--eval-tokens", "64", "--device", "cpu"],
        "prepare": ["prepare", "--out", "new", "--tokenizer", "char", "file.txt"],
        "estimate": ["estimate", "--params", "1e9", "--tokens", "1e9"],
        "simulate": ["simulate", "--tp", "2", "--pp", "2", "--batch", "8"],
        "export": ["export", "--run-dir", str(trained), "--out", "new"],
        "assemble": ["assemble", "--notebooks", str(NOTEBOOKS), "--out", "new"],
        "compare": ["compare", str(trained)],
        "race": ["race", "--minutes", "0.1", "--run-dir", "new", "--device", "cpu"],
        "report": ["report", "--out", "new", str(trained)],
        "grade": ["grade", str(trained.parent / "class")],
    }[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_flag(command, trained, here, capsys):
    kinds = get_type_hints(COMMANDS[command])
    good = base(command, trained)
    names = [field.name for field in dataclasses.fields(COMMANDS[command])]
    assert set(OWN[command]) <= set(names)
    for name in names:
        flag = "--with" if name == "beside" else f"--{name.replace('_', '-')}"
        for value in bad_values(command, name, kinds[name]):
            if name in ("files", "runs", "folder") or (command, name) == (
                "report",
                "run_dir",
            ):  # positional, at the end
                arguments = [*good[:-1], value]
            elif kinds[name] in (bool, bool | None):
                arguments = [*good, flag, value]
            else:
                arguments = [*good, f"{flag}={value}"]
            said = check_refused(capsys, arguments, here)
            if is_box(said) and arguments[-1].startswith("--"):
                assert flag in said, arguments
    course.main(good)
    assert capsys.readouterr().out != ""


CONTRADICTIONS = [
    ([*TRAIN, "--optimizer", "muon", "--parallel", "fsdp"], "use one of the two"),
    ([*TRAIN, "--val-data", "x"], "val_data without train_data"),
    ([*TRAIN, "--n-embd", "16", "--n-head", "5"], "does not divide"),
    ([*TRAIN, "--warmup-steps", "9", "--max-steps", "8"], "warmup_steps 9"),
    ([*TRAIN, "--min-learning-rate", "2", "--learning-rate", "1"], "min_learning_rate"),
    ([*TRAIN, "--block-size", "9", "--batch-tokens", "64"], "try 63"),
    ([*TRAIN, "--initial-batch-tokens", "8"], "needs both"),
    ([*TRAIN, "--tokenizer", "char", "--train-data", "x.bin"], "x.bin: no file matches"),
    ([*TRAIN, "--n-layer"], "--n-layer"),
    ([*TRAIN, "--n-layer", "1", "2"], "2"),
    ([*TRAIN, "--no-such-flag", "\x1b[31m"], "no-such-flag"),
    ([*TRAIN, "--resume", "--no-resume", "x"], "x"),
    (["train", "shakespeare-char", "--n-embd", "1000002"], "needs"),
    (["train", "\n"], "Unrecognized"),
    (["check", "01_dtypes"], "01_dtypes"),
    (["doctor", "x"], "x"),
    (["lab", "--port", "65536"], "1 to 65535 expected"),
    (["lab", "--port", "0"], "1 to 65535 expected"),
    (["lab", "--port", "x"], "--port"),
    (["lab", "--browser", "x"], "x"),
    (["lab", "--reset", "../00"], "no notebook '../00'"),
    (["lab", "--reset", "00"], "create it with"),
    (["x"], "Available subcommands"),
    (["train", "gpt2-124m", "--config", "x"], "--config"),
    (["sample", "--run-dir", "a", "--run-dir"], "--run-dir"),
    (["prepare", "--out", "new"], "name text"),
    (["prepare", "file.txt", "--out", "new", "--raw"], "begins like text"),
    (["prepare", "file.txt", "--out", "new", "--hub", "x"], "or else"),
    (["prepare", "a.bin", "--out", "new", "--raw", "--tokenizer", "char"], "--tokenizer gpt2"),
    (["estimate", "--tokens", "1e9"], "days of training need both"),
    (["estimate", "--hardware", "a100", "--dtype", "fp8"], "no peak"),
    (["simulate", "--zero", "-1"], "zero is -1; 0, 1, 2 or 3 expected"),
    (["simulate", "--cp", "3"], "8 GPUs can't be divided by cp 3"),
    (["estimate", "--here", "--gpus", "8"], "takes only --config"),
    (["estimate", "--here", "--config", "file.txt"], "file.txt: not JSON"),
]


def test_contradictions(here, capsys):
    for arguments, message in CONTRADICTIONS:
        assert message in check_refused(capsys, arguments, here)


def test_values_of_a_wrong_type_in_python():
    for field, kind in get_type_hints(TrainConfig).items():
        wrong: list[Any] = [None, [], {}, object(), b"1", 1j, float("nan")]
        wrong += [1.5, "1", True, 10**30, -1] if kind is int else []
        wrong += ["1", True, float("inf"), 10**400] if kind is float else []
        wrong += [1] if kind in (str, bool) else []
        for value in wrong:
            with pytest.raises(ValueError, match=f"^{field} is ") as error:
                TrainConfig(**{field: value})
            assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "arguments",
    [
        [*TRAIN, "--run-dir", "a\nb", "--train-data", "c\nd"],
        ["sample", "--run-dir", b"\xff\xfe"],
    ],
    ids=str,
)
def test_a_real_command_line(arguments, here):
    before = content(here)
    command = [sys.executable, "-m", "cs336_lib", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[1])}
    done = subprocess.run(command, capture_output=True, env=environment, check=False)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"cs336: ")
    assert done.stderr.count(b"\n") == 1
    assert b"Traceback" not in done.stderr
    assert content(here) == before


def test_a_lack_of_memory_is_one_line(here, capsys, monkeypatch):
    import torch

    def run(error: BaseException) -> str:
        def fail(command: object) -> None:
            raise error

        monkeypatch.setattr(cli.Estimate, "run", fail)
        return check_refused(capsys, ["estimate"], here)

    assert "out of memory" in run(MemoryError())
    assert "out of memory" in run(torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"))
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60, dtype=torch.uint8)
    assert "out of memory" in run(error.value)
    assert "out of memory" in run(RuntimeError("MPS backend out of memory (MPS allocated: 5.5 GB)"))
    windows = (
        "[enforce fail at alloc_cpu.cpp:114] data. DefaultCPUAllocator: not enough memory: you"
    )
    assert "out of memory" in run(RuntimeError(windows))


def test_another_error_keeps_its_traceback(here, monkeypatch):
    message = "spans two memory locations"

    def fail(command: object) -> None:
        raise RuntimeError(message)

    monkeypatch.setattr(cli.Estimate, "run", fail)
    with pytest.raises(RuntimeError, match=message):
        cli.main(["estimate"])
