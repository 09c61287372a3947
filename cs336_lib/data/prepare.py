"""Tokenize documents into shards, and resume after an interruption."""

import dataclasses
import json
import os
import shutil
import time
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cs336_lib.config import UserError
from cs336_lib.data.documents import Corpus, Position, Told, check_files, read
from cs336_lib.data.shards import TokenStream, append, shorten
from cs336_lib.data.tokenizer import Tokenizer, load_tokenizer, make_tokenizer, save_tokenizer
from cs336_lib.io import Bar, Log, locked, read_json, sync, write_atomic, writing

BATCH_CHARACTERS = 2**20  # a thread encodes this much at a time, in about 0.1 s

SHARD_TOKENS = 100_000_000

COPY_TOKENS = 2**20  # tokens in memory while shards are copied

MOST_WORKERS = 1024

MILLION = 1_000_000

SAVE_SECONDS = 5.0  # a killed run loses at most this much work

PROGRESS, TOKENIZER = "progress.json", "tokenizer.json"

Batch = list[tuple[Position, str]]

Encoded = tuple[
    np.ndarray, np.ndarray, Position
]  # tokens for both parts, and place of the last piece


class Progress(NamedTuple):
    """Saved state of an interrupted run.

    `train` and `val` are the numbers of tokens that have been written. `place` is the position of
    the last piece of text that was encoded.
    """

    train: int = 0
    val: int = 0
    place: Position = Position()


def batched(pieces: Iterable[tuple[Position, str]]) -> Iterator[Batch]:
    """Group pieces of text into batches of about BATCH_CHARACTERS characters."""
    batch: Batch = []
    size = 0
    for place, piece in pieces:
        batch.append((place, piece))
        size += len(piece)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode_batch(
    tokenizer: Tokenizer, separator: int | None, val_fraction: float, batch: Batch
) -> Encoded:
    """Encode a batch, and insert the token `separator` before each document."""
    train, val = [np.zeros(0, np.uint16)], [np.zeros(0, np.uint16)]
    for place, piece in batch:
        part = val if is_validation(place.document, val_fraction) else train
        if separator is not None and place.piece == 0:
            part.append(np.array([separator], np.uint16))
        part.append(tokenizer.encode(piece))
    return np.concatenate(train), np.concatenate(val), batch[-1][0]


