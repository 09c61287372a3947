"""Documents, one after the other: from text, JSON lines and parquet files, and from the hub."""

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

PIECE_BYTES = 2**20  # a long text is cut, so that memory stays flat and processes can share it

LONGEST_WORD = 2**22  # characters without a place to cut

BOUNDARY = re.compile(r"(?s:.*)\S(?=[ \n])")

LINE_BYTES = 64 * 2**20  # of JSON lines, each of which must fit into memory several times

COMPRESSED = (".gz", ".zst", ".xz", ".bz2", ".zip")

SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True)
class Corpus:
    """Where documents come from: files, or else a data set on the Hugging Face hub."""

    paths: tuple[Path, ...] = ()
    text_field: str = "text"
    hub: str = ""
    hub_config: str = ""

    @property
    def name(self) -> str:
        """What an error message calls it."""
        more = f" and {len(self.paths) - 1} more" if len(self.paths) > 1 else ""
        return self.hub or f"{self.paths[0]}{more}"

    @property
    def is_one_text(self) -> bool:
        """Whether this is a single plain text, in which nothing separates documents."""
        return not self.hub and len(self.paths) == 1 and row_reader(self.paths[0]) is text_rows


class Place(NamedTuple):
    """Where in a corpus a piece of text is; places compare in reading order."""

    document: int = 0
    file: int = 0
    row: int = 0
    piece: int = -1


class Mark(NamedTuple):
    """A state of a hub data set's stream, from which it continues with row number `row`."""

    row: int
    state: dict[str, Any]


Marks = deque[Mark]  # in the order of their rows

MARK_ROWS = 100  # from one mark to the next


def last_mark(marks: Marks, row: int) -> Mark | None:
    """Return the last mark at or before a row, if there is one, and forget those before it."""
    while len(marks) > 1 and marks[1].row <= row:
        marks.popleft()
    return marks[0] if marks and marks[0].row <= row else None


Rows = Iterator[tuple[int, Iterable[str]]]  # a row's number, and the pieces of its document


def check_files(corpus: Corpus) -> None:
    """Find what is wrong with a corpus before any work is done.

    Raises:
        ValueError: nothing is named, both kinds are, or a file is missing, empty or of a kind that
            is neither prose nor documents.
    """
    require(
        bool(corpus.paths) != bool(corpus.hub),
        "name text, JSON lines or parquet files, or else one data set with --hub",
    )
    for path in corpus.paths:
        require(not path.is_dir(), f"{path} is a folder; name the files in it, as in {path}/*.txt")
        require(path.is_file(), f"{path}: no such file")
        require(path.stat().st_size > 0, f"{path}: the file is empty")
        kind = path.suffix.lower()
        require(kind not in COMPRESSED, f"{path}: compressed; unpack it first")
        require(
            kind != ".json",
            f"{path}: ends in .json; one JSON object a line in a .jsonl file expected, so rename "
            f"or convert it",
        )


def read(corpus: Corpus, after: Place, marks: Marks | None = None) -> Iterator[tuple[Place, str]]:
    """Yield every piece of text behind a place, in order, whatever was read before.

    A stream from the hub starts at the first of `marks`, if there is one, and adds more to them.

    Raises:
        ValueError: a file is broken, or the hub cannot be read.
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
    """How files with this ending are read."""
    kind = path.suffix.lower()
    if kind in (".jsonl", ".ndjson"):
        return json_rows
    return parquet_rows if kind == ".parquet" else text_rows


def text_rows(path: Path, field: str, first: int) -> Rows:
    """A plain text file is one document."""
    if first == 0:
        yield 0, text_pieces(path)


def text_pieces(path: Path) -> Iterator[str]:
    """A file's text, with \\n as line end, in pieces that have the same tokens as the whole.

    A cut is made only before a blank or line end that follows something else: there GPT-2's
    splitting into words has a boundary, whatever comes next. Only a word of LONGEST_WORD
    characters is cut inside, which can change the tokens at the cut.

    Raises:
        ValueError: the file is not UTF-8, or binary.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    decode = io.IncrementalNewlineDecoder(decoder, translate=True).decode
    kept = ""  # it has no boundary, apart from its beginning
    with open(path, "rb") as file:
        while block := file.read(PIECE_BYTES):
            text = kept + decoded(path, file, decode, block)
            cut = last_boundary(text, max(1, len(kept)))
            if cut == 0 and len(text) >= LONGEST_WORD:
                cut = len(text)
            kept = text[cut:]
            yield text[:cut]
        yield kept + decoded(path, file, decode, b"")


