"""Bad values of flags: exit 2, an explanation, nothing written."""

import shlex
from pathlib import Path
from typing import Any, Literal, get_origin, get_type_hints

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
COMMANDS = {
    "train": TrainConfig,
    "sample": cli.Sample,
    "eval": cli.Eval,
    "prepare": cli.Prepare,
    "estimate": cli.Estimate,
    "simulate": cli.Simulate,
    "export": cli.Export,
    "compare": cli.Compare,
    "race": cli.Race,
    "report": cli.Report,
}


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


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run for the commands that need one."""
    folder = tmp_path_factory.mktemp("trained") / "run"
    cli.main([*TRAIN, "--run-dir", str(folder)])
    return folder


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
            wrong += ["", "x", "\n", SHELL]
        else:
            wrong += [1]
        for value in wrong:
            with pytest.raises(ValueError, match=f"^{field} is ") as error:
                kind(**{field: value})
            assert "\n" not in str(error.value), (field, value)


UNREADABLE = {
    int: ["", "x", "1.5", "nan", "1_", "½", "1\n2", "None!", SHELL, "9" * 5000],
    float: ["", "x", "0x10", "½", "--1", SHELL],
    bool: ["", "x", "1", SHELL],
    Literal: ["", "x", "\n", SHELL, "é"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_what_cannot_be_read_names_its_flag(command, capsys, here):
    """One flag of each type, in each command."""
    before, left = content(here), dict(UNREADABLE)
    prefix = ["train", "shakespeare-char"] if command == "train" else [command]
    for name, of in get_type_hints(COMMANDS[command]).items():
        kind = Literal if get_origin(of) is Literal else of
        for value in left.pop(kind, []):
            flag = "--with" if name == "beside" else f"--{name.replace('_', '-')}"
            arguments = [flag, value] if kind is bool else [f"{flag}={value}"]
            with pytest.raises(SystemExit) as ended:
                cli.parse([*prefix, *arguments])
            out, err = capsys.readouterr()
            assert (ended.value.code, out) == (2, ""), arguments
            assert flag in err or kind is bool, (arguments, err)
    assert content(here) == before


RUN_DIRS = ["", "missing", "taken", "file.txt", "/dev/null", "a\nb", SHELL, LONG]
NEW_DIRS = ["", ".", "taken", "file.txt", "file.txt/run", "/dev/null/run", "/proc/run", LONG]
DATA = ["missing", "*.none", "taken", "/dev/zero", "[", "a\nb", SHELL, LONG, "a\x00b", "/etc"]
DEVICES = ["", "tpu", "meta", "cuda:99", "cuda:-1", "cuda:" + HUGE, "cpu\n", "mps:7:7", SHELL]
HELLASWAG = ["file.txt", "taken", "missing.jsonl", "/dev/zero", SHELL]
# By command, the values that only this flag can't have.
BAD: dict[str, dict[str, list[str]]] = {
    "train": {
        "run_dir": NEW_DIRS,
        "train_data": DATA,
        "val_data": ["missing"],
        "init_from": ["missing", "taken", "file.txt", "a\nb", SHELL],
        "device": DEVICES,
        "block_size": ["7", "9999999"],
        "n_embd": ["15", "1000000000"],
        "batch_tokens": ["63", "8" + "0" * 15],
        "hellaswag": HELLASWAG,
        "sample": ["é", "\0", "\x1b[2J"],
    },
    "sample": {
        "run_dir": RUN_DIRS,
        "prompt": ["", "é", "\0", "\x1b[2J", "🎭\n🎭"],
        "device": DEVICES,
        "num_samples": ["0"],
        "max_new_tokens": ["-1", HUGE, "10000000"],
        "temperature": ["nan", "-1", "1e-320"],
        "top_k": ["0"],
        "top_p": ["0", "1.1", "nan"],
        "seed": [HUGE],
    },
    "eval": {
        "run_dir": RUN_DIRS,
        "model": ["x"],  # and a run as well
        "val_data": ["missing"],  # without --model
        "hellaswag": HELLASWAG,
        "device": DEVICES,
        "eval_tokens": ["0"],
        "micro_batch_size": ["0"],
    },
    "prepare": {
        "out": NEW_DIRS,
        "hub": ["x"],  # and files as well
        "val_fraction": ["0", "1", "nan", "1e-320"],
        "workers": ["0", "1025", HUGE],
        "shard_tokens": ["0", "1", str(2**31), HUGE],
    },
    "estimate": {
        "model": ["missing", "file.txt", "a\nb", SHELL, LONG],
        "hardware": ["", "x", "\n", SHELL],
        "params": ["0", "nan", "1e308"],
        "gpus": ["0", "9" * 400],
        "mfu": ["0", "1.1", "nan", "1e-320"],
        "config": ["missing"],  # without --here
    },
    "simulate": {
        "model": ["missing", "file.txt", "a\nb", SHELL, LONG],
        "hardware": ["", "x", "\n", SHELL],
        "outer": ["", "x", "\n", SHELL],
        "straggler": ["0", "nan", "1e308"],
        "save": ["0", "inf"],
    },
    "export": {
        "run_dir": RUN_DIRS,
        "out": NEW_DIRS,
        "license": ["MIT License", "mit\n", "é", SHELL, LONG + "!"],
    },
    "compare": {"out": ["", ".", "file.txt", "new.jpeg", "/proc/a.png", "file.txt/a.png", LONG]},
    "race": {"minutes": ["0", "61", "nan"], "run_dir": NEW_DIRS, "device": DEVICES},
    "report": {"out": ["", ".", "taken", "/proc/a.html", "file.txt/a.html"], "price": ["0", "1e7"]},
}


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
        "compare": ["compare", str(trained)],
        "race": ["race", "--minutes", "0.1", "--run-dir", "new", "--device", "cpu"],
        "report": ["report", "--out", "new", str(trained)],
    }[command]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bad_value_is_one_line_and_nothing_is_written(command, trained, here, capsys):
    good = base(command, trained)
    for name, values in BAD[command].items():
        for value in values:
            check_refused(capsys, [*good, f"--{name.replace('_', '-')}={value}"], here)
    positional = {"compare": RUN_DIRS, "report": RUN_DIRS}
    files = ["", "missing", "taken", "empty.txt", "/dev/zero", "nul.txt", "latin.txt", "bad.jsonl"]
    for value in positional.get(command, files if command == "prepare" else []):
        check_refused(capsys, [*good[:-1], value], here)
    if command != "race":
        cli.main(good)
        assert capsys.readouterr().out != ""


CONTRADICTIONS = [
    ([*TRAIN, "--optimizer", "muon", "--parallel", "fsdp"], "use one of the two"),
    ([*TRAIN, "--val-data", "x"], "val_data without train_data"),
    ([*TRAIN, "--tokenizer", "char", "--train-data", "x.bin"], "x.bin: no file matches"),
    (["train", "shakespeare-char", "--n-embd", "1000002"], "needs"),
    (["lab", "--port", "65536"], "1 to 65535 expected"),
    (["lab", "--reset", "../00"], "no notebook '../00'"),
    (["prepare", "--out", "new"], "name text"),
    (["prepare", "file.txt", "--out", "new", "--raw"], "begins like text"),
    (["prepare", "file.txt", "--out", "new", "--hub", "x"], "or else"),
    (["prepare", "a.bin", "--out", "new", "--raw", "--tokenizer", "char"], "--tokenizer gpt2"),
    (["estimate", "--tokens", "1e9"], "days of training need both"),
    (["estimate", "--here", "--gpus", "8"], "takes only --config"),
    (["estimate", "--here", "--config", "file.txt"], "file.txt: not JSON"),
    ([*TRAIN, "--run-dir", "a\nb", "--train-data", "c\nd"], "no file matches"),
]


def test_contradictions(here, capsys):
    for arguments, message in CONTRADICTIONS:
        assert message in check_refused(capsys, arguments, here)


def test_a_lack_of_memory_is_one_line_and_another_error_keeps_its_traceback(
    here, capsys, monkeypatch
):
    def raising(error: BaseException) -> None:
        def fail(command: object) -> None:
            raise error

        monkeypatch.setattr(cli.Estimate, "run", fail)

    with pytest.raises(RuntimeError) as real:
        torch.empty(2**60, dtype=torch.uint8)
    for error in (
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to\nallocate"),
        real.value,
        RuntimeError("MPS backend out of memory (MPS allocated: 5.5 GB)"),
        RuntimeError("[enforce fail] data. DefaultCPUAllocator: not enough memory: you"),
    ):
        raising(error)
        assert "out of memory" in check_refused(capsys, ["estimate"], here)
    for error in (RuntimeError("spans two memory locations"), ValueError("ours")):
        raising(error)
        with pytest.raises(type(error), match=str(error)):
            cli.main(["estimate"])
