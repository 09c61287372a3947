"""The tokens of documents, in their order, from as many processes as there are cores."""

import contextlib
import dataclasses
import json
import os
import pickle
import queue
import shutil
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import NamedTuple

import numpy as np

from cs336_lib.config import require
from cs336_lib.data.documents import Corpus, Mark, Marks, Place, check_files, last_mark, read
from cs336_lib.data.shards import HEADER_BYTES, MAGIC, VERSION, ShardFile, TokenStream
from cs336_lib.data.tokenizer import (
    GPT2Tokenizer,
    Tokenizer,
    load_tokenizer,
    make_tokenizer,
    save_tokenizer,
)
from cs336_lib.io import Bar, Log, locked, read_json, sync

# Every worker process loads this module, so nothing here or below imports torch.

BATCH_CHARACTERS = 2**20  # what a worker gets at a time: about 0.1 s of work

WORTH_PROCESSES = 8  # batches; with fewer, starting processes would take longer than the work

MILLION = 1_000_000


class Encoded(NamedTuple):
    """A batch's tokens for both parts, and the place of its last piece."""

    train: np.ndarray
    val: np.ndarray
    place: Place


Batch = list[tuple[Place, str]]


def batched(pieces: Iterable[tuple[Place, str]]) -> Iterator[Batch]:
    """Pieces in lists of about BATCH_CHARACTERS."""
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
    """The tokens of a batch, with `separator` before each document."""
    train, val = [np.zeros(0, np.uint16)], [np.zeros(0, np.uint16)]
    for place, text in batch:
        part = val if is_validation(place.document, val_fraction) else train
        if separator is not None and place.piece == 0:
            part.append(np.array([separator], np.uint16))
        part.append(tokenizer.encode(text))
    return Encoded(np.concatenate(train), np.concatenate(val), batch[-1][0])


