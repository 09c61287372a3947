"""Read and write GPT-2 models in the Hugging Face format."""

import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from cs336_lib.accounting import count_parameters
from cs336_lib.config import GPTConfig, UserError, from_json
from cs336_lib.data.tokenizer import END_OF_TEXT, CharTokenizer, Tokenizer, gpt2_encoding
from cs336_lib.io import Bar, atomic, inside, read_json
from cs336_lib.model import GPT
from cs336_lib.system.hardware import require_memory

HUB_NAMES = ("gpt2", "gpt2-medium", "gpt2-large", "gpt2-xl")

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"

HEAD, EMBEDDING, PREFIX = "lm_head.weight", "transformer.wte.weight", "transformer."

MASKS = (".attn.bias", ".attn.masked_bias")  # causal masks, which old versions stored

CPU = torch.device("cpu")

# The only values that our model supports. A config.json may leave them out.
FIXED = {
    "model_type": "gpt2",
    "activation_function": "gelu_new",
    "layer_norm_epsilon": 1e-5,
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "tie_word_embeddings": True,
}

# Newer versions of transformers have a second name for the same function.
SAME_GELU = ("activation_function", "gelu_pytorch_tanh")

# Our names of the sizes, and those of Hugging Face.
SHAPE = {
    "block_size": "n_positions",
    **{name: name for name in ("vocab_size", "n_layer", "n_head", "n_embd")},
}

DROPOUTS = ("resid_pdrop", "embd_pdrop", "attn_pdrop")


def load(source: str | Path, device: torch.device = CPU) -> GPT:
    """Load a GPT-2 in fp32, in evaluation mode.

    Args:
        source: A folder in the Hugging Face format, or a model name in `HUB_NAMES`. A folder takes
            precedence over a model with the same name.
        device: Device for the model.

    Raises:
        FileNotFoundError: If a file is missing.
        UserError: If the download fails or the model isn't a supported GPT-2.
    """
    folder = Path(source)
    if source in HUB_NAMES and not folder.is_dir():
        folder = download(str(source))
    if not folder.is_dir():
        raise UserError(f"{source}: no such folder, and not one of {', '.join(HUB_NAMES)}")
    config = read_config(inside(folder, CONFIG))
    files = weight_files(folder)
    check_size(config, files)
    with torch.device("meta"):  # shapes only, so no memory is used and no random number is drawn
        model = GPT(config, seed=0)
    model.load_state_dict(read_weights(files, model), strict=False, assign=True)
    model.lm_head.weight = model.get_parameter(EMBEDDING)
    return model.to(device).eval()


def download(name: str) -> Path:
    """Download a GPT-2 from the Hugging Face hub unless it is cached, and return its folder.

    Raises `UserError` if the download fails or huggingface_hub isn't installed.
    """
    try:
        from huggingface_hub import hf_hub_download

        for file in (CONFIG, WEIGHTS):
            path = hf_hub_download(f"openai-community/{name}", file)
    except Exception as error:  # many kinds, from the client, HTTP and the system
        raise UserError(
            f"{name}: cannot be downloaded ({type(error).__name__}); connect to the internet and "
            f"`pip install huggingface_hub`, or give a folder with {CONFIG} and {WEIGHTS}"
        ) from None
    return Path(path).parent


def check_size(config: GPTConfig, files: list[Path]) -> None:
    """Check the size of a model before memory is allocated.

    Raises `UserError` if the model has more parameters than `files` have bytes, or if it needs
    more memory than the machine has.
    """
    numbers, size = count_parameters(config), sum(path.stat().st_size for path in files)
    if numbers > size:  # a number has at least one byte
        pointer = "; a Git LFS pointer? `git lfs pull` fetches the file" if size < 1000 else ""
        raise UserError(f"{files[0]}: {size:,} bytes cannot hold {numbers:,} parameters{pointer}")
    require_memory(4 * numbers, CPU, f"a model of {numbers:,} parameters")


def read_config(path: Path) -> GPTConfig:
    """Read the model's shape from a Hugging Face config.json.

    Raises:
        FileNotFoundError: If the file doesn't exist.
        UserError: If the config doesn't describe a supported GPT-2.
    """
    raw = read_json(path)
    dropout = raw.get(DROPOUTS[0], 0.1)
    for name, ours in (FIXED | dict.fromkeys(DROPOUTS, dropout)).items():
        value = raw.get(name, ours)
        if value != ours and (name, value) != SAME_GELU:
            raise UserError(f"{path}: {name} is {value!r}; {ours!r} expected")
    # Both sides default to the 124M model.
    shape = {ours: raw.get(theirs, getattr(GPTConfig, ours)) for ours, theirs in SHAPE.items()}
    return from_json(GPTConfig, shape | {"dropout": dropout}, path)


