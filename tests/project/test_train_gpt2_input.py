"""The one-file trainer reads what it saves, and refuses bad input in one line."""

import dataclasses
import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.shards import write_shard
from cs336_lib.model import GPT

ROOT = Path(__file__).parents[2]
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16}
RECIPE = {"max_steps": 2, "batch_tokens": 32, "micro_batch_size": 1, "eval_tokens": 64}
EXAMPLES = [
    {"ctx": "My kingdom for", "endings": ["a\u2028horse", "sky"], "label": 0},
    {"ctx": "To be, or not", "endings": ["x", "to be"], "label": "1"},
]


@pytest.fixture(scope="module")
def file() -> ModuleType:
    """The file as a module."""
    spec = importlib.util.spec_from_file_location("train_gpt2", ROOT / "train_gpt2.py")
    sys.modules["train_gpt2"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def config(file, tmp_path, monkeypatch):
    """A run of two steps, on shards with random tokens."""
    monkeypatch.chdir(ROOT)  # the tokenizer lies in data/
    ids = np.random.default_rng(0).integers(0, 50257, (2, 200))
    for part, tokens in zip(("train", "val"), ids, strict=True):
        write_shard(tmp_path / f"{part}_000.bin", tokens)
    paths = {part: str(tmp_path / f"{part}_*.bin") for part in ("train", "val")}
    paths["out"] = str(tmp_path / "out")
    settings = {"bf16": False, "compile": False, "learning_rate": 0.1, "warmup_steps": 1}
    precision = torch.get_float32_matmul_precision()
    yield file.Config(**paths, **settings, **SHAPE, **RECIPE)
    torch.set_float32_matmul_precision(precision)


def run(file, config, **changes) -> list[dict]:
    """Train, and return the rows of the log."""
    config = dataclasses.replace(config, **changes)
    file.train(config)
    return [json.loads(line) for line in (Path(config.out) / "log.jsonl").open()]


def said(file, config, **changes) -> str:
    """Return the line with which the file refuses to train."""
    with pytest.raises(SystemExit) as refusal:
        run(file, config, **changes)
    assert not (Path(config.out) / "log.jsonl").exists()
    assert isinstance(refusal.value.code, str)
    return refusal.value.code


def weights(config) -> Path:
    return Path(config.out) / "model.safetensors"


def test_a_run_starts_from_the_weights_that_another_saved(file, config, tmp_path):
    trained = run(file, config)[-1]
    again = {"out": str(tmp_path / "again"), "init_from": str(weights(config)), "seed": 1}
    first = run(file, config, **again, learning_rate=0.0, min_learning_rate=0.0)[-1]
    assert first["val_loss"] == trained["val_loss"]
    x = torch.arange(32).view(2, 16)
    models = [file.GPT(config), file.GPT(config)]
    for model, out in zip(models, (config.out, again["out"]), strict=True):
        file.load_weights(model, load_file(Path(out) / "model.safetensors"))
    assert torch.equal(models[0](x), models[1](x))


def test_saved_weights_have_the_layout_of_hugging_face(file, config):
    run(file, config)
    model = GPT(GPTConfig(**SHAPE, vocab_size=50257))
    model.load_state_dict(hugging_face.read_weights([weights(config)], model), strict=False)
    mine = file.GPT(config)
    file.load_weights(mine, load_file(weights(config)))
    x = torch.arange(32).view(2, 16)
    torch.testing.assert_close(mine(x), model(x), rtol=0, atol=1e-5)


def test_transformers_reads_the_saved_weights(file, config):
    transformers = pytest.importorskip("transformers")
    run(file, config)
    shape = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, n_positions=16)
    shape.save_pretrained(config.out)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(config.out)
    mine = file.GPT(config)
    file.load_weights(mine, load_file(weights(config)))
    x = torch.arange(32).view(2, 16)
    torch.testing.assert_close(mine(x), theirs.eval()(x).logits, rtol=0, atol=1e-5)


def test_only_the_last_weights_are_kept_and_others_can_read_them(file, config):
    umask = os.umask(0o022)
    try:
        run(file, config, eval_every=1)
    finally:
        os.umask(umask)
    assert sorted(os.listdir(config.out)) == ["log.jsonl", "model.safetensors"]
    assert stat.S_IMODE(weights(config).stat().st_mode) == 0o644


def test_weights_that_cannot_be_written_leave_the_old_ones(file, config, monkeypatch):
    run(file, config)
    before = weights(config).read_bytes()

    def cut_off(path: Path, data: bytes) -> None:
        with open(path, "wb") as half:
            half.write(data[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", cut_off)
    with pytest.raises(OSError, match="No space left"):
        file.record({"step": 2, "val_loss": 1.0}, file.GPT(config), Path(config.out))
    assert weights(config).read_bytes() == before


@pytest.fixture
def published(file, config, tmp_path) -> dict[str, torch.Tensor]:
    """The tensors of a Hugging Face GPT-2, with the causal mask and the head of old files."""
    tensors = hugging_face.hugging_face_tensors(GPT(GPTConfig(**SHAPE, vocab_size=50257)))
    found = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    found["transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
    found["lm_head.weight"] = found["transformer.wte.weight"].clone()
    return found


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_a_hugging_face_gpt2_still_loads(file, config, published, tmp_path, prefix):
    renamed = {prefix + name.removeprefix("transformer."): t for name, t in published.items()}
    save_file(renamed, tmp_path / "hf.safetensors")
    run(file, config, init_from=str(tmp_path / "hf.safetensors"), learning_rate=0.0)


def test_a_longer_context_is_cut(file, config, published, tmp_path):
    save_file(published, tmp_path / "hf.safetensors")
    run(file, config, init_from=str(tmp_path / "hf.safetensors"), block_size=8)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {f"model.{name}": value for name, value in t.items()}, "32 tensors"),
        (lambda t: t | {"transformer.h.1.ln_1.weight": torch.ones(8)}, "h.1.ln_1.weight"),
        (lambda t: {n: v for n, v in t.items() if "ln_f" not in n}, "ln_f"),
        (lambda t: t | {"transformer.wpe.weight": torch.ones(4, 8)}, "wpe.weight"),
        (lambda t: t | {"transformer.h.0.mlp.c_fc.weight": torch.ones(32, 8)}, "c_fc.weight"),
    ],
    ids=["other names", "more layers", "a missing tensor", "a shorter context", "(out, in)"],
)
def test_weights_of_another_shape_are_refused(file, config, published, tmp_path, change, words):
    save_file(change(published), tmp_path / "hf.safetensors")
    line = said(file, config, init_from=str(tmp_path / "hf.safetensors"))
    assert "hf.safetensors" in line
    assert words in line


