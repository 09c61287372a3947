"""Tokenize documents into shards, in a folder that appears when it is complete."""

import dataclasses
import json
import os
import shutil
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cs336_lib.config import require
from cs336_lib.data.documents import Corpus, Mark, Marks, Place, check_files, last_mark, read
from cs336_lib.data.shards import TokenStream, append, open_raw_shard, shorten
from cs336_lib.data.tokenizer import (
    GPT2Tokenizer,
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
    save_tokenizer,
)
from cs336_lib.io import Bar, Log, locked, read_json, sync, write_atomic, writing

BATCH_CHARACTERS = 2**20  # a thread encodes this much at a time, in about 0.1 s

SHARD_TOKENS = 100_000_000

COPY_TOKENS = 2**20  # tokens in memory while shards are copied

MOST_WORKERS = 1024

MILLION = 1_000_000

SAVE_SECONDS = 5.0  # a killed run loses at most this much work

PROGRESS, TOKENIZER = "progress.json", "tokenizer.json"

Batch = list[tuple[Place, str]]


class Encoded(NamedTuple):
    """A batch's tokens for both parts, and the place of its last piece."""

    train: np.ndarray
    val: np.ndarray
    place: Place


@dataclass(frozen=True)
class Progress:
    """State of a run, from which it resumes after a kill.

    Attributes:
        train: Training tokens written.
        val: Validation tokens written.
        place: Place of the last piece of text that was encoded.
        split: Whether all tokens are written and divided between the parts.
        mark: State of the hub's stream, at or before `place`.
    """

    train: int = 0
    val: int = 0
    place: Place = field(default_factory=Place)
    split: bool = False
    mark: Mark | None = None


def batched(pieces: Iterable[tuple[Place, str]]) -> Iterator[Batch]:
    """Group pieces of text into lists of about BATCH_CHARACTERS."""
    batch: Batch = []
    size = 0
    for place, text in pieces:
        batch.append((place, text))
        size += len(text)
        if size >= BATCH_CHARACTERS:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def encode_batch(
    tokenizer: Tokenizer, separator: int | None, val_fraction: float, batch: Batch
) -> Encoded:
    """Encode a batch, with the token `separator` before each document."""
    train, val = [np.zeros(0, np.uint16)], [np.zeros(0, np.uint16)]
    for place, text in batch:
        part = val if is_validation(place.document, val_fraction) else train
        if separator is not None and place.piece == 0:
            part.append(np.array([separator], np.uint16))
        part.append(tokenizer.encode(text))
    return Encoded(np.concatenate(train), np.concatenate(val), batch[-1][0])


def is_validation(document: int, val_fraction: float) -> bool:
    """Return whether a document belongs to validation: one of every 1 / val_fraction in a row.

    A hash chooses one document of each such group, except in the first group, whose last document
    is chosen. A corpus smaller than one group therefore has none, and `prepare` uses its tail.
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
    """Encode batches on threads, and yield the results in order.

    At most 2 * workers + 1 batches are in memory. Threads are enough because tiktoken releases the
    GIL.
    """
    with ThreadPoolExecutor(workers) as pool:
        pending: deque[Future[Encoded]] = deque()
        for batch in batches:
            pending.append(pool.submit(encode, batch))
            if len(pending) > 2 * workers:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()


def encode_corpus(
    corpus: Corpus,
    tokenizer: Tokenizer,
    val_fraction: float,
    workers: int,
    after: Place,
    marks: Marks,
) -> Generator[Encoded, None, None]:
    """Encode everything after a place, with llm.c's <|endoftext|> before each document."""
    separator = None if corpus.is_one_text else tokenizer.end_of_text
    encode = partial(encode_batch, tokenizer, separator, val_fraction)
    return encode_in_order(encode, batched(read(corpus, after, marks)), workers)


