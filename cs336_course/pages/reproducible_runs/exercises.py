"""Exercise of the page on reproducible runs: a checkpoint that survives a power cut."""

import copy
import os
import pickle
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise
from cs336_course.engine.records import Record, plain
from cs336_course.pages.reproducible_runs.saving import Saving, read_files, write_files

NOTEBOOK = "side_trips/reproducible_runs"

FIRST, SECOND, LAST = 5, 10, 14  # steps that are saved, and the end of the run


def one_run() -> Iterator[Case]:
    """Yield the one case of all runs together."""
    yield Case()


def fresh(seed: int) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Return a small model with dropout, and its optimizer."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = nn.Sequential(nn.Embedding(7, 4), nn.Dropout(0.2), nn.Linear(4, 7))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def steps(model: nn.Module, optimizer: torch.optim.Optimizer, first: int, last: int) -> list[float]:
    """Train from one step to another, and return the losses. The batch depends on the step."""
    losses = []
    with torch.random.fork_rng(devices=[]):
        for step in range(first, last):
            torch.manual_seed(step)
            optimizer.param_groups[0]["lr"] = 0.1 / (1 + step)
            x, y = torch.randint(7, (2, 16))
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    return losses


def tensors_of(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[Tensor, Tensor]:
    """Return copies of all weights, and of all of the optimizer's state, as vectors."""
    states = optimizer.state.values()
    memory = [torch.as_tensor(x).float().flatten() for s in states for x in s.values()]
    weights = [p.detach().flatten() for p in model.parameters()]
    return torch.cat(weights), torch.cat(memory) if memory else torch.zeros(0)


def is_readable(path: Path) -> bool:
    """Return whether a file of torch.save or pickle can be loaded with `weights_only=True`."""
    is_zip = zipfile.is_zipfile(path)
    is_torch = is_zip and any("data.pkl" in name for name in zipfile.ZipFile(path).namelist())
    if is_torch or path.suffix in (".pt", ".pth") or path.read_bytes()[:1] == b"\x80":
        try:
            torch.load(path, weights_only=True)
        except (pickle.UnpicklingError, RuntimeError, EOFError):
            return False
    return True


def survives(load: Callable[..., Any], folder: Path, saved: dict[int, Tensor]) -> bool:
    """Return whether one of the saved steps can be loaded from a folder, whole."""
    model, optimizer = fresh(seed=3)
    try:
        step = load(folder / "checkpoint.pt", model, optimizer)
    except Exception:  # whatever the learner's code raises
        return False
    return step in saved and torch.equal(tensors_of(model, optimizer)[0], saved[step])


def see_checkpoint(answer: Any, case: Case) -> Record:
    """Observe two saves, a resumed run, and what each moment of a power cut leaves."""
    save, load = answer
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "run"
        folder.mkdir()
        path, run = folder / "checkpoint.pt", fresh(seed=0)
        try:
            record: Record = {"begins": plain(load(path, *fresh(seed=2)))}
        except FileNotFoundError:
            return {"begins": "an error"}
        steps(*run, 0, FIRST)
        save(path, *run, FIRST)
        saved = {FIRST: tensors_of(*run)[0]}
        record["saved"] = bool(read_files(folder))
        steps(*run, FIRST, SECOND)
        before = tensors_of(*run)
        saving = Saving(folder)
        with saving.watching(getattr(save, "__globals__", {})):
            save(path, *run, SECOND)
        saved[SECOND] = before[0]
        files = [file for file in folder.rglob("*") if file.is_file()]
        record["readable"] = all(map(is_readable, files))
        resumed = fresh(seed=1)
        record["step"] = plain(load(path, *resumed))
        weights, memory = tensors_of(*resumed)
        record["weights"] = torch.equal(weights, saved[SECOND])
        record["memory"] = torch.equal(memory, before[1])
        losses = steps(*resumed, SECOND, LAST)
        record["losses"] = losses == steps(*copy.deepcopy(run), SECOND, LAST)
        record |= {"torn": True, "lost": True, "overtaken": True}
        for number, (moment, left) in enumerate(saving.after_power_cut()):
            write_files(Path(name) / f"cut{number}", left)
            record[moment] &= survives(load, Path(name) / f"cut{number}", saved)
    return record


checkpoint = Exercise(
    NOTEBOOK,
    "checkpoint",
    one_run,
    observe=see_checkpoint,
    answers=("save", "load"),
    is_part=True,
    given={"os": os, "Path": Path},
    smaller="You stop after step 9, and another process makes step 10. Which numbers does it need "
    "to make exactly the same update?",
    says={
        "begins": "where there is no checkpoint, load must return 0.",
        "saved": "save leaves no file in the folder of `path`.",
        "readable": "a file doesn't load with weights_only=True. Save only tensors, numbers, "
        "strings, lists and dicts.",
        "step": "load must return the step that save was given.",
        "weights": "the weights after load aren't those of the checkpoint. Reading a file changes "
        "no model.",
        "memory": "the weights are right, but the optimizer's state isn't that of the checkpoint.",
        "losses": "the weights and the optimizer's state are right, but the resumed run goes "
        "another way.",
        "torn": "the power was cut while a file was being written, and load finds no whole "
        "checkpoint. Save under another name, then os.replace it.",
        "lost": "the power was cut between two of your calls, and load finds no whole checkpoint. "
        "Let the old one stay until the new one has its name.",
        "overtaken": "the power was cut after a file was renamed, and before its bytes were on the "
        "disk. Flush the file and os.fsync it, and rename it only then.",
    },
    wrong={},
)