def test_a_second_run_into_the_same_folder_is_refused(file, config):
    rows = run(file, config)
    before = weights(config).read_bytes()
    with pytest.raises(SystemExit, match="--out"):
        file.train(config)
    assert weights(config).read_bytes() == before
    assert len((Path(config.out) / "log.jsonl").read_text().splitlines()) == len(rows)


@pytest.mark.parametrize("part", ["train", "val"])
@pytest.mark.parametrize("count", [0, 16])
def test_too_few_tokens_for_a_window_are_refused(file, config, tmp_path, part, count):
    write_shard(tmp_path / f"{part}_000.bin", np.arange(count))
    line = said(file, config)
    assert f"{count} tokens" in line
    assert "17" in line


def test_one_window_is_enough(file, config, tmp_path):
    for part in ("train", "val"):
        write_shard(tmp_path / f"{part}_000.bin", np.arange(17))
    assert len(run(file, config)) == 2


def uint32(path: Path) -> None:
    header = np.zeros(256, "<i4")
    header[:3] = 20240801, 7, 100  # llm.c's format for Llama 3
    path.write_bytes(header.tobytes() + np.arange(100, dtype="<u4").tobytes())


@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: path.write_text("To be, or not to be, " * 200),
        lambda path: path.write_bytes(np.arange(2000, dtype="<u2").tobytes()),
        uint32,
        lambda path: path.write_bytes(path.read_bytes()[:-100]),
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(path.read_bytes()[:6]),
        lambda path: path.write_bytes(b""),
    ],
    ids=["text", "no header", "uint32", "truncated", "odd", "half a header", "empty"],
)
def test_a_file_that_is_no_whole_shard_is_refused(file, config, tmp_path, spoil):
    spoil(tmp_path / "train_000.bin")
    assert "train_000.bin" in said(file, config)


@pytest.mark.parametrize("part", ["train", "val"])
def test_a_token_beyond_the_vocabulary_is_refused(file, config, tmp_path, part):
    write_shard(tmp_path / f"{part}_000.bin", np.full(200, 50257))
    with pytest.raises(SystemExit, match="50257") as refusal:
        file.train(config)
    assert "vocab_size" in refusal.value.code


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (None, "No such file"),
        ("", "no examples"),
        ("{'ctx': 1}\n", "ctx"),
        ('{"ctx": "My kingdom for"}\n', "endings"),
    ],
)
def test_hellaswag_is_read_before_the_first_step(file, config, tmp_path, text, words):
    path = tmp_path / "examples.jsonl"
    if text is not None:
        path.write_text(text)
    line = said(file, config, hellaswag=str(path))
    assert "examples.jsonl" in line
    assert words in line


def test_hellaswag_may_have_blank_lines_and_every_separator(file, config, tmp_path):
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in EXAMPLES)
    (tmp_path / "examples.jsonl").write_text(f"\n{text}\n", encoding="utf-8")
    score = run(file, config, hellaswag=str(tmp_path / "examples.jsonl"))[-1]["hellaswag"]
    assert score in (0.0, 0.5, 1.0)


def test_a_clip_of_0_does_not_clip(file, config, tmp_path):
    free = run(file, config, grad_clip=0.0)
    wide = run(file, config, grad_clip=1e9, out=str(tmp_path / "wide"))
    tight = run(file, config, grad_clip=1e-9, out=str(tmp_path / "tight"))
    assert free[-1]["val_loss"] == wide[-1]["val_loss"] != tight[-1]["val_loss"]


def test_without_eval_every_it_validates_at_the_end(file, config):
    assert ["val_loss" in row for row in run(file, config, eval_every=0)] == [False, True]


def test_a_tokenizer_out_of_reach_is_one_line(file, config, tmp_path, monkeypatch):
    def offline(name: str) -> None:
        raise ConnectionError("no route to host")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(file.tiktoken, "get_encoding", offline)
    assert "data/gpt2.tiktoken" in said(file, config)


def test_threads_sleep_while_they_wait_unless_you_say_otherwise():
    """OpenMP reads the variable once, when torch is loaded."""
    code = "import os, sys; sys.modules['torch'] = None\ntry: import train_gpt2\n"
    code += "except ImportError: print(os.environ['OMP_WAIT_POLICY'])"
    for given, policy in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        env = {name: value for name, value in os.environ.items() if name != "OMP_WAIT_POLICY"}
        command = [sys.executable, "-c", code]
        done = subprocess.run(
            command, cwd=ROOT, env=env | given, capture_output=True, text=True, check=False
        )
        assert done.stdout.strip() == policy, done.stderr
