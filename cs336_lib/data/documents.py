"""Read documents from text, JSON lines and parquet files, and from the Hugging Face hub."""

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cs336_lib.config import require

PIECE = (
    2**20
)  # in characters; texts are read in pieces, so memory stays flat and threads share work

LONGEST_WORD = 2**22  # in characters; a longer word is cut inside

BOUNDARY = re.compile(r"(?s:.*)\S(?=[ \n])")

LINE_BYTES = 64 * 2**20  # longest JSON line; several copies of a line are in memory at once

JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"

UNSUPPORTED = (".json", ".gz", ".zst", ".xz", ".bz2", ".zip")

SURROGATE = re.compile("[\ud800-\udfff]")

MARK_ROWS = 100  # rows of a stream from one mark to the next

Mark = tuple[int, dict[str, Any]]  # a row of a hub data set, and the stream's state before it


@dataclass(frozen=True)
class Corpus:
    """Files of documents, or a data set on the Hugging Face hub.

    Attributes:
        paths: Text, JSON lines or parquet files. A text file is one document.
        text_field: Field with the text of a JSON object or a row.
        hub: Name of the data set on the hub.
        hub_config: Its configuration, for example "sample-10BT".
    """

    paths: tuple[Path, ...] = ()
    text_field: str = "text"
    hub: str = ""
    hub_config: str = ""

    @property
    def is_one_text(self) -> bool:
        """True for a single plain text, which needs no separators between documents."""
        suffixes = [path.suffix.lower() for path in self.paths]
        return len(suffixes) == 1 and suffixes[0] not in (*JSON_LINES, PARQUET)


class Row(NamedTuple):
    """A row of a file or data set, and the last mark before it in a stream from the hub."""

    number: int
    content: dict[str, Any]
    mark: Mark | None = None


class Place(NamedTuple):
    """Position of a piece of text in a corpus. A stream from the hub resumes at its mark."""

    document: int = 0
    file: int = 0
    row: int = 0
    piece: int = -1
    mark: Mark | None = None


def check_files(corpus: Corpus) -> None:
    """Raise `ValueError` unless a corpus names either files of a supported kind or a data set."""
    require(
        bool(corpus.paths) != bool(corpus.hub),
        "name text, JSON lines or parquet files, or else one data set with --hub",
    )
    for path in corpus.paths:
        require(
            path.suffix.lower() not in UNSUPPORTED,
            f"{path}: {path.suffix} files are not supported; unpack or convert it to .txt, .jsonl "
            f"or .parquet",
        )


def read(corpus: Corpus, after: Place) -> Iterator[tuple[Place, str]]:
    """Yield every piece of text after a place, in order.

    `after` is the place of the last piece that the caller already has. Raises `ValueError` if a
    file is corrupt or the hub doesn't have the data set, and `OSError` if the disk or the
    connection fails.
    """
    document = after.document
    for number in range(after.file, max(1, len(corpus.paths))):
        start = after if number == after.file else Place()
        for row, mark, pieces in documents(corpus, number, start):
            for piece, text in enumerate(filter(None, pieces)):
                place = Place(document, number, row, piece, mark)
                if place[:4] > after[:4]:
                    yield place, text
            document += 1


def documents(
    corpus: Corpus, file: int, start: Place
) -> Iterator[tuple[int, Mark | None, Iterable[str]]]:
    """Yield row number, mark and pieces of text of each document of a file, or of the data set."""
    rows: Iterable[Row]
    if corpus.hub:
        where = f"{corpus.hub}, row"
        rows = hub_rows(corpus.hub, corpus.hub_config, "train", start.row, start.mark)
    elif (path := corpus.paths[file]).suffix.lower() in JSON_LINES:
        where, rows = f"{path}, line", json_rows(path, start.row)
    elif path.suffix.lower() == PARQUET:
        where, rows = f"{path}, row", parquet_rows(path, corpus.text_field, start.row)
    else:
        yield 0, None, text_pieces(path)
        return
    for number, content, mark in rows:
        yield number, mark, [text_of(content, corpus.text_field, f"{where} {number + 1}")]


