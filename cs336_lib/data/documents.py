"""Read documents from text, JSON lines and parquet files, and from the Hugging Face hub."""

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

from cs336_lib.config import UserError
from cs336_lib.data.tokenizer import END_OF_TEXT

# Characters in a piece. Pieces keep memory flat, and threads share their work.
PIECE = 2**20

LONGEST_WORD = 2**22  # in characters; a longer word is cut inside

BOUNDARY = re.compile(r"(?s:.*)\S(?=[ \n])")

LINE_BYTES = 64 * 2**20  # longest JSON line; several copies of a line are in memory at once

JSON_LINES, PARQUET = (".jsonl", ".ndjson"), ".parquet"

PACKED = (".gz", ".zst", ".xz", ".bz2", ".zip")
UNSUPPORTED = (*PACKED, ".json", ".pdf", ".docx", ".csv", ".tsv", ".html", ".htm")

NO_TEXT = (".bin", ".npy", ".safetensors")  # tokens or weights

SURROGATE = re.compile("[\ud800-\udfff]")

MARK_ROWS = 100  # rows of a stream from one mark to the next

# No command is named, because a wrong guess of the encoding gives a wrong text without an error.
PLAIN_TEXT = "if it is a text, save it as UTF-8 in the program that wrote it"

SIGNS = {b"%PDF": "a PDF", b"PK\3\4": "a .zip or .docx file", b"\x1f\x8b": "a .gz file"}
SIGNS |= {b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}
ENCODINGS = ("cp1252", "cp1251", "gb18030", "big5", "shift_jis", "euc_kr")

# What `prepare` tells of a corpus, each with the places where it was found
SKIPPED = "rows without a text were skipped"
ORDINARY = f"times {END_OF_TEXT} stays ordinary text, and --split-documents begins a document there"
Told = dict[str, list[str]]

Mark = tuple[int, dict[str, Any]]  # a row of a hub data set, and the stream's state before it


@dataclass(frozen=True)
class Corpus:
    """A set of text files, or a dataset on the Hugging Face hub.

    Attributes:
        paths: Text, JSON lines or parquet files. A text file is one document.
        text_field: Name of the field that contains the text of a row.
        hub: Name of the dataset on the hub.
        hub_config: Configuration of the dataset, for example "sample-10BT".
        split_documents: Whether <|endoftext|> in a text file begins a new document.
    """

    paths: tuple[Path, ...] = ()
    text_field: str = "text"
    hub: str = ""
    hub_config: str = ""
    split_documents: bool = False

    @property
    def is_one_text(self) -> bool:
        """Whether the corpus is a single text file, which needs no separators."""
        suffixes = [path.suffix.lower() for path in self.paths]
        is_text = len(suffixes) == 1 and suffixes[0] not in (*JSON_LINES, PARQUET)
        return is_text and not self.split_documents


class Row(NamedTuple):
    """A row of a file or dataset.

    `where` describes the row in error messages. For a hub dataset, the row can be read again from
    the stream state in `mark`.
    """

    where: str
    content: dict[str, Any]
    mark: Mark | None = None


class Position(NamedTuple):
    """Position of a piece of text in a corpus. A hub stream resumes at `mark`."""

    document: int = 0
    piece: int = -1
    mark: Mark | None = None


def check_files(corpus: Corpus) -> None:
    """Raise `UserError` unless a corpus has either supported files or a dataset."""
    if bool(corpus.paths) == bool(corpus.hub):
        raise UserError("name text, JSON lines or parquet files, or else one data set with --hub")
    for path in corpus.paths:
        if path.is_dir():
            raise UserError(f"{path}: a folder; name its files, such as {path}/*.txt")
        if path.suffix.lower() in UNSUPPORTED:
            raise UserError(
                f"{path}: {path.suffix} files are not supported; unpack or convert them to .txt"
            )
        if path.suffix.lower() in NO_TEXT:
            raise UserError(
                f"{path}: {path.suffix} files hold no text; shards of GPT-2's tokens are named in "
                "--train-data and --val-data of `cs336 train`"
            )