def is_validation(document: int, val_fraction: float) -> bool:
    """Return whether a document belongs to the validation part.

    Documents are divided into groups of 1 / val_fraction consecutive documents. A hash chooses one
    validation document per group, except that the first group always uses its last document. A
    corpus smaller than one group has no validation document.
    """
    # Parts per million are integers, so the groups' bounds are exact.
    share = min(max(1, round(val_fraction * MILLION)), MILLION - 1)
    group = document * share // MILLION
    first = -(-group * MILLION // share)
    size = -(-(group + 1) * MILLION // share) - first
    chosen = int(np.random.SeedSequence(group).generate_state(1)[0]) if group else -1
    return document - first == chosen % size


def encode_in_order(
    encode: Callable[[Batch], Encoded], batches: Iterable[Batch], workers: int
) -> Generator[Encoded, None, None]:
    """Encode batches on several threads, and yield the results in order.

    At most 2 * workers + 1 batches are in memory at a time. The threads run in parallel, because
    tiktoken releases the GIL.
    """
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Encoded]] = deque()
        for batch in batches:
            pending.append(pool.submit(encode, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def check_options(workers: int, val_fraction: float, shard_tokens: int) -> None:
    """Raise `UserError` if an option is out of range."""
    if not 1 <= workers <= MOST_WORKERS:
        raise UserError(f"workers is {workers}; 1 to {MOST_WORKERS} expected")
    if not 0 < val_fraction < 1:
        raise UserError(f"val_fraction is {val_fraction}; between 0 and 1 expected")
    if not 2 <= shard_tokens < 2**31:  # the header's count is an int32
        raise UserError(f"shard_tokens is {shard_tokens}; 2 to 2**31 - 1 expected")


def check_files_for_char(corpus: Corpus) -> None:
    """Raise `UserError` unless a corpus has text that can be read twice."""
    for path in corpus.paths:
        if path.exists() and not path.is_file():
            raise UserError(
                f"{path}: not a regular file, and --tokenizer char reads it twice; save it to a "
                "file first"
            )


def prepare(
    source: Path | Corpus,
    out: Path,
    tokenizer: str = "gpt2",
    val_fraction: float = 0.1,
    *,
    workers: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, int]:
    """Tokenize a corpus into train_*.bin, val_*.bin and tokenizer.json in `out`.

    `out` is created only after all shards are complete. If a call is interrupted, repeat it to
    resume.

    Args:
        source: A text file, or a corpus of documents.
        out: Folder to create.
        tokenizer: Name of the tokenizer, "gpt2" or "char". Each of several documents begins with
            <|endoftext|> in gpt2, and with a newline in char.
        val_fraction: Fraction of the data for validation. A hash chooses entire documents. For a
            single text or fewer than 1 / val_fraction documents, the last tokens are used instead.
        workers: Number of threads, by default one per core. It doesn't affect the result.
        shard_tokens: Tokens per shard.

    Returns:
        The number of tokens in the parts "train" and "val".

    Raises:
        FileExistsError: If `out` exists.
        OSError: If the disk or the connection to the hub fails.
        UserError: If the corpus is invalid, if `out` is locked by a different process, or if a
            part has fewer than two tokens.
    """
    corpus = source if isinstance(source, Corpus) else Corpus((Path(source),))
    workers = (os.cpu_count() or 1) if workers is None else workers
    check_options(workers, val_fraction, shard_tokens)
    check_files(corpus)
    if tokenizer != "gpt2":
        check_files_for_char(corpus)
    options = {"val_fraction": val_fraction, "shard_tokens": shard_tokens}
    arguments = {"tokenizer": tokenizer, **options, **describe(corpus)}
    with working_folder(out, arguments) as (folder, progress):
        if not progress:
            save_tokenizer(fitting_tokenizer(tokenizer, corpus), folder / TOKENIZER)
            progress = Progress()
        made = load_tokenizer(folder / TOKENIZER)
        separator = None if corpus.is_one_text else made.new_document  # as in llm.c
        told: Told = defaultdict(list)
        encode = partial(encode_batch, made, separator, val_fraction)
        results = encode_in_order(encode, batched(read(corpus, progress.place, told)), workers)
        add = partial(append, folder, shard_tokens=shard_tokens)
        save = partial(save_progress, folder, arguments)
        progress = write(results, add, progress, save, out.name)
        if progress.val == 0 and progress.train > 0:
            progress = copy_tail(folder, progress, val_fraction, add)
        for what, places in told.items():
            print(f"{out}: {len(places):,} {what} (first: {places[0]})", file=Log())
        if min(progress.train, progress.val) < 2:  # a token and its successor
            raise UserError(
                f"{out}: {progress.train} training and {progress.val} validation tokens, "
                f"but each part needs 2; more text needed"
            )
        save(progress)
        shorten(folder, "train", progress.train, shard_tokens=shard_tokens)
        return publish(folder, out, progress)


def describe(corpus: Corpus) -> dict[str, object]:
    """Describe a corpus, with file sizes and modification times, to detect changes on resume."""
    stats = [(os.path.realpath(path), path.stat()) for path in corpus.paths]
    files = [[name, stat.st_size, stat.st_mtime_ns] for name, stat in stats]
    return {"format": 5, **dataclasses.asdict(corpus), "paths": files}


@contextmanager
def working_folder(
    out: Path, arguments: dict[str, object]
) -> Iterator[tuple[Path, Progress | None]]:
    """Lock `out`, and yield a temporary folder and the saved progress, if any.

    If the block raises an error, the folder is removed unless it contains saved progress.
    """
    folder = out.parent / f".tmp-{out.name}"  # with_name would reject ".", which exists
    with writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.parent / f".{out.name}.lock"):
        if out.exists():
            raise FileExistsError(f"{out} exists already; choose another folder, or remove it")
        progress = read_progress(folder, arguments)
        if progress:
            print(f"{out}: resuming after {progress.train + progress.val:,} tokens", file=Log())
        else:
            shutil.rmtree(folder, ignore_errors=True)
            with writing(folder):
                folder.mkdir()
        try:
            yield folder, progress
        except (UserError, OSError) as error:
            if not (folder / PROGRESS).exists():
                shutil.rmtree(folder, ignore_errors=True)
                raise
            kind = OSError if isinstance(error, OSError) else UserError
            raise kind(
                f"{error}; {folder} keeps the progress, and the same command resumes from there"
            ) from None


def read_progress(folder: Path, arguments: dict[str, object]) -> Progress | None:
    """Return the saved progress of an interrupted run, or `None`.

    Raises `UserError` if the interrupted run had different arguments, or if its progress file is
    corrupt.
    """
    if not (folder / PROGRESS).is_file():
        return None
    saved = read_json(folder / PROGRESS)
    try:
        before = dict(saved.pop("arguments"))
        progress = Progress(saved.pop("train"), saved.pop("val"), Position(*saved.pop("place")))
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{folder / PROGRESS}: not a progress file; remove that folder") from None
    if changed := [name for name, value in arguments.items() if before.get(name) != value]:
        raise UserError(
            f"{folder} holds an unfinished run with other {' and '.join(changed)}; give the same "
            "again, or remove that folder to start over"
        )
    return progress


def save_progress(folder: Path, arguments: dict[str, object], progress: Progress) -> None:
    """Flush the shards to disk, and then write the progress file."""
    for path in folder.glob("*.bin"):
        with writing(path):
            sync(path)
    content = {"arguments": arguments, **progress._asdict()}
    write_atomic(folder / PROGRESS, json.dumps(content, indent=1) + "\n")


def write(
    results: Generator[Encoded, None, None],
    add: Callable[..., int],
    progress: Progress,
    save: Callable[[Progress], None],
    title: str,
) -> Progress:
    """Append encoded batches to the shards, and save the progress every SAVE_SECONDS."""
    saved = time.monotonic()
    done = progress.train + progress.val
    bar = Bar(desc=title, unit="tok", unit_scale=True, initial=done, leave=True)
    with closing(results), bar:
        for train, val, place in results:
            train_tokens = add("train", progress.train, train)
            progress = Progress(train_tokens, add("val", progress.val, val), place)
            bar.update(len(train) + len(val))
            if time.monotonic() - saved >= SAVE_SECONDS:
                save(progress)
                saved = time.monotonic()
    return progress


def copy_tail(
    folder: Path, progress: Progress, val_fraction: float, add: Callable[..., int]
) -> Progress:
    """Copy the last fraction of the training tokens to the validation part.

    The returned progress excludes the copied tokens from the training part.
    """
    stream = TokenStream.open(str(folder), "train")
    cut = int(progress.train * (1 - val_fraction))
    val = 0
    for begin in range(cut, progress.train, COPY_TOKENS):
        val = add("val", val, stream.read(begin, min(COPY_TOKENS, progress.train - begin)))
    return progress._replace(train=cut, val=val)


def publish(folder: Path, out: Path, progress: Progress) -> dict[str, int]:
    """Flush the finished folder to disk, and rename it to `out`."""
    with writing(out):
        for path in (*folder.iterdir(), folder):
            sync(path)
        os.replace(folder, out)
        (out / PROGRESS).unlink(missing_ok=True)  # last, so that a run killed before can resume
        sync(out.parent)
    return {"train": progress.train, "val": progress.val}


def fitting_tokenizer(name: str, corpus: Corpus) -> Tokenizer:
    """Create a tokenizer for a corpus.

    A char tokenizer requires a pass over the corpus to collect its characters.
    """
    alphabet: set[str] = set()
    if name == "char":
        for _, text in read(corpus, Position()):
            alphabet.update(text)
        if alphabet and not corpus.is_one_text:
            alphabet.add("\n")  # before each document
    return make_tokenizer(name, "".join(alphabet))
