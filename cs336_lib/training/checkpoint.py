"""Save, verify, load and delete checkpoints in safetensors and JSON format."""

import dataclasses
import json
import re
import reprlib
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from cs336_lib.config import GPTConfig, UserError, from_json
from cs336_lib.data.corpus import DATA
from cs336_lib.data.tokenizer import Tokenizer, load_tokenizer
from cs336_lib.hugging_face import check_size, check_tensors, read_tensors
from cs336_lib.io import Log, atomic, inside, read_json, sha256
from cs336_lib.model import GPT
from cs336_lib.system.processes import World
from cs336_lib.training.distributed import gathered, sharded_like

MANIFEST = "manifest.json"
MODEL, OPTIMIZER, STATE = "model.safetensors", "optimizer.safetensors", "state.json"
EVERYTHING = (MODEL, OPTIMIZER, STATE)


def model_tensors(model: GPT) -> dict[str, Tensor]:
    """Return the weights by name. The output matrix is omitted, because it is tied to wte."""
    state = model.state_dict()
    del state["lm_head.weight"]
    return state


def optimizer_tensors(model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Return the optimizer state as tensors named PARAMETER/ENTRY."""
    return {
        f"{name}/{entry}": tensor
        for name, parameter in model.named_parameters()
        for entry, tensor in optimizer.state[parameter].items()
    }


def load_optimizer_tensors(
    model: GPT, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]
) -> None:
    """Load optimizer state that was created by `optimizer_tensors`.

    Raises `ValueError` if the names or shapes don't match the parameters of `model`.
    """
    if not tensors:  # SGD has no state
        return
    parameters = dict(model.named_parameters())
    other = UserError(f"{OPTIMIZER} belongs to another model")
    states: dict[str, dict[str, Any]] = {name: {} for name in parameters}
    for key, value in tensors.items():
        name, _, entry = key.rpartition("/")
        if name not in states or value.shape not in ((), parameters[name].shape):
            raise other
        is_step = value.dim() == 0
        states[name][entry] = value if is_step else sharded_like(value, parameters[name])
    if not all(states.values()):
        raise other
    names = {parameter: name for name, parameter in parameters.items()}
    ordered = [names[p] for group in optimizer.param_groups for p in group["params"]]
    loaded = optimizer.state_dict() | {"state": {i: states[name] for i, name in enumerate(ordered)}}
    optimizer.load_state_dict(loaded)  # which also puts each tensor on its device


def save(
    folder: Path,
    model: GPT,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    world: World | None = None,
) -> Path:
    """Write a checkpoint atomically, with a manifest of checksums.

    All ranks must call this function, because each rank may hold only a shard of a tensor. Only
    rank 0 writes files. The number of ranks doesn't affect their content.

    Args:
        folder: Folder for the checkpoints of the run.
        model: The model to save.
        optimizer: The optimizer to save.
        state: The content of state.json, where "step" is the number of finished steps.
        world: The ranks, by default a single process.

    Returns:
        The path of the checkpoint, which is named step_NNNNNNNN.

    Raises:
        OSError: If writing fails. Earlier checkpoints remain intact.
    """
    final = path_of(folder, state["step"])
    is_main = world is None or world.is_main
    weights = unsharded(model_tensors(model), keep=is_main)
    moments = unsharded(optimizer_tensors(model, optimizer), keep=is_main)
    if not is_main:
        return final
    remove_leftovers(folder)  # before we write, because they may fill the disk
    with atomic(final, folder=True) as temporary:
        (temporary / STATE).write_text(to_json(state))
        for name, tensors in ((MODEL, weights), (OPTIMIZER, moments)):
            save_file(tensors, temporary / name)
            # safetensors creates a file that only its owner can read.
            shutil.copymode(temporary / STATE, temporary / name)
        files = {name: sha256(temporary / name) for name in EVERYTHING}
        (temporary / MANIFEST).write_text(to_json(files))
        remove(final)
    return final


def to_json(content: dict[str, Any]) -> str:
    """Format JSON in a canonical form, so that `verify` can detect any change to a manifest."""
    return json.dumps(content, indent=1) + "\n"


def unsharded(tensors: dict[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Gather full tensors from their shards.

    All ranks must call this function. It returns CPU tensors if `keep` is true, and otherwise an
    empty dict.
    """
    full = ((name, gathered(tensor)) for name, tensor in tensors.items())
    return {name: tensor.cpu().contiguous() for name, tensor in full if keep}


def remove(checkpoint: Path) -> None:
    """Delete a checkpoint if it exists.

    The folder is renamed first, so an interrupted deletion can't leave a partial checkpoint.
    """
    if checkpoint.exists():
        shutil.rmtree(set_aside(checkpoint, ".tmp-old"))


def set_aside(checkpoint: Path, prefix: str) -> Path:
    """Rename a checkpoint so that `checkpoints` ignores it, and return the new path."""
    aside = checkpoint.with_name(f"{prefix}-{checkpoint.name}")
    shutil.rmtree(aside, ignore_errors=True)
    return checkpoint.rename(aside)


def verify(checkpoint: Path, files: Collection[str] = EVERYTHING) -> str | None:
    """Compare a checkpoint with its manifest, and return the first problem or `None`.

    Only the checksums of `files` are compared. For sampling, you can omit the optimizer state,
    which is twice as large as the weights.
    """
    name = MANIFEST
    try:
        manifest = inside(checkpoint, name)
        listed = read_json(manifest)
        # The checkpoint that ships has no optimizer state.
        complete = listed.keys() | {OPTIMIZER} == set(EVERYTHING)
        if not complete or manifest.read_text() != to_json(listed):
            return f"{name} is not as it was written"
        for name, checksum in listed.items():
            if name in files and sha256(inside(checkpoint, name)) != checksum:
                return f"{name} has another checksum than when it was written"
        step = read_state(checkpoint)["step"]
    except FileNotFoundError:
        return f"{name} is missing"
    except (OSError, ValueError):
        return f"{name} cannot be read"
    return None if step == step_of(checkpoint) else f"{STATE} is that of step {step}"


def path_of(folder: Path, step: int) -> Path:
    """Return the path of a checkpoint by its number of finished steps."""
    return folder / f"step_{step:08d}"


def step_of(checkpoint: Path) -> int:
    """Return the number of finished steps in the name of a checkpoint."""
    return int(checkpoint.name.removeprefix("step_"))


def checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints in a folder, oldest first."""
    paths = (path for path in folder.glob("step_*") if re.fullmatch(r"step_\d{8,}", path.name))
    return sorted(paths, key=step_of)


def newest_valid(folder: Path, files: Collection[str] = EVERYTHING) -> Path | None:
    """Return the newest valid checkpoint, or `None` if no checkpoint is valid.

    The log reports every checkpoint that `verify` rejects during the search.
    """
    for checkpoint in reversed(checkpoints(folder)):
        problem = verify(checkpoint, files)
        if problem is None:
            return checkpoint
        print(f"{checkpoint}: {problem}; looking for an older one", file=Log())
    return None


def quarantine_newer(valid: Path) -> None:
    """Rename all checkpoints that are newer than `valid`, because they are corrupt.

    The resumed run can then write these steps again, and pruning ignores the renamed checkpoints.
    Temporary folders are deleted, because a finished run doesn't save again, which would do so.
    """
    remove_leftovers(valid.parent)
    for checkpoint in checkpoints(valid.parent):
        if step_of(checkpoint) > step_of(valid):
            set_aside(checkpoint, "corrupt")


def read_state(checkpoint: Path) -> dict[str, Any]:
    """Read the state.json of a checkpoint, with its step, validation loss and model config.

    Raises:
        FileNotFoundError: If the file doesn't exist.
        ValueError: If the file is malformed.
    """
    path = inside(checkpoint, STATE)
    state = read_json(path)
    step, loss = state.get("step"), state.get("val_loss")
    if type(step) is not int or not 0 <= step < 2**63:
        raise UserError(f"{path}: step isn't a number of steps")
    if loss is not None and type(loss) not in (int, float):
        raise UserError(f"{path}: val_loss isn't a number")
    return state


def prune(folder: Path, keep: int, keep_every: int = 0) -> None:
    """Delete old checkpoints.

    The newest `keep` checkpoints and the checkpoint with the lowest validation loss are kept. If
    `keep_every` isn't 0, checkpoints at multiples of `keep_every` steps are kept too.
    """
    saved = checkpoints(folder)
    losses = {path: loss for path in saved if (loss := val_loss(path)) is not None}
    best = min(losses, key=losses.__getitem__, default=None)
    for checkpoint in saved[:-keep]:
        kept_for_good = keep_every > 0 and step_of(checkpoint) % keep_every == 0
        if checkpoint != best and not kept_for_good:
            remove(checkpoint)
    remove_leftovers(folder)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary folders from an interrupted `save` or `remove`."""
    for leftover in folder.glob(".tmp-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def val_loss(checkpoint: Path) -> float | None:
    """Return the validation loss of a checkpoint, or `None` if it can't be read."""
    try:
        return read_state(checkpoint).get("val_loss")
    except (OSError, ValueError):
        return None


def restore(checkpoint: Path, model: GPT, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Load weights and optimizer state in place, and return the content of state.json.

    Raises:
        FileNotFoundError: If the checkpoint has no optimizer state.
        ValueError: If the checkpoint contains a different model.
    """
    if not (checkpoint / OPTIMIZER).exists():
        raise FileNotFoundError(f"{checkpoint}: holds weights only; start from them by --init-from")
    require_same_model(checkpoint, model.config)
    load_weights(checkpoint / MODEL, model)
    load_optimizer_tensors(model, optimizer, read_tensors(checkpoint / OPTIMIZER))
    return read_state(checkpoint)


def require_same_model(checkpoint: Path, config: GPTConfig) -> None:
    """Raise `ValueError` if the model config in a checkpoint differs from `config`.

    Tensor shapes don't always reveal a different vocabulary size, because the vocabulary is padded.
    """
    saved, path = read_state(checkpoint).get("model", {}), checkpoint / STATE
    if not isinstance(saved, dict):
        raise UserError(f"{path}: model isn't a model's config")
    other = [
        f"{name} {reprlib.repr(saved[name])}, {value} expected"
        for name, value in dataclasses.asdict(config).items()
        if name != "dropout" and saved.get(name, value) != value
    ]
    if other:
        raise UserError(f"{path}: another model, with {'; '.join(other)}")


def load_weights(path: Path, model: GPT) -> None:
    """Load a model.safetensors file into `model`.

    Raises `ValueError` if the file isn't safetensors, contains a different model, or contains NaN
    or infinity.
    """
    tensors, expected = read_tensors(path), model_tensors(model)
    check_tensors(path, tensors, expected)
    shards = {name: sharded_like(tensors[name], like) for name, like in expected.items()}
    model.load_state_dict(shards, strict=False)  # strict would require the tied matrix twice


def load_model(run_dir: Path, device: torch.device) -> GPT:
    """Load the model from the newest valid checkpoint of a run, in evaluation mode.

    Raises:
        FileNotFoundError: If the folder doesn't exist or has no valid checkpoint.
        ValueError: If the weights don't match the model config in the checkpoint.
    """
    return load_model_and_state(run_dir, device)[0]


def load_model_and_state(run_dir: Path, device: torch.device) -> tuple[GPT, dict[str, Any]]:
    """Load the model as `load_model` does, and the checkpoint's state.json."""
    if not run_dir.is_dir():
        raise FileNotFoundError(f"{run_dir}: no such run folder; `cs336 train` makes one")
    checkpoint = newest_valid(run_dir / "checkpoints", (MODEL, STATE))
    if checkpoint is None:
        raise FileNotFoundError(f"{run_dir}: no valid checkpoint; train one with `cs336 train`")
    state = read_state(checkpoint)
    config = from_json(GPTConfig, state.get("model"), checkpoint / STATE)
    check_size(config, [checkpoint / MODEL])
    model = GPT(config)
    load_weights(checkpoint / MODEL, model)
    return model.to(device).eval(), state


def load_run(run_dir: Path, device: torch.device) -> tuple[GPT, Tokenizer]:
    """Load the model and the tokenizer of a run.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a file is damaged, or the tokenizer isn't the one of the model. An old
            checkpoint names only the number of its ids.
    """
    model, state = load_model_and_state(run_dir, device)
    path = run_dir / "tokenizer.json"
    tokenizer, ids = load_tokenizer(path), model.config.vocab_size
    digest = state.get("tokenizer", tokenizer.digest)
    if tokenizer.vocab_size != ids or digest != tokenizer.digest:
        other = f"{tokenizer} isn't the tokenizer of this model, which has {ids:,} ids"
        raise UserError(f"{path}: {other}; restore the run's own file")
    return model, tokenizer


SHIPPED_RUN = DATA / "shakespeare_gpt"


def load_shipped(device: torch.device | None = None) -> tuple[GPT, Tokenizer]:
    """Load the small character-level GPT and its tokenizer from data/ (see data/README.md)."""
    return load_run(SHIPPED_RUN, device or torch.device("cpu"))
