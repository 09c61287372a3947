"""Select a device and precision, and look up or measure its memory and speed."""

import ctypes
import os
import platform
import re
import tempfile
import timeit
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from cs336_lib.config import UserError
from cs336_lib.system.datasheets import DATASHEET, Device

BF16_FLAGS = {"avx512_bf16", "amx_bf16", "bf16"}


def select_device(name: str = "auto", local_rank: int = 0) -> torch.device:
    """Return the device named `auto`, `cpu`, `cuda`, `cuda:1` or `mps`.

    `auto` selects CUDA or the CPU, because our tests haven't been run on MPS. `cuda` without a
    number selects the GPU with index `local_rank`. Raises `UserError` if the name is unknown or the
    device doesn't exist.
    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda", "mps") or not (number == "" or number.isdecimal()):
        raise UserError(f"device {name!r} is unknown; auto, cpu, cuda, cuda:1 or mps expected")
    if kind == "cuda":
        index, count = int(number or local_rank), torch.cuda.device_count()
        if index >= count:
            raise UserError(
                f"device cuda:{index} is missing: {count} GPU(s) here; use --device cpu"
            )
        torch.cuda.set_device(index)
        return torch.device("cuda", index)
    if kind == "mps" and not torch.backends.mps.is_available():
        raise UserError("device mps is missing: no Apple GPU here; use --device cpu")
    return torch.device(kind)


@cache
def cpu_flags() -> frozenset[str]:
    """Return the instruction sets of the CPU, such as avx2. The set is empty except on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    return frozenset(cpuinfo.read_text().split() if cpuinfo.exists() else ())


@cache
def cpu_model() -> str:
    """Return the model name of the CPU, or its architecture if the name is unknown."""
    cpuinfo = Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    found = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1] if found else platform.processor() or platform.machine()


def has_bf16(device: torch.device) -> bool:
    """Return whether bf16 matmuls are fast on this device.

    On a CPU without native bf16, bf16 matmuls are 400 times slower than fp32 matmuls. The
    environment variable CS336_CPU_BF16 (1 or 0) overrides the detection, because a virtual machine
    may hide CPU flags.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    override = os.environ.get("CS336_CPU_BF16", "")
    native = override == "1" if override else bool(cpu_flags() & BF16_FLAGS)
    return device.type == "cpu" and native


def autocast_dtype(device: torch.device, precision: str = "auto") -> torch.dtype | None:
    """Return the dtype for matmuls, or `None` for fp32.

    `auto` selects bf16 if bf16 matmuls are fast on the device. Raises `UserError` if `precision`
    is "bf16" and the GPU doesn't support it.
    """
    if precision == "fp32" or (precision == "auto" and not has_bf16(device)):
        return None
    if device.type == "cuda" and not has_bf16(device):
        raise UserError(
            "precision bf16: this GPU has no bf16 (compute capability 8.0 needed); use fp32"
        )
    return torch.bfloat16


@contextmanager
def tf32(enabled: bool) -> Iterator[None]:
    """Enable or disable TF32 for fp32 matmuls on a GPU within this block.

    With TF32, fp32 matmuls run on tensor cores, which round the inputs to 10 mantissa bits.
    """
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high" if enabled else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def set_deterministic(mode: int, device: torch.device) -> None:
    """Allow any algorithm (0), warn of those that aren't deterministic (1), or refuse them (2).

    use_deterministic_algorithms also tells the compiler, and imports it, which takes a second. On a
    CPU, the compiler has no faster algorithm to give up.
    """
    if device.type == "cpu":
        torch.set_deterministic_debug_mode(mode)
    else:
        torch.use_deterministic_algorithms(mode > 0, warn_only=mode == 1)


@contextmanager
def reproducible(deterministic: str, tf32_enabled: bool, device: torch.device) -> Iterator[None]:
    """Apply the settings of determinism and TF32 within this block, and restore random numbers.

    `deterministic` is on, off or auto, which is on for a CPU.
    """
    wanted = deterministic == "on" or (deterministic == "auto" and device.type == "cpu")
    before = torch.get_deterministic_debug_mode()
    memory: Any = torch.utils.deterministic  # mypy doesn't know this module's property
    fill_before = memory.fill_uninitialized_memory
    rng = torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])
    with rng, tf32(tf32_enabled):
        try:
            set_deterministic(2 if wanted else 0, device)
            # PyTorch would fill new memory with NaN to expose reads of it. We never read it.
            memory.fill_uninitialized_memory = False
            yield
        finally:
            set_deterministic(before, device)
            memory.fill_uninitialized_memory = fill_before


def why_not_compiled(device: torch.device) -> str:
    """Try torch.compile on a device. Return the reason for a failure, or "" on success.

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
        folder = tempfile.gettempdir()
        if " " in folder and folder in str(error):
            return f"{folder} has a blank, at which the compiler fails; set TMPDIR"
        return f"fails: {(str(error) or type(error).__name__).splitlines()[0]}"
    return ""


