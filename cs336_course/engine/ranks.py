"""Run an answer as the ranks of a process group, with one thread per rank."""

import queue
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

T = TypeVar("T")

LOOK = 0.05  # seconds between two looks at the threads
LONGEST = 60.0  # seconds, after which threads that don't wait for each other are given up
WHYS = "message", "each other", "slow", "ends Python"


class StuckError(Exception):
    """Error for ranks that don't end: they wait for a message or for each other, or are slow."""

    def __init__(self, why: str):
        super().__init__(why)
        self.why = why


def threads_reduce(
    tensor: Tensor,
    dst: int,
    op: Any = dist.ReduceOp.SUM,
    group: Any = None,
    async_op: bool = False,
) -> Any:
    """Stand in for dist.reduce, which the group of threads lacks."""
    total = tensor.clone()
    dist.all_reduce(total, op, group)
    if dist.get_rank(group) == dst:
        tensor.copy_(total)
    return SimpleNamespace(wait=lambda: True) if async_op else None


class Mail:
    """Messages between threads, for dist.send and its like, which the group of threads lacks."""

    def __init__(self) -> None:
        self.boxes: dict[tuple[int, int, int], queue.Queue[Tensor]] = {}

    def box(self, source: int, target: int, tag: int) -> queue.Queue[Tensor]:
        """Return the messages on their way from a rank to another."""
        world = dist.get_world_size()
        for rank in (source, target):
            if not 0 <= rank < world:
                raise ValueError(f"rank {rank} doesn't exist; there are {world}, from 0")
        return self.boxes.setdefault((source, target, tag), queue.Queue())

    def isend(
        self,
        tensor: Tensor,
        dst: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_dst: int | None = None,
    ) -> Any:
        """Send a tensor to a rank."""
        target = dst if dst is not None else group_dst
        assert target is not None
        self.box(dist.get_rank(), target, tag).put(tensor.detach().clone())
        return SimpleNamespace(wait=lambda *_: True, is_completed=lambda: True)

    def irecv(
        self,
        tensor: Tensor,
        src: int | None = None,
        group: Any = None,
        tag: int = 0,
        group_src: int | None = None,
    ) -> Any:
        """Receive a tensor from a rank, into `tensor` when it is waited for."""
        source = src if src is not None else group_src
        assert source is not None
        box = self.box(source, dist.get_rank(), tag)
        found: list[Tensor] = []

        def wait(*_: Any) -> bool:
            if not found:
                found.append(take(box))
                with torch.no_grad():
                    tensor.copy_(found[0])
            return True

        return SimpleNamespace(wait=wait, is_completed=lambda: not box.empty() and wait())

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Send a tensor to a rank, and wait until it is on its way."""
        self.isend(*args, **kwargs).wait()

    def recv(self, tensor: Tensor, src: int | None = None, *args: Any, **kwargs: Any) -> int | None:
        """Receive a tensor from a rank, and return the rank."""
        self.irecv(tensor, src, *args, **kwargs).wait()
        return src


def take(box: queue.Queue[Tensor]) -> Tensor:
    """Wait for a message. The thread ends when another one has failed."""
    from torch.testing._internal.distributed import multi_threaded_pg as threads

    while True:
        try:
            return box.get(timeout=LOOK)
        except queue.Empty:
            if threads.ProcessLocalGroup._terminate.is_set():
                raise SystemExit from None


@contextmanager
def noting_calls() -> Iterator[list[mock.Mock]]:
    """Yield what asynchronous calls of torch.distributed return. An answer must wait for each."""
    works: list[mock.Mock] = []
    mail = Mail()

    def noted(call: Callable[..., Any]) -> Callable[..., Any]:
        def note(*args: Any, **kwargs: Any) -> Any:
            work = call(*args, **kwargs)
            if work is None:
                return None
            works.append(mock.Mock(wraps=work))
            return works[-1]

        return note

    def batch(operations: list[dist.P2POp]) -> list[Any]:
        return [one.op(one.tensor, one.peer, one.group, one.tag) for one in operations]

    ends = {"isend": noted(mail.isend), "irecv": noted(mail.irecv)}
    others = {"send": mail.send, "recv": mail.recv, "batch_isend_irecv": batch}
    others |= {"all_reduce": noted(dist.all_reduce), "reduce": threads_reduce}
    with (
        mock.patch.multiple(dist, **ends, **others),
        mock.patch.multiple(distributed_c10d, **ends),  # P2POp compares its first argument
    ):
        yield works


def waits(thread: threading.Thread, calls: tuple[Any, ...]) -> bool:
    """Return whether a thread has ended, or is within one of these calls."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None and thread.is_alive():
        if frame.f_code in calls:
            return True
        frame = frame.f_back
    return not thread.is_alive()


