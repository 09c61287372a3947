"""The machine: which device to use, what it can do at best, and how to time it honestly."""

import ctypes
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

import torch

from cs336_lib.agreement import agrees_with_cpu
from cs336_lib.config import require

TFLOPS = 1e12
BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class Device:
    """A datasheet's dense peaks: FLOP/s by precision, memory bandwidth in B/s, memory in bytes."""

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    bandwidth: float
    memory: float
    source: str


# Dense figures: a datasheet that prints "with sparsity" counts multiplications by zero, twice ours.
# "tf32" is fp32 storage with matmuls on the tensor cores; "fp32" is the ordinary cores.
DATASHEET: dict[str, Device] = {
    "a100": Device(
        "NVIDIA A100 80GB SXM",
        {"bf16": 312e12, "fp16": 312e12, "tf32": 156e12, "fp32": 19.5e12},
        2.039e12,
        80e9,
        "NVIDIA A100 datasheet, 2021",
    ),
    "h100": Device(
        "NVIDIA H100 SXM",
        {"fp8": 1979e12, "bf16": 989.5e12, "fp16": 989.5e12, "tf32": 494.7e12, "fp32": 67e12},
        3.35e12,
        80e9,
        "NVIDIA H100 datasheet, 2023 (printed with 2:4 sparsity: halved here)",
    ),
    "h200": Device(
        "NVIDIA H200 SXM",
        {"fp8": 1979e12, "bf16": 989.5e12, "fp16": 989.5e12, "tf32": 494.7e12, "fp32": 67e12},
        4.8e12,
        141e9,
        "NVIDIA H200 datasheet, 2024 (printed with 2:4 sparsity: halved here)",
    ),
    "b200": Device(
        "NVIDIA B200 SXM",
        {"fp8": 4500e12, "bf16": 2250e12, "fp16": 2250e12, "tf32": 1125e12, "fp32": 75e12},
        8.0e12,
        180e9,
        "NVIDIA DGX B200 datasheet, 2024: 36 PFLOP/s sparse bf16, 1440 GB, 64 TB/s over 8 GPUs",
    ),
    "a6000": Device(
        "NVIDIA RTX A6000",
        {"bf16": 154.8e12, "fp16": 154.8e12, "tf32": 77.4e12, "fp32": 38.7e12},
        0.768e12,
        48e9,
        "NVIDIA RTX A6000 datasheet, 2021 (309.7 TFLOP/s with sparsity: halved here)",
    ),
    "rtx 4090": Device(
        "NVIDIA GeForce RTX 4090",
        {"bf16": 165.2e12, "fp16": 165.2e12, "tf32": 82.6e12, "fp32": 82.6e12},
        1.008e12,
        24e9,
        "NVIDIA Ada architecture whitepaper, 2022 (fp32 accumulation)",
    ),
}


def select_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """Turn `auto`, `cpu`, `cuda`, `cuda:1` or `mps` into a device that is there.

    Raises:
        ValueError: the name is unknown or this machine has no such device.
    """
    if name == "auto":
        name = (
            "cuda"
            if torch.cuda.is_available()
            else "mps"
            if torch.backends.mps.is_available() and agrees_with_cpu(torch.device("mps"))
            else "cpu"
        )
    try:
        device = torch.device(name)
    except RuntimeError:
        device = torch.device("meta")
    require(
        device.type in ("cpu", "cuda", "mps"),
        f"device {name!r} is unknown; auto, cpu, cuda, cuda:1 or mps expected",
    )
    if device.type == "cuda":
        require(torch.cuda.is_available(), f"device {name!r}: no CUDA GPU here; use --device cpu")
        index = local_rank if device.index is None else device.index
        count = torch.cuda.device_count()
        require(index < count, f"device 'cuda:{index}': this machine has {count} GPU(s), from 0")
        device = torch.device("cuda", index)
        torch.cuda.set_device(device)
    if device.type == "mps":
        require(torch.backends.mps.is_available(), "device 'mps': not on this machine; use cpu")
    return device


def cpu_has_bf16() -> bool:
    """Whether this CPU multiplies bf16 in hardware; elsewhere bf16 matmuls run 400 times slower.

    CS336_CPU_BF16=1 or 0 overrides what Linux says, where a virtual machine hides the flag, say.
    """
    override = os.environ.get("CS336_CPU_BF16", "")
    return override == "1" if override else bool(cpu_flags() & BF16_FLAGS)


