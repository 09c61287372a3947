"""The one-file trainers read what they save, resume, and refuse bad input in one line."""

import contextlib
import dataclasses
import importlib.util
import itertools
import json
import shutil
import string
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from cs336_lib import accounting, hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.shards import write_shard
from cs336_lib.data.tokenizer import CharTokenizer, save_tokenizer
from cs336_lib.model import GPT

ROOT = Path(__file__).parents[2]
LETTERS = string.ascii_letters + " ,.'\né"
SHAPE = {"n_layer": 1, "n_head": 2, "n_embd": 8, "block_size": 16}
RECIPE = {"max_steps": 2, "batch_tokens": 64, "micro_batch_size": 1, "eval_tokens": 64}
FP32 = contextlib.nullcontext()
EXAMPLES = [
    {"ctx": "My kingdom for", "endings": ["a\u2028horse", "sky", "a", "b c"], "label": 0},
    {
        "ctx": "To be, or not",
        "endings": ["x", "to be", "the longest ending of all", "y"],
        "label": "1",
    },
    {"ctx": "O", "endings": ["aa", "bb", "cc", "dd"], "label": 3},
]


@pytest.fixture(scope="module")
def file() -> ModuleType:
    """The file as a module."""
    name = "train_gpt2"
    spec = importlib.util.spec_from_file_location(name, ROOT / f"{name}.py")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    whole = module.generate
    module.generate = lambda model, prompt, count: whole(model, prompt, count // 16)  # is enough
    return module


@pytest.fixture
def config(file, tmp_path):
    """A run of two steps on random letters."""
    (data := tmp_path / "data").mkdir()
    save_tokenizer(CharTokenizer(LETTERS), data / "tokenizer.json")
    ids = np.random.default_rng(0).integers(0, len(LETTERS), (2, 200))
    for split, tokens in zip(("train", "val"), ids, strict=True):
        write_shard(data / f"{split}_000.bin", tokens)
    paths = {"data": str(data), "out": str(tmp_path / "out")}
    settings = {"bf16": False, "compile": False, "learning_rate": 0.1, "warmup_steps": 1}
    precision = torch.get_float32_matmul_precision()
    yield file.Config(**paths, **settings, **SHAPE, **RECIPE)
    torch.set_float32_matmul_precision(precision)


def run(file, config, **changes) -> list[dict]:
    """Train, and return the rows of the log without what the clock says."""
    config = dataclasses.replace(config, **changes)
    file.main(config)
    rows = [json.loads(line) for line in (Path(config.out) / "log.jsonl").open()]
    return [{name: value for name, value in row.items() if "second" not in name} for row in rows]


def said(file, config, **changes) -> str:
    """Return the line with which the file refuses to train."""
    with pytest.raises(SystemExit) as refusal:
        run(file, config, **changes)
    assert isinstance(refusal.value.code, str)
    assert "\n" not in refusal.value.code
    return refusal.value.code


def weights(config) -> dict[str, torch.Tensor]:
    return load_file(Path(config.out) / "model.safetensors")


def sharp(file, config) -> nn.Module:
    """Return a model that prefers some tokens to others, as a new one hardly does."""
    model = file.GPT(config)
    nn.init.normal_(model.lm_head.weight)
    return model


X = torch.arange(32).view(2, 16)


def test_others_read_what_it_saves(file, config):
    transformers = pytest.importorskip("transformers")
    run(file, config)
    model = file.GPT(dataclasses.replace(config, vocab_size=len(LETTERS)))
    file.load_weights(model, weights(config))
    ours = model(X)
    library = hugging_face.load(config.out)
    torch.testing.assert_close(library(X), ours, rtol=0, atol=1e-5)
    theirs = transformers.GPT2LMHeadModel.from_pretrained(config.out).eval()
    torch.testing.assert_close(theirs(X).logits, ours, rtol=0, atol=1e-5)


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize(
    ("owner", "name", "call"),
    [
        ("", "evaluate", 3),  # the first one comes before the first step
        ("torch", "save", 2),
        ("os", "replace", 2),  # between the renames of the first save
        ("os", "replace", 9),  # of the last save, which no later one would repair
    ],
)
def test_killed_at_any_moment_it_ends_the_same(file, config, monkeypatch, owner, name, call):
    straight = dataclasses.replace(config, out=config.out + "_straight", eval_every=1, max_steps=3)
    rows = run(file, straight)
    killed = dataclasses.replace(straight, out=config.out)
    where, calls = getattr(file, owner) if owner else file, itertools.count(1)
    function = getattr(where, name)

    def replacement(*args, **kwargs):
        if next(calls) == call:
            raise Killed
        return function(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(where, name, replacement)
        with pytest.raises(Killed):
            run(file, killed)
    assert run(file, killed) == rows
    for key, value in weights(straight).items():
        assert torch.equal(weights(killed)[key], value), key


def test_a_damaged_checkpoint_makes_way_for_the_one_before(file, config, capsys):
    config = dataclasses.replace(config, eval_every=1)
    rows, (newest, before) = run(file, config), sorted(Path(config.out).glob("*.pt"))
    whole, older = newest.read_bytes(), before.read_bytes()
    for place in np.random.default_rng(0).integers(0, len(whole), 20):
        newest.write_bytes(whole[:place] + b"?" + whole[place + 1 :])
        before.write_bytes(older)
        assert run(file, config) == rows
    assert f"{newest} is damaged" in capsys.readouterr().out
    newest.write_bytes(b"")
    before.write_bytes(older[:-9])
    assert "use another --out" in said(file, config)


def test_a_loss_that_is_not_finite_stops_the_run(file, config):
    assert "nan" in said(file, config, learning_rate=1e30, max_steps=9, eval_every=9)
    assert not list(Path(config.out).glob("*.pt"))


def test_a_resumed_run_is_alone_and_keeps_its_recipe(file, config):
    rows = run(file, config)
    with file.locked(Path(config.out)):
        assert "another process" in said(file, config)
    for name, value in {"learning_rate": 0.2, "seed": 3, "n_head": 1}.items():
        assert f"{name}={getattr(config, name)}, not {value}" in said(file, config, **{name: value})
    free = {"micro_batch_size": 2, "eval_every": 5, "prompt": "O", "bf16": True}
    assert run(file, config, **free) == rows
    other = shutil.copytree(config.data, f"{config.out}_other")
    assert run(file, config, data=str(other), max_steps=4, **free)[: len(rows)] == rows


def test_a_terminal_that_cannot_print_loses_nothing(file, config, monkeypatch):
    def fails(line, *words, **options):
        if line.startswith("step"):  # the loss before the first one is plain
            raise UnicodeEncodeError("latin-1", "“", 0, 1, "no such letter")

    monkeypatch.setattr("builtins.print", fails)
    with pytest.raises(UnicodeEncodeError):
        run(file, config, eval_every=1)
    assert len((Path(config.out) / "log.jsonl").read_text().splitlines()) == 1
    assert (Path(config.out) / "checkpoint.pt").exists()


def test_each_step_has_its_speed_and_an_mfu_where_the_peak_is_known(file, config):
    shape = {"n_embd": 128, "n_head": 2}
    run(file, config, peak_tflops=0.5, **shape)
    flops = accounting.train_flops_per_token(GPTConfig(**SHAPE | shape, vocab_size=len(LETTERS)))
    rows = [json.loads(line) for line in (Path(config.out) / "log.jsonl").open()]
    for row in rows:
        assert row["tokens_per_second"] == config.batch_tokens / row["seconds"]
        used = row["tokens_per_second"] * flops / 0.5e12
        assert row["mfu"] == pytest.approx(used, rel=0.02)  # the file counts gains and biases, too


@pytest.fixture
def published(file, config) -> dict[str, torch.Tensor]:
    """The tensors of a Hugging Face GPT-2, with the causal mask and the head of old files."""
    tensors = hugging_face.hugging_face_tensors(GPT(GPTConfig(**SHAPE, vocab_size=len(LETTERS))))
    found = {name: value.detach().clone().contiguous() for name, value in tensors.items()}
    found["transformer.h.0.attn.bias"] = torch.ones(1, 1, 16, 16)
    found["lm_head.weight"] = found["transformer.wte.weight"].clone()
    return found


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_a_hugging_face_gpt2_loads(file, config, published, tmp_path, prefix):
    renamed = {prefix + name.removeprefix("transformer."): t for name, t in published.items()}
    save_file(renamed, tmp_path / "hf.safetensors")
    run(file, config, init_from=str(tmp_path / "hf.safetensors"), learning_rate=0.0, max_steps=1)
    for name, value in weights(config).items():
        assert torch.equal(published[name], value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda t: {f"model.{name}": value for name, value in t.items()}, "wte.weight"),
        (lambda t: t | {"transformer.h.1.ln_1.weight": torch.ones(8)}, "h.1.ln_1"),
        (lambda t: {n: v for n, v in t.items() if "ln_f" not in n}, "ln_f"),
        (lambda t: t | {"transformer.wpe.weight": torch.ones(4, 8)}, "wpe.weight"),
        (lambda t: t | {"transformer.h.0.mlp.c_fc.weight": torch.ones(32, 8)}, "c_fc.weight"),
    ],
    ids=["other names", "more layers", "a missing tensor", "a shorter context", "(out, in)"],
)
def test_weights_of_another_shape_are_refused(file, config, published, tmp_path, change, words):
    save_file(change(published), tmp_path / "hf.safetensors")
    line = said(file, config, init_from=str(tmp_path / "hf.safetensors"))
    assert "hf.safetensors: " in line
    assert words in line


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("activation_function", "relu"),
        ("layer_norm_epsilon", 1e-6),
        ("scale_attn_by_inverse_layer_idx", True),
    ],
)
def test_weights_of_another_model_are_refused(file, config, published, tmp_path, name, value):
    save_file(published, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"activation_function": "gelu_new"}))
    run(file, config, init_from=str(tmp_path / "model.safetensors"))
    (tmp_path / "config.json").write_text(json.dumps({name: value}))
    line = said(file, config, init_from=str(tmp_path / "model.safetensors"), out=f"{tmp_path}/2")
    assert f"{name} {value}" in line


