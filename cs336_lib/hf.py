"""GPT-2 weights from Hugging Face and back: `load` reads such a folder, `export` writes one."""

import json
import os
import shutil
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from cs336_lib.accounting import count_parameters
from cs336_lib.config import GPTConfig, require
from cs336_lib.data.tokenizer import END_OF_TEXT, CharTokenizer, Tokenizer, gpt2_encoding
from cs336_lib.hardware import require_memory
from cs336_lib.io import Bar, inside, read_json
from cs336_lib.model import GPT

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"

FLOATS = ("F64", "F32", "F16", "BF16")

CPU = torch.device("cpu")

# What our model does and cannot do otherwise; a config.json that is silent means the same.
OURS = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# Our names of the sizes, and Hugging Face's.
SHAPE = {"block_size": "n_positions"}

SHAPE |= {name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")}

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def load(source: str | Path, device: torch.device = CPU) -> GPT:
    """A GPT-2 in fp32, ready for evaluation, from a local folder or, by name, from the hub.

    `source` is a folder in Hugging Face's layout, or one of `HUB_NAMES`; the folder wins.

    Raises:
        ValueError: it cannot be had, is no GPT-2, or is one that our model cannot express.
    """
    folder = Path(source)
    if source in HUB_NAMES and not folder.is_dir():
        folder = download(str(source))
    require(folder.is_dir(), f"{source}: no such folder, and not one of {', '.join(HUB_NAMES)}")
    config = read_config(inside(folder, CONFIG))
    files = weight_files(folder)
    check_size(config, files)
    with torch.device("meta"):  # shapes only: no memory, no random numbers drawn
        model = GPT(config)
    model.load_state_dict(read_weights(files, model), strict=False, assign=True)
    model.lm_head.weight = model.transformer.wte.weight
    return model.to(device).eval()


def download(name: str) -> Path:
    """The folder where the hub's client keeps one of OpenAI's models, fetched if need be.

    Raises:
        ValueError: the client is not installed, or the hub cannot be reached.
    """
    instead = "or give a local folder with config.json and model.safetensors"
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ValueError(f"{name}: `pip install huggingface_hub` first, {instead}") from None
    try:
        for file in (CONFIG, WEIGHTS):
            path = hf_hub_download(f"openai-community/{name}", file)
    except Exception as error:  # the client's, its HTTP library's and the system's: many kinds
        raise ValueError(
            f"{name}: cannot be had from the Hugging Face hub ({type(error).__name__}); "
            f"connect to the internet, {instead}"
        ) from None
    return Path(path).parent


def check_size(config: GPTConfig, files: list[Path]) -> None:
    """Refuse a config before anything is allocated on its word alone.

    Raises:
        ValueError: the weights' files cannot hold so many numbers, or this machine's memory cannot.
    """
    numbers, size = count_parameters(config), sum(path.stat().st_size for path in files)
    require(
        numbers <= size,  # at a byte a number at least
        f"{files[0].parent}: {CONFIG} describes {numbers:,} parameters, but the weights are "
        f"{size:,} bytes",
    )
    require_memory(4 * numbers, CPU, f"a model of {numbers:,} parameters")


def read_config(path: Path) -> GPTConfig:
    """The shape that a Hugging Face config.json describes.

    Raises:
        ValueError: it is not GPT-2's, makes no sense, or asks for what our model has not.
    """
    require(path.is_file(), f"{path}: not found; a Hugging Face GPT-2 folder has one")
    raw = read_json(path)
    kind = raw.get("model_type")
    require(kind == "gpt2", f"{path}: model_type is {kind!r}; 'gpt2' expected")
    for name, ours in OURS.items():
        value = raw.get(name, ours)
        require(value == ours, f"{path}: {name} is {value!r}; only {ours!r} is supported")
    shape = {}
    for ours, theirs in SHAPE.items():
        shape[ours] = raw.get(theirs, getattr(GPTConfig, ours))  # both default to the 124M model
        whole = type(shape[ours]) is int
        require(whole, f"{path}: {theirs} is {shape[ours]!r}; a whole number expected")
    dropouts = [raw.get(name, 0.1) for name in DROPOUTS]
    require(
        all(type(value) in (int, float) for value in dropouts) and len(set(dropouts)) == 1,
        f"{path}: {', '.join(DROPOUTS)} are {dropouts}; one number for all expected",
    )
    inner = raw.get("n_inner")
    require(
        inner in (None, 4 * shape["n_embd"]),
        f"{path}: n_inner is {inner!r}; only 4 * n_embd is supported",
    )
    try:
        return GPTConfig(**shape, dropout=dropouts[0], bias=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder, one or several; pickles are never opened.

    Raises:
        ValueError: there are none, or one that the index names is missing.
    """
    if (folder / WEIGHTS).is_file():
        return [inside(folder, WEIGHTS)]
    if not (folder / INDEX).is_file():
        require(
            not any(folder.glob("*.bin")),
            f"{folder}: holds only pickled weights, which can run any code; if you trust them: "
            f"transformers.GPT2LMHeadModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)",
        )
        raise ValueError(f"{folder}: holds no {WEIGHTS}")
    listed = read_json(inside(folder, INDEX)).get("weight_map")
    require(
        isinstance(listed, dict)
        and len(listed) > 0
        and all(isinstance(n, str) and n and Path(n).name == n for n in listed.values()),
        f"{folder / INDEX}: weight_map must map each tensor to a file of this folder",
    )
    files = [inside(folder, name) for name in sorted(set(listed.values()))]
    for path in files:
        require(path.is_file(), f"{path}: not found, though {INDEX} names it")
    return files


def is_conv1d(name: str) -> bool:
    """Whether Hugging Face keeps this weight as (in, out), where nn.Linear has (out, in)."""
    return ".c_" in name and name.endswith(".weight")


def hugging_face_tensors(model: GPT) -> dict[str, Tensor]:
    """The weights as Hugging Face lays them out: transposed, without padding, with all biases."""
    tensors = {}
    for name, value in model.state_dict().items():
        if name == HEAD:
            continue  # tied
        if name == EMBEDDING:
            value = value[: model.config.vocab_size]
        tensors[name] = value.T if is_conv1d(name) else value
        if not model.config.bias and (".h." in name or ".ln_f." in name):
            tensors[name.replace(".weight", ".bias")] = value.new_zeros(value.size(0))
    return tensors


def find_tensors(files: list[Path], stack: ExitStack) -> dict[str, tuple[Any, str]]:
    """Where each tensor is, by our name: an open file and its name there; nothing is read yet."""
    stored: dict[str, tuple[Any, str]] = {}
    for path in files:
        file = stack.enter_context(safe_open(path, "pt"))
        for key in list(file.keys()):
            if key.endswith((".attn.bias", ".attn.masked_bias")):
                continue  # causal masks that old versions stored
            name = key if key == HEAD else "transformer." + key.removeprefix("transformer.")
            require(name not in stored, f"{path}: {name} is there twice")
            stored[name] = file, key
    if HEAD in stored:
        stored.setdefault(EMBEDDING, stored[HEAD])  # tied: either one may have been left out
    return stored


def check_tensors(
    stored: dict[str, tuple[Any, str]], expected: dict[str, Tensor], folder: Path
) -> None:
    """Raise `ValueError` unless exactly the expected tensors are there; `lm_head` is optional."""
    for name, like in expected.items():
        require(name in stored, f"{folder}: the weights have no {name}")
        file, key = stored[name]
        found = file.get_slice(key)
        shape, wanted = tuple(found.get_shape()), tuple(like.shape)
        require(shape == wanted, f"{folder}: {name} has shape {shape}, {wanted} expected")
        dtype = found.get_dtype()
        require(dtype in FLOATS, f"{folder}: {name} is {dtype}; floating point expected")
    for name in stored:
        known = name in expected or name == HEAD
        require(known, f"{folder}: holds {name}, which GPT-2's language model has not")


def check_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Refuse weights from which only NaN would come."""
    require(bool(tensor.isfinite().all()), f"{path}: {name} holds NaN or infinity")


def read_weights(files: list[Path], model: GPT) -> dict[str, Tensor]:
    """The files' tensors as `model`, which is on the meta device, wants them.

    Raises:
        ValueError: a file is damaged, or a tensor is missing, misshapen, not floats, or foreign.
    """
    folder, weights = files[0].parent, {}
    try:
        with ExitStack() as stack:
            stored = find_tensors(files, stack)
            expected = hugging_face_tensors(model)
            check_tensors(stored, expected, folder)
            for name in Bar(expected, desc="weights", unit="tensor", leave=False, delay=1):
                file, key = stored[name]
                value = file.get_tensor(key)
                value = value.T if is_conv1d(name) else value
                # A copy, because safetensors maps the file: it may change or go after this.
                weights[name] = torch.zeros(model.get_parameter(name).shape)
                weights[name][: len(value)] = value
                check_finite(folder, name, weights[name])
            if HEAD in stored:
                file, key = stored[HEAD]
                embedding = weights[EMBEDDING][: model.config.vocab_size]
                require(
                    torch.equal(file.get_tensor(key).float(), embedding),
                    f"{folder}: {HEAD} differs from {EMBEDDING}; only tied weights are supported",
                )
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder}: cannot be read as safetensors ({error})") from None
    return weights


def export(model: GPT, folder: str | Path, tokenizer: Tokenizer) -> None:
    """Write model and tokenizer as a folder that transformers loads, whole or not at all.

    Hugging Face's GPT-2 always has biases: a model without gets zeros, which compute the same.

    Raises:
        ValueError: the folder exists or cannot be written, or the tokenizer is another model's.
    """
    folder = Path(folder)
    require(not folder.exists(), f"{folder} exists already; choose another folder, or remove it")
    require(
        model.config.vocab_size == tokenizer.vocab_size,
        f"the tokenizer has {tokenizer.vocab_size} ids, the model {model.config.vocab_size}; "
        f"the one that the model was trained with expected",
    )
    make = char_files if isinstance(tokenizer, CharTokenizer) else gpt2_files
    texts = model_files(model, tokenizer) | make(tokenizer, model.config.block_size)
    tensors = {name: value.contiguous() for name, value in hugging_face_tensors(model).items()}
    # Not .tmp-NAME: there an unfinished `cs336 prepare --out NAME` keeps its work.
    temporary = folder.with_name(f".tmp-export-{folder.name}")
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(temporary / CONFIG, temporary / WEIGHTS)  # safetensors lets only us read
        os.replace(temporary, folder)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"{folder}: cannot be written ({error})") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def dump(content: dict[str, Any]) -> str:
    """JSON as Hugging Face formats it."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def model_files(model: GPT, tokenizer: Tokenizer) -> dict[str, str]:
    """config.json and generation_config.json, by name."""
    config = model.config
    ends = {"bos_token_id": tokenizer.end_of_text, "eos_token_id": tokenizer.end_of_text}
    described = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": str(model.lm_head.weight.dtype).removeprefix("torch."),
        **{theirs: getattr(config, ours) for ours, theirs in SHAPE.items()},
        **dict.fromkeys(DROPOUTS, config.dropout),
        **OURS,
        **ends,
    }
    return {CONFIG: dump(described), "generation_config.json": dump(ends)}


def char_files(tokenizer: CharTokenizer, block_size: int) -> dict[str, str]:
    """A character tokenizer's files for Hugging Face, by name."""
    every = {"Regex": r"[\s\S]"}  # a dot would leave line ends out
    split = {"type": "Split", "pattern": every, "behavior": "Isolated", "invert": False}
    vocab = {character: index for index, character in enumerate(tokenizer.alphabet)}
    described = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": split,
        "decoder": {"type": "Fuse"},
        # The unknown token is not in the vocabulary: an unknown character is an error, as with us.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # transformers 4 would add token_type_ids, and its GPT-2 adds their embeddings.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": dump(described), "tokenizer_config.json": dump(settings)}


