"""Model folders that lie: nothing leads out of them or fills the memory.

tests/faults has files of other formats, and those that are damaged.
"""

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file

from cs336_lib import hugging_face
from cs336_lib.config import UserError
from tests.faults import little_memory, write_exported

pytest.importorskip("resource", reason="Windows has no limits of resources")


def check_refused(folder: Path, message: str = "") -> None:
    """Load a model, which must fail in one line and with at most 400 MB of new memory."""
    with little_memory(), pytest.raises((UserError, FileNotFoundError), match=message) as error:
        hugging_face.load(folder)
    assert "\n" not in str(error.value)


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A folder in Hugging Face's layout."""
    write_exported(tmp_path / "exported", 1)
    return tmp_path / "exported" / "out1"


def test_an_index_names_only_files_of_its_folder(exported, tmp_path):
    shutil.move(exported / "model.safetensors", tmp_path / "secret.safetensors")
    names = load_file(tmp_path / "secret.safetensors")
    (exported / "linked").symlink_to("../../secret.safetensors")
    (exported / "circle").symlink_to("circle")
    for name in (
        "../../secret.safetensors",
        "/etc/passwd",
        "..",
        ".",
        "linked",
        "a\0b",
        "circle/a",
    ):
        index = {"weight_map": dict.fromkeys(names, name)}
        (exported / "model.safetensors.index.json").write_text(json.dumps(index))
        check_refused(exported, "leads out of|not a regular file|can be opened")


def test_the_links_of_the_hubs_client_are_followed(exported, tmp_path):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (exported / name).rename(blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert hugging_face.load(snapshot).config.n_layer == 1
    (blobs / "model.safetensors").rename(tmp_path / "outside")
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../outside")
    check_refused(snapshot, "leads out of")


def test_a_shape_that_the_weights_cannot_have(exported):
    described = json.loads((exported / "config.json").read_text())
    for name, value in (("n_layer", 4000), ("vocab_size", 10**9), ("n_positions", 10**12)):
        (exported / "config.json").write_text(json.dumps(described | {name: value}))
        check_refused(exported, "cannot hold")
