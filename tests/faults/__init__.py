"""Faults that happen to what we write: a kill, a full disk, damage, and files from strangers.

A `Thing` is something that the package writes and reads again. Each fault is tried on each thing.
"""

import contextlib
import dataclasses
import errno
import json
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig, TrainConfig, from_json
from cs336_lib.data import documents
from cs336_lib.data import prepare as preparing
from cs336_lib.data.documents import Corpus
from cs336_lib.data.loader import open_data
from cs336_lib.data.tokenizer import CharTokenizer, load_tokenizer, save_tokenizer
from cs336_lib.io import inside, read_json, sha256, write_atomic
from cs336_lib.model import GPT
from cs336_lib.optim import make_optimizer
from cs336_lib.training import checkpoint
from cs336_lib.training.loop import train
from cs336_lib.training.metrics import read_metrics

LETTERS = "".join(map(chr, range(48, 98)))
SHAPE = GPTConfig(block_size=8, vocab_size=50, n_layer=1, n_head=1, n_embd=8)


@dataclass(frozen=True)
class Thing:
    """What the package writes.

    Attributes:
        write: Function that writes version 1 or 2 into a folder. To repeat it after a fault must
            give the same as if there had been none.
        read: Function that returns what a user gets from the folder.
        is_whole: Whether a fault leaves either the version before or the new one, nothing else.
        is_sealed: Whether any changed byte is noticed.
        every: Only each so manieth write is killed, where there are many.
    """

    write: Callable[[Path, int], object]
    read: Callable[[Path], object]
    is_whole: bool = True
    is_sealed: bool = False
    every: int = 1


def model_of(version: int) -> tuple[GPT, torch.optim.Optimizer]:
    """Return a model and its optimizer after one step."""
    model = GPT(SHAPE, seed=version)
    optimizer = make_optimizer(model, TrainConfig())
    idx = torch.arange(8)[None]
    model(idx, idx).backward()
    optimizer.step()
    return model, optimizer


def write_checkpoint(folder: Path, version: int) -> None:
    """Save a checkpoint after the first ones, and prune."""
    model, optimizer = model_of(version)
    state = {"step": version, "val_loss": 1.0, "model": dataclasses.asdict(SHAPE)}
    checkpoint.save(folder, model, optimizer, state)
    checkpoint.prune(folder, keep=2)


def read_checkpoint(folder: Path) -> object:
    """Return the newest valid step, its weights and its moments."""
    newest = checkpoint.newest_valid(folder)
    if newest is None:
        raise FileNotFoundError(folder)
    model = GPT(SHAPE)
    optimizer = make_optimizer(model, TrainConfig())
    step = checkpoint.restore(newest, model, optimizer)["step"]
    tensors = checkpoint.model_tensors(model) | checkpoint.optimizer_tensors(model, optimizer)
    return step, {name: tensor.tolist() for name, tensor in tensors.items()}


def write_prepared(folder: Path, version: int, tokenizer: str = "char") -> None:
    """Prepare a corpus of many small documents, and save the progress after each piece."""
    source = folder.with_name("rows.jsonl")
    if not source.exists():
        rows = [{"text": f"Document {i}: {'so it goes ' * (i % 7)}on.\n"} for i in range(12)]
        source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "PIECE", 64)
        patch.setattr(preparing, "BATCH_CHARACTERS", 150)
        patch.setattr(preparing, "SAVE_SECONDS", 0.0)
        out = folder / f"out{version}"
        if not out.exists():  # a kill after the very last step leaves it
            preparing.prepare(Corpus((source,)), out, tokenizer, workers=1, shard_tokens=200)


def read_prepared(folder: Path) -> object:
    """Return the tokens and the tokenizer of each folder that was prepared."""
    found = []
    for out in sorted(folder.glob("out*")):
        train_part, val_part, tokenizer = open_data(str(out), "", "char")
        parts = [part.read(0, len(part)).tolist() for part in (train_part, val_part)]
        found.append((out.name, parts, tokenizer.alphabet))
    return found


