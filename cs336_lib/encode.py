"""The tokens of documents, in their order, from as many processes as there are cores."""

import contextlib
import pickle
import queue
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from itertools import chain, islice
from typing import NamedTuple

import numpy as np

from cs336_lib.documents import Place
from cs336_lib.tokenizer import Tokenizer

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
