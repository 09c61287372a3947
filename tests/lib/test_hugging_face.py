"""Imported and exported GPT-2 folders give the same logits, ids and texts as transformers."""

import hashlib
import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer, ShortGPT2Tokenizer
from cs336_lib.model import GPT

TRICKY = [
    "",
    " \n\n\n \n \t \r\na\rb\ttab\t\ttabs  ",
    "Hello, world! leading and trailing ",
    "don't we'll I've you're he's she'd I'm DON'T WE'LL ' 's 'sx ''",
    "1234567890 3.14 1,000,000 ½ ² under_score snake_case camelCase",
    "def f(x):\n    return x  # four spaces\n",
    "naïve café Ünïcödé e\u0301 is not é Привет, мир مرحبا بالعالم हिन्दी में 日本語の文章。中文",
    "🎭🎉👩\u200d👩\u200d👧 🇫🇷 zero\u200bwidth no\u00a0break \u3000 wide \ufeff\ufffd 𝒜𝓁𝓁 math 𐍈",
    "\x00\x01\x7f control http://a.b/c?d=e&f=%20#g <|endoftext Ġ Ċ literally",
    "a" * 300,
]
ALPHABET = "".join(sorted(set("".join(TRICKY))))
MARK = "[]{}\\\"'^$.*+?()|-"  # characters that are special in a regular expression or in JSON


