"""Load a model and its validation data for an evaluation."""

from dataclasses import dataclass
from pathlib import Path

import torch

from cs336_lib import hugging_face
from cs336_lib.config import TrainConfig, UserError, from_json
from cs336_lib.data.loader import open_data
from cs336_lib.data.shards import TokenStream
from cs336_lib.data.tokenizer import Tokenizer, load_tokenizer, make_tokenizer, require_tokenizer
from cs336_lib.io import inside, read_json
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint


@dataclass(frozen=True)
class Subject:
    """Model, validation data, tokenizer and precision for an evaluation."""

    model: GPT
    stream: TokenStream
    tokenizer: Tokenizer
    precision: str = "auto"


def of_run(run_dir: Path, device: torch.device) -> Subject:
    """Load the newest checkpoint of a run, and open its validation data.

    Raises:
        FileNotFoundError: If the run or its data doesn't exist.
        UserError: If a file is malformed, or if the data was prepared with a different tokenizer.
    """
    model = checkpoint.load_model(run_dir, device)
    path = inside(run_dir, "config.json")
    config = from_json(TrainConfig, read_json(path), path)
    _, stream, tokenizer = open_data(config.train_data, config.val_data, config.tokenizer)
    ours = load_tokenizer(run_dir / "tokenizer.json")
    if ours != tokenizer:
        raise UserError(
            f"{run_dir} was trained with tokenizer {ours}, and its data now has {tokenizer}; "
            "restore the data it was trained with"
        )
    return Subject(model, stream, tokenizer, config.precision)


def of_hugging_face(source: str, device: torch.device, val_data: str = "") -> Subject:
    """Load a GPT-2 in the Hugging Face format, and open validation data.

    Args:
        source: A folder, or gpt2, gpt2-medium, gpt2-large or gpt2-xl.
        device: Device for the model.
        val_data: A folder made by `cs336 prepare`, a glob pattern of shards, or "" for the last
            tenth of the plays in data/.

    Raises:
        FileNotFoundError: If the model or the data doesn't exist.
        UserError: If the model or the data doesn't use the GPT-2 tokenizer.
    """
    model, tokenizer = hugging_face.load(source, device), make_tokenizer("gpt2", "")
    theirs, ours = model.config.vocab_size, tokenizer.vocab_size
    if theirs != ours:
        raise UserError(f"{source} has {theirs:,} token ids; GPT-2's {ours:,} expected")
    if not val_data:
        return Subject(model, open_data("", "", "gpt2")[1], tokenizer)
    stream = TokenStream.open(val_data, "val")
    require_tokenizer(stream.names, tokenizer)
    return Subject(model, stream, tokenizer)