def write_exported(folder: Path, version: int) -> None:
    """Export a model in Hugging Face's layout."""
    out = folder / f"out{version}"
    if not out.exists():
        hugging_face.export(model_of(version)[0], out, CharTokenizer(LETTERS))


def read_exported(folder: Path) -> object:
    """Return the weights of each exported model."""
    models = {out.name: hugging_face.load(out) for out in sorted(folder.glob("out*"))}
    return {name: weights_of(model) for name, model in models.items()}


def weights_of(model: GPT) -> list[list[float]]:
    """Return the weights of a model as lists."""
    return [parameter.flatten().tolist() for parameter in model.parameters()]


def config_of(folder: Path) -> TrainConfig:
    """Return the config of a run of six steps on a prepared text."""
    data = folder.with_name("data")
    if not data.exists():
        text = folder.with_name("text.txt")
        text.write_text("To be, or not to be, that is the question:\n" * 100)
        preparing.prepare(text, data, "char")
    return TrainConfig(
        run_dir=str(folder / "run"),
        train_data=str(data),
        tokenizer="char",
        resume=True,
        n_layer=1,
        n_head=1,
        n_embd=8,
        block_size=8,
        dropout=0.1,
        max_steps=6,
        batch_tokens=4 * 8,
        micro_batch_size=4,
        warmup_steps=1,
        eval_every=3,
        eval_tokens=32,
        checkpoint_every=2,
        device="cpu",
    )


def write_run(folder: Path, version: int) -> None:
    """Start or continue a run. Version 1 has no run."""
    if version == 2:
        train(config_of(folder))


def read_run(folder: Path) -> object:
    """Return the weights of a run, its tokenizer, its config, and what its steps measured."""
    if not (folder / "run").exists():
        return None
    model, tokenizer = checkpoint.load_run(folder / "run", torch.device("cpu"))
    path = inside(folder / "run", "config.json")
    config = from_json(TrainConfig, read_json(path), path)
    rows = read_metrics(folder / "run" / "metrics.jsonl")
    names = ("step", "train_loss", "grad_norm", "val_loss")
    return (
        weights_of(model),
        tokenizer.alphabet,
        config.seed,
        [[row.get(name) for name in names] for row in rows],
    )


THINGS = {
    "file": Thing(
        lambda folder, version: write_atomic(folder / "a.json", json.dumps({"n": version})),
        lambda folder: read_json(inside(folder, "a.json")),
    ),
    "tokenizer": Thing(
        lambda folder, version: save_tokenizer(
            CharTokenizer("abc\u00e9\u4e2d" + str(version)), folder / "tokenizer.json"
        ),
        lambda folder: load_tokenizer(folder / "tokenizer.json").alphabet,
        is_sealed=True,
    ),
    "checkpoint": Thing(write_checkpoint, read_checkpoint, is_sealed=True),
    "prepared": Thing(write_prepared, read_prepared, every=2),
    "exported": Thing(write_exported, read_exported),
    "run": Thing(write_run, read_run, is_whole=False, every=5),
}


class Killed(BaseException):
    """Stands in for a kill: no `except` of ours sees it."""


WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.chmod"}
FORBIDDEN = {"pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn"}


class Watch:
    """What an audit hook sees: each write below a folder, and code that a file makes run.

    Attributes:
        folder: Folder whose writes count, or `None` while nobody watches.
        at: Number of the write at which the fault happens.
        fault: The exception to raise there.
        writes: Writes until now.
        executed: Events that no file may cause.
    """

    folder: str | None = None
    at = -1
    fault: Callable[[], BaseException] = Killed
    writes = 0
    executed: list[str]

    def see(self, event: str, arguments: tuple) -> None:
        """Count an event, and raise the fault when its time has come."""
        if self.folder is None:
            return
        if event in FORBIDDEN:
            self.executed.append(event)
        is_write = event in CHANGES or (event == "open" and bool(arguments[2] & WRITES))
        path = str(arguments[0]) if is_write else ""
        # The system releases the lock of a process that it kills.
        if not path.startswith(self.folder) or path.endswith(".lock"):
            return
        self.writes += 1
        is_dead = self.fault is Killed and self.writes > self.at >= 0
        if self.writes - 1 == self.at or is_dead:
            raise self.fault()