def noisy(config: GPTConfig) -> GPT:
    """A model in which no parameter has its initial value."""
    model = GPT(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
            if name.endswith("wte.weight"):
                parameter[config.vocab_size :] = 0  # padding, as a trained model has it
    return model


def letters(count: int) -> CharTokenizer:
    """A tokenizer with `count` characters."""
    return CharTokenizer("".join(chr(ord("!") + i) for i in range(count)))


def same(a: GPT, b: GPT) -> bool:
    """Return whether two models have the same shape and bit-identical weights."""
    pairs = zip(a.parameters(), b.parameters(), strict=True)
    return a.config == b.config and all(torch.equal(ours, theirs) for ours, theirs in pairs)


def rewrite(folder: Path, edit) -> None:
    """Replace the tensors of a folder with `edit(tensors)`."""
    tensors = edit(load_file(folder / "model.safetensors"))
    save_file({name: value.contiguous() for name, value in tensors.items()}, folder / "new")
    (folder / "new").replace(folder / "model.safetensors")


@pytest.fixture
def folder(tiny_config, tmp_path) -> Path:
    """An exported tiny model, which a test may corrupt."""
    hugging_face.export(noisy(tiny_config), tmp_path / "exported", letters(50))
    return tmp_path / "exported"


@pytest.fixture(scope="module")
def gpt2_folder(tmp_path_factory) -> Path:
    """A tiny model with GPT-2's own tokenizer, exported."""
    path = tmp_path_factory.mktemp("gpt2") / "exported"
    hugging_face.export(GPT(GPTConfig(64, 50257, 1, 2, 8)), path, GPT2Tokenizer())
    return path


@pytest.fixture(scope="module")
def transformers():
    """The transformers library, which takes seconds to import."""
    return pytest.importorskip("transformers")


def test_transformers_loads_what_we_export(transformers, tmp_path):
    for bias in (False, True):
        model, out = noisy(GPTConfig(32, 50, 2, 4, 64, bias=bias)), tmp_path / str(bias)
        hugging_face.export(model, out, letters(50))
        theirs, report = transformers.AutoModelForCausalLM.from_pretrained(
            out, output_loading_info=True
        )
        assert type(theirs) is transformers.GPT2LMHeadModel
        assert not any(report.values())  # no missing, unexpected or misshapen tensors
        assert theirs.dtype == torch.float32
        idx = torch.randint(50, (3, 32))
        with torch.no_grad():
            assert torch.allclose(model(idx), theirs(idx).logits, atol=1e-4)
            assert torch.allclose(model(idx), hugging_face.load(out)(idx), atol=1e-5)


def test_we_load_what_transformers_saves(transformers, tmp_path):
    shape = {"n_positions": 32, "n_embd": 64, "n_layer": 2, "n_head": 4}
    config = transformers.GPT2Config(vocab_size=50, initializer_range=0.2, **shape)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for size in ("5GB", "8KB"):
        theirs.save_pretrained(tmp_path / size, max_shard_size=size)
        assert (tmp_path / size / "model.safetensors.index.json").exists() == (size == "8KB")
        state = torch.get_rng_state()
        model = hugging_face.load(str(tmp_path / size))
        assert torch.equal(torch.get_rng_state(), state)  # loading draws no random numbers
        assert not model.training
        assert model.config == GPTConfig(32, 50, 2, 4, 64, dropout=0.1)
        assert model.lm_head.weight is model.transformer.wte.weight
        assert not model.lm_head.weight[50:].any()
        assert all(p.requires_grad and p.is_contiguous() for p in model.parameters())
        idx = torch.randint(50, (3, 32))
        with torch.no_grad():
            assert torch.allclose(model(idx), theirs(idx).logits, atol=1e-4)


HEAD, WTE = "lm_head.weight", "transformer.wte.weight"


def test_other_spellings_of_the_same_weights(folder):
    model = hugging_face.load(folder)
    tensors = load_file(folder / "model.safetensors")
    head_only = {(HEAD if name == WTE else name): value for name, value in tensors.items()}
    # On the hub, names have no prefix, and there are masks.
    bare = {name.removeprefix("transformer."): value for name, value in tensors.items()}
    bare |= {f"h.0.attn.{name}": torch.ones(1, 1, 16, 16) for name in ("bias", "masked_bias")}
    for content in (bare | {HEAD: tensors[WTE].clone()}, head_only):
        rewrite(folder, lambda _, content=content: content)
        assert same(hugging_face.load(folder), model)


def test_the_newer_name_of_gelu_is_read(folder):
    path = folder / "config.json"
    newer = json.loads(path.read_text()) | {"activation_function": "gelu_pytorch_tanh"}
    path.write_text(json.dumps(newer))
    assert newer["n_ctx"] == newer["n_positions"]  # llama.cpp's converter reads n_ctx
    assert hugging_face.load(folder)


def test_what_would_give_other_logits_is_refused(folder):
    path = folder / "config.json"
    good = path.read_text()
    for values, message in (
        ({"model_type": "llama"}, "model_type is 'llama'; 'gpt2' expected"),
        ({"activation_function": "relu"}, "activation_function is 'relu'; 'gelu_new' expected"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    ):
        path.write_text(json.dumps(json.loads(good) | values))
        with pytest.raises(ValueError, match=message):
            hugging_face.load(folder)
    path.write_text(good)
    rewrite(folder, lambda tensors: tensors | {HEAD: tensors[WTE] + 1})
    with pytest.raises(ValueError, match="only tied weights"):
        hugging_face.load(folder)


def test_the_hub_by_name(folder, tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.chdir(tmp_path)
    asked = {"openai-community/gpt2-large": folder}
    monkeypatch.setattr(hub, "hf_hub_download", lambda name, file: str(asked[name] / file))
    assert same(hugging_face.load("gpt2-large"), hugging_face.load(folder))
    monkeypatch.setattr(hub, "hf_hub_download", lambda *asked: 1 / 0)
    with pytest.raises(ValueError, match=r"downloaded \(ZeroDivisionError\); connect"):
        hugging_face.load("gpt2")
    shutil.copytree(folder, tmp_path / "gpt2")
    assert same(hugging_face.load("gpt2"), hugging_face.load(folder))  # a folder of that name wins


def test_gpt2_files_are_openais(gpt2_folder):
    """The checksums are those with which tiktoken checks its downloads of the originals."""
    openai_public = pytest.importorskip("tiktoken_ext.openai_public")
    source = Path(openai_public.__file__).read_text()
    for name in ("vocab.json", "merges.txt"):
        assert hashlib.sha256((gpt2_folder / name).read_bytes()).hexdigest() in source


def test_gpt2_ids_equal_ours(transformers, gpt2_folder):
    ours = GPT2Tokenizer()
    theirs = transformers.AutoTokenizer.from_pretrained(gpt2_folder, model_max_length=10**9)
    assert len(theirs) == ours.vocab_size
    assert (theirs.bos_token_id, theirs.eos_token_id) == (50256, 50256)
    for text in [*TRICKY, shakespeare()[100_000:200_000]]:
        ids = ours.encode(text).tolist()
        assert theirs.encode(text) == ids
        assert theirs.decode(ids) == text
    # We encode <|endoftext|> in a text as ordinary text, transformers as the special token.
    text = "one<|endoftext|>two"
    assert theirs.encode(text) == [505, 50256, 11545]
    plain = theirs.encode(text, split_special_tokens=True)
    assert plain == ours.encode(text).tolist()


def test_a_small_vocabulary_gets_no_id_beyond_the_model(transformers, tmp_path):
    ours = ShortGPT2Tokenizer()
    model = GPT(GPTConfig(64, ours.vocab_size, 1, 2, 8))
    hugging_face.export(model, tmp_path / "out", ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out")
    assert len(theirs) == ours.vocab_size
    assert theirs.encode(TRICKY[2]) == ours.encode(TRICKY[2]).tolist()


def test_char_ids_equal_ours(transformers, tmp_path):
    ours = CharTokenizer(ALPHABET + MARK + shakespeare())
    model = GPT(GPTConfig(64, ours.vocab_size, 1, 2, 8))
    hugging_face.export(model, tmp_path / "out", ours)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "out", model_max_length=10**9)
    assert theirs.vocab_size == ours.vocab_size
    for text in [*TRICKY, MARK, ours.alphabet, shakespeare()[:100_000]]:
        ids = ours.encode(text).tolist()
        assert theirs.encode(text) == ids
        assert theirs.decode(ids) == text
    with pytest.raises(Exception, match="UNK"):  # an error as in our tokenizer, not a wrong id
        theirs.encode("\u4e00")
