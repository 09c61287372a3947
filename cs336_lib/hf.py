"""Reading and writing GPT-2 in the Hugging Face format."""

import json
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
from cs336_lib.io import Bar, atomic, inside, read_json
from cs336_lib.model import GPT

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

HEAD, EMBEDDING = "lm_head.weight", "transformer.wte.weight"

FLOATS = ("F64", "F32", "F16", "BF16")

CPU = torch.device("cpu")

# The only values that our model supports; a config.json may leave them out.
FIXED = {
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "add_cross_attention": False,
    "tie_word_embeddings": True,
}

# Our names of the sizes, and those of Hugging Face.
SHAPE = {
    "block_size": "n_positions",
    **{name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")},
}

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def load(source: str | Path, device: torch.device = CPU) -> GPT:
    """Load a GPT-2 in fp32, in evaluation mode.

    Args:
        source: A folder in the Hugging Face format, or one of `HUB_NAMES` if no such folder exists.
        device: Where to put the model.

    Raises:
        FileNotFoundError: A file is missing.
        ValueError: The download fails, or the model isn't a GPT-2 that we support.
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
    """Download one of OpenAI's models unless it is cached, and return its folder.

    Raises:
        ValueError: huggingface_hub is not installed, or the download fails.
    """
    instead = "or give a local folder with config.json and model.safetensors"
    try:
        from huggingface_hub import hf_hub_download
    except ImportError:
        raise ValueError(f"{name}: `pip install huggingface_hub` first, {instead}") from None
    try:
        for file in (CONFIG, WEIGHTS):
            path = hf_hub_download(f"openai-community/{name}", file)
    except Exception as error:  # many kinds, from the client, HTTP and the system
        raise ValueError(
            f"{name}: cannot be had from the Hugging Face hub ({type(error).__name__}); "
            f"connect to the internet, {instead}"
        ) from None
    return Path(path).parent


def check_size(config: GPTConfig, files: list[Path]) -> None:
    """Check that the weights can have the shape of the config, before memory is allocated.

    Raises:
        ValueError: The model is larger than the files, or than this machine's memory.
    """
    numbers, size = count_parameters(config), sum(path.stat().st_size for path in files)
    require(
        numbers <= size,  # a number has at least one byte
        f"{files[0].parent}: {CONFIG} describes {numbers:,} parameters, but the weights are "
        f"{size:,} bytes",
    )
    require_memory(4 * numbers, CPU, f"a model of {numbers:,} parameters")


def read_config(path: Path) -> GPTConfig:
    """Read the shape from a Hugging Face config.json.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: It doesn't describe a GPT-2 that we support.
    """
    raw = read_json(path)
    kind = raw.get("model_type")
    require(kind == "gpt2", f"{path}: model_type is {kind!r}; 'gpt2' expected")
    for name, ours in FIXED.items():
        value = raw.get(name, ours)
        require(value == ours, f"{path}: {name} is {value!r}; only {ours!r} is supported")
    # Both sides default to the 124M model.
    shape = {ours: raw.get(theirs, getattr(GPTConfig, ours)) for ours, theirs in SHAPE.items()}
    dropouts = [raw.get(name, 0.1) for name in DROPOUTS]
    require(
        all(value == dropouts[0] for value in dropouts),
        f"{path}: {', '.join(DROPOUTS)} are {dropouts}; one number for all expected",
    )
    try:
        config = GPTConfig(**shape, dropout=dropouts[0], bias=True)
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None
    inner = raw.get("n_inner")
    require(
        inner in (None, 4 * config.n_embd),
        f"{path}: n_inner is {inner!r}; only 4 * n_embd is supported",
    )
    return config


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files of a folder; pickles are never opened.

    Raises:
        FileNotFoundError: There are none, or one that the index names is missing.
        ValueError: The folder holds only pickles, or its index is malformed.
    """
    if (folder / WEIGHTS).is_file():
        return [inside(folder, WEIGHTS)]
    if not (folder / INDEX).is_file():
        require(
            not any(folder.glob("*.bin")),
            f"{folder}: holds only pickled weights, which can run any code; if you trust them: "
            f"transformers.GPT2LMHeadModel.from_pretrained(FOLDER).save_pretrained(NEW_FOLDER)",
        )
        raise FileNotFoundError(f"{folder}: holds no {WEIGHTS}")
    listed = read_json(inside(folder, INDEX)).get("weight_map")
    require(
        isinstance(listed, dict)
        and len(listed) > 0
        and all(isinstance(n, str) and n and Path(n).name == n for n in listed.values()),
        f"{folder / INDEX}: weight_map must map each tensor to a file of this folder",
    )
    files = [inside(folder, name) for name in sorted(set(listed.values()))]
    for path in files:
        if not path.is_file():
            raise FileNotFoundError(f"{path}: not found, though {INDEX} names it")
    return files


def is_conv1d(name: str) -> bool:
    """Return whether Hugging Face stores this weight as (in, out); nn.Linear has (out, in)."""
    return ".c_" in name and name.endswith(".weight")


def hugging_face_tensors(model: GPT) -> dict[str, Tensor]:
    """Return the weights as Hugging Face stores them: transposed, unpadded, with all biases."""
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
    """Map each tensor's name in our model to an open file and its name there."""
    stored: dict[str, tuple[Any, str]] = {}
    for path in files:
        file = stack.enter_context(safe_open(path, "pt"))
        for key in list(file.keys()):
            if key.endswith((".attn.bias", ".attn.masked_bias")):
                continue  # causal masks, which old versions stored
            name = key if key == HEAD else "transformer." + key.removeprefix("transformer.")
            require(name not in stored, f"{path}: {name} is there twice")
            stored[name] = file, key
    if HEAD in stored:
        stored.setdefault(EMBEDDING, stored[HEAD])  # tied: the file may hold either one
    return stored


def check_tensors(
    stored: dict[str, tuple[Any, str]], expected: dict[str, Tensor], folder: Path
) -> None:
    """Raise `ValueError` unless the files hold the expected tensors; `lm_head` is optional."""
    for name, like in expected.items():
        require(name in stored, f"{folder}: the weights have no {name}")
        file, key = stored[name]
        tensor = file.get_slice(key)
        shape, wanted = tuple(tensor.get_shape()), tuple(like.shape)
        require(shape == wanted, f"{folder}: {name} has shape {shape}, {wanted} expected")
        dtype = tensor.get_dtype()
        require(dtype in FLOATS, f"{folder}: {name} is {dtype}; floating point expected")
    for name in stored:
        known = name in expected or name == HEAD
        require(known, f"{folder}: holds {name}, which GPT-2's language model has not")


def check_finite(path: Path, name: str, tensor: Tensor) -> None:
    """Raise `ValueError` if a tensor holds NaN or infinity."""
    require(bool(tensor.isfinite().all()), f"{path}: {name} holds NaN or infinity")


def read_weights(files: list[Path], model: GPT) -> dict[str, Tensor]:
    """Read the files' tensors in the layout of our model.

    Args:
        files: Safetensors files of one folder.
        model: Gives names and shapes; it may be on the meta device.

    Raises:
        ValueError: A file isn't safetensors, or a tensor is missing, unknown, of another shape, not
            floating point or not finite.
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
                # Copy, because safetensors maps the file into memory and it may change later.
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
    """Write a model and its tokenizer as a folder that transformers loads, atomically.

    GPT-2 always has biases at Hugging Face, so a model without biases gets zeros.

    Raises:
        FileExistsError: The folder exists.
        OSError: The folder can't be written.
        ValueError: The tokenizer has another vocabulary size than the model.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another folder, or remove it")
    require(
        model.config.vocab_size == tokenizer.vocab_size,
        f"the tokenizer has {tokenizer.vocab_size} ids, the model {model.config.vocab_size}; "
        f"the one that the model was trained with expected",
    )
    make = char_files if isinstance(tokenizer, CharTokenizer) else gpt2_files
    texts = model_files(model, tokenizer) | make(tokenizer, model.config.block_size)
    tensors = {name: value.contiguous() for name, value in hugging_face_tensors(model).items()}
    with atomic(folder, folder=True) as temporary:
        for name, text in texts.items():
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        # safetensors creates a file that only its owner can read.
        shutil.copymode(temporary / CONFIG, temporary / WEIGHTS)


def dump(content: dict[str, Any]) -> str:
    """Format JSON as Hugging Face does."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def model_files(model: GPT, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the text of config.json and generation_config.json, by name."""
    config = model.config
    ends = {"bos_token_id": tokenizer.end_of_text, "eos_token_id": tokenizer.end_of_text}
    described = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": str(model.lm_head.weight.dtype).removeprefix("torch."),
        **{theirs: getattr(config, ours) for ours, theirs in SHAPE.items()},
        **dict.fromkeys(DROPOUTS, config.dropout),
        **FIXED,
        **ends,
    }
    return {CONFIG: dump(described), "generation_config.json": dump(ends)}


