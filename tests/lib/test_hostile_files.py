"""Files from strangers: nothing in them runs, leads out of its folder, or fills the memory."""

import contextlib
import dataclasses
import json
import os
import resource
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig, TrainConfig, UserError, from_json
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.io import sha256
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20

watched: list[str] = []  # events of the interpreter that no file of ours may cause
watching = False
sys.addaudithook(watch)


@contextlib.contextmanager
def refused(message: str | None = None, megabytes: int = 400) -> Iterator[None]:
    """Expect an error of one line, no code run, and at most so much new memory."""
    global watching
    limits = resource.getrlimit(resource.RLIMIT_AS)
    statm = Path("/proc/self/statm")
    if statm.exists():  # Linux, where the limit is kept, too
        have = int(statm.read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (have + megabytes * MEGABYTE, limits[1]))
    watched.clear()
    try:
        watching = True
        with pytest.raises((UserError, FileNotFoundError), match=message) as error:
            yield
    finally:
        watching = False
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert "\n" not in str(error.value)
    assert watched == []


@pytest.fixture
def model(tiny_config: GPTConfig) -> GPT:
    return GPT(tiny_config)


LETTERS = "".join(chr(ord("0") + i) for i in range(50))


@pytest.fixture
def exported(model: GPT, tmp_path: Path) -> Path:
    """A folder in Hugging Face's layout."""
    hugging_face.export(model, tmp_path / "exported", CharTokenizer(LETTERS))
    return tmp_path / "exported"


def seal(folder: Path) -> None:
    """Make a checkpoint's manifest fit its files, as whoever forges one would."""
    names = ("model.safetensors", "optimizer.safetensors", "state.json")
    files = {name: sha256(folder / name) for name in names if (folder / name).exists()}
    (folder / "manifest.json").write_text(json.dumps(files, indent=1) + "\n")


@pytest.fixture
def run_dir(model: GPT, tiny_config: GPTConfig, tmp_path: Path) -> Path:
    """A run folder as `cs336 train` leaves it."""
    folder = tmp_path / "run"
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.zeros(1, 4, dtype=torch.long), torch.zeros(1, 4, dtype=torch.long)).backward()
    optimizer.step()
    state = {"step": 3, "val_loss": 1.0, "model": dataclasses.asdict(tiny_config)}
    checkpoint.save(folder / "checkpoints", model, optimizer, state)
    (folder / "tokenizer.json").write_text(json.dumps({"name": "char", "alphabet": LETTERS}))
    shape = {"n_layer": 1, "n_head": 1, "n_embd": 8, "block_size": 16}
    config = TrainConfig(run_dir=str(folder), tokenizer="char", batch_tokens=64, **shape)
    (folder / "config.json").write_text(json.dumps(dataclasses.asdict(config)))
    return folder


def step_folder(run_dir: Path) -> Path:
    return run_dir / "checkpoints" / "step_00000003"


def load(run_dir: Path) -> GPT:
    return checkpoint.load_model(run_dir, torch.device("cpu"))


# --- nothing is executed


# --- nothing outside the folder is read


def test_an_index_names_only_files_of_its_folder(exported, tmp_path):
    shutil.copy(exported / "model.safetensors", tmp_path / "secret.safetensors")
    (exported / "model.safetensors").unlink()
    names = load_file(tmp_path / "secret.safetensors")
    (exported / "circle").symlink_to("circle")
    impossible = ("a\0b", "\ud800", "circle/a")
    for name in ("../secret.safetensors", "/etc/passwd", "..", "a/../../b", ".", *impossible):
        index = {"weight_map": dict.fromkeys(names, name)}
        (exported / "model.safetensors.index.json").write_text(json.dumps(index))
        with refused("weight_map must map|leads out of|not a regular file|can be opened"):
            hugging_face.load(exported)
    index = {"weight_map": dict.fromkeys(names, "linked.safetensors")}
    (exported / "model.safetensors.index.json").write_text(json.dumps(index))
    (exported / "linked.safetensors").symlink_to("../secret.safetensors")
    with refused("leads out of"):
        hugging_face.load(exported)