def is_validation(document: int, val_fraction: float) -> bool:
    """Whether a document is kept for validation: one of every 1 / val_fraction in a row.

    Which one a hash decides, except in the first such group, which gives its last: so a corpus with
    fewer documents than a group gives none (and then its tail, see `prepare`).
    """
    # Parts per million: with whole numbers, the groups' bounds are exact.
    share = min(max(1, round(val_fraction * MILLION)), MILLION - 1)
    group = document * share // MILLION
    first = -(-group * MILLION // share)
    size = -(-(group + 1) * MILLION // share) - first
    chosen = int(np.random.SeedSequence(group).generate_state(1)[0]) if group else -1
    return document - first == chosen % size


def encode_in_order(
    encode: Callable[[Batch], Encoded], batches: Iterable[Batch], workers: int
) -> Generator[Encoded, None, None]:
    """Encode batches in worker processes, or in this one where there is little to do.

    Results come in the batches' order, and only a few are ever under way: the reading waits.
    """
    batches = iter(batches)
    first = list(islice(batches, WORTH_PROCESSES))
    if workers == 1 or len(first) < WORTH_PROCESSES:
        yield from map(encode, chain(first, batches))
        return
    with worker_processes(encode, workers) as submit:
        coming: deque[Future[Encoded]] = deque()
        for batch in chain(first, batches):
            coming.append(submit(batch))
            if len(coming) > 2 * workers:
                yield coming.popleft().result()
        while coming:
            yield coming.popleft().result()


@contextlib.contextmanager
def worker_processes(
    encode: Callable[[Batch], Encoded], workers: int
) -> Iterator[Callable[[Batch], "Future[Encoded]"]]:
    """Processes that run `encode`, each fed by a thread through its stdin and stdout.

    Unlike multiprocessing's, they do not run the caller's script again (so it needs no
    `if __name__ == "__main__"`), and they end with this process even where that is killed.
    """
    code = f"import sys; sys.path[:] = {sys.path!r}; from {__name__} import work; work()"
    idle: queue.SimpleQueue[subprocess.Popen] = queue.SimpleQueue()
    processes = []

    def ask(batch: Batch) -> Encoded:
        process = idle.get()
        try:
            pickle.dump(batch, process.stdin)
            process.stdin.flush()
            return pickle.load(process.stdout)
        except (OSError, EOFError, pickle.UnpicklingError):
            raise ChildProcessError(
                f"a tokenizing process ended early (exit code {process.wait()}; -9 is mostly too "
                f"little memory); run the same command again to go on, perhaps with fewer --workers"
            ) from None
        finally:
            idle.put(process)

    threads = ThreadPoolExecutor(workers)
    try:
        for _ in range(workers):
            process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
            processes.append(process)
            pickle.dump(encode, process.stdin)
            idle.put(process)
        yield partial(threads.submit, ask)
    finally:
        for process in processes:
            process.kill()
        threads.shutdown(cancel_futures=True)
        for process in processes:
            with contextlib.suppress(OSError), process:  # its pipe may hold what nobody reads
                pass


def work() -> None:
    """What a worker process runs: batches of text come in, their tokens go out, until the end."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    encode = pickle.load(source)
    while True:
        try:
            batch = pickle.load(source)
        except EOFError:
            return
        pickle.dump(encode(batch), sink)
        sink.flush()


SHARD_TOKENS = 100_000_000

COPY_TOKENS = 2**20  # how many tokens are held in memory where shards are copied

ASCII_BYTES = 256  # so many bytes below 128 in a row are no GPT-2 tokens

MOST_WORKERS = 1024  # each is a process

SAVE_SECONDS = 5.0  # how much work a kill may cost

PROGRESS, TOKENIZER = "progress.json", "tokenizer.json"


@dataclass(frozen=True)
class Progress:
    """How far a run has come: enough to go on after a kill."""

    train: int = 0
    val: int = 0
    place: Place = field(default_factory=Place)
    split: bool = False
    """Whether everything is written and divided between the parts."""
    mark: Mark | None = None  # where a stream from the hub can start again, before the place


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

    Of many documents, whole ones become the validation part, chosen by a hash; of a single text,
    or fewer than 1 / val_fraction documents, the last tokens do. `out` appears when all of it is
    written, or not at all; after a kill, the same call goes on where the last one was. The result
    does not depend on `workers`. Returns the number of tokens in each part.

    Raises:
        ValueError: the corpus is unusable, `out` exists or another process works on it, or a part
            would be empty.
        OSError: the disk or the hub failed; the same call goes on.
    """
    corpus = source if isinstance(source, Corpus) else Corpus((Path(source),))
    workers = (os.cpu_count() or 1) if workers is None else workers
    require(1 <= workers <= MOST_WORKERS, f"workers is {workers}; 1 to {MOST_WORKERS} expected")
    check_numbers(out, val_fraction, shard_tokens)
    check_files(corpus)
    arguments = describe(corpus, tokenizer, val_fraction, shard_tokens)
    with working_folder(out) as temporary:
        progress = read_progress(temporary, arguments)
        try:
            if progress is None:
                made = fitting_tokenizer(tokenizer, corpus)
                start(temporary, made)
                progress = Progress()
            else:
                made = load_tokenizer(temporary / TOKENIZER)
                done = progress.train + progress.val
                print(f"{out}: going on after the {done:,} tokens of a run cut off", file=Log())
            save = partial(save_progress, temporary, arguments)
            if not progress.split:
                encode = partial(encode_batch, made, separator(made, corpus), val_fraction)
                add = partial(append, temporary, shard_tokens=shard_tokens)
                marks = deque([progress.mark] if progress.mark else [])
                pieces = batched(read(corpus, progress.place, marks))
                results = encode_in_order(encode, pieces, workers)
                progress = write(results, add, progress, save, out.name, marks)
                if progress.val == 0:
                    progress = copy_tail(temporary, progress, val_fraction, add)
                check_parts(corpus.name, progress)
                save(dataclasses.replace(progress, split=True))
            shorten(temporary, "train", progress.train, shard_tokens)
        except ValueError as error:
            if not (temporary / PROGRESS).exists():
                raise
            raise ValueError(
                f"{error}; {temporary} keeps what is done: the same command goes on from there"
            ) from None
        return publish(temporary, out, progress)


def check_numbers(out: Path, val_fraction: float, shard_tokens: int) -> None:
    """Refuse what cannot become a folder of shards."""
    require(0 < val_fraction < 1, f"val_fraction is {val_fraction}; between 0 and 1 expected")
    require(
        2 <= shard_tokens < 2**31,  # the header's count is an int32
        f"shard_tokens is {shard_tokens}; 2 to 2**31 - 1 expected",
    )
    check_absent(out)


def check_absent(out: Path) -> None:
    """Refuse to write where something is."""
    require(not out.exists(), f"{out} exists already; choose another folder, or remove it")


@contextlib.contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Have an error of the disk say which file could not be written, and what to do."""
    try:
        yield
    except OSError as error:
        named = error.errno is None  # by `write_atomic`
        said = str(error) if named else f"{path}: cannot be written ({error.strerror})"
        raise OSError(
            f"{said}; free some space, or make it writable, and run the same command again to go on"
        ) from None


@contextlib.contextmanager
def working_folder(out: Path) -> Iterator[Path]:
    """Where the shards grow until all are whole: a new folder, or that of a run cut off.

    No other process works on it in here. A mistake removes it, unless it holds saved progress.
    """
    temporary = out.with_name(f".tmp-{out.name}")
    with on_disk(temporary):
        temporary.mkdir(parents=True, exist_ok=True)
    with locked(temporary):
        try:
            check_absent(out)  # by now another process may have made it
            yield temporary
        except ValueError:
            if not (temporary / PROGRESS).exists():
                shutil.rmtree(temporary, ignore_errors=True)
            raise


def start(temporary: Path, made: Tokenizer) -> None:
    """Empty the temporary folder (it stays: we hold its lock), and put the tokenizer in it."""
    with on_disk(temporary):
        for path in temporary.iterdir():
            path.unlink()
        save_tokenizer(made, temporary / TOKENIZER)


def publish(temporary: Path, out: Path, progress: Progress) -> dict[str, int]:
    """Give the finished folder its name."""
    with on_disk(out):
        os.replace(temporary, out)
        (out / PROGRESS).unlink(missing_ok=True)  # only now: killed before, the run can go on
    return {"train": progress.train, "val": progress.val}


def fitting_tokenizer(name: str, corpus: Corpus) -> Tokenizer:
    """The tokenizer called `name`; for `char`, the whole corpus is read to find its characters."""
    alphabet: set[str] = set()
    if name == "char":
        for _, text in read(corpus, Place()):
            alphabet.update(text)
    return make_tokenizer(name, "".join(alphabet))


def separator(made: Tokenizer, corpus: Corpus) -> int | None:
    """<|endoftext|>, which stands before each document (llm.c's way), if there are documents."""
    return None if corpus.is_one_text else made.end_of_text


def describe(corpus: Corpus, tokenizer: str, val_fraction: float, shard_tokens: int) -> dict:
    """Everything that decides what comes out, to compare with a run that was cut off."""
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
    """How far a run with these arguments came before it was cut off; None: there was none.

    Raises:
        ValueError: there was one with other arguments, whose work we do not throw away unasked.
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
            f"{temporary / PROGRESS}: not what `cs336 prepare` writes; remove that folder"
        ) from None
    changed = [name for name in arguments if before.get(name) != arguments[name]]
    require(
        not changed,
        f"{temporary} holds an unfinished run with other {' and '.join(changed)}; "
        f"give the same as then to go on, or remove that folder to start anew",
    )
    return progress


def save_progress(temporary: Path, arguments: dict, progress: Progress) -> None:
    """Have the shards on the disk, and then that they are there."""
    text = json.dumps({"arguments": arguments, **dataclasses.asdict(progress)}, indent=1)
    with on_disk(temporary / PROGRESS):
        for path in temporary.glob("*.bin"):
            sync(path)
        (temporary / f"{PROGRESS}.new").write_text(text + "\n", encoding="utf-8")
        os.replace(temporary / f"{PROGRESS}.new", temporary / PROGRESS)


def write(
    results: Generator[Encoded, None, None],
    add: Callable[..., int],
    progress: Progress,
    save: Callable[[Progress], None],
    title: str,
    marks: Marks,
) -> Progress:
    """Put each batch's tokens behind those that are there, saving the progress now and then."""
    saved = time.monotonic()
    bar = Bar(
        desc=title, unit="tok", unit_scale=True, initial=progress.train + progress.val, delay=1
    )
    with contextlib.closing(results), bar:
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


def shard_path(folder: Path, name: str, number: int) -> Path:
    """The file of a part's shard."""
    return folder / f"{name}_{number:06d}.bin"


def header(tokens: int) -> bytes:
    """llm.c's header of a shard."""
    numbers = np.zeros(256, dtype="<i4")
    numbers[:3] = MAGIC, VERSION, tokens
    return numbers.tobytes()


def append(folder: Path, name: str, have: int, ids: np.ndarray, *, shard_tokens: int) -> int:
    """Write tokens behind a part's first `have`; return how many there are then.

    What a run that was cut off has left behind them is overwritten: a shard ends where we end.
    """
    while len(ids) > 0:
        number, offset = divmod(have, shard_tokens)
        piece, ids = ids[: shard_tokens - offset], ids[shard_tokens - offset :]
        path = shard_path(folder, name, number)
        with on_disk(path), open(path, "r+b" if offset else "wb") as file:
            file.seek(HEADER_BYTES + 2 * offset)
            file.write(piece.astype("<u2").tobytes())
            file.truncate()
            file.seek(0)
            file.write(header(offset + len(piece)))
        have += len(piece)
    return have


def shorten(folder: Path, name: str, tokens: int, shard_tokens: int) -> None:
    """Remove what a part has behind its first `tokens`."""
    number, offset = divmod(tokens, shard_tokens)
    if offset:
        path = shard_path(folder, name, number)
        with on_disk(path), open(path, "r+b") as file:
            file.truncate(HEADER_BYTES + 2 * offset)
            file.write(header(offset))
    number += offset > 0
    while (path := shard_path(folder, name, number)).exists():
        path.unlink()
        number += 1


def copy_tail(
    folder: Path, progress: Progress, val_fraction: float, add: Callable[..., int]
) -> Progress:
    """Copy the last `val_fraction` of the training tokens to the validation part."""
    paths = sorted(folder.glob("train_*.bin"))
    cut = int(progress.train * (1 - val_fraction))
    val = 0
    if progress.train > 0:
        stream = TokenStream([ShardFile(path) for path in paths], [str(path) for path in paths])
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


def read_raw_shard(path: Path) -> np.ndarray:
    """Map a .bin file as nanoGPT writes it, uint16 tokens without a header, read-only.

    Raises:
        ValueError: it is missing, empty, an llm.c shard, or not uint16.
    """
    require(path.is_file(), f"{path}: no such file")
    size = path.stat().st_size
    require(size > 0, f"{path}: the file is empty")
    require(size % 2 == 0, f"{path}: {size} bytes, an odd number; uint16 tokens expected")
    require(
        np.fromfile(path, dtype="<i4", count=1).tolist() != [MAGIC],
        f"{path}: an llm.c shard already; `cs336 train` reads it as it is",
    )
    with open(path, "rb") as file:
        start = file.read(4096)
    require(
        len(start) < ASCII_BYTES or not start.isascii(),
        f"{path}: begins as text does, or ids of single characters; GPT-2's tokens expected",
    )
    return np.memmap(path, dtype="<u2", mode="r")


def prepare_raw(
    paths: tuple[Path, ...],
    out: Path,
    val_fraction: float = 0.1,
    *,
    shard_tokens: int = SHARD_TOKENS,
) -> dict[str, int]:
    """Make shards from nanoGPT's train.bin, and validate on its tail, or on val.bin where given.

    Raises:
        ValueError: a file is not of that kind or not in GPT-2's tokens, or `out` exists or is what
            an unfinished `prepare` will make.
    """
    require(
        len(paths) in (1, 2),
        f"{len(paths)} files; --raw takes one, or two: the second to validate on",
    )
    check_numbers(out, val_fraction, shard_tokens)
    files = [read_raw_shard(path) for path in paths]
    cut = int(len(files[0]) * (1 - val_fraction))
    train, val = files if len(files) == 2 else (files[0][:cut], files[0][cut:])
    progress = Progress(train=len(train), val=len(val))
    check_parts(str(paths[0]), progress)
    for path, ids in zip(paths, files, strict=True):
        largest = max(int(ids[i : i + COPY_TOKENS].max()) for i in range(0, len(ids), COPY_TOKENS))
        require(
            largest < GPT2Tokenizer.vocab_size,
            f"{path}: id {largest}, but GPT-2's vocabulary has {GPT2Tokenizer.vocab_size}; "
            f"files of another tokenizer are not supported",
        )
    with working_folder(out) as temporary:
        require(
            not (temporary / PROGRESS).exists(),
            f"{temporary} holds an unfinished run; choose another --out, or remove that folder",
        )
        start(temporary, GPT2Tokenizer())
        for name, ids in (("train", train), ("val", val)):
            for begin in range(0, len(ids), COPY_TOKENS):
                part = ids[begin : begin + COPY_TOKENS]
                append(temporary, name, begin, part, shard_tokens=shard_tokens)
        return publish(temporary, out, progress)
