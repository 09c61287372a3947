"""Run an answer as the ranks of a process group, with one thread per rank."""

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, SimpleNamespace
from typing import Any, TypeVar
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import distributed_c10d

T = TypeVar("T")

LOOK = 0.05  # seconds between two looks at the threads
LONGEST = 60.0  # seconds of a core, or of idling, after which threads are given up
IDLE = 0.1 * LOOK  # seconds of a core; threads that take less between two looks are idle
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
        self.boxes: dict[tuple[int, int, int], Box] = {}

    def box(self, source: int, target: int, tag: int) -> "Box":
        """Return the messages on their way from a rank to another."""
        world = dist.get_world_size()
        for rank in (source, target):
            if not 0 <= rank < world:
                raise ValueError(f"rank {rank} doesn't exist; there are {world}, from 0")
        return self.boxes.setdefault((source, target, tag), Box())

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
                found.append(box.take())
                with torch.no_grad():
                    tensor.copy_(found[0])
            return True

        return SimpleNamespace(wait=wait, is_completed=lambda: bool(box.messages) and wait())

    def send(self, *args: Any, **kwargs: Any) -> None:
        """Send a tensor to a rank, and wait until it is on its way."""
        self.isend(*args, **kwargs).wait()

    def recv(self, tensor: Tensor, src: int | None = None, *args: Any, **kwargs: Any) -> int | None:
        """Receive a tensor from a rank, and return the rank."""
        self.irecv(tensor, src, *args, **kwargs).wait()
        return src


class Box:
    """Messages on their way from a rank to another."""

    def __init__(self) -> None:
        self.messages: list[Tensor] = []
        self.changed = threading.Condition()

    def put(self, message: Tensor) -> None:
        """Add a message."""
        with self.changed:
            self.messages.append(message)
            self.changed.notify()

    def take(self) -> Tensor:
        """Wait for a message. The thread ends when another one has failed."""
        from torch.testing._internal.distributed import multi_threaded_pg as threads

        end = threads.ProcessLocalGroup._terminate
        with self.changed:
            while not self.changed.wait_for(lambda: self.messages or end.is_set(), LOOK):
                pass
            if not self.messages:
                raise SystemExit
            return self.messages.pop(0)


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


def waits(frame: FrameType | None) -> bool:
    """Return whether a thread is in `Condition.wait_for`, and its condition isn't true."""
    if frame is None or frame.f_code is not threading.Condition.wait.__code__:
        return False
    caller = frame.f_back
    if caller is None or caller.f_code is not threading.Condition.wait_for.__code__:
        return False
    return not caller.f_locals["predicate"]()


def is_deadlock(ranks: list[threading.Thread]) -> bool:
    """Return whether all living threads wait, so that none of them can make a condition true."""
    alive = [thread.ident for thread in ranks if thread.is_alive()]
    before = sys._current_frames()
    if not all(waits(before.get(ident or 0)) for ident in alive):
        return False
    after = sys._current_frames()  # a thread that has left its wait meanwhile has another frame
    return all(before.get(ident or 0) is after.get(ident or 0) for ident in alive)


def on_processes(world: int, work: Callable[[int], T]) -> list[T]:
    """Call `work(rank)` on `world` threads, which are the ranks of a real process group.

    PyTorch's own tests use these threads for processes, since a notebook's functions can't be sent
    to other processes.

    Args:
        world: Number of ranks.
        work: Called with each rank.

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
        if reason := joined(ranks):
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


def joined(ranks: list[threading.Thread]) -> str:
    """Wait for the threads, and return "", or why they don't end."""
    began = before = time.process_time()
    idle = 0.0
    while alive := [thread for thread in ranks if thread.is_alive()]:
        if is_deadlock(ranks):
            codes = {code for thread in alive for code in codes_of(thread)}
            return "message" if Box.take.__code__ in codes else "each other"
        alive[0].join(LOOK)
        now = time.process_time()
        idle += LOOK if now - before < IDLE else 0
        before = now
        if now - began + idle > LONGEST:
            return "slow"
    return ""


def codes_of(thread: threading.Thread) -> Iterator[CodeType]:
    """Yield the code of the functions that a thread is in."""
    frame = sys._current_frames().get(thread.ident or 0)
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back
