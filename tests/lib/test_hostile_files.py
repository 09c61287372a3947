"""Files of our formats that lie: nothing in them leads out of its folder or fills the memory.

tests/faults has files of other formats, and those that are damaged.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from cs336_lib import hugging_face
from cs336_lib.config import UserError
from cs336_lib.training import checkpoint
from tests.faults import little_memory, seal, write_checkpoint, write_exported

pytest.importorskip("resource", reason="Windows has no limits of resources")


@contextlib.contextmanager
def refused(message: str | None = None) -> Iterator[None]:
    """Expect an error of one line, and at most 400 MB of new memory."""
    with little_memory(), pytest.raises((UserError, FileNotFoundError), match=message) as error:
        yield
    assert "\n" not in str(error.value)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder in Hugging Face's layout."""
    write_exported(tmp_path / "exported", 1)
    return tmp_path / "exported" / "out1"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A checkpoint, the only one of its run."""
    write_checkpoint(tmp_path / "run" / "checkpoints", 1)
    return tmp_path / "run" / "checkpoints" / "step_00000001"


def load(saved: Path) -> object:
    """Load the model of a run, whoever has forged its manifest."""
    seal(saved)
    return checkpoint.load_model(saved.parents[1], torch.device("cpu"))


def test_an_index_names_only_files_of_its_folder(exported, tmp_path):
    shutil.copy(exported / "model.safetensors", tmp_path / "secret.safetensors")
    (exported / "model.safetensors").unlink()
    names = load_file(tmp_path / "secret.safetensors")
    (exported / "circle").symlink_to("circle")
    impossible = ("a\0b", "\ud800", "circle/a")
    for name in ("../../secret.safetensors", "/etc/passwd", "..", "a/../../b", ".", *impossible):
        index = {"weight_map": dict.fromkeys(names, name)}
        (exported / "model.safetensors.index.json").write_text(json.dumps(index))
        with refused("weight_map must map|leads out of|not a regular file|can be opened"):
            hugging_face.load(exported)
    index = {"weight_map": dict.fromkeys(names, "linked.safetensors")}
    (exported / "model.safetensors.index.json").write_text(json.dumps(index))
    (exported / "linked.safetensors").symlink_to("../../secret.safetensors")
    with refused("leads out of"):
        hugging_face.load(exported)


def test_the_links_of_the_hubs_client_are_followed(exported, tmp_path):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (exported / name).rename(blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert hugging_face.load(snapshot).config.n_layer == 1
    (tmp_path / "outside").write_bytes((blobs / "model.safetensors").read_bytes())
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../outside")
    with refused("leads out of"):
        hugging_face.load(snapshot)


BAD_SHAPES = [
    {"n_layer": 10**9},
    {"n_embd": 10**9, "n_head": 1, "n_layer": 1},
    {"vocab_size": 10**9},
    {"block_size": 10**12},
    {"n_layer": 10**30},
    {"n_embd": -32},
    {"n_head": 0},
    {"n_layer": 2.0},
    {"n_layer": "2"},
    {"n_layer": True},
    {"n_layer": None},
    {"dropout": float("nan")},
    {"dropout": "0"},
]


def test_a_shape_that_the_weights_cannot_have(exported, saved):
    described = json.loads((exported / "config.json").read_text())
    state = json.loads((saved / "state.json").read_text())
    theirs = {"block_size": "n_positions", "dropout": "resid_pdrop"}
    for values in BAD_SHAPES:
        changed = {theirs.get(name, name): value for name, value in values.items()}
        (exported / "config.json").write_text(json.dumps(described | changed))
        with refused():
            hugging_face.load(exported)
        changed = state | {"model": state["model"] | values}
        (saved / "state.json").write_text(checkpoint.to_json(changed))
        with refused():
            load(saved)