def prepare(
    source: Path | Corpus,
    out: Path,
    tokenizer: str = "gpt2",
    val_fraction: float = 0.1,
    *,
    workers: int | None = None,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, int]:
    """Tokenize a corpus into train_*.bin and val_*.bin shards and tokenizer.json under `out`.

    `out` appears when it is complete. After a kill or an error, the same call resumes.

    Args:
        source: A text file, or a corpus of documents.
        out: Folder to make.
        tokenizer: "gpt2" or "char".
        val_fraction: Share of the validation part. A hash chooses whole documents for it; with a
            single text, or fewer than 1 / val_fraction documents, it is the tail of the tokens.
        workers: Threads, by default one per core. The result doesn't depend on it.
        shard_tokens: Tokens per shard.

    Returns:
        The number of tokens in "train" and in "val".

    Raises:
        FileExistsError: `out` exists.
        ValueError: The corpus is unusable, another process writes to `out`, or a part is too short.
        OSError: The disk or the hub failed.
    """
    corpus = source if isinstance(source, Corpus) else Corpus((Path(source),))
    workers = (os.cpu_count() or 1) if workers is None else workers
    require(1 <= workers <= MOST_WORKERS, f"workers is {workers}; 1 to {MOST_WORKERS} expected")
    check_arguments(val_fraction, shard_tokens)
    check_files(corpus)
    arguments = describe(corpus, tokenizer, val_fraction, shard_tokens)
    with working_folder(out) as temporary:
        progress = read_progress(temporary, arguments)
        if progress:
            done = progress.train + progress.val
            print(f"{out}: resuming after {done:,} tokens", file=Log())
        save = partial(save_progress, temporary, arguments)
        add = partial(append, temporary, shard_tokens=shard_tokens)
        with resumable(temporary):
            if not progress:
                save_tokenizer(fitting_tokenizer(tokenizer, corpus), temporary / TOKENIZER)
                progress = Progress()
            if not progress.split:
                made = load_tokenizer(temporary / TOKENIZER)
                marks = deque([progress.mark] if progress.mark else [])
                results = encode_corpus(corpus, made, val_fraction, workers, progress.place, marks)
                progress = write(results, add, progress, save, out.name, marks)
                if progress.val == 0:
                    progress = copy_tail(temporary, progress, val_fraction, add)
                check_parts(corpus.name, progress)
                progress = dataclasses.replace(progress, split=True)
                save(progress)
            shorten(temporary, "train", progress.train, shard_tokens=shard_tokens)
            return publish(temporary, out, progress)


def check_arguments(val_fraction: float, shard_tokens: int) -> None:
    """Refuse numbers out of range."""
    require(0 < val_fraction < 1, f"val_fraction is {val_fraction}; between 0 and 1 expected")
    require(
        2 <= shard_tokens < 2**31,  # the header's count is an int32
        f"shard_tokens is {shard_tokens}; 2 to 2**31 - 1 expected",
    )


@contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Yield a locked folder for the shards, either a new one or that of an interrupted run.

    An error removes the folder, unless it holds saved progress.
    """
    temporary = out.with_name(f".tmp-{out.name}")
    with writing(out.parent):
        out.parent.mkdir(parents=True, exist_ok=True)
    with locked(out.with_name(f".{out.name}.lock")):
        try:
            if out.exists():
                raise FileExistsError(f"{out} exists already; choose another folder, or remove it")
            if not (temporary / PROGRESS).exists():
                shutil.rmtree(temporary, ignore_errors=True)
                with writing(temporary):
                    temporary.mkdir()
            yield temporary
        except (ValueError, OSError):
            if not (temporary / PROGRESS).exists():
                shutil.rmtree(temporary, ignore_errors=True)
            raise


@contextmanager
def resumable(temporary: Path) -> Iterator[None]:
    """Add to an error's message that the same command resumes, if progress has been saved."""
    try:
        yield
    except (ValueError, OSError) as error:
        if not (temporary / PROGRESS).exists():
            raise
        kind = OSError if isinstance(error, OSError) else ValueError
        raise kind(
            f"{error}; {temporary} keeps the progress, and the same command resumes from there"
        ) from None


def publish(temporary: Path, out: Path, progress: Progress) -> dict[str, int]:
    """Sync the finished folder to disk and give it its name."""
    with writing(out):
        for path in (*temporary.iterdir(), temporary):
            sync(path)
        os.replace(temporary, out)
        (out / PROGRESS).unlink(missing_ok=True)  # last, so that a run killed before this resumes
        sync(out.parent)
    return {"train": progress.train, "val": progress.val}


def fitting_tokenizer(name: str, corpus: Corpus) -> Tokenizer:
    """Make a tokenizer; for `char`, read the corpus once to find its characters."""
    alphabet: set[str] = set()
    if name == "char":
        for _, text in read(corpus, Place()):
            alphabet.update(text)
    return make_tokenizer(name, "".join(alphabet))


def describe(corpus: Corpus, tokenizer: str, val_fraction: float, shard_tokens: int) -> dict:
    """Return the arguments that decide the result, to compare with an interrupted run's."""
    files = [(path.resolve(), path.stat()) for path in corpus.paths]
    return {
        "format": 1,
        "files": [[str(path), stat.st_size, stat.st_mtime_ns] for path, stat in files],
        "text_field": corpus.text_field,
        "hub": corpus.hub,
        "hub_config": corpus.hub_config,
        "tokenizer": tokenizer,
        "val_fraction": val_fraction,
        "shard_tokens": shard_tokens,
    }