def weight_files(folder: Path) -> list[Path]:
    """List the safetensors files in a folder. Pickle files are never opened.

    Raises:
        FileNotFoundError: If the folder has no safetensors file.
        UserError: If model.safetensors.index.json is malformed.
    """
    if (folder / WEIGHTS).is_file():
        return [inside(folder, WEIGHTS)]
    if not (folder / INDEX).is_file():
        raise FileNotFoundError(
            f"{folder}: holds no {WEIGHTS}; a pytorch_model.bin is a pickle, which can run any "
            "code, so convert it, if you trust it, with transformers' save_pretrained"
        )
    listed = read_json(inside(folder, INDEX)).get("weight_map", {})
    if not isinstance(listed, dict) or not listed:
        raise UserError(
            f"{folder / INDEX}: weight_map must map each tensor to a file of this folder"
        )
    return [inside(folder, name) for name in sorted({str(name) for name in listed.values()})]


def is_conv1d(name: str) -> bool:
    """Return whether Hugging Face stores this weight with shape (in, out).

    The weight of nn.Linear has shape (out, in).
    """
    return ".c_" in name and name.endswith(".weight")


def hugging_face_tensors(model: GPT) -> dict[str, Tensor]:
    """Convert the weights of a model to the Hugging Face layout.

    Linear weights are transposed, the padding of the vocabulary is removed, and missing biases are
    added as zeros.
    """
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


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read the tensors of a safetensors file through a memory map.

    Raises `UserError` if the file isn't safetensors.
    """
    try:
        return load_file(path)
    except (SafetensorError, OSError, RuntimeError) as error:
        raise UserError(f"{path}: cannot be read as safetensors ({error})") from None


def check_tensors(path: Path, tensors: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    """Check the names, shapes and values of tensors that were read from `path`.

    Raises `UserError` if the names or shapes differ from `expected`, or if a tensor isn't floating
    point or contains NaN or infinity.
    """
    for name in tensors:
        if name not in expected:
            raise UserError(f"{path}: holds {name!r:.100}, which this model doesn't have")
    for name, like in Bar(expected.items(), desc="weights", unit="tensor"):
        if name not in tensors:
            raise UserError(f"{path}: holds no {name}")
        tensor = tensors[name]
        shape, wanted = tuple(tensor.shape), tuple(like.shape)
        if shape != wanted:
            raise UserError(f"{path}: {name} has shape {shape}, {wanted} expected")
        if not tensor.is_floating_point():
            raise UserError(f"{path}: {name} isn't floating point")
        if not tensor.float().isfinite().all():
            raise UserError(f"{path}: {name} holds NaN or infinity")


def read_weights(files: list[Path], model: GPT) -> dict[str, Tensor]:
    """Read safetensors files in the Hugging Face layout, and convert the weights for `GPT`.

    Only names and shapes are taken from `model`, so it may be on the meta device. Raises
    `UserError` if the names or shapes in the files don't match the model.
    """
    folder, tensors = files[0].parent, {}
    for path in files:
        for key, value in read_tensors(path).items():
            name = key if key == HEAD else PREFIX + key.removeprefix(PREFIX)
            if not name.endswith(MASKS):
                tensors[name] = value
    if HEAD in tensors:
        head = tensors.pop(HEAD)
        if not torch.equal(tensors.setdefault(EMBEDDING, head).float(), head.float()):
            raise UserError(
                f"{folder}: {HEAD} differs from {EMBEDDING}; only tied weights are supported"
            )
    check_tensors(folder, tensors, hugging_face_tensors(model))
    weights = {}
    for name, value in tensors.items():
        value = value.T if is_conv1d(name) else value
        # Copy, because the file may change later.
        weights[name] = torch.zeros(model.get_parameter(name).shape)
        weights[name][: len(value)] = value
    return weights


def export(model: GPT, folder: str | Path, tokenizer: Tokenizer, card: str = "") -> None:
    """Write a model and its tokenizer to a folder for Hugging Face transformers.

    The folder is written atomically. If the model has no biases, zeros are written, because GPT-2
    in transformers always has biases. `card` is the text of README.md, if there is one.

    Raises:
        FileExistsError: If the folder exists.
        OSError: If the folder can't be written.
        UserError: If the tokenizer and the model have different vocabulary sizes.
    """
    folder = Path(folder)
    if folder.exists():
        raise FileExistsError(f"{folder} exists already; choose another folder, or remove it")
    ours, theirs = tokenizer.vocab_size, model.config.vocab_size
    if ours != theirs:
        raise UserError(f"the tokenizer has {ours} ids, the model {theirs}; they must be equal")
    tensors = {name: value.contiguous() for name, value in hugging_face_tensors(model).items()}
    with atomic(folder, folder=True) as temporary:
        files = text_files(model, tokenizer) | ({"README.md": card} if card else {})
        for name, text in files.items():
            (temporary / name).write_text(text, encoding="utf-8", newline="\n")
        save_file(tensors, temporary / WEIGHTS, metadata={"format": "pt"})
        # safetensors creates a file that only its owner can read.
        shutil.copymode(temporary / CONFIG, temporary / WEIGHTS)


def text_files(model: GPT, tokenizer: Tokenizer) -> dict[str, str]:
    """Return the content of all exported text files, by file name."""
    config = model.config
    ends = dict.fromkeys(("bos_token_id", "eos_token_id"), tokenizer.end_of_text)
    described = {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "dtype": str(model.lm_head.weight.dtype).removeprefix("torch."),
        **{theirs: getattr(config, ours) for ours, theirs in SHAPE.items()},
        "n_ctx": config.block_size,  # llama.cpp's converter reads this old name
        **dict.fromkeys(DROPOUTS, config.dropout),
        **FIXED,
        **ends,
    }
    settings = {
        "model_max_length": config.block_size,
        # Otherwise transformers 4 adds token_type_ids, whose embeddings its GPT-2 adds.
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
    }
    files = {}
    if isinstance(tokenizer, CharTokenizer):
        steps = char_steps(tokenizer)
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
    else:
        steps = gpt2_steps(tokenizer.vocab_size - (tokenizer.end_of_text is not None))
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"
        if tokenizer.end_of_text is not None:  # GPT2Tokenizer would add it as one more id
            settings["tokenizer_class"] = "GPT2Tokenizer"
            settings |= dict.fromkeys(("bos_token", "eos_token", "unk_token"), END_OF_TEXT)
        files = vocabulary_files(steps["model"])
    return files | {
        CONFIG: dump(described),
        "generation_config.json": dump(ends),
        "tokenizer.json": dump({"version": "1.0", "added_tokens": [], **steps}),
        "tokenizer_config.json": dump(settings),
    }


def dump(content: dict[str, Any]) -> str:
    """Format JSON in the same way as transformers."""
    return json.dumps(content, indent=2, ensure_ascii=False) + "\n"


def char_steps(tokenizer: CharTokenizer) -> dict[str, Any]:
    """Describe a character tokenizer in the format of Hugging Face's tokenizer.json."""
    every = {"Regex": r"[\s\S]"}  # a dot would not match newlines
    split = {"type": "Split", "pattern": every, "behavior": "Isolated", "invert": False}
    vocab = {character: index for index, character in enumerate(tokenizer.alphabet)}
    return {
        "pre_tokenizer": split,
        "decoder": {"type": "Fuse"},
        # <unk> is not in the vocabulary, so an unknown character is an error, as in ours.
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "<unk>"},
    }