watch = Watch()
sys.addaudithook(watch.see)  # for good, so there is one


def disk_is_full() -> OSError:
    """Return the error of a full disk."""
    return OSError(errno.ENOSPC, "No space left on device")


@contextlib.contextmanager
def watching(
    folder: Path, at: int = -1, fault: Callable[[], BaseException] = Killed
) -> Iterator[Watch]:
    """Count the writes below a folder, and raise a fault at one of them.

    A killed process writes nothing more. A disk that is full has room again for the next write.
    """
    watch.at, watch.fault, watch.writes, watch.executed = at, fault, 0, []
    watch.folder = str(folder)
    try:
        yield watch
    finally:
        watch.folder = None


class Payload:
    """What runs a command when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.marker}",)


def saved_by_torch(path: Path, marker: Path) -> None:
    """Write a payload as torch saves it."""
    torch.save({"model": Payload(marker)}, path)


def saved_by_numpy(path: Path, marker: Path) -> None:
    """Write a payload inside numpy's format."""
    with open(path, "wb") as file:
        np.save(file, np.array([Payload(marker)], dtype=object), allow_pickle=True)


def leads_out(path: Path, marker: Path) -> None:
    """Put a link to a copy outside the folder."""
    outside = marker.with_name(f"outside-{path.name}")
    path.rename(outside)
    path.symlink_to(outside)


def pipe(path: Path, marker: Path) -> None:
    """Put a pipe that nobody writes to."""
    path.unlink()
    os.mkfifo(path)


def folder_instead(path: Path, marker: Path) -> None:
    """Put a folder in place of the file."""
    path.unlink()
    path.mkdir()


def holes(path: Path, marker: Path) -> None:
    """Make it so large that two copies don't fit, with nothing of it on the disk."""
    path.write_bytes(b"{")
    os.truncate(path, 300 * 2**20)


# What a stranger may put in place of each file.
HOSTILE: dict[str, Callable[[Path, Path], object]] = {
    "a pickle": lambda path, marker: path.write_bytes(pickle.dumps(Payload(marker))),
    "a pickle of torch": saved_by_torch,
    "a pickle of numpy": saved_by_numpy,
    "a link that leads out": leads_out,
    "a pipe": pipe,
    "a folder": folder_instead,
    "holes": holes,
    "nothing": lambda path, marker: path.write_bytes(b""),
    "a list": lambda path, marker: path.write_bytes(b"[1]"),
    "NUL bytes": lambda path, marker: path.write_bytes(b"\0" * 100),
    "deep JSON": lambda path, marker: path.write_bytes(b'{"a":' * 100_000),
    "a long number": lambda path, marker: path.write_bytes(b'{"n": 1' + b"0" * 5000 + b"}"),
}


def seal(folder: Path) -> None:
    """Make the manifests of checkpoints fit their files, as whoever forges one would."""
    for manifest in folder.rglob(checkpoint.MANIFEST):
        if manifest.is_file() and not manifest.is_symlink():
            there = [manifest.with_name(name) for name in checkpoint.EVERYTHING]
            if all(path.is_file() and path.stat().st_size < 2**30 for path in there):
                files = {path.name: sha256(path) for path in there}
                manifest.write_text(checkpoint.to_json(files))


@contextlib.contextmanager
def little_memory(megabytes: int = 400) -> Iterator[None]:
    """Allow at most so much new memory within this block."""
    import resource  # not on Windows

    limits = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux, where the limit is kept, too
        have = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + megabytes * 2**20, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
