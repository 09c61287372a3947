"""The one-file trainer under torchrun, killed, and against the library.

Its windows come in another order than the library's, so the two are compared on the library's.
"""

import contextlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import forked
import pytest
import torch
from safetensors.torch import load_file

from cs336_course.one_file import assemble
from cs336_course.shared import tiktoken_cache
from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.loader import window_starts
from cs336_lib.data.prepare import prepare
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT
from cs336_lib.training.loop import train

ROOT = Path(__file__).parents[2]
SHAPE = {"n_layer": 2, "n_head": 2, "n_embd": 64, "block_size": 64}
RECIPE = SHAPE | {
    "max_steps": 8,
    "batch_tokens": 512,
    "micro_batch_size": 2,
    "eval_every": 3,
    "eval_tokens": 10**9,  # all of the validation data
    "learning_rate": 1e-3,
    "min_learning_rate": 1e-4,
    "warmup_steps": 5,
}
EXAMPLES = [
    {"ctx": "O Romeo, Romeo, wherefore art", "endings": ["thou", "sky", "7", "x"], "label": 0},
    {"ctx": "To be, or not", "endings": ["x", "sky", "to be", "7"], "label": 2},
    {"ctx": "My kingdom for", "endings": ["sky", "a horse", "x", "7"], "label": 1},
]
FILE = "train_gpt2.py"
AGAIN = f"cs336 assemble --notebooks notebooks --out {FILE} --overwrite"
CLIP = "torch.nn.utils.clip_grad_norm_"  # called once in a step
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with data in GPT-2's tokens and in letters, HellaSwag and initial weights."""
    folder = tmp_path_factory.mktemp("data")
    (folder / "text.txt").write_text(shakespeare()[:100_000])
    for kind in ("gpt2", "char"):
        prepare(folder / "text.txt", folder / kind, kind, shard_tokens=10_000)
    (folder / "hellaswag.jsonl").write_text("\n".join(map(json.dumps, EXAMPLES)))
    hugging_face.export(GPT(GPTConfig(**SHAPE), seed=1337), folder / "start", GPT2Tokenizer())
    tiktoken_cache.fill(folder / "cache")
    return folder


def command(folder: Path, out: Path, *launcher: str, **changes) -> list[str]:
    """Return the command that trains on letters into `out`."""
    paths = {"data": folder / "char", "out": out, "hellaswag": folder / "hellaswag.jsonl"}
    settings = RECIPE | paths | changes
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in settings.items()]
    return [sys.executable, *launcher, FILE, "--no-bf16", "--no-compile", *flags]


def start(folder: Path, words: list[str]) -> subprocess.Popen:
    """Start a command in a process group of its own."""
    environment = os.environ | {"TIKTOKEN_CACHE_DIR": str(folder / "cache")}
    quiet = subprocess.DEVNULL
    return subprocess.Popen(words, cwd=ROOT, env=environment, stdout=quiet, start_new_session=True)


def killed(folder: Path, out: Path, function: str, call: int, *launcher: str) -> None:
    """Train until a call of a function kills the process."""
    words = command(folder, out, *launcher, forked.__file__, function, str(call))
    assert start(folder, words).wait() != 0


def finish(folder: Path, out: Path, **changes) -> list[dict]:
    """Train to the end, and return the rows of the log without what the clock says."""
    assert start(folder, command(folder, out, **changes)).wait() == 0
    rows = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(RECIPE["max_steps"]))
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


def agree(rows: list[dict], others: list[dict], tolerance: float) -> None:
    """Compare two runs up to rounding."""
    for row, other in zip(rows, others, strict=True):
        assert row["lr"] == other["lr"]
        assert row["loss"] == pytest.approx(other["loss"], abs=tolerance)
        assert row["grad_norm"] == pytest.approx(other["grad_norm"], rel=1e-3)
        assert ("val_loss" in row) == ("val_loss" in other)
        if "val_loss" in row:
            assert row["val_loss"] == pytest.approx(other["val_loss"], abs=tolerance)
            assert row.get("hellaswag") == other.get("hellaswag")


