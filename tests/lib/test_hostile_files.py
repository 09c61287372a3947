"""Files from strangers: nothing in them runs, leads out of its folder, or fills the memory."""

import ast
import contextlib
import dataclasses
import json
import os
import pickle
import resource
import shutil
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from cs336_lib import cli, hugging_face
from cs336_lib.config import GPTConfig, TrainConfig, UserError, from_json
from cs336_lib.data.loader import open_data
from cs336_lib.data.shards import HEADER_BYTES, MAGIC, TokenStream, write_shard
from cs336_lib.data.tokenizer import CharTokenizer, load_tokenizer
from cs336_lib.io import JSON_BYTES, inside, read_json, sha256
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint
from cs336_lib.training.loop import train

ROOT = Path(__file__).parents[2]
MEGABYTE = 2**20

watched: list[str] = []  # events of the interpreter that no file of ours may cause
FORBIDDEN = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn")


def watch(event: str, arguments: tuple) -> None:
    """Note an event; an audit hook stays for good, so it is made once."""
    if watching and event in FORBIDDEN:
        watched.append(f"{event} {arguments}")


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


class Payload:
    """What runs a command when it is unpickled."""

    def __init__(self, marker: Path):
        self.marker = marker

    def __reduce__(self):
        return os.system, (f"touch {self.marker}",)


@pytest.fixture
def marker(tmp_path: Path) -> Iterator[Path]:
    """The file that a payload would make; it must not be there in the end."""
    path = tmp_path / "executed"
    yield path
    assert not path.exists()


def payloads(marker: Path, folder: Path) -> dict[str, bytes]:
    """A payload as a bare pickle, as torch saves it, and inside numpy's format."""
    torch.save({"model": Payload(marker)}, folder / "saved")
    np.save(folder / "saved.npy", np.array([Payload(marker)], dtype=object), allow_pickle=True)
    found = {
        "pickle": pickle.dumps(Payload(marker)),
        "torch": (folder / "saved").read_bytes(),
        "numpy": (folder / "saved.npy").read_bytes(),
    }
    for name in ("saved", "saved.npy"):
        (folder / name).unlink()
    return found


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


def test_the_payloads_are_live(tmp_path):
    marker = tmp_path / "executed"
    for content in payloads(marker, tmp_path).values():
        (tmp_path / "file").write_bytes(content)
        for load_it in (
            lambda: pickle.loads((tmp_path / "file").read_bytes()),
            lambda: torch.load(tmp_path / "file", weights_only=False),
            lambda: np.load(tmp_path / "file", allow_pickle=True),
        ):
            with contextlib.suppress(Exception):
                load_it()
        assert marker.exists()
        marker.unlink()


def test_a_payload_runs_nowhere(marker, tmp_path, exported, run_dir):
    for kind, content in payloads(marker, tmp_path).items():
        copies = tmp_path / kind
        shutil.copytree(exported, copies / "exported")
        shutil.copytree(run_dir, copies / "run")
        put_everywhere(content, copies / "exported", copies / "run")
        (tmp_path / "train_000000.bin").write_bytes(content)
        with refused():
            TokenStream.from_pattern(str(tmp_path / "train_*.bin"))


def put_everywhere(content: bytes, exported: Path, run_dir: Path) -> None:
    """Load a model and a run with the content in place of each of their files."""
    for name in ("config.json", "model.safetensors"):
        kept = (exported / name).read_bytes()
        (exported / name).write_bytes(content)
        with refused():
            hugging_face.load(exported)
        (exported / name).write_bytes(kept)
    (exported / "model.safetensors").unlink()
    for name in ("model.pt", "pytorch_model.bin", "model.safetensors.index.json"):
        (exported / name).write_bytes(content)
        with refused():
            hugging_face.load(exported)
    folder = step_folder(run_dir)
    for name in ("state.json", "model.safetensors", "manifest.json"):
        kept = (folder / name).read_bytes()
        (folder / name).write_bytes(content)
        if name != "manifest.json":
            seal(folder)
        with refused():
            load(run_dir)
        (folder / name).write_bytes(kept)
        seal(folder)
    (folder / "optimizer.safetensors").write_bytes(content)
    seal(folder)
    fresh = GPT(GPTConfig(block_size=16, vocab_size=50, n_layer=2, n_head=2, n_embd=32))
    with refused():
        checkpoint.restore(folder, fresh, torch.optim.AdamW(fresh.parameters()))
    (run_dir / "tokenizer.json").write_bytes(content)
    with refused():
        load_tokenizer(run_dir / "tokenizer.json")