def device_name(device: torch.device) -> str:
    """Return a readable device name, such as "CPU, 2 threads"."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type == "mps":
        return "Apple GPU (MPS)"
    threads = torch.get_num_threads()
    return f"CPU, {threads} threads" if threads > 1 else "CPU, 1 thread"


def datasheet(device: torch.device) -> Device | None:
    """Return the datasheet of a GPU, or `None` if its name isn't in `DATASHEET`."""
    name = device_name(device).lower() if device.type == "cuda" else ""
    if re.search(r"pcie| nvl|laptop|4090 d\b|\bmig\b", name):  # other clocks, or a part of a GPU
        return None
    # \b because a GH200 isn't an H200.
    sheets = (sheet for key, sheet in DATASHEET.items() if re.search(rf"\b{key}\b", name))
    return next(sheets, None)


def memory(device: torch.device) -> int | None:
    """Return the total memory in bytes that this process may use, or `None` if unknown.

    Memory that is already in use is included.
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
    """Return the memory limits of this process from Linux cgroups (version 2), in bytes.

    Containers and Slurm jobs set such limits. The list includes the limit of every parent cgroup.
    """
    limits = []
    lines = OWN_CGROUPS.read_text() if OWN_CGROUPS.exists() else ""
    for path in re.findall("^0::/(.*)$", lines, re.MULTILINE):  # the line of version 2
        for group in (PurePosixPath(path), *PurePosixPath(path).parents):
            with suppress(OSError, ValueError):  # there is no such file, or it says "max"
                limits.append(int((CGROUPS / group / "memory.max").read_text()))
    return limits


def require_memory(needed: float, device: torch.device, what: str) -> None:
    """Raise `UserError` if `needed` bytes exceed the memory of the device.

    `what` describes the allocation in the error message.
    """
    limit = memory(device)
    if limit is not None and needed > limit:
        raise UserError(
            f"{what} needs {needed / 1e9:,.1f} GB at least, and {device.type} has "
            f"{limit / 1e9:,.1f} GB; choose a smaller one, or a larger machine"
        )


FAILED_ALLOCATION = re.compile(
    "DefaultCPUAllocator: (can't allocate|not enough) memory|MPS backend out of memory"
)


def is_out_of_memory(error: Exception) -> bool:
    """Return whether an exception reports a failed memory allocation on the CPU or a GPU."""
    # torch.OutOfMemoryError is the CUDA allocator's; the CPU's and MPS' raise a plain RuntimeError.
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return FAILED_ALLOCATION.search(str(error)) is not None


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # from glibc's malloc.h

# glibc raises its thresholds while blocks are freed, until it stops at these. Setting one of them
# ends the raising for good, so a caller gets the last ones. With the first ones (128 KiB), each of
# the caller's tensors would be zeroed by the system again.
GLIBC_SETTINGS = {
    M_MMAP_MAX: 65536,
    M_MMAP_THRESHOLD: 32 * 2**20,
    M_TRIM_THRESHOLD: 64 * 2**20,
}


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Keep freed memory in the process within this block, so that new tensors reuse it.

    This works only with glibc. By default, glibc returns large blocks to the operating system,
    which must zero the pages when they are allocated again. This takes 4 to 8 % of the time of a
    GPT-2 training step on a CPU. CUDA's caching allocator avoids the same cost.

    At the end, free memory is returned to the system, and glibc gets `GLIBC_SETTINGS`, because it
    has no function that reads the old settings. If the environment sets MALLOC_TRIM_THRESHOLD_ or
    the corresponding GLIBC_TUNABLES, the settings aren't changed.
    """
    if platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    settings = " ".join(os.environ) + os.environ.get("GLIBC_TUNABLES", "").upper()
    ours = not re.search("MALLOC.(TRIM_THRESHOLD|MMAP)", settings)
    if ours:
        libc.mallopt(M_MMAP_MAX, 0)  # allocate all blocks from the heap
        libc.mallopt(M_TRIM_THRESHOLD, -1)  # never shrink the heap
    try:
        yield
    finally:
        if ours:
            for setting, value in GLIBC_SETTINGS.items():
                libc.mallopt(setting, value)
        libc.malloc_trim(0)