def gpt2_files(tokenizer: Tokenizer, block_size: int) -> dict[str, str]:
    """GPT-2's tokenizer files for Hugging Face, by name, rebuilt from the ranks that ship.

    vocab.json and merges.txt are byte for byte OpenAI's encoder.json and vocab.bpe.
    """
    encoding, letters = gpt2_encoding(), byte_letters()
    tokens = [encoding.decode_single_token_bytes(i) for i in range(encoding.eot_token)]
    vocab = {spell(token, letters): i for i, token in enumerate(tokens)}
    vocab[END_OF_TEXT] = encoding.eot_token
    merges = [f"{spell(a, letters)} {spell(b, letters)}" for a, b in bpe_merges(tokens)]
    end = {"id": encoding.eot_token, "content": END_OF_TEXT, "special": True}
    end |= dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    described = {
        "version": "1.0",
        "added_tokens": [end],
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }
    settings = {
        "tokenizer_class": "GPT2Tokenizer",
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
        **dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT),
    }
    return {
        "vocab.json": json.dumps(vocab),
        "merges.txt": "\n".join(["#version: 0.2", *merges]) + "\n",
        "tokenizer.json": dump(described),
        "tokenizer_config.json": dump(settings),
    }


def spell(token: bytes, letters: dict[int, str]) -> str:
    """A token as GPT-2's files write it."""
    return "".join(letters[byte] for byte in token)


def byte_letters() -> dict[int, str]:
    """The printable character that stands for each byte in GPT-2's files (its encoder.py)."""
    printable = [*range(ord("!"), 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def bpe_merges(tokens: list[bytes]) -> list[list[bytes]]:
    """The pair that each token of several bytes was merged from, `tokens` being in rank order.

    Merging its bytes by rank, until two parts are left, repeats how the encoder gets there.
    """
    ranks = {token: rank for rank, token in enumerate(tokens)}
    pairs = []
    for token in tokens:
        parts = [token[i : i + 1] for i in range(len(token))]
        while len(parts) > 2:
            joined = [a + b for a, b in pairwise(parts)]
            first = min(range(len(joined)), key=lambda i: ranks.get(joined[i], len(ranks)))
            parts[first : first + 2] = [joined[first]]
        if len(parts) == 2:
            pairs.append(parts)
    return pairs