@pytest.mark.parametrize("split", ["train", "val"])
def test_data_that_is_too_short_or_no_whole_shard_is_refused(file, config, split):
    assert "nowhere has no shards" in said(file, config, data="nowhere")  # and not "go online"
    path = Path(config.data) / f"{split}_000.bin"
    whole = path.read_bytes()
    for count in (0, 16):
        write_shard(path, np.arange(count))
        assert f"{count} {split} tokens" in said(file, config)
    no_header = np.arange(2000, dtype="<u2").tobytes()
    for content in (b"To be, or not to be, " * 200, no_header, whole[:-100], b""):
        path.write_bytes(content)
        assert path.name in said(file, config)


@pytest.mark.parametrize(
    "text",
    [
        None,
        "",
        "404: Not Found",  # what curl saves without -f
        '{"ctx": "a", "endings": ["b", "c", "d"], "label": 0}',
        '{"ctx": "", "endings": ["b", "c", "d", "e"], "label": 0}',  # "b" would have no loss
        '{"ctx": "a", "endings": ["b", "c", "d", "e"], "label": ""}',  # of the test split
    ],
)
def test_hellaswag_is_read_before_the_first_step(file, config, tmp_path, text):
    path = tmp_path / "examples.jsonl"
    if text is not None:
        path.write_text(text)
    line = said(file, config, hellaswag=str(path))
    assert f"{path}: " in line
    assert not Path(config.out).exists()


