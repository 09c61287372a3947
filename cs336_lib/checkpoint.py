"""Checkpoints that survive a kill: whole or absent, checked when read, and never a pickle."""

import dataclasses
import json
import os
import re
import reprlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cs336_lib.config import GPTConfig, from_json, require
from cs336_lib.data.corpus import DATA
from cs336_lib.data.tokenizer import Tokenizer, load_tokenizer
from cs336_lib.distributed import World, gathered, sharded_like
from cs336_lib.hf import check_finite, check_size
from cs336_lib.io import Log, inside, read_json, sha256, sync, writing
from cs336_lib.model import GPT

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
EVERYTHING = (MODEL, OPTIMIZER, STATE)

# Safetensors holds only tensors, so a Python number is saved as one of these types.
NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float64}
NUMBER = "()"  # ends the name of a tensor that was a Python number


def model_tensors(model: GPT) -> dict[str, Tensor]:
    """The weights by name; the tied output matrix is stored once, as wte."""
    state = model.state_dict()
    del state["lm_head.weight"]
    return state


def optimizer_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer's state as tensors, named PARAMETER/ENTRY.

    A plain number, such as the count of steps in the course's AdamW, becomes a tensor without
    dimensions that is named PARAMETER/ENTRY().

    Raises:
        ValueError: an entry is neither a tensor nor a number.
    """
    tensors = {}
    for name, parameter in model.named_parameters():
        for entry, value in optimizer.state[parameter].items():
            if torch.is_tensor(value):
                tensors[f"{name}/{entry}"] = value
                continue
            require(
                type(value) in NUMBERS,
                f"{type(optimizer).__name__}'s state of {name} has the entry {entry!r}, a "
                f"{type(value).__name__}; tensors and numbers can be saved",
            )
            number = torch.tensor(value, dtype=NUMBERS[type(value)])
            tensors[f"{name}/{entry}{NUMBER}"] = number
    return tensors


def load_optimizer_tensors(
    model: GPT, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Give the optimizer the state that `optimizer_tensors` took from it.

    Raises:
        ValueError: it is the state for another model.
    """
    by_name: dict[str, dict[str, Any]] = {}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        by_name.setdefault(name, {})[entry] = value
    names = {parameter: name for name, parameter in model.named_parameters()}
    if not tensors:  # SGD has no state
        return
    fits = by_name.keys() == set(names.values()) and all(
        value.shape in ((), parameter.shape)
        for parameter, name in names.items()
        for value in by_name[name].values()
    )
    require(fits, f"{OPTIMIZER} holds the state of another model's optimizer")
    for parameter, name in names.items():
        for entry, value in list(by_name[name].items()):
            if entry.endswith(NUMBER) and value.dim() == 0:
                by_name[name][entry.removesuffix(NUMBER)] = by_name[name].pop(entry).item()
            elif value.shape == parameter.shape:
                by_name[name][entry] = sharded_like(value, parameter)
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]
    state = optimizer.state_dict()
    state["state"] = {index: by_name[name] for index, name in enumerate(ordered)}
    optimizer.load_state_dict(state)  # which also puts each tensor on its device


def save(
    folder: Path,
    model: GPT,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    world: World | None = None,
) -> Path:
    """Write checkpoint number state["step"] under `folder`, whole or not at all.

    All files go to a temporary folder, are synced to disk, listed with their checksums, and only
    then does the folder get its name. All processes take part, because each may hold only a shard
    of a tensor; the main one writes, and what it writes is the same for any number of them.

    Raises:
        OSError: it cannot be written, the disk being full, say; what was there before is whole.
    """
    final = folder / f"step_{state['step']:08d}"
    is_main = world is None or world.is_main
    weights = whole(model_tensors(model), keep=is_main)
    moments = whole(optimizer_tensors(model, optimizer), keep=is_main)
    if not is_main:
        return final
    remove_leftovers(folder)
    temporary = folder / f".tmp-{final.name}"
    try:
        with writing(final):
            temporary.mkdir(parents=True)
            save_file(weights, temporary / MODEL)
            save_file(moments, temporary / OPTIMIZER)
            (temporary / STATE).write_text(to_json(state))
            for name in (MODEL, OPTIMIZER):  # which safetensors makes readable for their owner only
                shutil.copymode(temporary / STATE, temporary / name)
            files = {name: sha256(temporary / name) for name in EVERYTHING}
            (temporary / MANIFEST).write_text(to_json(files))
            for name in (*files, MANIFEST, "."):
                sync(temporary / name)
            remove(final)
            os.rename(temporary, final)
            sync(folder)
    except OSError:
        shutil.rmtree(temporary, ignore_errors=True)  # half a checkpoint need not fill the disk
        raise
    return final