def read(
    corpus: Corpus, after: Position, told: Told | None = None
) -> Iterator[tuple[Position, str]]:
    """Yield the pieces of a corpus that follow the place `after`, in order.

    A row whose text is null has no pieces, which is `told`, as is <|endoftext|> in a text file.

    Files are read again from the start, and earlier pieces are skipped. A hub stream resumes at the
    mark in `after`.

    Raises:
        UserError: If a file is corrupt or the hub doesn't have the dataset.
        OSError: If the disk or the connection fails.
    """
    first = after.mark[0] if after.mark else 0
    found = documents(corpus, after.mark, defaultdict(list) if told is None else told)
    for document, (mark, pieces) in enumerate(found, start=first):
        for number, piece in enumerate(filter(len, pieces)):
            place = Position(document, number, mark)
            if place[:2] > after[:2]:
                yield place, piece


def documents(
    corpus: Corpus, mark: Mark | None, told: Told
) -> Iterator[tuple[Mark | None, Iterable[str]]]:
    """Yield the documents of a corpus, each as a mark for resuming and a sequence of pieces."""
    field = corpus.text_field
    if corpus.hub:
        for row in hub_rows(corpus.hub, corpus.hub_config, "train", mark):
            yield row.mark, [text_of(row, field, told)]
    for path in corpus.paths:
        suffix = path.suffix.lower()
        if suffix in JSON_LINES:
            yield from ((None, [text_of(row, field, told)]) for row in json_rows(path))
        elif suffix == PARQUET:
            rows = parquet_rows(path, field)
            yield from ((None, [text_of(row, field, told)]) for row in rows)
        else:
            found = numbered_pieces(path, None if corpus.split_documents else told)
            for _, group in groupby(found, itemgetter(0)):
                yield None, map(itemgetter(1), group)


def numbered_pieces(path: Path, told: Told | None) -> Iterator[tuple[int, str]]:
    """Yield the pieces of a text with the number of the document, which <|endoftext|> ends.

    If it isn't to end one, it is `told`.
    """
    document = 0
    for piece in text_pieces(path):
        texts = piece.split(END_OF_TEXT)
        if told is not None and len(texts) > 1:
            told[ORDINARY] += [str(path)] * (len(texts) - 1)
            texts = [piece]
        for number, text in enumerate(texts):
            document += number > 0
            yield document, text


def text_pieces(path: Path) -> Iterator[str]:
    """Split a text file into pieces that can be tokenized separately.

    The pieces have the same tokens as the complete text. Line ends are converted to \\n. The text
    is split before a space or newline that follows a non-whitespace character, because GPT-2's
    split pattern always has a word boundary there. Words longer than LONGEST_WORD characters are
    split too, which can change their tokens. Raises `UserError` if the file is binary or isn't
    UTF-8.
    """
    kept = ""  # text after the last boundary
    try:
        with open(path, encoding="utf-8-sig") as file:
            while block := file.read(PIECE):
                if "\0" in block:
                    raise UserError(f"{path}: contains NUL bytes, as UTF-16 does; {PLAIN_TEXT}")
                text = kept + block
                boundary = BOUNDARY.match(text, max(1, len(kept)) - 1)
                cut = boundary.end() if boundary else 0
                if cut == 0 and len(text) >= LONGEST_WORD:
                    cut = len(text)
                kept = text[cut:]
                yield text[:cut]
    except UnicodeDecodeError as error:
        raise UserError(
            f"{path}: not UTF-8 text (it has a byte 0x{error.object[error.start]:02x}"
            f"{may_be(error.object)}); {PLAIN_TEXT}"
        ) from None
    yield kept


