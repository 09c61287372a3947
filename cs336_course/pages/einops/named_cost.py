"""Times of attention by name and by position, and of copies, for notebook 03."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor

from cs336_course.shared import stopwatch
from cs336_lib.system import hardware

HEAD = 6
CPU = torch.device("cpu")


def named(qkv: Tensor) -> Tensor:
    """Split the heads, attend and merge them, by name."""
    pattern = "batch seq (three head dim) -> three batch head seq dim"
    q, k, v = rearrange(qkv, pattern, three=3, head=HEAD)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return rearrange(mixed, "batch head seq dim -> batch seq (head dim)")


def by_hand(qkv: Tensor) -> Tensor:
    """Split the heads, attend and merge them, by position."""
    batch, seq, width = qkv.shape
    q, k, v = qkv.view(batch, seq, 3, HEAD, width // (3 * HEAD)).permute(2, 0, 3, 1, 4)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return mixed.transpose(1, 2).reshape(batch, seq, width // 3)


def split(x: Tensor) -> Tensor:
    """Split the last dimension into 4 heads, by name."""
    return rearrange(x, "batch seq (head dim) -> batch head seq dim", head=4)


def split_by_hand(x: Tensor) -> Tensor:
    """Split the last dimension into 4 heads, by position."""
    batch, seq, width = x.shape
    return x.view(batch, seq, 4, width // 4).permute(0, 2, 1, 3)


def split_times(
    elements: list[int], device: torch.device, rounds: int = 500
) -> dict[str, list[float]]:
    """Measure how long splitting heads takes by name and by hand, and a copy, in microseconds."""
    times: dict[str, list[float]] = {"copy": [], "einops rearrange": [], "view and permute": []}
    for size in elements:
        x = torch.zeros(size, device=device).view(1, -1, 64)
        ways = {
            "einops rearrange": partial(split, x),
            "view and permute": partial(split_by_hand, x),
        }
        best = stopwatch.best_seconds(ways, device, rounds=rounds)
        best |= stopwatch.best_seconds({"copy": x.clone}, device, rounds=5)
        for name, seconds in best.items():
            times[name].append(1e6 * seconds)
    return times


class Copied(NamedTuple):
    """A copy of a tensor, in microseconds, and the pages of memory that one `clone` asks for."""

    mib: float
    clone: float
    copy: float
    pages: int


def page_faults() -> int:
    """Return how many pages of memory this process was given so far, or 0 on Windows."""
    try:
        import resource
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def copies(elements: list[int], rounds: int = 8) -> list[Copied]:
    """Compare `clone`, which needs new memory, with a copy into memory that exists, on the CPU."""
    found = []
    for size in elements:
        x = torch.zeros(size)
        target = torch.empty_like(x).fill_(1)
        clone = stopwatch.best_seconds({"": x.clone}, CPU, rounds=rounds)[""]
        before = page_faults()
        x.clone()
        pages = page_faults() - before
        copy = stopwatch.best_seconds({"": partial(target.copy_, x)}, CPU, rounds=rounds)[""]
        found.append(Copied(4 * size / 2**20, 1e6 * clone, 1e6 * copy, pages))
    return found


def attention_times(letters: list[int]) -> dict[int, dict[str, float]]:
    """Measure attention by name and by position on the CPU, eager and compiled, in microseconds.

    The two eager functions run in turns, and then the two compiled ones, because a compiled call
    between two short eager ones would slow them down. Without a C++ compiler, only the eager times
    are measured.
    """
    eager: dict[str, Callable[[Tensor], Tensor]] = {"named": named, "by hand": by_hand}
    pairs = [eager]
    if not hardware.why_not_compiled(CPU):
        pairs += [{f"{name}, compiled": torch.compile(eager[name], dynamic=True) for name in eager}]
    found = {}
    for seq in letters:
        qkv = torch.randn(1, seq, 3 * HEAD * 32, generator=torch.Generator().manual_seed(0))
        best: dict[str, float] = {}
        with torch.no_grad():
            for ways in pairs:
                work = {name: partial(way, qkv) for name, way in ways.items()}
                rounds = 3000 if seq < 100 else 100
                best |= stopwatch.best_seconds(work, CPU, rounds=rounds)
        found[seq] = {name: 1e6 * seconds for name, seconds in best.items()}
    return found