def test_the_links_of_the_hubs_client_are_followed(exported, tmp_path, model):
    snapshot, blobs = tmp_path / "models--x" / "snapshots" / "abc", tmp_path / "models--x" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        (exported / name).rename(blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert hugging_face.load(snapshot).config == model.config
    (tmp_path / "outside").write_bytes((blobs / "model.safetensors").read_bytes())
    (snapshot / "model.safetensors").unlink()
    (snapshot / "model.safetensors").symlink_to("../../../outside")
    with refused("leads out of"):
        hugging_face.load(snapshot)


# --- nothing is allocated on a file's word


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def tensor(shape: list, begin: int, end: int, dtype: str = "F32") -> dict:
    return {"x": {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}}


BAD_WEIGHTS = {
    "empty": b"",
    "short": b"\x01\x02",
    "header of 2^60": safetensors({}, length=2**60),
    "header of 2^64 - 1": safetensors({}, length=2**64 - 1),
    "header cut off": safetensors({}, length=1000),
    "not JSON": safetensors(b"{{{{"),
    "deep": safetensors(b"[" * 100_000),
    "deep object": safetensors(b'{"a":' * 100_000),
    "not an object": safetensors([1, 2]),
    "NUL": safetensors(b"\0" * 100),
    "offsets outside": safetensors(tensor([4], 0, 2**40)),
    "offsets backwards": safetensors(tensor([4], 16, 0), b"\0" * 16),
    "offsets negative": safetensors(tensor([4], -16, 0), b"\0" * 16),
    "offsets of 2^63": safetensors(tensor([2**61], 2**63, 2**63 + 1), b"\0" * 16),
    "shape lies": safetensors(tensor([2**40], 0, 16), b"\0" * 16),
    "shape overflows": safetensors(tensor([2**32, 2**32], 0, 16), b"\0" * 16),
    "shape negative": safetensors(tensor([-4], 0, 16), b"\0" * 16),
    "shape of floats": safetensors(tensor([4.0], 0, 16), b"\0" * 16),
    "unknown dtype": safetensors(tensor([4], 0, 16, "F31"), b"\0" * 16),
    "a hole": safetensors(tensor([4], 16, 32), b"\0" * 32),
    "foreign name": safetensors(tensor([4], 0, 16), b"\0" * 16),
}


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


def test_a_shape_that_the_weights_cannot_have(exported, run_dir):
    described = json.loads((exported / "config.json").read_text())
    state = json.loads((step_folder(run_dir) / "state.json").read_text())
    theirs = {"block_size": "n_positions", "dropout": "resid_pdrop"}
    for values in BAD_SHAPES:
        changed = {theirs.get(name, name): value for name, value in values.items()}
        (exported / "config.json").write_text(json.dumps(described | changed))
        with refused():
            hugging_face.load(exported)
        changed = state | {"model": state["model"] | values}
        (step_folder(run_dir) / "state.json").write_text(json.dumps(changed, indent=1) + "\n")
        seal(step_folder(run_dir))
        with refused():
            load(run_dir)


def test_a_file_of_holes_does_not_make_a_model_larger_than_the_memory(exported, run_dir):
    described = json.loads((exported / "config.json").read_text())
    described |= {"vocab_size": 10**9, "n_embd": 1024, "n_inner": 4096}
    (exported / "config.json").write_text(json.dumps(described))
    state = json.loads((step_folder(run_dir) / "state.json").read_text())
    state["model"] |= {"vocab_size": 10**9, "n_embd": 1024}
    (step_folder(run_dir) / "state.json").write_text(json.dumps(state, indent=1) + "\n")
    os.truncate(exported / "model.safetensors", 2**43)  # nothing of it is on the disk
    with refused("needs 4,096.1 GB at least, and cpu has"):
        hugging_face.load(exported)
    loaded = from_json(GPTConfig, state["model"], "state.json")
    with refused("needs 4,096.1 GB at least, and cpu has"):
        hugging_face.check_size(loaded, [exported / "model.safetensors"])


# --- whatever else someone may think of


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with a tiny model, and its weights' file."""
    folder = tmp_path_factory.mktemp("fuzz") / "exported"
    model = GPT(GPTConfig(block_size=4, vocab_size=10, n_layer=1, n_head=1, n_embd=4))
    hugging_face.export(model, folder, CharTokenizer("0123456789"))
    return folder, (folder / "model.safetensors").read_bytes()


@settings(
    max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.integers(0, 2**31), st.binary(min_size=1, max_size=12), st.booleans())
@example(0, b"\xff" * 8, False)
def test_fuzzed_weights_load_or_are_refused(small_file, place, patch, cut):
    folder, good = small_file
    place %= len(good)
    content = good[:place] + patch + (b"" if cut else good[place + len(patch) :])
    (folder / "model.safetensors").write_bytes(content)
    try:
        model = hugging_face.load(folder)
    except UserError as error:
        said = str(error)
        assert "\n" not in said
        return
    assert all(p.isfinite().all() for p in model.parameters())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)
NAMES = st.sampled_from([f.name for f in dataclasses.fields(TrainConfig)])


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, JSON, max_size=4) | JSON)
def test_fuzzed_configs_are_made_or_refused(content):
    for kind in (TrainConfig, GPTConfig):
        try:
            made = from_json(kind, content, "config.json")
        except UserError as error:
            lines = str(error).split("\n")
            assert all(line.startswith("config.json: ") and line.isprintable() for line in lines)
            assert len(lines) <= max(1, len(content) if isinstance(content, dict) else 1)
        else:
            assert from_json(kind, json.loads(json.dumps(dataclasses.asdict(made))), "") == made