def to_json(content: dict[str, Any]) -> str:
    """How we write JSON: to the letter, so that a change to a manifest can be seen."""
    return json.dumps(content, indent=1) + "\n"


def whole(tensors: dict[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather each tensor from its shards, one after the other; only who keeps them has them all."""
    found = ((name, gathered(tensor)) for name, tensor in tensors.items())
    return {name: tensor.cpu().contiguous() for name, tensor in found if keep}


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint; killed half-way, it is already nameless."""
    if checkpoint.exists():
        nameless = checkpoint.with_name(f".tmp-old-{checkpoint.name}")
        shutil.rmtree(nameless, ignore_errors=True)
        os.rename(checkpoint, nameless)
        shutil.rmtree(nameless)


def remove_leftovers(folder: Path) -> None:
    """Delete what a kill in the middle of saving or removing has left."""
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def verify(checkpoint: Path, needed: Collection[str] = EVERYTHING) -> str | None:
    """Return what is wrong with a checkpoint, in a phrase, or None if nothing is.

    Only the files in `needed` are read. The optimizer's is twice as large as the model's, so
    loading a model to sample from it leaves that one out.
    """
    name = MANIFEST
    try:
        manifest = inside(checkpoint, name)
        if not manifest.exists():
            return f"{name} is missing"
        files = read_json(manifest)
        # One that ships has no optimizer state: twice the weights' size, and nobody resumes it.
        complete = files.keys() | {OPTIMIZER} == set(EVERYTHING)
        if not complete or manifest.read_text() != to_json(files):
            return f"{name} is not as it was written"
        for name, checksum in files.items():
            if name in needed and sha256(inside(checkpoint, name)) != checksum:
                return f"{name} has another checksum than when it was written"
        step = read_state(checkpoint)["step"]
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError):
        return f"{name} cannot be read"
    return None if step == step_of(checkpoint) else f"{STATE} is that of step {step}"


def step_of(checkpoint: Path) -> int:
    """The number in a checkpoint's name: how many steps had been done."""
    return int(checkpoint.name.removeprefix("step_"))


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in a run's checkpoint folder, oldest first."""
    found = (path for path in folder.glob("step_*") if re.fullmatch(r"step_\d{8,}", path.name))
    return sorted(found, key=step_of)


def newest_valid(folder: Path, needed: Collection[str] = EVERYTHING) -> Path | None:
    """Return the newest checkpoint whose `needed` files are undamaged, or None.

    Damaged checkpoints are named on stderr.
    """
    for checkpoint in reversed(checkpoints(folder)):
        wrong = verify(checkpoint, needed)
        if wrong is None:
            return checkpoint
        print(f"{checkpoint}: {wrong}; looking for an older one", file=Log())
    return None


def resume_point(folder: Path, device: torch.device, world: World) -> Path | None:
    """The checkpoint that all processes go on from: the newest good one, None where there is none.

    The main process looks, the others are told.

    Raises:
        ValueError: there are checkpoints, but no good one; starting anew would overwrite the run.
    """
    step = 0
    if world.is_main and checkpoints(folder):
        good = newest_valid(folder)
        step = -1 if good is None else step_of(good)
    step = int(world.sum(step, device=device)[0])  # the others add zero
    require(
        step >= 0,
        f"{folder}: holds no good checkpoint, only damaged ones; bring one back, or begin anew "
        f"with another --run-dir",
    )
    return folder / f"step_{step:08d}" if step else None


def quarantine_newer(good: Path) -> None:
    """Rename what is newer than the newest good checkpoint, and so damaged.

    It neither counts among those to keep then, nor is in the way of the run that gets there again.
    """
    for damaged in checkpoints(good.parent):
        if step_of(damaged) > step_of(good):
            aside = damaged.with_name(f"damaged-{damaged.name}")
            shutil.rmtree(aside, ignore_errors=True)
            os.rename(damaged, aside)


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint: step, validation loss, the model's shape.

    Raises:
        ValueError: it is something else.
    """
    path = inside(checkpoint, STATE)
    state = read_json(path)
    step, loss = state.get("step"), state.get("val_loss")
    require(type(step) is int and 0 <= step < 2**63, f"{path}: step is no number of steps")
    require(loss is None or type(loss) in (int, float), f"{path}: val_loss is no number")
    return state


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the one with the lowest validation loss."""
    everything = checkpoints(folder)
    losses = {c: loss for c in everything if (loss := val_loss(c)) is not None}
    best = min(losses, key=losses.__getitem__, default=None)
    for checkpoint in everything[:-keep]:
        if checkpoint != best:
            remove(checkpoint)
    remove_leftovers(folder)


def val_loss(checkpoint: Path) -> float | None:
    """The validation loss measured with a checkpoint; None if none was, or it cannot be read."""
    try:
        return read_state(checkpoint).get("val_loss")
    except (OSError, ValueError):
        return None


def restore(checkpoint: Path, model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load weights and optimizer state into place; return the checkpoint's state.

    Raises:
        ValueError: it holds another model, or no optimizer state.
    """
    require(
        (checkpoint / OPTIMIZER).exists(),
        f"{checkpoint}: holds weights only; start a run of its own from them with --init-from",
    )
    require_same_model(checkpoint, model.config)
    load_weights(checkpoint / MODEL, model)
    load_optimizer_tensors(model, optimizer, read_tensors(checkpoint / OPTIMIZER))
    return read_state(checkpoint)


def require_same_model(checkpoint: Path, config: GPTConfig) -> None:
    """Refuse a checkpoint of another shape: padding can hide that its vocabulary is another.

    Raises:
        ValueError: it is.
    """
    saved, path = read_state(checkpoint).get("model", {}), checkpoint / STATE
    require(isinstance(saved, dict), f"{path}: model is no shape of a model")
    other = [
        f"{name} {reprlib.repr(saved[name])}, {value} expected"
        for name, value in dataclasses.asdict(config).items()
        if name != "dropout" and saved.get(name, value) != value
    ]
    require(not other, f"{path}: another model, with {'; '.join(other)}")


def read_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; anything else is a ValueError."""
    try:
        return load_file(path)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise ValueError(f"{path}: cannot be read as safetensors ({error})") from None


def load_weights(path: Path, model: GPT) -> None:
    """Read a model.safetensors into `model`.

    Raises:
        ValueError: it is not safetensors, or holds another model.
    """
    tensors = read_tensors(path)
    expected = model_tensors(model)
    for name, parameter in expected.items():
        require(name in tensors, f"{path}: holds no {name}")
        found, wanted = tuple(tensors[name].shape), tuple(parameter.shape)
        require(found == wanted, f"{path}: {name} has shape {found}, {wanted} expected")
    for name in tensors:
        require(name in expected, f"{path}: holds {name}, which this model has not")
    for name, parameter in expected.items():
        require(tensors[name].is_floating_point(), f"{path}: {name} is no floating point")
        check_finite(path, name, tensors[name])
        tensors[name] = sharded_like(tensors[name], parameter)
    model.load_state_dict(tensors, strict=False)  # strict would ask for the tied matrix twice


def load_model(run_dir: Path, device: torch.device) -> GPT:
    """The model of a run's newest good checkpoint, ready for evaluation.

    Raises:
        ValueError: there is no run, or none of its checkpoints is whole.
    """
    require(run_dir.is_dir(), f"{run_dir}: no such run folder")
    checkpoint = newest_valid(run_dir / "checkpoints", (MODEL, STATE))
    if checkpoint is None:
        raise ValueError(f"{run_dir}: holds no good checkpoint; train one with `cs336 train`")
    config = from_json(GPTConfig, read_state(checkpoint).get("model"), checkpoint / STATE)
    check_size(config, [checkpoint / MODEL])
    model = GPT(config)
    load_weights(checkpoint / MODEL, model)
    return model.to(device).eval()


SHIPPED_RUN = DATA / "shakespeare_gpt"


def load_shipped(device: torch.device | None = None) -> tuple[GPT, Tokenizer]:
    """The small GPT that ships, trained on the plays letter by letter (see data/README.md)."""
    model = load_model(SHIPPED_RUN, device or torch.device("cpu"))
    return model, load_tokenizer(SHIPPED_RUN / "tokenizer.json")