def gpt2_steps(tokens: int = 50256) -> dict[str, Any]:
    """Describe GPT-2's tokenizer in the format of Hugging Face's tokenizer.json.

    The vocabulary and the merges are the same as in OpenAI's encoder.json and vocab.bpe, or the
    first `tokens` of them, which have no <|endoftext|>.
    """
    encoding = gpt2_encoding(tokens)
    # GPT-2's files write bytes that cannot be printed as the characters from 256 on.
    hidden = [byte for byte in range(256) if byte == ord(" ") or not chr(byte).isprintable()]
    letters = {byte: 256 + index for index, byte in enumerate(hidden)}
    every = [encoding.decode_single_token_bytes(i) for i in range(tokens)]
    vocab = {token.decode("latin-1").translate(letters): i for i, token in enumerate(every)}
    merges = bpe_merges(vocab)
    ends = []
    if END_OF_TEXT in encoding.special_tokens_set:
        end = {"id": encoding.eot_token, "content": END_OF_TEXT, "special": True}
        ends = [end | dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)]
        vocab[END_OF_TEXT] = encoding.eot_token
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "added_tokens": ends,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": merges},
    }


def vocabulary_files(model: dict[str, Any]) -> dict[str, str]:
    """Return the content of OpenAI's encoder.json and vocab.bpe, under Hugging Face's names."""
    merges = "\n".join(["#version: 0.2", *model["merges"]]) + "\n"
    return {"vocab.json": json.dumps(model["vocab"]), "merges.txt": merges}


def bpe_merges(ranks: dict[str, int]) -> list[str]:
    """Recover the merges of a BPE vocabulary, in the form "left right".

    The letters of each token are merged by rank until two parts remain. These two parts are the
    merge that created the token.
    """
    merges = []
    for token in ranks:
        parts = list(token)
        while len(parts) > 2:
            pairs = enumerate(pairwise(parts))
            _, first = min((ranks.get(a + b, len(ranks)), i) for i, (a, b) in pairs)
            parts[first : first + 2] = ["".join(parts[first : first + 2])]
        if len(parts) == 2:
            merges.append(" ".join(parts))
    return merges