# An explorer of the course evaluates what is typed into its own box, and the checks look at a
# learner's own code.
MAY = {
    "cs336_lib/__init__.py": {"import_module"},
    "cs336_lib/training/trackers.py": {"import_module"},
    "cs336_course/pages/bug_hunt/bug_hunt.py": {"exec", "compile"},  # its own script, with a bug
    "cs336_course/pages/gpt2_scale/ddp_step.py": {
        "exec"
    },  # the source of a function in the notebook
    "cs336_course/engine/task.py": {"exec", "compile"},
    "cs336_course/pages/recipe_of_today/exercises.py": {"exec"},  # the notebook of the course
    "cs336_course/pages/reproducible_runs/script_findings.py": {"load"},
    "cs336_course/one_file/assemble.py": {"exec"},
    "cs336_course/one_file/check_parts.py": {"exec", "eval", "compile", "import_module"},
    "cs336_course/grading/answer_process.py": {"exec", "eval", "compile"},
    "cs336_course/grading/course_cells.py": {"exec"},
    "cs336_course/widgets/layout.py": {"eval", "compile"},
}
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "yaml", "runpy", "code"}
CALLS = {"eval", "exec", "compile", "__import__", "import_module", "system", "popen"}


def dangers(path: Path) -> set[str]:
    """What in a module could run what a file says."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names} & MODULES
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module.split(".")[0]} & MODULES
        if isinstance(node, ast.Call):
            name = node.func
            if isinstance(name, ast.Name):
                found |= {name.id} & CALLS
            elif isinstance(name, ast.Attribute):
                owner = ast.unparse(name.value)
                if name.attr == "load" and owner in ("torch", "np", "numpy"):
                    found.add("load")
                if owner in ("os", "importlib", "builtins"):
                    found |= {name.attr} & CALLS
            if any(
                word.arg in ("allow_pickle", "shell", "trust_remote_code") for word in node.keywords
            ):
                found.add(ast.unparse(node))
    return found


def test_no_module_can_run_what_a_file_says(tmp_path):
    for path in (*ROOT.glob("cs336_*/**/*.py"), *ROOT.glob("tools/*.py")):
        name = path.relative_to(ROOT).as_posix()
        assert dangers(path) <= MAY.get(name, set()), name
    (tmp_path / "bad.py").write_text("import pickle\nimport torch\ntorch.load(f)\neval(x)")
    assert dangers(tmp_path / "bad.py") == {"pickle", "load", "eval"}


# --- nothing outside the folder is read


def test_a_link_that_leads_out_is_not_followed(exported, run_dir, tmp_path):
    secrets = tmp_path / "secrets"
    shutil.copytree(exported, secrets / "exported")
    shutil.copytree(run_dir, secrets / "run")
    for name in ("config.json", "model.safetensors"):
        (exported / name).unlink()
        (exported / name).symlink_to(secrets / "exported" / name)
        with refused("leads out of"):
            hugging_face.load(exported)
        (exported / name).unlink()
        shutil.copy(secrets / "exported" / name, exported / name)
    for name in ("model.safetensors", "state.json", "manifest.json"):
        path = step_folder(run_dir) / name
        path.unlink()
        path.symlink_to(step_folder(secrets / "run") / name)
        with refused("no valid checkpoint"):
            load(run_dir)
        path.unlink()
        shutil.copy(step_folder(secrets / "run") / name, path)
    (run_dir / "tokenizer.json").unlink()
    (run_dir / "tokenizer.json").symlink_to(secrets / "run" / "tokenizer.json")
    with refused("leads out of"):
        load_tokenizer(run_dir / "tokenizer.json")
    prepared = tmp_path / "prepared"
    prepared.mkdir()
    (prepared / "tokenizer.json").write_text('{"name": "gpt2"}')
    write_shard(secrets / "train_000000.bin", np.arange(100))
    write_shard(prepared / "val_000000.bin", np.arange(100))
    (prepared / "train_000000.bin").symlink_to(secrets / "train_000000.bin")
    with refused("leads out of"):
        open_data(str(prepared), "", "gpt2")


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


def test_a_pipe_in_place_of_a_file_is_not_waited_for(exported, run_dir, tmp_path):
    for path in (exported / "config.json", step_folder(run_dir) / "model.safetensors"):
        path.unlink()
        os.mkfifo(path)
    with refused("not a regular file|not found"):
        hugging_face.load(exported)
    with refused("no valid checkpoint"):
        load(run_dir)
    os.mkfifo(tmp_path / "train_0.bin")
    with refused("not a regular file"):
        TokenStream.from_pattern(str(tmp_path / "train_*.bin"))
    os.mkfifo(tmp_path / "pipe")
    with refused("not a regular file"):
        inside(tmp_path, "pipe")


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


def test_bad_weights(exported, run_dir):
    for content in BAD_WEIGHTS.values():
        for path in (exported / "model.safetensors", step_folder(run_dir) / "model.safetensors"):
            path.write_bytes(content)
        seal(step_folder(run_dir))
        with refused():
            hugging_face.load(exported)
        with refused():
            load(run_dir)


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


BAD_JSON = [
    b"",
    b"{",
    b"null",
    b"[]",
    b"3",
    b"\xff\xfe{\x00}\x00",
    b"\0" * 64,
    b"[" * 100_000,
    b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    b'{"n_layer": 1' + b"0" * 5000 + b"}",
    b'{"model_type": "gpt2"} trailing',
    b"{" + b" " * JSON_BYTES + b"}",
]


def test_bad_json(exported, run_dir, tmp_path):
    for content in BAD_JSON:
        (tmp_path / "some.json").write_bytes(content)
        with refused(r"some\.json: "):
            read_json(tmp_path / "some.json")
        (exported / "config.json").write_bytes(content)
        with refused(r"config\.json"):
            hugging_face.load(exported)
        (run_dir / "tokenizer.json").write_bytes(content)
        with refused(r"tokenizer\.json"):
            load_tokenizer(run_dir / "tokenizer.json")
        (step_folder(run_dir) / "state.json").write_bytes(content)
        seal(step_folder(run_dir))
        with refused():
            load(run_dir)


BAD_TOKENIZERS = [
    {"name": "char", "alphabet": "a" * JSON_BYTES},
    {"name": "char", "alphabet": "".join(map(chr, range(2**16, 2**17 + 1)))},
    {"name": "char", "alphabet": ["ab", "c"]},
    {"name": "char", "alphabet": {"a": 0}},
    {"name": "char", "alphabet": 5},
    {"name": "char", "alphabet": ""},
    {"name": "char", "alphabet": "ab\ud800"},
    {"name": "char"},
    {"name": ["gpt2"]},
    {"name": "../../etc/passwd"},
    {},
]


def test_a_tokenizer_that_is_none(tmp_path):
    for content in BAD_TOKENIZERS:
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with refused(megabytes=100):
            load_tokenizer(tmp_path / "tokenizer.json")


def test_a_giant_file_of_holes_is_not_read(tmp_path, exported):
    for path in (tmp_path / "tokenizer.json", exported / "config.json"):
        path.touch()
        os.truncate(path, 2**40)
    with refused("larger than", megabytes=50):
        load_tokenizer(tmp_path / "tokenizer.json")
    with refused("larger than", megabytes=50):
        hugging_face.load(exported)


def test_weights_that_would_only_give_nan(exported, run_dir):
    files = (exported / "model.safetensors", step_folder(run_dir) / "model.safetensors")
    for path, value in zip(files, (float("nan"), float("inf")), strict=True):
        tensors = load_file(path)
        tensors["transformer.h.0.ln_1.weight"][3] = value
        save_file(tensors, path)
    seal(step_folder(run_dir))
    with refused(r"transformer\.h\.0\.ln_1\.weight holds NaN or infinity"):
        hugging_face.load(exported)
    with refused(r"transformer\.h\.0\.ln_1\.weight holds NaN or infinity"):
        load(run_dir)


def test_a_shard_that_claims_other_tokens_than_it_has(tmp_path):
    path = tmp_path / "train_000000.bin"
    for tokens in (51, 49, -1, -(2**31), 2**31 - 1):
        header = np.zeros(256, dtype="<i4")
        header[:3] = MAGIC, 1, tokens
        path.write_bytes(header.tobytes() + bytes(100))
        with refused(f"promises {tokens} tokens", megabytes=50):
            TokenStream.from_pattern(str(path))
    os.truncate(path, HEADER_BYTES + 2 * tokens)  # 4 GB of holes, and now it fits
    stream = TokenStream.from_pattern(str(path))
    assert len(stream) == tokens
    assert not stream.read(2**30, 100).any()


BAD_CONFIGS = [
    {"n_layer": "12"},
    {"resume": "yes"},
    {"learning_rate": None},
    {"learning_rate": float("nan")},
    {"train_data": ["a"]},
    {"train_data": "a\0/*"},
    {"train_data": "\ud800/*"},
    {"tokenizer": "bpe"},
    {"batch_tokens": 10**20},
    {"max_steps": 1.5},
    {"__class__": "os.system"},
]


def test_the_config_of_a_strangers_run(run_dir, capsys):
    saved = json.loads((run_dir / "config.json").read_text())
    for change in BAD_CONFIGS:
        (run_dir / "config.json").write_text(json.dumps(saved | change))
        with pytest.raises(SystemExit) as ended:
            cli.main(["eval", "--run-dir", str(run_dir), "--device", "cpu"])
        assert ended.value.code == 2
        assert capsys.readouterr().err.count("\n") == 1
    (run_dir / "config.json").write_text(json.dumps(saved | {"n_layer": "12"}))
    for content in ("[1]", (run_dir / "config.json").read_text()):
        (run_dir / "config.json").write_text(content)
        with refused("config"):
            train(TrainConfig(**(saved | {"resume": True})))


# --- whatever else someone may think of


@pytest.fixture(scope="module")
def small_file(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    """A folder with a tiny model, and its weights' file."""
    folder = tmp_path_factory.mktemp("fuzz") / "exported"
    model = GPT(GPTConfig(block_size=4, vocab_size=10, n_layer=1, n_head=1, n_embd=4))
    hugging_face.export(model, folder, CharTokenizer("0123456789"))
    return folder, (folder / "model.safetensors").read_bytes()


@settings(max_examples=300)
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


@settings(max_examples=300)
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