def read_progress(temporary: Path, arguments: dict) -> Progress | None:
    """Return the saved progress of an interrupted run, or None.

    Raises:
        ValueError: The interrupted run had other arguments, or its file is damaged.
    """
    if not (temporary / PROGRESS).is_file():
        return None
    saved = read_json(temporary / PROGRESS)
    try:
        before = dict(saved.pop("arguments"))
        mark = Mark(*saved["mark"]) if saved.get("mark") else None
        progress = Progress(**{**saved, "place": Place(*saved["place"]), "mark": mark})
    except (KeyError, TypeError, ValueError):
        raise ValueError(
            f"{temporary / PROGRESS}: not a progress file of `cs336 prepare`; remove that folder"
        ) from None
    changed = [name for name in arguments if before.get(name) != arguments[name]]
    require(
        not changed,
        f"{temporary} holds an unfinished run with other {' and '.join(changed)}; "
        f"give the same again to resume it, or remove that folder to start over",
    )
    return progress


def save_progress(temporary: Path, arguments: dict, progress: Progress) -> None:
    """Sync the shards to disk, then record how many tokens they hold."""
    for path in temporary.glob("*.bin"):
        with writing(path):
            sync(path)
    content = {"arguments": arguments, **dataclasses.asdict(progress)}
    write_atomic(temporary / PROGRESS, json.dumps(content, indent=1) + "\n")


def write(
    results: Generator[Encoded, None, None],
    add: Callable[..., int],
    progress: Progress,
    save: Callable[[Progress], None],
    title: str,
    marks: Marks,
) -> Progress:
    """Append each batch's tokens to the shards, and save the progress every SAVE_SECONDS."""
    saved = time.monotonic()
    done = progress.train + progress.val
    bar = Bar(desc=title, unit="tok", unit_scale=True, initial=done, delay=1)
    with closing(results), bar:
        for train, val, place in results:
            progress = Progress(
                train=add("train", progress.train, train),
                val=add("val", progress.val, val),
                place=place,
                mark=last_mark(marks, place.row),
            )
            bar.update(len(train) + len(val))
            if time.monotonic() - saved >= SAVE_SECONDS:
                save(progress)
                saved = time.monotonic()
    return progress


def copy_tail(
    folder: Path, progress: Progress, val_fraction: float, add: Callable[..., int]
) -> Progress:
    """Copy the last `val_fraction` of the training tokens to the validation part."""
    cut = int(progress.train * (1 - val_fraction))
    val = 0
    if progress.train > 0:
        stream = TokenStream.from_folder(folder, "train")
        for begin in range(cut, progress.train, COPY_TOKENS):
            length = min(COPY_TOKENS, progress.train - begin)
            val = add("val", val, stream.read(begin, length))
    return dataclasses.replace(progress, train=cut, val=val)


def check_parts(name: str, progress: Progress) -> None:
    """Refuse a part that is too short for one token and its successor."""
    for part, tokens in (("train", progress.train), ("val", progress.val)):
        require(
            tokens >= 2,
            f"{name}: {progress.train + progress.val} tokens leave {tokens} for the {part} part; "
            f"more text needed",
        )


def prepare_raw(
    paths: tuple[Path, ...],
    out: Path,
    val_fraction: float = 0.1,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, int]:
    """Convert nanoGPT's .bin files of GPT-2's tokens to a folder of shards.

    Args:
        paths: The file to train on, and optionally a second one to validate on.
        out: Folder to make.
        val_fraction: Share of a single file that becomes the validation part.
        shard_tokens: Tokens per shard.

    Returns:
        The number of tokens in "train" and in "val".

    Raises:
        FileExistsError: `out` exists.
        ValueError: A file doesn't hold GPT-2's tokens, or `out` belongs to an unfinished run.
    """
    require(
        len(paths) in (1, 2),
        f"{len(paths)} files; --raw takes one, or a second one to validate on",
    )
    check_arguments(val_fraction, shard_tokens)
    files = [open_raw_shard(path) for path in paths]
    cut = int(len(files[0]) * (1 - val_fraction))
    train, val = files if len(files) == 2 else (files[0][:cut], files[0][cut:])
    progress = Progress(train=len(train), val=len(val))
    check_parts(str(paths[0]), progress)
    with working_folder(out) as temporary:
        require(
            not (temporary / PROGRESS).exists(),
            f"{temporary} holds an unfinished run; choose another --out, or remove that folder",
        )
        save_tokenizer(GPT2Tokenizer(), temporary / TOKENIZER)
        for part, path, ids in (("train", paths[0], train), ("val", paths[-1], val)):
            for begin in range(0, len(ids), COPY_TOKENS):
                piece = ids[begin : begin + COPY_TOKENS]
                require(
                    piece.max() < GPT2Tokenizer.vocab_size,
                    f"{path}: id {piece.max()}, but GPT-2's vocabulary has "
                    f"{GPT2Tokenizer.vocab_size}; files of other tokenizers are not supported",
                )
                append(temporary, part, begin, piece, shard_tokens=shard_tokens)
        return publish(temporary, out, progress)
