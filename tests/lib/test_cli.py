"""The commands work together, and what they propose works, too."""

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from test_bad_flags import check_refused

from cs336_lib import cli, hugging_face
from cs336_lib.training import checkpoint
from cs336_lib.training.metrics import read_metrics

TINY = (
    "--n-layer 1 --n-head 2 --n-embd 16 --block-size 8 --batch-tokens 64 --micro-batch-size 8 "
    "--max-steps 4 --warmup-steps 1 --eval-tokens 64 --device cpu"
).split()


def run(capsys, *arguments: object) -> tuple[str, str]:
    """Run one command in this process; return stdout and stderr."""
    cli.main([str(argument) for argument in arguments])
    return capsys.readouterr()


def test_a_text_becomes_a_model_that_others_load(capsys, tmp_path):
    """From a text to a folder on the hub, with a resume in between."""
    text = tmp_path / "own.txt"
    text.write_text("It was the best of times, it was the worst of times.\n" * 60)
    prepared, run_dir, exported = tmp_path / "own", tmp_path / "run", tmp_path / "exported"
    out, _ = run(capsys, "prepare", text, "--out", prepared, "--tokenizer", "char")
    assert "tokens to train on" in out
    data = ["--train-data", prepared, "--run-dir", run_dir, *TINY, "--checkpoint-every", 2]
    out, err = run(capsys, "train", "shakespeare-char", *data)
    assert "parameters" in out
    assert "validation loss" in out
    assert "tok/s" in err
    again = ["train", "shakespeare-char", *map(str, data)]
    assert "already holds a run" in check_refused(capsys, again, tmp_path)
    changed = [*again, "--resume", "--n-embd", "32"]
    assert "n_embd was 16, now 32" in check_refused(capsys, changed, tmp_path)

    newest = run_dir / "checkpoints" / "step_00000004" / "model.safetensors"
    weights, rows = newest.read_bytes(), read_metrics(run_dir / "metrics.jsonl")
    shutil.rmtree(newest.parent)
    run(capsys, "train", "shakespeare-char", *data, "--resume")
    assert newest.read_bytes() == weights
    again = read_metrics(run_dir / "metrics.jsonl")
    for name in ("step", "train_loss", "grad_norm", "val_loss"):
        assert [row.get(name) for row in again] == [row.get(name) for row in rows]

    out, _ = run(capsys, "eval", "--run-dir", run_dir, "--device", "cpu")
    loss = float(out.split("loss")[1].split()[0])
    bits = float(out.split("bits per byte")[1].split()[0])
    assert bits == pytest.approx(loss / 0.693147, rel=1e-3)  # one byte per character here
    sample = ["sample", "--run-dir", run_dir, "--max-new-tokens", 30, "--device", "cpu"]
    out, _ = run(capsys, *sample, "--prompt", "It was", "--num-samples", 2, "--seed", 7)
    samples = [run(capsys, *sample, "--prompt", "It was", "--seed", n)[0] for n in (7, 8)]
    assert out.split("\n---------------\n") == [samples[0].removesuffix("\n"), samples[1]]
    assert all(text.startswith("It was") and len(text) == 6 + 30 + 1 for text in samples)
    unknown = [*map(str, sample), "--prompt", "It was 5"]
    assert "'5' is not among" in check_refused(capsys, unknown, tmp_path)

    out, _ = run(capsys, "export", "--run-dir", run_dir, "--out", exported)
    assert "from_pretrained" in out
    model, tokenizer = checkpoint.load_run(run_dir, torch.device("cpu"))
    idx = torch.tensor([tokenizer.encode("It was").tolist()])
    assert torch.equal(hugging_face.load(exported)(idx), model(idx))
    card = (exported / "README.md").read_text()
    assert "steps: 4 of 4" in card
    assert str(tmp_path) not in card


def hint(printed: str) -> list[str]:
    """The command that the last line proposes, as a shell would hand it over, without `cs336`."""
    return shlex.split(printed.splitlines()[-1].partition("cs336 ")[2])


def test_what_is_proposed_works(capsys, tmp_path, monkeypatch):
    """In folders with spaces in their names, and for letters of which no name can be written."""
    monkeypatch.chdir(tmp_path)
    Path("letters.txt").write_text("abcdefgh " * 200)
    out, _ = run(capsys, "prepare", "letters.txt", "--out", "my data", "--tokenizer", "char")
    train = hint(out)
    assert train[3:] == ["my data", "--run-dir", "runs/my data"]
    out, _ = run(capsys, *train, *TINY)
    sample = hint(out)
    assert sample == ["sample", "--run-dir", "runs/my data"]
    for number in (1, 2):
        out, _ = run(capsys, *sample, "--max-new-tokens", 5, "--num-samples", number)
        assert out.startswith(" ")  # the first of its characters, there being no new line
        assert len(out.splitlines()[0]) == 6


def test_a_prompt_may_be_any_word():
    command = ["sample", "--run-dir", "x", "--prompt"]
    assert cli.parse([*command, "None"]).prompt == "None"


def real(*arguments: str | bytes, **how: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the library in a process of its own, in which the course isn't found."""
    code = """
import runpy, sys
sys.modules["cs336_course"] = None
sys.argv = ["cs336", *sys.argv[1:]]
runpy.run_module("cs336_lib", run_name="__main__")
"""
    how = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE} | how
    environment = os.environ | {"PYTHONPATH": str(Path(cli.__file__).parents[1])}
    command = [sys.executable, "-u", "-c", code, *arguments]
    return subprocess.run(command, env=environment, check=False, **how)


def test_real_command_lines_without_the_course(tmp_path):
    cli.main(["train", "shakespeare-char", *TINY, "--run-dir", str(tmp_path / "run")])
    done = real("report", "run", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert b"report.html" in done.stdout
    done = real("sample", "--run-dir", b"\xff\xfe", cwd=tmp_path)  # a name that is no text
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"cs336: ")
    assert done.stderr.count(b"\n") == 1
    read_end, write_end = os.pipe()
    os.close(read_end)  # a reader that has had enough
    done = real("train", "shakespeare-char", "--help", stdout=write_end)
    os.close(write_end)
    assert (done.returncode, done.stderr) == (0, b"")
