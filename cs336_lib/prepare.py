"""Text files to `.bin` shards: what `cs336 prepare` does."""

import os
import shutil
from pathlib import Path

from cs336_lib.config import require
from cs336_lib.data import write_shard
from cs336_lib.tokenizer import Tokenizer, make_tokenizer, save_tokenizer


def read_text(path: Path) -> str:
    """The text of a file, with \\n as line end.

    Raises:
        ValueError: the file is missing, empty, not UTF-8, or binary.
    """
    require(path.is_file(), f"{path}: no such file")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 text (byte {error.start} is 0x{error.object[error.start]:02x}); "
            f"convert it first, with `iconv -f latin1 -t utf-8` for example"
        ) from None
    require(text != "", f"{path}: the file is empty")
    require("\0" not in text, f"{path}: holds NUL bytes, so it is binary; plain text expected")
    return text


def prepare(
    path: Path, out: Path, tokenizer: str = "gpt2", val_fraction: float = 0.1
) -> dict[str, int]:
    """Tokenize a text file into train_000000.bin, val_000000.bin and tokenizer.json under `out`.

    The last `val_fraction` of the tokens becomes the validation part. `out` appears when all of it
    is written, or not at all. Returns the number of tokens in each part.

    Raises:
        ValueError: the text is unusable, `out` exists, or a part would be empty.
    """
    require(0 < val_fraction < 1, f"val_fraction is {val_fraction}; between 0 and 1 expected")
    require(not out.exists(), f"{out} exists already; choose another folder, or remove it")
    text = read_text(path)
    made: Tokenizer = make_tokenizer(tokenizer, text)
    ids = made.encode(text)
    cut = int(len(ids) * (1 - val_fraction))
    parts = {"train": ids[:cut], "val": ids[cut:]}
    for name, part in parts.items():
        require(
            len(part) >= 2,
            f"{path}: {len(ids)} tokens leave {len(part)} for the {name} part; more text needed",
        )
    temporary = out.with_name(f".tmp-{out.name}")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    for name, part in parts.items():
        write_shard(temporary / f"{name}_000000.bin", part)
    save_tokenizer(made, temporary / "tokenizer.json")
    os.replace(temporary, out)
    return {name: len(part) for name, part in parts.items()}