# A smaller matmul takes one core a millisecond at most. A second thread could save half of it, but
# waking that thread costs as much.
WORTH_A_SECOND_THREAD = 70e6

# OpenMP has read the policy by now, because `import torch` above loads it. What is set later has no
# effect.
THREADS_SLEEP = os.environ.get("OMP_WAIT_POLICY", "").upper() == "PASSIVE"


@contextmanager
def threads_for(matmul_flops: float) -> Iterator[None]:
    """Use a single CPU thread within this block if the largest matmul is small.

    The number of threads changes only if OpenMP lets idle threads sleep (`THREADS_SLEEP`). Threads
    that spin wake up quickly, so several threads are nearly always faster (docs/decisions.md).
    """
    threads = torch.get_num_threads()
    if matmul_flops < WORTH_A_SECOND_THREAD and THREADS_SLEEP:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished all queued work."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


# No size is fastest on every CPU. We have seen 256 a fifth faster than 1024, and with AMX, 2048 1.6
# times as fast. GPT-2's own width avoids rows that are a power of 2 apart.
PEAK_SIZES = (256, 512, 768, 1024, 2048, 4096)
PEAK_SECONDS = 0.2  # time for each size, at most one matmul longer


def measured_matmul_flops(device: torch.device, dtype: torch.dtype, n: int = 1024) -> float:
    """Return the highest FLOP/s in several runs of an n x n matmul. The result is cached."""
    return _best_matmul_flops(device, dtype, n, torch.get_num_threads())


@cache
def _best_matmul_flops(device: torch.device, dtype: torch.dtype, n: int, threads: int) -> float:
    """Measure the FLOP/s of an n x n matmul. `threads` is used only as part of the cache key."""
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    return 2 * n**3 / best_seconds(lambda: torch.mm(a, b), device)


def best_seconds(work: Callable[[], object], device: torch.device) -> float:
    """Return the shortest of up to seven run times in seconds, within about `PEAK_SECONDS`."""

    def run() -> None:
        work()
        synchronize(device)

    times: list[float] = []
    while len(times) < 7 and sum(times) < PEAK_SECONDS:
        times.append(timeit.timeit(run, number=1))
    return min(times)


def peak_flops(device: torch.device, dtype: torch.dtype | None) -> tuple[float | None, str]:
    """Return the peak FLOP/s of matmuls on a device, and the source of this value.

    For a GPU, the peak comes from the datasheet, or is `None` if there is no datasheet or it lacks
    the precision, as that of an MI355X lacks TF32. For a CPU, the peak is the highest measured
    FLOP/s of several matmul sizes. A size is skipped if three runs would take longer than
    `PEAK_SECONDS`. A `dtype` of `None` means fp32.
    """
    precision = "bf16" if dtype == torch.bfloat16 else "fp32"
    if device.type == "cpu":
        kind = dtype or torch.float32
        best = 0.0
        for n in PEAK_SIZES:
            if best and 3 * 2 * n**3 / best > PEAK_SECONDS:
                break
            best = max(best, measured_matmul_flops(device, kind, n))
        return best, "measured here"
    sheet = datasheet(device)
    if sheet is None:
        return None, "unknown peak"
    if precision == "fp32" and torch.get_float32_matmul_precision() != "highest":
        precision = "tf32"
    if precision not in sheet.peak_flops:
        return None, f"unknown peak in {precision}"
    return sheet.peak_flops[precision], sheet.source