def on_processes(world: int, work: Callable[[int], T], seconds: float = 3) -> list[T]:
    """Call `work(rank)` on `world` threads, which are the ranks of a real process group.

    PyTorch's own tests use these threads for processes, since a notebook's functions can't be sent
    to other processes.

    Args:
        world: Number of ranks.
        work: Called with each rank.
        seconds: How long all threads must wait for each other until that is called a deadlock. A
            thread that computes may take longer.

    Raises:
        StuckError: If the threads don't end, or one of them ends Python.
    """
    # It is imported here because it takes a second, and registers a backend.
    from torch.testing._internal.distributed import multi_threaded_pg as threads

    store, group = dist.HashStore(), threads.ProcessLocalGroup
    isolate = torch._C._distributed_c10d._set_thread_isolation_mode  # a group for each thread
    results: dict[int, T] = {}
    errors: list[Exception] = []
    given_up = threading.Event()

    def run(rank: int) -> None:
        dist.init_process_group("threaded", rank=rank, world_size=world, store=store)
        try:
            results[rank] = work(rank)
        except SystemExit:
            pass  # the end of a thread that waited for the others
        except Exception as error:
            errors.append(error)
            group.exception_handle(error)  # the others need not wait any longer
        finally:
            if not given_up.is_set():
                dist.destroy_process_group()

    group.reset()
    isolate(True)
    threads._install_threaded_pg()
    try:
        ranks = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(world)]
        for thread in ranks:
            thread.start()
        calls = threads.Collective.join.__code__, take.__code__
        reason = "" if joined(ranks, calls, seconds) else why_stuck(ranks)
        if reason:
            group.exception_handle(TimeoutError())
            for thread in ranks:
                thread.join(1)
    finally:
        given_up.set()
        threads._uninstall_threaded_pg()
        isolate(False)
        group.reset()
    if errors:
        raise errors[0]
    if reason or len(results) < world:
        raise StuckError(reason or "ends Python")
    return [results[rank] for rank in range(world)]


def joined(ranks: list[threading.Thread], calls: tuple[Any, ...], seconds: float) -> bool:
    """Wait for the threads, and return whether all have ended.

    Looks are counted rather than seconds, since a laptop may sleep.
    """
    end, looks = time.monotonic() + LONGEST, 0
    while any(thread.is_alive() for thread in ranks):
        next(thread for thread in ranks if thread.is_alive()).join(LOOK)
        looks = looks + 1 if all(waits(thread, calls) for thread in ranks) else 0
        if looks * LOOK >= seconds or time.monotonic() > end:
            return not any(thread.is_alive() for thread in ranks)
    return True


def why_stuck(ranks: list[threading.Thread]) -> str:
    """Return why threads don't end."""
    if any(thread.is_alive() and waits(thread, (take.__code__,)) for thread in ranks):
        return "message"
    from torch.testing._internal.distributed import multi_threaded_pg as threads

    wait = (threads.Collective.join.__code__,)
    return "each other" if all(waits(thread, wait) for thread in ranks) else "slow"