@cache
def cpu_flags() -> frozenset[str]:
    """Instruction sets of this CPU by Linux's names, avx2 for example; empty on other systems."""
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split() if cpuinfo.exists() else ())


def has_bf16(device: torch.device) -> bool:
    """Whether bf16 matmuls are fast on this device."""
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    return device.type == "cpu" and cpu_has_bf16()


def autocast_dtype(device: torch.device, precision: str = "auto") -> torch.dtype | None:
    """The dtype matmuls are to run in, or None for plain fp32; `auto` picks bf16 where it is fast.

    Raises:
        ValueError: bf16 is asked for on a GPU that cannot do it.
    """
    if precision == "fp32" or (precision == "auto" and not has_bf16(device)):
        return None
    require(
        device.type != "cuda" or has_bf16(device),
        "precision bf16: this GPU has no bf16 (compute capability 8.0 needed); use fp32",
    )
    return torch.bfloat16


def why_not_compiled(device: torch.device) -> str:
    """Return "" if torch.compile works on this device, else the reason, by compiling one function.

    Inductor needs a C++ compiler and Python's headers on a CPU, and Triton a C compiler on a GPU.
    """
    try:
        torch.compile(lambda x: x.sin() + 1)(torch.zeros(8, device=device))
    except Exception as error:  # what fails, and how, differs between devices and versions
        if "Python.h" in str(error):
            return "Python's headers are missing (Python.h; Debian: python3-dev)"
        if "cxx" in repr(error).lower() or "compiler" in repr(error).lower():
            return f"no {'C++' if device.type == 'cpu' else 'C'} compiler found"
        return f"fails: {type(error).__name__}"
    return ""


def device_name(device: torch.device) -> str:
    """The name a person would call it by."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def datasheet(device: torch.device) -> Device | None:
    """The datasheet of this GPU, or None where we have none: no figure is guessed."""
    name = device_name(device).lower() if device.type == "cuda" else ""
    if re.search(r"pcie| nvl|laptop|4090 d\b", name):  # other clocks, so other peaks
        return None
    # Whole words only, because a GH200 isn't an H200.
    found = (sheet for key, sheet in DATASHEET.items() if re.search(rf"\b{key}\b", name))
    return next(found, None)


def memory(device: torch.device) -> int | None:
    """Return how many bytes this process may use on the device, free or not.

    The result is None where the system does not say.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    return min([there, *cgroup_limits()])


OWN_CGROUPS, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cgroup_limits() -> list[int]:
    """Return the memory limits that Linux control groups put on this process, in bytes.

    Containers and Slurm jobs get their share of a machine in this way. A limit can stand in the
    process's own group or in any group above it.
    """
    limits = []
    lines = OWN_CGROUPS.read_text().splitlines() if OWN_CGROUPS.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2
            root, name = CGROUPS, "memory.max"
        elif "memory" in controllers.split(","):  # version 1
            root, name = CGROUPS / "memory", "memory.limit_in_bytes"
        else:
            continue
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            with suppress(OSError, ValueError):  # there is no such file, or it says "max"
                limits.append(int((root / group / name).read_text()))
    return limits


def require_memory(needed: float, device: torch.device, what: str) -> None:
    """Raise `ValueError` where `what` needs more bytes than `memory` gives, whatever is free."""
    there = memory(device)
    require(
        there is None or needed <= there,
        f"{what} needs {needed / 1e9:,.1f} GB at least, and {device.type} has "
        f"{(there or 0) / 1e9:,.1f} GB; choose a smaller one, or a larger machine",
    )