@pytest.fixture
def examples(file, config, tmp_path) -> list:
    """The examples as the file reads them."""
    path = tmp_path / "examples.jsonl"
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in EXAMPLES)
    path.write_text(f"\n{text}\n", encoding="utf-8")
    return file.read_examples(str(path), file.open_tokenizer(config.data).encode_ordinary)


def test_hellaswag_in_batches_is_what_it_is_one_by_one(file, config, examples):
    assert [label for _, _, label in examples] == [0, 1, 3]
    assert len(examples[1][1][2]) > config.block_size  # a whole window of the ending is scored
    torch.manual_seed(0)
    model = sharp(file, dataclasses.replace(config, vocab_size=len(LETTERS)))
    right, wrong = [], []
    for context, endings, _ in examples:
        found = file.ending_losses(model, [context] * 4, endings)
        for ending, loss in zip(endings, found, strict=True):
            row = torch.tensor((context + ending)[-17:])
            logits, count = model(row[None, :-1])[0], min(len(ending), len(row) - 1)
            alone = torch.nn.functional.cross_entropy(logits[-count:], row[-count:])
            torch.testing.assert_close(loss, alone)
        likeliest = found.argmin().item()
        right.append((context, endings, likeliest))
        wrong.append((context, endings, 3 - likeliest))
    assert file.hellaswag(model, right * 11, FP32) == 1
    assert file.hellaswag(model, right * 5 + wrong * 6, FP32) == pytest.approx(5 / 11)


@pytest.mark.parametrize("world", [2, 5])
def test_processes_share_the_work_even_if_there_is_too_little(
    file, config, examples, monkeypatch, world
):
    config = dataclasses.replace(config, vocab_size=len(LETTERS), micro_batch_size=2)
    config = dataclasses.replace(config, batch_tokens=16 * 2 * world)
    tokens, model = file.Tokens(config.data, "val", config), sharp(file, config)
    assert sorted(tokens.starts) == list(range(0, 192, 16)) != tokens.starts.tolist()

    def shares() -> tuple[float, float, list]:
        rows = [x for x, _ in file.micro_batches(tokens, 3, config)]
        with torch.no_grad():
            loss = file.evaluate(model, tokens, config, FP32).item()
        return loss, file.hellaswag(model, examples, FP32), torch.cat(rows).tolist()

    loss, score, rows = shares()
    parts = []
    for rank in range(world):
        monkeypatch.setattr(file, "rank_and_world", lambda rank=rank: (rank, world))
        parts.append(shares())
    losses, scores, pieces = zip(*parts, strict=True)
    assert sum(losses) == pytest.approx(loss, rel=1e-6)
    assert sum(scores) == pytest.approx(score)
    assert [row for piece in pieces for row in piece] == rows
