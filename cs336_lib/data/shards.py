"""Read and write token ids in llm.c's `.bin` format.

A shard starts with a header of 256 int32 values (magic number, version, number of tokens, zeros),
followed by the tokens as uint16. All numbers are little-endian.
"""

import glob
import hashlib
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np

from cs336_lib.config import UserError
from cs336_lib.io import inside, writing

MAGIC = 20240520

VERSION = 1

HEADER_BYTES = 256 * 4

# A fingerprint covers every token of up to a million, and this many blocks of longer streams.
FINGERPRINT_BLOCKS, BLOCK_TOKENS = 256, 4096


def write_shard(path: Path, ids: np.ndarray, offset: int = 0) -> None:
    """Write token ids to a shard, starting at position `offset`.

    The shard ends after the new tokens. If `offset` is 0, a new shard is created.
    """
    header = np.zeros(256, dtype="<i4")
    header[:3] = MAGIC, VERSION, offset + len(ids)
    with writing(path), open(path, "r+b" if offset else "wb") as file:
        file.seek(HEADER_BYTES + 2 * offset)
        file.write(np.ascontiguousarray(ids, dtype="<u2").data)
        file.truncate()
        file.seek(0)
        file.write(header.tobytes())


def shard_path(folder: Path, part: str, number: int) -> Path:
    """Return the path of a shard of the part `train` or `val`. Numbers start at 0."""
    return folder / f"{part}_{number:06d}.bin"


def append(folder: Path, part: str, length: int, ids: np.ndarray, *, shard_tokens: int) -> int:
    """Append tokens to a part that has `length` tokens, and return the new length.

    Each shard holds `shard_tokens` tokens. If an interrupted run has written more than `length`
    tokens, the additional tokens are overwritten.
    """
    while len(ids) > 0:
        number, offset = divmod(length, shard_tokens)
        piece, ids = ids[: shard_tokens - offset], ids[shard_tokens - offset :]
        write_shard(shard_path(folder, part, number), piece, offset)
        length += len(piece)
    return length


def shorten(folder: Path, part: str, length: int, *, shard_tokens: int) -> None:
    """Truncate a part to `length` tokens."""
    number, offset = divmod(length, shard_tokens)
    if offset:
        write_shard(shard_path(folder, part, number), np.zeros(0), offset)
        number += 1
    while (path := shard_path(folder, part, number)).exists():
        path.unlink()
        number += 1


def open_shard(path: Path) -> np.ndarray:
    """Memory-map the tokens of a shard as a read-only uint16 array of shape (tokens,).

    Raises:
        FileNotFoundError: If the file doesn't exist.
        UserError: If the header is invalid or the file size doesn't match it.
    """
    size = path.stat().st_size
    if not path.is_file():
        raise UserError(f"{path}: not a regular file; an llm.c .bin shard expected")
    header = np.fromfile(path, dtype="<i4", count=256).tolist()
    if len(header) != 256 or header[:2] != [MAGIC, VERSION]:
        raise UserError(
            f"{path}: isn't an llm.c shard of GPT-2's tokens, whose header of {HEADER_BYTES} bytes "
            f"begins with {MAGIC} and {VERSION}; make one from the text with `cs336 prepare`"
        )
    length = header[2]
    if size != HEADER_BYTES + 2 * length:
        raise UserError(
            f"{path}: {size} bytes, but its header promises {length} tokens = "
            f"{HEADER_BYTES + 2 * length} bytes; the file is truncated or corrupt"
        )
    if length == 0:  # an empty file region cannot be mapped
        return np.zeros(0, dtype="<u2")
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(length,))


class ShardFile:
    """Tokens of a shard, which are read from the file on access.

    The file isn't memory-mapped, for two reasons. The first access to a random window takes 33 us
    with `read` and 450 us with a memory map. Also, if a memory-mapped file is truncated, reading it
    kills the process.
    """

    def __init__(self, path: Path):
        self.path = path
        self.length = len(open_shard(path))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, wanted: slice) -> np.ndarray:
        start, stop, _ = wanted.indices(self.length)
        with open(self.path, "rb", buffering=0) as file:
            file.seek(HEADER_BYTES + 2 * start)
            ids = np.frombuffer(file.read(2 * (stop - start)), dtype="<u2")
        if len(ids) != stop - start:
            raise UserError(f"{self.path}: has become shorter since it was opened")
        return ids


class TokenStream:
    """Concatenation of several arrays or shards of tokens.

    Args:
        parts: Arrays or shards of shape (tokens,).
        names: Names of the parts for error messages.
    """

    def __init__(self, parts: Sequence[np.ndarray | ShardFile], names: list[str]):
        self.parts, self.names = parts, names
        self.ends = np.cumsum([len(part) for part in parts])

    @classmethod
    def open(cls, source: str, part: str = "") -> "TokenStream":
        """Open the shards of a folder or glob pattern, sorted by name.

        Args:
            source: A folder made by `cs336 prepare`, or a glob pattern.
            part: Part of the folder to open, "train" or "val".

        Raises:
            FileNotFoundError: If there are no shards.
            UserError: If a shard isn't valid, or is a link that leads out of the folder.
        """
        folder, pattern = Path(source), source
        if folder.is_dir():
            pattern = f"{glob.escape(source)}/{part}_*.bin"
            for path in folder.glob(f"{part}_*.bin"):
                inside(folder, path.name)
        paths: list[str] = []
        with suppress(ValueError):  # a NUL or half a surrogate pair, which no file name has
            paths = sorted(glob.glob(pattern, recursive=True))
        if not paths:
            place = "" if Path(pattern).is_absolute() else f" (looked in {Path.cwd()})"
            advice = "`cs336 prepare` makes shards"
            if any(folder.glob("*.bin")):  # with another program's names
                advice = "name its shards by one pattern in --train-data and one in --val-data"
            raise FileNotFoundError(f"{pattern}: no file matches{place}; {advice}")
        return cls([ShardFile(Path(path)) for path in paths], paths)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def locate(self, position: int) -> tuple[int, int]:
        """Convert a stream position to the index of a part and the position within this part."""
        part = int(np.searchsorted(self.ends, position, side="right"))
        return part, position - int(self.ends[part]) + len(self.parts[part])

    def read(self, start: int, length: int) -> np.ndarray:
        """Return tokens [start, start + length) as int64. The range may span several parts."""
        tokens = np.empty(length, dtype=np.int64)
        filled = 0
        while filled < length:
            part, offset = self.locate(start + filled)
            piece = self.parts[part][offset : offset + length - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
        return tokens

    def fingerprint(self) -> dict[str, int | str]:
        """Return the number of tokens and a checksum of evenly spaced blocks.

        The fingerprint doesn't depend on how the stream is split into files. If there are more than
        a million tokens, only a sample is read, so the fingerprint may miss a small edit.
        """
        blocks = min(FINGERPRINT_BLOCKS, -(-len(self) // BLOCK_TOKENS))
        length = min(BLOCK_TOKENS, len(self))
        digest = hashlib.sha256()
        for number in range(blocks):
            start = number * (len(self) - length) // max(1, blocks - 1)
            digest.update(self.read(start, length).astype("<u2").tobytes())
        return {"tokens": len(self), "sha256": digest.hexdigest()}

    def where(self, position: int) -> str:
        """Describe a stream position by file name and position in the file."""
        part, offset = self.locate(position)
        return f"{self.names[part]}, token {offset}"
