"""Select devices and precision, and look up or measure their memory and speed."""

import ctypes
import os
import platform
import re
import timeit
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath

import torch

from cs336_lib.agreement import agrees_with_cpu
from cs336_lib.config import require
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


@dataclass(frozen=True)
class Device:
    """Datasheet values of a device.

    These are the dense peak FLOP/s by precision, the memory bandwidth in B/s, and the memory in
    bytes.
    """

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    bandwidth: float
    memory: float
    source: str


DATASHEET = {key: Device(**sheet) for key, sheet in read_json(DATA / "devices.json").items()}


def select_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """Return the device named `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    `auto` selects MPS only if it computes the same small training step as the CPU. `cuda` without a
    number selects the GPU with index `local_rank`. Raises `ValueError` if the name is unknown, or
    this machine doesn't have the device.
    """
    has_mps = torch.backends.mps.is_available()
    if name == "auto" and torch.cuda.is_available():
        name = "cuda"
    elif name == "auto":
        name = "mps" if has_mps and agrees_with_cpu(torch.device("mps")) else "cpu"
    kind, _, number = name.partition(":")
    message = f"device {name!r} is unknown; auto, cpu, cuda, cuda:1 or mps expected"
    require(kind in ("cpu", "cuda", "mps") and (number == "" or number.isdecimal()), message)
    if kind == "cuda":
        index, count = int(number or local_rank), torch.cuda.device_count()
        message = f"device cuda:{index} is missing: {count} GPU(s) here; use --device cpu"
        require(index < count, message)
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    require(kind == "cpu" or has_mps, "device mps is missing: no Apple GPU here; use --device cpu")
    return torch.device(kind)


@cache
def cpu_flags() -> frozenset[str]:
    """Return the names of the CPU's instruction sets, such as avx2 (Linux only)."""
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split() if cpuinfo.exists() else ())


def has_bf16(device: torch.device) -> bool:
    """Return whether bf16 matmuls are fast on this device.

    On a CPU without native bf16, they are 400 times slower than fp32. The environment variable
    CS336_CPU_BF16 (1 or 0) overrides the detection, because a virtual machine may hide CPU flags.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    override = os.environ.get("CS336_CPU_BF16", "")
    native = override == "1" if override else bool(cpu_flags() & BF16_FLAGS)
    return device.type == "cpu" and native


def autocast_dtype(device: torch.device, precision: str = "auto") -> torch.dtype | None:
    """Return the dtype for matmuls, or `None` for fp32.

    `auto` selects bf16 if it is fast on the device. Raises `ValueError` if the precision is bf16
    and the GPU doesn't support it.
    """
    if precision == "fp32" or (precision == "auto" and not has_bf16(device)):
        return None
    message = "precision bf16: this GPU has no bf16 (compute capability 8.0 needed); use fp32"
    require(device.type != "cuda" or has_bf16(device), message)
    return torch.bfloat16


def autocast(device: torch.device, precision: str = "auto") -> torch.autocast:
    """Return the autocast context for `autocast_dtype`. It is disabled for fp32."""
    dtype = autocast_dtype(device, precision)
    return torch.autocast(device.type, dtype=dtype, enabled=dtype is not None)


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Enable or disable TF32 for a GPU's fp32 matmuls within this block.

    With TF32, matmuls use tensor cores, which round their inputs to 10 mantissa bits. The old
    setting is restored at the end.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def why_not_compiled(device: torch.device) -> str:
    """Try torch.compile on this device, and return the error or "".

    On a CPU, Inductor needs a C++ compiler and Python's headers. On a GPU, Triton needs a C
    compiler.
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
    """Return a readable device name, such as "CPU, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} thread{'s' * (threads > 1)}"


def datasheet(device: torch.device) -> Device | None:
    """Return the datasheet of this GPU, or `None` if we don't have one."""
    name = device_name(device).lower() if device.type == "cuda" else ""
    if re.search(r"pcie| nvl|laptop|4090 d\b", name):  # different clocks, so different peaks
        return None
    # \b because a GH200 isn't an H200.
    sheets = (sheet for key, sheet in DATASHEET.items() if re.search(rf"\b{key}\b", name))
    return next(sheets, None)