FAILED_ALLOCATION = re.compile(
    "DefaultCPUAllocator: (can't allocate|not enough) memory|MPS backend out of memory"
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an allocation failed, in Python, on the CPU or on a GPU."""
    # torch.OutOfMemoryError is the CUDA allocator's; the CPU's and MPS' raise a plain RuntimeError.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return FAILED_ALLOCATION.search(str(error)) is not None


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h
MALLOC_SETTINGS = ("trim_threshold", "mmap_max", "mmap_threshold")


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let freed tensors leave their memory to later ones, as on a GPU; at the end, trim the heap.

    glibc returns large blocks to the system, and gets them back page by page, each filled with
    zeros first. That took 4 to 8 % of GPT-2's training step on a CPU. Other systems don't change.

    The end of the block returns what is free. The two settings of glibc stay for the rest of the
    process, because glibc has no function that reads the old ones. If the environment already sets
    one of them (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES), we leave them alone.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if not any(
        f"MALLOC_{name.upper()}_" in os.environ or f"glibc.malloc.{name}=" in tunables
        for name in MALLOC_SETTINGS
    ):
        libc.mallopt(M_MMAP_MAX, 0)  # all blocks from the heap,
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # which never shrinks by itself
    try:
        yield
    finally:
        libc.malloc_trim(0)


# A matmul of fewer FLOPs takes one core a millisecond at most. Of that a second one could save
# half, and to wake it, four hundred times a step, costs as much.
WORTH_A_SECOND_THREAD = 64e6


@contextmanager
def threads_for(matmul_flops: float) -> Iterator[None]:
    """In here PyTorch has one CPU thread if its matmuls are too small to be shared.

    That is where threads sleep while they wait for work (cs336_lib/__init__.py); threads that spin
    are shared nearly always with profit, and left alone (docs/decisions.md).
    """
    threads = torch.get_num_threads()
    if matmul_flops < WORTH_A_SECOND_THREAD and os.environ.get("OMP_WAIT_POLICY") == "PASSIVE":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def synchronize(device: torch.device) -> None:
    """Wait until the device has done all it was given; the CPU always has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


def seconds_in_turns(
    ways: Mapping[str, Callable[[], object]],
    device: torch.device,
    *,
    rounds: int = 5,
    warmup: int = 1,
) -> dict[str, list[float]]:
    """Wall times in seconds of each way, round by round, after `warmup` rounds that do not count.

    All run once in every round, so that whatever else the machine does meets all of them, and the
    device is waited for each time.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(warmup + rounds):
        for name, work in ways.items():
            synchronize(device)
            start = time.perf_counter()
            work()
            synchronize(device)
            seconds[name].append(time.perf_counter() - start)
    return {name: measured[warmup:] for name, measured in seconds.items()}


def median_seconds(
    work: Callable[[], object], device: torch.device, *, repeats: int = 5, warmup: int = 2
) -> float:
    """Median wall time of `work()` in seconds, after warm-up, the device waited for each time."""
    measured = seconds_in_turns({"work": work}, device, rounds=repeats, warmup=warmup)
    return statistics.median(measured["work"])


def best_seconds(
    ways: Mapping[str, Callable[[], object]], device: torch.device, *, rounds: int
) -> dict[str, float]:
    """Shortest wall time of each way in seconds, all in turns: for comparing, as noise only adds.

    Short work needs many rounds: a busy moment of the machine must not outlast them.
    """
    measured = seconds_in_turns(ways, device, rounds=rounds)
    return {name: min(seconds) for name, seconds in measured.items()}


# No single size is fastest on every CPU: seen up to a fifth faster at 256 than at 1024.
PEAK_SIZES = (256, 512, 1024)


def measured_matmul_flops(device: torch.device, dtype: torch.dtype, n: int = 1024) -> float:
    """FLOP/s of an n x n matmul: the best of a few, for this is to be a peak; measured once."""
    return _best_matmul_flops(device, dtype, n, torch.get_num_threads())


@cache
def _best_matmul_flops(device: torch.device, dtype: torch.dtype, n: int, threads: int) -> float:
    """`threads` is there so that another number of threads is measured anew."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    best = best_seconds({"matmul": lambda: torch.mm(a, b)}, device, rounds=6)
    return 2 * n**3 / best["matmul"]


def measured_bandwidth(device: torch.device, megabytes: int = 256) -> float:
    """Bytes per second of a large copy, reads and writes both counted."""
    source = torch.empty(megabytes * 2**20, dtype=torch.uint8, device=device).fill_(1)
    target = torch.empty_like(source)
    seconds = median_seconds(lambda: target.copy_(source), device)
    return 2 * source.numel() / seconds


def peak_flops(device: torch.device, dtype: torch.dtype | None) -> tuple[float | None, str]:
    """Peak FLOP/s for matmuls in `dtype` (None: fp32) and where the figure is from.

    A GPU has its datasheet's. On a CPU it is the fastest of several sizes of matmul, measured.
    Other devices have none.
    """
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    if device.type == "cpu":
        kind = dtype or torch.float32
        return max(measured_matmul_flops(device, kind, n) for n in PEAK_SIZES), "measured here"
    sheet = datasheet(device)
    if sheet is None:
        return None, "unknown peak"
    if precision == "fp32" and torch.get_float32_matmul_precision() != "highest":
        precision = "tf32"
    return sheet.peak_flops[precision], sheet.source
