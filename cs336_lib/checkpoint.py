"""Checkpoints that survive a kill: whole or absent, checked when read, and never a pickle."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cs336_lib.config import GPTConfig, require
from cs336_lib.distributed import World
from cs336_lib.files import sha256, sync
from cs336_lib.model import GPT
from cs336_lib.parallel import gathered, spread_like
from cs336_lib.tokenizer import DATA, Tokenizer, load_tokenizer

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"


def model_tensors(model: GPT) -> dict[str, Tensor]:
    """The weights by name; the tied output matrix is stored once, as wte."""
    state = model.state_dict()
    del state["lm_head.weight"]
    return state


def optimizer_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of the optimizer's state, named PARAMETER/ENTRY."""
    return {
        f"{name}/{entry}": value
        for name, parameter in model.named_parameters()
        for entry, value in optimizer.state[parameter].items()
    }


def load_optimizer_tensors(
    model: GPT, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Give the optimizer the state that `optimizer_tensors` took from it."""
    by_name: dict[str, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        name, entry = key.rsplit("/", 1)
        by_name.setdefault(name, {})[entry] = value
    names = {parameter: name for name, parameter in model.named_parameters()}
    for parameter, name in names.items():
        for entry, value in by_name[name].items():
            if value.shape == parameter.shape:
                by_name[name][entry] = spread_like(value, parameter)
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
    """
    final = folder / f"step_{state['step']:08d}"
    is_main = world is None or world.is_main
    weights = whole(model_tensors(model), keep=is_main)
    moments = whole(optimizer_tensors(model, optimizer), keep=is_main)
    if not is_main:
        return final
    temporary = folder / f".tmp-{final.name}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(weights, temporary / MODEL)
    save_file(moments, temporary / OPTIMIZER)
    (temporary / STATE).write_text(json.dumps(state, indent=1) + "\n")
    for name in (MODEL, OPTIMIZER):  # which safetensors makes readable for their owner only
        shutil.copymode(temporary / STATE, temporary / name)
    files = {name: sha256(temporary / name) for name in (MODEL, OPTIMIZER, STATE)}
    (temporary / MANIFEST).write_text(json.dumps(files, indent=1) + "\n")
    for name in (*files, MANIFEST, "."):
        sync(temporary / name)
    remove(final)  # a damaged one of the same step, after a resume from the one before
    os.rename(temporary, final)
    sync(folder)
    return final


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


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint, in a phrase; None where every checksum agrees."""
    try:
        files = json.loads((checkpoint / MANIFEST).read_text())
        # One that ships has no optimizer state: twice the weights' size, and nobody resumes it.
        for name in (MODEL, OPTIMIZER, STATE) if OPTIMIZER in files else (MODEL, STATE):
            if sha256(checkpoint / name) != files[name]:
                return f"{name} has another checksum than when it was written"
    except FileNotFoundError as error:
        return f"{Path(error.filename).name} is missing"
    except (OSError, ValueError, KeyError, TypeError):
        return f"{MANIFEST} cannot be read"
    return None


def checkpoints(folder: Path) -> list[Path]:
    """All checkpoints in a run's checkpoint folder, oldest first."""
    return sorted(folder.glob("step_*"))


def newest_good(folder: Path) -> Path | None:
    """The newest undamaged checkpoint, or None; damaged ones are named on stderr."""
    for checkpoint in reversed(checkpoints(folder)):
        wrong = damage(checkpoint)
        if wrong is None:
            return checkpoint
        print(f"{checkpoint}: {wrong}; looking for an older one", file=sys.stderr)
    return None


def read_state(checkpoint: Path) -> dict[str, Any]:
    """The JSON part of a checkpoint: step, validation loss, the model's shape."""
    return json.loads((checkpoint / STATE).read_text())


def prune(folder: Path, keep: int) -> None:
    """Delete all but the newest `keep` checkpoints and the one with the lowest validation loss."""
    everything = checkpoints(folder)
    losses = {c: read_state(c).get("val_loss") for c in everything}
    measured = [c for c in everything if losses[c] is not None]
    best = {min(measured, key=lambda c: losses[c])} if measured else set()
    for checkpoint in everything[:-keep]:
        if checkpoint not in best:
            remove(checkpoint)
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def restore(checkpoint: Path, model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load weights and optimizer state into place; return the checkpoint's state.

    Raises:
        ValueError: it holds another model, or no optimizer state.
    """
    require(
        (checkpoint / OPTIMIZER).exists(),
        f"{checkpoint}: holds weights only; start a run of its own from them with --init-from",
    )
    load_weights(checkpoint / MODEL, model)
    load_optimizer_tensors(model, optimizer, load_file(checkpoint / OPTIMIZER))
    return read_state(checkpoint)


def load_weights(path: Path, model: GPT) -> None:
    """Read a model.safetensors into `model`.

    Raises:
        ValueError: it is not safetensors, or holds another model.
    """
    try:
        tensors = load_file(path)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{path}: cannot be read as safetensors ({error})") from None
    expected = model_tensors(model)
    for name, parameter in expected.items():
        require(name in tensors, f"{path}: holds no {name}")
        found, wanted = tuple(tensors[name].shape), tuple(parameter.shape)
        require(found == wanted, f"{path}: {name} has shape {found}, {wanted} expected")
    for name in tensors:
        require(name in expected, f"{path}: holds {name}, which this model has not")
    for name, parameter in expected.items():
        tensors[name] = spread_like(tensors[name], parameter)
    model.load_state_dict(tensors, strict=False)  # strict would ask for the tied matrix twice


def load_model(run_dir: Path, device: torch.device) -> GPT:
    """The model of a run's newest good checkpoint, ready for evaluation.

    Raises:
        ValueError: there is no run, or none of its checkpoints is whole.
    """
    require(run_dir.is_dir(), f"{run_dir}: no such run folder")
    checkpoint = newest_good(run_dir / "checkpoints")
    if checkpoint is None:
        raise ValueError(f"{run_dir}: holds no good checkpoint; train one with `cs336 train`")
    model = GPT(GPTConfig(**read_state(checkpoint)["model"]))
    load_weights(checkpoint / MODEL, model)
    return model.to(device).eval()


SHIPPED_RUN = DATA / "shakespeare_gpt"


def load_shipped(device: torch.device | None = None) -> tuple[GPT, Tokenizer]:
    """The small GPT that ships, trained on the plays letter by letter (see data/README.md)."""
    model = load_model(SHIPPED_RUN, device or torch.device("cpu"))
    return model, load_tokenizer(SHIPPED_RUN / "tokenizer.json")