def char_files(tokenizer: CharTokenizer, block_size: int) -> dict[str, str]:
    """Return the text of a character tokenizer's Hugging Face files, by name."""
    every = {"Regex": r"[\s\S]"}  # a dot would not match newlines
    split = {"type": "Split", "pattern": every, "behavior": "Isolated", "invert": False}
    vocab = {character: index for index, character in enumerate(tokenizer.alphabet)}
    described = {
        "version": "1.0",
        "added_tokens": [],
        "pre_tokenizer": split,
        "decoder": {"type": "Fuse"},
        # <unk> is not in the vocabulary, so an unknown character is an error, as in ours.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        # Otherwise transformers 4 adds token_type_ids, whose embeddings its GPT-2 adds.
        "model_input_names": ["input_ids", "attention_mask"],
        "model_max_length": block_size,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": dump(described), "tokenizer_config.json": dump(settings)}


def gpt2_files(tokenizer: Tokenizer, block_size: int) -> dict[str, str]:
    """Return the text of GPT-2's tokenizer files, by name, rebuilt from data/gpt2.tiktoken.

    vocab.json and merges.txt equal OpenAI's encoder.json and vocab.bpe byte for byte.
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
    """Write a token with the characters that GPT-2's files use for bytes."""
    return "".join(letters[byte] for byte in token)


def byte_letters() -> dict[int, str]:
    """Map each byte to the printable character that GPT-2's encoder.py uses for it."""
    printable = [*range(ord("!"), 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}


def bpe_merges(tokens: list[bytes]) -> list[list[bytes]]:
    """Return the pair that each token of several bytes was merged from.

    Merging a token's bytes by rank until two parts are left repeats the encoder's steps.

    Args:
        tokens: All tokens in rank order.
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
