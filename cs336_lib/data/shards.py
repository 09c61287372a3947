"""Token ids on disk, in llm.c's `.bin` format."""

import glob
import hashlib
import shlex
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cs336_lib.config import require
from cs336_lib.io import inside

# llm.c's header: 256 int32, of which the first three mean something; then uint16 tokens.
MAGIC = 20240520

VERSION = 1

HEADER_BYTES = 256 * 4

# A fingerprint's checksum is of all of a million tokens, and of so many pieces of more.
FINGERPRINT_PIECES, PIECE_TOKENS = 256, 4096


def write_shard(path: Path, ids: np.ndarray) -> None:
    """Write token ids as one llm.c shard."""
    header = np.zeros(256, dtype="<i4")
    header[:3] = MAGIC, VERSION, len(ids)
    with open(path, "wb") as file:
        file.write(header.tobytes())
        file.write(np.ascontiguousarray(ids, dtype="<u2"))


def open_shard(path: Path) -> np.ndarray:
    """Map one llm.c shard into memory, read-only.

    Raises:
        ValueError: magic number, version or length are not what a whole shard has.
    """
    require(path.exists(), f"{path}: no such file")
    require(path.is_file(), f"{path}: not a regular file; an llm.c .bin shard expected")
    size = path.stat().st_size
    convert = f"cs336 prepare --raw {shlex.quote(str(path))} --out FOLDER"
    advice = f"nanoGPT's have no header, and `{convert}` adds one"
    require(
        size >= HEADER_BYTES,
        f"{path}: {size} bytes, shorter than a shard's header of {HEADER_BYTES}; {advice}",
    )
    magic, version, length = np.fromfile(path, dtype="<i4", count=3).tolist()
    require(
        magic == MAGIC,
        f"{path}: magic number {magic}, {MAGIC} expected: not an llm.c .bin shard; {advice}",
    )
    require(version == VERSION, f"{path}: version {version}, {VERSION} expected")
    require(
        size == HEADER_BYTES + 2 * length,
        f"{path}: {size} bytes, but its header promises {length} tokens = "
        f"{HEADER_BYTES + 2 * length} bytes; it is cut off or not whole",
    )
    if length == 0:  # an empty file region cannot be mapped
        return np.zeros(0, dtype="<u2")
    return np.memmap(path, dtype="<u2", mode="r", offset=HEADER_BYTES, shape=(length,))


class ShardFile:
    """The tokens of one shard, read from the file when they are asked for.

    Not mapped: a window in a random place is the first touch of its pages, for which a map took
    450 us here and a read 33; and under a map a file that is cut off kills the process.
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
            found = np.frombuffer(file.read(2 * (stop - start)), dtype="<u2")
        require(len(found) == stop - start, f"{self.path}: has become shorter since it was opened")
        return found


class TokenStream:
    """Many arrays of tokens, read as one; nothing is loaded before it is asked for."""

    def __init__(self, parts: Sequence[np.ndarray | ShardFile], names: list[str]):
        self.parts, self.names = parts, names
        self.ends = np.cumsum([len(part) for part in parts])

    @classmethod
    def from_pattern(cls, pattern: str) -> "TokenStream":
        """Open all shards that match, in order of their names.

        Raises:
            ValueError: none matches, or one is not a whole shard.
        """
        paths = sorted(glob.glob(pattern, recursive=True))
        require(
            len(paths) > 0,
            f"{pattern}: no file matches; a pattern of .bin shards expected{looked_in(pattern)}",
        )
        return cls([ShardFile(Path(path)) for path in paths], paths)

    @classmethod
    def from_folder(cls, folder: Path, part: str) -> "TokenStream":
        """Open all shards of a part, train or val, of a folder made by `cs336 prepare`.

        Raises:
            ValueError: there are none, one leads out of the folder or is not a whole shard.
        """
        for path in folder.glob(f"{part}_*.bin"):
            inside(folder, path.name)
        return cls.from_pattern(str(Path(glob.escape(str(folder))) / f"{part}_*.bin"))

    def __len__(self) -> int:
        return int(self.ends[-1])

    def read(self, start: int, length: int) -> np.ndarray:
        """Copy tokens [start, start + length) as int64, across parts where need be."""
        part = int(np.searchsorted(self.ends, start, side="right"))
        tokens = np.empty(length, dtype=np.int64)
        filled = 0
        while filled < length:
            offset = start + filled - int(self.ends[part]) + len(self.parts[part])
            piece = self.parts[part][offset : offset + length - filled]
            tokens[filled : filled + len(piece)] = piece
            filled += len(piece)
            part += 1
        return tokens

    def fingerprint(self) -> dict[str, int | str]:
        """What tells this stream from another: its length, and a checksum of evenly spread pieces.

        However it is cut into files, it is the same. More than a million tokens are not all read,
        so a change of some words in gigabytes can go unseen; other data does not.
        """
        pieces = min(FINGERPRINT_PIECES, -(-len(self) // PIECE_TOKENS))
        length = min(PIECE_TOKENS, len(self))
        digest = hashlib.sha256()
        for number in range(pieces):
            start = number * (len(self) - length) // max(1, pieces - 1)
            digest.update(self.read(start, length).astype("<u2").tobytes())
        return {"tokens": len(self), "sha256": digest.hexdigest()}

    def where(self, position: int) -> str:
        """Which file, and where in it, a position of the stream is."""
        part = int(np.searchsorted(self.ends, position, side="right"))
        return (
            f"{self.names[part]}, token {position - int(self.ends[part]) + len(self.parts[part])}"
        )


def looked_in(path: str) -> str:
    """Where a path that is not absolute was looked for: people change folders."""
    return "" if Path(path).is_absolute() else f" (looked in {Path.cwd()})"
