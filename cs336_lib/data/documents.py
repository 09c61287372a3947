"""Read documents from text, JSON lines and parquet files, and from the Hugging Face hub."""

import codecs
import io
import itertools
import json
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cs336_lib.config import require

PIECE_BYTES = 2**20  # long texts are read in pieces, so memory stays flat and threads share work

LONGEST_WORD = 2**22  # in characters; a longer word is cut inside

BOUNDARY = re.compile(r"(?s:.*)\S(?=[ \n])")

LINE_BYTES = 64 * 2**20  # longest JSON line; several copies of a line are in memory at once

UNSUPPORTED = (".json", ".gz", ".zst", ".xz", ".bz2", ".zip")

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Corpus:
    """Files of documents, or a data set on the Hugging Face hub.

    Attributes:
        paths: Text, JSON lines or parquet files; a text file is one document.
        text_field: Field with the text of a JSON object or a row.
        hub: Name of the data set on the hub.
        hub_config: Its configuration, for example "sample-10BT".
    """

    paths: tuple[Path, ...] = ()
    text_field: str = "text"
    hub: str = ""
    hub_config: str = ""

    @property
    def name(self) -> str:
        """Name for error messages."""
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return self.hub or f"{self.paths[0]}{more}"

    @property
    def is_one_text(self) -> bool:
        """Whether this is a single plain text, which needs no separators between documents."""
        return not self.hub and len(self.paths) == 1 and row_reader(self.paths[0]) is text_rows


class Place(NamedTuple):
    """Position of a piece of text in a corpus; places compare in reading order."""

    document: int = 0
    file: int = 0
    row: int = 0
    piece: int = -1


class Mark(NamedTuple):
    """State of a hub data set's stream, from which it continues with row number `row`."""

    row: int
    state: dict[str, Any]


Marks = deque[Mark]  # sorted by row

MARK_ROWS = 100  # rows from one mark to the next


def last_mark(marks: Marks, row: int) -> Mark | None:
    """Return the last mark at or before a row, or None, and drop the marks before it."""
    while len(marks) > 1 and marks[1].row <= row:
        marks.popleft()
    return marks[0] if marks and marks[0].row <= row else None


Rows = Iterator[tuple[int, Iterable[str]]]  # row number, and pieces of its document


def check_files(corpus: Corpus) -> None:
    """Check that a corpus names either files or a data set, and that the files are usable.

    Raises:
        FileNotFoundError: A file doesn't exist.
        ValueError: A file is empty, compressed or of an unsupported kind, or the corpus names
            files as well as a data set, or neither.
    """
    require(
        bool(corpus.paths) != bool(corpus.hub),
        "name text, JSON lines or parquet files, or else one data set with --hub",
    )
    for path in corpus.paths:
        require(not path.is_dir(), f"{path} is a folder; name the files in it, as in {path}/*.txt")
        if not path.exists():
            raise FileNotFoundError(f"{path}: no such file")
        require(path.stat().st_size > 0, f"{path}: the file is empty")
        kind = path.suffix.lower()
        require(
            kind not in UNSUPPORTED,
            f"{path}: {kind} files are not read; unpack or convert it to .txt, .jsonl or .parquet",
        )


def read(corpus: Corpus, after: Place, marks: Marks | None = None) -> Iterator[tuple[Place, str]]:
    """Yield every piece of text after a place, in order.

    Args:
        corpus: The documents.
        after: Place of the last piece that the caller already has.
        marks: Saved states of a stream from the hub. It starts at the first, and adds new ones.

    Raises:
        ValueError: A file is damaged, or the hub doesn't have the data set.
        OSError: The disk or the connection failed.
    """
    if corpus.hub:
        readers = [partial(hub_rows, corpus.hub, corpus.hub_config, marks)]
    else:
        readers = [partial(row_reader(path), path) for path in corpus.paths]
    document = after.document
    for number, reader in enumerate(readers[after.file :], after.file):
        first = after.row if number == after.file else 0
        for row, pieces in reader(corpus.text_field, first):
            for piece, text in enumerate(filter(None, pieces)):
                place = Place(document, number, row, piece)
                if place > after:
                    yield place, text
            document += 1


def row_reader(path: Path) -> Callable[[Path, str, int], Rows]:
    """Return the function that reads files with this suffix."""
    kind = path.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        return json_rows
    return parquet_rows if kind == ".parquet" else text_rows


def text_rows(path: Path, field: str, first: int) -> Rows:
    """Yield a plain text file as one document."""
    if first == 0:
        yield 0, text_pieces(path)