def may_be(content: bytes) -> str:
    """Return what bytes may be that aren't UTF-8: a file by its first bytes, or an encoding."""
    found = [name for sign, name in SIGNS.items() if content.startswith(sign)]
    lines = content[: content.rfind(b"\n") + 1] or content  # the last one may be cut
    for name in () if found else ENCODINGS:
        with suppress(UnicodeDecodeError):
            lines.decode(name)
            found.append(name)
    return f" and may be {' or '.join(found)}" if found else ""


def json_rows(path: Path) -> Iterator[Row]:
    """Yield the objects of a JSON lines file.

    Raises:
        FileNotFoundError: If the file doesn't exist.
        UserError: If a line isn't a JSON object.
    """
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES), b""), start=1):
            where = f"{path}, line {number}"
            if len(line) >= LINE_BYTES:
                raise UserError(
                    f"{where}: {LINE_BYTES:,} bytes or more; one document per line expected"
                )
            if not line.strip():
                continue
            try:
                content = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise UserError(f"{where}: not JSON ({error})") from None
            if not isinstance(content, dict):
                raise UserError(f"{where}: a JSON object {{…}} expected")
            yield Row(where, content)


def parquet_rows(path: Path, field: str) -> Iterator[Row]:
    """Yield the rows of a parquet file, with only the field `field`.

    Raises `UserError` if `pyarrow` isn't installed or the file can't be read.
    """
    try:
        from pyarrow import ArrowException, parquet
    except ImportError:
        raise UserError(f"{path}: needs the package pyarrow; pip install pyarrow") from None
    try:
        with parquet.ParquetFile(path, page_checksum_verification=True) as file:
            names = file.schema_arrow.names
            if field not in names:
                raise UserError(no_field(str(path), field, names))
            batches = file.iter_batches(256, columns=[field])
            contents = (content for batch in batches for content in batch.to_pylist())
            for number, content in enumerate(contents, start=1):
                yield Row(f"{path}, row {number}", content)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: not a readable parquet file ({one_line(error)})") from None


def hub_rows(hub: str, config: str, split: str, mark: Mark | None = None) -> Iterator[Row]:
    """Stream the rows of a dataset from the Hugging Face hub, optionally from a saved mark.

    Raises:
        UserError: If `datasets` isn't installed or the hub doesn't have the dataset.
        OSError: If the connection fails.
    """
    try:
        from datasets import load_dataset
    except ImportError:
        raise UserError(f"{hub}: needs the package datasets; pip install datasets") from None
    try:
        stream = load_dataset(hub, config or None, split=split, streaming=True)
        if mark:
            stream.load_state_dict(mark[1])
    except Exception as error:  # offline, misspelled or gated, each with another type
        raise UserError(
            f"{hub}: cannot be read from the Hugging Face hub ({one_line(error)}); "
            f"check its name and the connection, or download its files and name those"
        ) from None
    number = mark[0] if mark else 0
    try:
        for content in stream:
            number += 1
            yield Row(f"{hub}, row {number}", content, mark)
            if number % MARK_ROWS == 0:
                mark = number, stream.state_dict()
    except Exception as error:
        message = f"{hub}: reading stopped at row {number + 1} ({one_line(error)}); run it again"
        raise OSError(message) from error


def one_line(error: Exception) -> str:
    """Return the type of an exception and the first line of its message."""
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__


def text_of(row: Row, field: str, told: Told) -> str:
    """Return the text of a row, or "" for null, with lone surrogates replaced by U+FFFD.

    JSON strings can contain lone surrogates.
    """
    if field not in row.content:
        raise UserError(no_field(row.where, field, list(row.content)))
    text = row.content[field]
    if text is None:
        told[SKIPPED].append(row.where)
        return ""
    if not isinstance(text, str):
        raise UserError(f"{row.where}: {field!r} isn't a string")
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def no_field(where: str, field: str, names: list[str]) -> str:
    """Return the error message for a missing field."""
    return f"{where}: no field {field!r} among {', '.join(names)}; name one with --text-field"