def text_pieces(path: Path) -> Iterator[str]:
    """Yield a file's text in pieces that have the same tokens as the complete text.

    Line ends become \\n. A cut lies before a space or line end that follows another character,
    where GPT-2's pattern always has a word boundary. Only a word of LONGEST_WORD characters is cut
    inside, which can change the tokens at the cut. Raises `ValueError` if the file isn't UTF-8 or
    is binary.
    """
    kept = ""  # text after the last boundary
    try:
        with open(path, encoding="utf-8-sig") as file:
            while block := file.read(PIECE):
                require("\0" not in block, f"{path}: contains NUL bytes; plain text expected")
                text = kept + block
                boundary = BOUNDARY.match(text, max(1, len(kept)) - 1)
                cut = boundary.end() if boundary else 0
                if cut == 0 and len(text) >= LONGEST_WORD:
                    cut = len(text)
                kept = text[cut:]
                yield text[:cut]
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: not UTF-8 text (it has a byte 0x{error.object[error.start]:02x}); "
            f"convert it first, for example with `iconv -f latin1 -t utf-8`"
        ) from None
    yield kept


def json_rows(path: Path, first: int = 0) -> Iterator[Row]:
    """Yield the objects of a JSON lines file, from line `first` (counted from 0) on.

    Raises `FileNotFoundError` if there is no such file, and `ValueError` if a line isn't a JSON
    object.
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
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ValueError(f"{where}: not JSON ({error})") from None
            require(isinstance(content, dict), f"{where}: a JSON object {{…}} expected")
            yield Row(number, content)


def parquet_rows(path: Path, field: str, first: int) -> Iterator[Row]:
    """Yield the rows of a parquet file with one field, from `first` on, a row group at a time.

    Raises `ValueError` if the package `pyarrow` is missing or the file can't be read.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise ValueError(f"{path}: needs the package pyarrow; pip install pyarrow") from None
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
                    for content in batch.to_pylist():
                        if number >= first:
                            yield Row(number, content)
                        number += 1
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not a readable parquet file ({one_line(error)})") from None


def hub_rows(
    hub: str, config: str, split: str, first: int = 0, mark: Mark | None = None
) -> Iterator[Row]:
    """Stream the rows of a data set on the Hugging Face hub, from row `first` on.

    With a mark, the rows before it aren't downloaded. Raises `ValueError` if the package `datasets`
    is missing or the hub doesn't have this data set, and `OSError` if the connection fails.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise ValueError(f"{hub}: needs the package datasets; pip install datasets") from None
    try:
        stream = load_dataset(hub, config or None, split=split, streaming=True)
        if mark:
            stream.load_state_dict(mark[1])
        rows = iter(stream)
    except Exception as error:  # offline, misspelled or gated, each with another type
        raise ValueError(
            f"{hub}: cannot be read from the Hugging Face hub ({one_line(error)}); "
            f"check its name and the connection, or download its files and name those"
        ) from None
    for number in itertools.count(mark[0] if mark else 0):
        try:
            content = next(rows, None)
        except Exception as error:
            raise OSError(
                f"{hub}: reading stopped at row {number + 1} ({one_line(error)}); "
                f"run the same command again"
            ) from error
        if content is None:
            return
        if number >= first:
            yield Row(number, content, mark)
        if (number + 1) % MARK_ROWS == 0:
            mark = number + 1, stream.state_dict()


def one_line(error: Exception) -> str:
    """Return an exception's type and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def text_of(row: dict[str, Any], field: str, where: str) -> str:
    """Return a row's text, with U+FFFD for each lone surrogate, which JSON can contain."""
    require(field in row, no_field(where, field, list(row)))
    text = row[field]
    require(isinstance(text, str), f"{where}: {field!r} isn't a string")
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def no_field(where: str, field: str, names: list[str]) -> str:
    """Return the error message for a missing field."""
    return f"{where}: no field {field!r} among {', '.join(names)}; name one with --text-field"