def text_pieces(path: Path) -> Iterator[str]:
    """Yield a file's text in pieces that have the same tokens as the complete text.

    Line ends become \\n. A cut lies before a space or line end that follows another character,
    where GPT-2's pattern always has a word boundary. Only a word of LONGEST_WORD characters is cut
    inside, which can change the tokens at the cut.

    Raises:
        ValueError: The file is binary or not UTF-8.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    decode = io.IncrementalNewlineDecoder(decoder, translate=True).decode
    kept = ""  # text after the last boundary
    with open(path, "rb") as file:
        while block := file.read(PIECE_BYTES):
            text = kept + decoded(path, file, decode, block)
            boundary = BOUNDARY.match(text, max(1, len(kept)) - 1)
            cut = boundary.end() if boundary else 0
            if cut == 0 and len(text) >= LONGEST_WORD:
                cut = len(text)
            kept = text[cut:]
            yield text[:cut]
        yield kept + decoded(path, file, decode, b"")


def decoded(
    path: Path, file: io.BufferedReader, decode: Callable[[bytes, bool], str], block: bytes
) -> str:
    """Decode a file's next block; an empty block ends the text."""
    try:
        text = decode(block, not block)
    except UnicodeDecodeError as error:
        position = file.tell() - len(error.object) + error.start
        raise ValueError(
            f"{path}: not UTF-8 text (byte {position} is 0x{error.object[error.start]:02x}); "
            f"convert it first, for example with `iconv -f latin1 -t utf-8`"
        ) from None
    require("\0" not in text, f"{path}: contains NUL bytes, so it is binary; plain text expected")
    return text


def json_lines(path: Path, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the objects of a JSON lines file with their line numbers, from line `first` (from 0).

    Raises:
        FileNotFoundError: The file doesn't exist.
        ValueError: A line isn't a JSON object.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES), b"")):
            where = f"{path}, line {number + 1}"
            require(
                len(line) < LINE_BYTES,
                f"{where}: {LINE_BYTES:,} bytes or more; one document per line expected",
            )
            if number < first or not line.strip():
                continue
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({error})") from None
            require(
                isinstance(row, dict),
                f"{where}: {type(row).__name__}, a JSON object {{…}} expected",
            )
            yield number, row


def json_rows(path: Path, field: str, first: int) -> Rows:
    """Yield each line of a JSON lines file as one document."""
    for number, row in json_lines(path, first):
        yield number, [text_of(row, field, f"{path}, line {number + 1}")]


def parquet_rows(path: Path, field: str, first: int) -> Rows:
    """Yield each row of a parquet file as one document, one row group at a time.

    Raises:
        ValueError: The package `pyarrow` is missing, or the file cannot be read.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(
            f"{path}: parquet files need the package pyarrow; pip install pyarrow"
        ) from None
    number = 0
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            require(field in names, no_field(str(path), field, names))
            for group in range(file.num_row_groups):
                rows = file.metadata.row_group(group).num_rows
                if number + rows <= first:
                    number += rows
                    continue
                for batch in file.iter_batches(256, row_groups=[group], columns=[field]):
                    for row in batch.to_pylist():
                        if number >= first:
                            yield number, [text_of(row, field, f"{path}, row {number + 1}")]
                        number += 1
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({one_line(error)})") from None


def hub_rows(hub: str, config: str, marks: Marks | None, field: str, first: int) -> Rows:
    """Stream each row of a data set's training split as one document."""
    for number, row in hub_lines(hub, config, "train", first, marks):
        yield number, [text_of(row, field, f"{hub}, row {number + 1}")]


def hub_lines(
    hub: str, config: str, split: str, first: int = 0, marks: Marks | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a data set on the Hugging Face hub with their numbers, from `first` on.

    With `marks`, the stream starts at the first of them and doesn't download the rows before it.

    Raises:
        ValueError: The package `datasets` is missing, or the hub doesn't have this data set.
        OSError: The connection failed.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError(
            f"{hub}: reading from the hub needs the package datasets; pip install datasets"
        ) from None
    start = marks[0].row if marks else 0
    try:
        stream = load_dataset(hub, config or None, split=split, streaming=True)
        if marks:
            stream.load_state_dict(marks[0].state)
        rows = iter(stream)
    except Exception as error:  # offline, misspelled or gated, each with another type
        raise ValueError(
            f"{hub}: cannot be read from the Hugging Face hub ({one_line(error)}); "
            f"check its name and the connection, or download its files and name those"
        ) from None
    for number in itertools.count(start):
        try:
            row = next(rows, None)
        except Exception as error:
            raise OSError(
                f"{hub}: reading stopped at row {number + 1} ({one_line(error)}); "
                f"run the same command again"
            ) from error
        if row is None:
            return
        if marks is not None and (number + 1) % MARK_ROWS == 0:
            marks.append(Mark(number + 1, stream.state_dict()))
        if number >= first:
            yield number, row


def one_line(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def text_of(row: dict[str, Any], field: str, where: str) -> str:
    """Return a row's text, with U+FFFD for each lone surrogate, which JSON can contain."""
    require(field in row, no_field(where, field, list(row)))
    text = row[field]
    require(
        isinstance(text, str),
        f"{where}: {field!r} is {type(text).__name__}, a string expected",
    )
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def no_field(where: str, field: str, names: list[str]) -> str:
    """Return the error message for a missing field."""
    return f"{where}: no field {field!r} among {', '.join(names)}; name one with --text-field"