def memory(device: torch.device) -> int | None:
    """Return the bytes of device memory that this process may use, or `None` if unknown.

    The result includes memory that is in use.
    """
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    try:
        physical = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    return min([physical, *cgroup_limits()])


OWN_CGROUPS, CGROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def cgroup_limits() -> list[int]:
    """Return the memory limits in bytes that Linux cgroups (version 2) set for this process.

    Containers and Slurm jobs use them. A limit can be set on the process's own cgroup or on any
    parent.
    """
    limits = []
    lines = OWN_CGROUPS.read_text() if OWN_CGROUPS.exists() else ""
    for path in re.findall("^0::/(.*)$", lines, re.MULTILINE):  # the line of version 2
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            with suppress(OSError, ValueError):  # there is no such file, or it says "max"
                limits.append(int((CGROUPS / group / "memory.max").read_text()))
    return limits


def require_memory(needed: float, device: torch.device, what: str) -> None:
    """Raise `ValueError` if `what` needs more bytes than the device's total memory."""
    limit = memory(device)
    message = f"{what} needs {needed / 1e9:,.1f} GB at least, and {device.type} has"
    advice = "choose a smaller one, or a larger machine"
    require(limit is None or needed <= limit, f"{message} {(limit or 0) / 1e9:,.1f} GB; {advice}")


FAILED_ALLOCATION = re.compile(
    "DefaultCPUAllocator: (can't allocate|not enough) memory|MPS backend out of memory"
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an error is a failed memory allocation, in Python, on the CPU or on a GPU."""
    # torch.OutOfMemoryError is the CUDA allocator's; the CPU's and MPS' raise a plain RuntimeError.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return FAILED_ALLOCATION.search(str(error)) is not None


M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # from glibc's malloc.h


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Reuse freed memory for later tensors within this block (glibc only).

    CUDA's caching allocator does the same. By default, glibc returns large blocks to the system,
    and gets them back as zeroed pages. This takes 4 to 8 % of GPT-2's training step on a CPU.

    At the end, free memory is returned to the system. glibc has no function that reads the old
    settings, so the new ones stay for the rest of the process. Settings from the environment
    (MALLOC_TRIM_THRESHOLD_, GLIBC_TUNABLES) take precedence.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    settings = " ".join(os.environ) + os.environ.get("GLIBC_TUNABLES", "").upper()
    if not re.search("MALLOC.(TRIM_THRESHOLD|MMAP)", settings):
        libc.mallopt(M_MMAP_MAX, 0)  # allocate all blocks from the heap
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # never shrink the heap
    try:
        yield
    finally:
        libc.malloc_trim(0)


# A smaller matmul takes one core a millisecond at most. A second thread could save half of it, but
# waking that thread costs as much.
WORTH_A_SECOND_THREAD = 64e6


@contextmanager
def threads_for(matmul_flops: float) -> Iterator[None]:
    """Use one CPU thread within this block if the largest matmul is small.

    This applies only if idle threads sleep (cs336_lib/__init__.py). Spinning threads wake quickly,
    so using several is nearly always faster (docs/decisions.md).
    """
    threads = torch.get_num_threads()
    if matmul_flops < WORTH_A_SECOND_THREAD and os.environ.get("OMP_WAIT_POLICY") == "PASSIVE":
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


# No size is fastest on every CPU. We have seen 256 up to a fifth faster than 1024.
PEAK_SIZES = (256, 512, 1024)


def measured_matmul_flops(device: torch.device, dtype: torch.dtype, n: int = 1024) -> float:
    """Return the best measured FLOP/s of an n x n matmul. The result is cached."""
    return _best_matmul_flops(device, dtype, n, torch.get_num_threads())


@cache
def _best_matmul_flops(device: torch.device, dtype: torch.dtype, n: int, threads: int) -> float:
    """Measure a matmul. `threads` is only part of the cache key."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))

    def multiply() -> None:
        torch.mm(a, b)
        synchronize(device)

    return 2 * n**3 / min(timeit.repeat(multiply, repeat=7, number=1))


def peak_flops(device: torch.device, dtype: torch.dtype | None) -> tuple[float | None, str]:
    """Return the peak FLOP/s of matmuls, and the source of this number.

    A GPU's peak comes from its datasheet, and is `None` if we have no datasheet. A CPU's peak is
    the fastest of several measured matmul sizes. A `dtype` of `None` means fp32.
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