def load(name: str) -> ModuleType:
    """Return a file as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_losses_are_those_of_the_library_on_its_windows(folder, monkeypatch):
    file = load("train_gpt2")
    config = TrainConfig(
        run_dir=str(folder / "run"),
        train_data=str(folder / "gpt2"),
        hellaswag=str(folder / "hellaswag.jsonl"),
        init_from=str(folder / "start"),
        device="cpu",
        precision="fp32",
        **RECIPE,
    )
    theirs = [row | {"loss": row["train_loss"]} for row in train(config).metrics]
    mine = file.Config(data=str(folder / "gpt2"), bf16=False, compile=False, **RECIPE)
    model = file.GPT(mine)
    file.load_weights(model, load_file(folder / "start" / hugging_face.WEIGHTS))
    tokens, held_out = (file.Tokens(mine.data, split, mine) for split in ("train", "val"))
    count = mine.batch_tokens // mine.block_size

    def batches(step: int):
        starts = window_starts(step * count, count, len(tokens), mine.block_size, mine.seed)
        for first in range(0, count, mine.micro_batch_size):
            some = starts[first : first + mine.micro_batch_size].tolist()
            yield file.windows(tokens, some, mine.block_size)

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(folder / "cache"))
    encode = file.open_tokenizer(mine.data).encode_ordinary
    examples = file.read_examples(config.hellaswag, encode)
    fp32, optimizer = contextlib.nullcontext(), file.make_optimizer(model, mine)
    rows = []
    for row in file.train(model, optimizer, batches, held_out, mine, fp32):
        if "val_loss" in row:
            row["hellaswag"] = file.hellaswag(model, examples, fp32)
        rows.append(row)
    agree(rows, theirs, 2e-6)


@pytest.fixture(scope="module")
def straight(folder) -> tuple[Path, list[dict]]:
    """A run that isn't interrupted, and its rows."""
    out = folder / "straight"
    return out, finish(folder, out)


def test_one_process_goes_on_for_two_with_several_buckets(folder, straight, tmp_path):
    words = command(folder, tmp_path, *TORCHRUN, forked.__file__, CLIP, "5")
    copy = (ROOT / FILE).read_text().replace("size: int = 6_250_000", "size: int = 20_000")
    (tmp_path / FILE).write_text(copy)
    words[words.index(FILE)] = str(tmp_path / FILE)
    assert copy != (ROOT / FILE).read_text()
    assert start(folder, words).wait() != 0
    agree(finish(folder, tmp_path, micro_batch_size=4), straight[1], 2e-5)


def test_killed_again_and_again_it_ends_the_same(folder, straight, tmp_path):
    killed(folder, tmp_path, CLIP, 1)
    assert not (tmp_path / "checkpoint.pt").exists()
    killed(folder, tmp_path, "os.fsync", 0)  # while it saves for the first time
    assert not (tmp_path / "checkpoint.pt").exists()
    killed(folder, tmp_path, CLIP, 5)
    killed(folder, tmp_path, "os.replace", 0)  # when the new weights have their name
    assert (tmp_path / "checkpoint.pt").exists()
    out, rows = straight
    assert finish(folder, tmp_path) == rows
    ours, theirs = (load_file(run / "model.safetensors") for run in (tmp_path, out))
    assert all(torch.equal(ours[name], value) for name, value in theirs.items())


def solve(folder: Path) -> None:
    """Copy the notebooks with each part's solution in its stub cell, as a learner would."""
    shutil.copytree(ROOT / "notebooks", folder, dirs_exist_ok=True)
    for path in folder.rglob("*.ipynb"):
        notebook = json.loads(path.read_text())
        for cell in notebook["cells"]:
            marks = cell["metadata"].get("cs336", {})
            if {"exercise", "part"} <= marks.keys():
                code = assemble.solution(notebook["cells"], marks["exercise"])
                cell["source"] = [code, "\n\n", cell["source"][-1]]
        path.write_text(json.dumps(notebook))


def test_a_learner_who_has_written_every_part_gets_the_same_file(tmp_path):
    solve(tmp_path)
    found = assemble.write(tmp_path / FILE, tmp_path)
    others = {part.name: part.missing for part in found if not (part.given or part.is_mine)}
    assert not others
    assert (tmp_path / FILE).read_text() == (ROOT / FILE).read_text()


def test_the_file_that_ships_is_assembled_from_the_solutions():
    text = assemble.text(assemble.parts(ROOT / "notebooks"))
    assert (ROOT / FILE).read_text() == text, AGAIN