def decoded(
    path: Path, file: io.BufferedReader, decode: Callable[[bytes, bool], str], block: bytes
) -> str:
    """The text of a file's next block; of an empty one, at the end, what was still open."""
    try:
        text = decode(block, not block)
    except UnicodeDecodeError as error:
        position = file.tell() - len(error.object) + error.start
        raise ValueError(
            f"{path}: not UTF-8 text (byte {position} is 0x{error.object[error.start]:02x}); "
            f"convert it first, with `iconv -f latin1 -t utf-8` for example"
        ) from None
    require("\0" not in text, f"{path}: holds NUL bytes, so it is binary; plain text expected")
    return text


def last_boundary(text: str, first: int) -> int:
    """The last blank or line end, from `first` on, behind another character; 0: there is none."""
    found = BOUNDARY.match(text, first - 1)
    return found.end() if found else 0


def json_lines(path: Path, first: int = 0) -> Iterator[tuple[int, dict[str, Any]]]:
    """The objects of a JSON lines file with their line numbers, from line `first` (of 0..) on.

    Raises:
        ValueError: the file is missing, or a line is no JSON object.
    """
    require(path.is_file(), f"{path}: no such file")
    with open(path, "rb") as file:
        for number, line in enumerate(iter(lambda: file.readline(LINE_BYTES), b"")):
            where = f"{path}, line {number + 1}"
            require(
                len(line) < LINE_BYTES,
                f"{where}: {LINE_BYTES:,} bytes or more; one document a line expected",
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
    """Every line of a JSON lines file is one document, its text in `field`."""
    for number, row in json_lines(path, first):
        yield number, [text_of(row, field, f"{path}, line {number + 1}")]


def parquet_rows(path: Path, field: str, first: int) -> Rows:
    """Every row of a parquet file is one document; row groups are read one after the other.

    Raises:
        ValueError: the package `pyarrow` is missing, or the file is damaged or something else.
        OSError: the disk cannot be read.
    """
    try:
        from pyarrow import ArrowException
    except ImportError:
        raise ValueError(
            f"{path}: parquet files need the package pyarrow; pip install pyarrow"
        ) from None
    try:
        yield from whole_parquet_rows(path, field, first)
    except (ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None) is not None:
            raise
        raise ValueError(f"{path}: not a parquet file, or damaged ({one_line(error)})") from None


def whole_parquet_rows(path: Path, field: str, first: int) -> Rows:
    """The rows of a parquet file that is not damaged; of another, any of pyarrow's errors."""
    from pyarrow import parquet

    with parquet.ParquetFile(path, page_checksum_verification=True) as file:
        names = file.schema_arrow.names
        require(field in names, no_field(str(path), field, names))
        number = 0
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


def hub_rows(hub: str, config: str, marks: Marks | None, field: str, first: int) -> Rows:
    """Every row of a data set's training part is one document, read while it is downloaded."""
    for number, row in hub_lines(hub, config, "train", first, marks):
        yield number, [text_of(row, field, f"{hub}, row {number + 1}")]


def hub_lines(
    hub: str, config: str, split: str, first: int = 0, marks: Marks | None = None
) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield the rows of a data set on the Hugging Face hub with their numbers, from `first` on.

    With `marks`, the stream starts at their first and does not download what comes before it.

    Raises:
        ValueError: the package `datasets` is missing, or the hub does not give this data set.
        OSError: the connection broke.
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
    except Exception as error:  # offline, misspelt, gated: each library below has its own
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
    """An exception's type and the beginning of what it says."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:200]}" if said else type(error).__name__


def text_of(row: dict[str, Any], field: str, where: str) -> str:
    """A row's text, or one line on why there is none."""
    require(field in row, no_field(where, field, list(row)))
    text = row[field]
    require(
        isinstance(text, str),
        f"{where}: {field!r} is {type(text).__name__}, a string expected",
    )
    # JSON can hold halves of surrogate pairs, which are no characters.
    return SURROGATE.sub("\N{REPLACEMENT CHARACTER}", text)


def no_field(where: str, field: str, names: list[str]) -> str:
    """What to say where the text's field is missing."""
    return f"{where}: no field {field!r} among {', '.join(names)}; name one with --text-field"
