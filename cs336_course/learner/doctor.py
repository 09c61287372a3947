"""Describe a machine for a bug report, and find what is wrong with it (`cs336 doctor`)."""

import os
import platform
import re
import shutil
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import torch

import cs336_lib
from cs336_course import fetch
from cs336_course.learner import study
from cs336_lib.data.corpus import DATA, shakespeare
from cs336_lib.data.tokenizer import gpt2_encoding
from cs336_lib.system import hardware
from cs336_lib.training import checkpoint

GB = 1e9
# Notebook 11 takes 2.0 GB on a CPU, beside JupyterLab, a browser and the system. On disk,
# `cs336 train gpt2-124m` keeps two checkpoints (weights and two moments in fp32).
ENOUGH_MEMORY, ENOUGH_DISK = 4 * GB, 2 * 12 * 124.4e6
PACKAGES = ("numpy", "einops", "jaxtyping", "safetensors", "tiktoken", "tyro", "matplotlib")
PACKAGES += ("anywidget", "jupyterlab", "ipykernel", "transformers")
SETTINGS = re.compile("CS336_|OMP_|MKL_|CUDA_|TORCH|HF_|RANK$|WORLD_SIZE$")


@dataclass(frozen=True)
class Problem:
    """Something wrong with the machine.

    Attributes:
        what: The problem.
        remedy: What to do about it.
        serious: Whether parts of the course fail. Otherwise they are only slower.
    """

    what: str
    remedy: str
    serious: bool = True


@dataclass(frozen=True)
class Machine:
    """Facts about a machine.

    Attributes:
        memory: In bytes, or `None` if unknown.
        free_disk: In the current folder, in bytes.
        has_bf16: Whether bf16 matmuls are fast.
        gpu: Name of the GPU that PyTorch sees, or "".
        gpu_driver: Whether an NVIDIA driver is installed.
        compiler: Why torch.compile fails, or "".
        data: What is wrong with the data of the package, or "".
    """

    memory: int | None
    free_disk: int
    has_bf16: bool
    gpu: str
    gpu_driver: bool
    compiler: str
    data: str


def examine() -> Machine:
    """Examine this machine, which includes a compilation with torch.compile."""
    has_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if has_gpu else "cpu")
    return Machine(
        hardware.memory(torch.device("cpu")),
        shutil.disk_usage(Path.cwd()).free,
        hardware.has_bf16(device),
        hardware.device_name(device) if has_gpu else "",
        shutil.which("nvidia-smi") is not None,
        hardware.why_not_compiled(device),
        data_problem(),
    )


def data_problem() -> str:
    """Use the data of the package, and return what is wrong with it, or ""."""
    try:
        shakespeare()
        gpt2_encoding()
        checkpoint.load_shipped()
    except (OSError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def problems(machine: Machine) -> list[Problem]:
    """Return what is wrong with a machine. The serious problems come first."""
    memory, disk = (machine.memory or ENOUGH_MEMORY) / GB, machine.free_disk / GB
    found = []
    if memory * GB < ENOUGH_MEMORY:
        what = f"{memory:.1f} GB of memory, and the notebooks need {ENOUGH_MEMORY / GB:.0f} GB"
        remedy = "close other programs, raise the container's limit, or open the course in Colab"
        found.append(Problem(f"{what} in all", remedy))
    if disk * GB < ENOUGH_DISK:
        what = f"{disk:.1f} GB of free disk, and training GPT-2 keeps {ENOUGH_DISK / GB:.0f} GB"
        found.append(Problem(what, "free some space, or work in a folder on another disk"))
    if machine.data:
        what = f"the data of the package can't be used ({machine.data})"
        found.append(Problem(what, "run `git status` in a clone, or install the package again"))
    if machine.gpu_driver and not machine.gpu:
        what = "there is an NVIDIA driver, but PyTorch doesn't see a GPU"
        remedy = "compare `nvidia-smi` with torch.version.cuda, and install a build for that driver"
        found.append(Problem(what, remedy))
    if machine.compiler:
        remedy = "install it for notebook 10; training also works with --compile off"
        found.append(Problem(f"torch.compile: {machine.compiler}", remedy, serious=False))
    if not machine.has_bf16:
        what = "no native bf16 matmul, so training uses fp32 and is slower"
        remedy = "use a GPU with compute capability 8.0 or a CPU with AVX512_BF16 or AMX if you can"
        found.append(Problem(what, remedy, serious=False))
    return found


def version(name: str) -> str:
    """Return the version of an installed package, or "missing"."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "missing"


def report(machine: Machine) -> str:
    """Format facts for a bug report, and what is wrong with the machine."""
    settings = [f"{name}={value}" for name, value in os.environ.items() if SETTINGS.match(name)]
    capability = torch.backends.cpu.get_cpu_capability()
    cuda = f"CUDA {torch.version.cuda}" if torch.version.cuda else "without CUDA"
    facts = {
        "cs336-lib": f"{cs336_lib.__version__} in {Path(cs336_lib.__file__).parent}",
        "Python": f"{platform.python_version()} in {sys.prefix}",
        "system": platform.platform(),
        "PyTorch": f"{torch.__version__}, {cuda}, {torch.get_num_threads()} threads",
        "packages": ", ".join(f"{name} {version(name)}" for name in PACKAGES),
        "CPU": f"{hardware.cpu_model()}, {os.cpu_count()} cores, {capability}",
        "bf16": "native" if machine.has_bf16 else "not native",
        "GPU": machine.gpu or "none",
        "compile": machine.compiler or "works",
        "memory": f"{machine.memory / GB:.1f} GB" if machine.memory else "unknown",
        "disk": f"{machine.free_disk / GB:.1f} GB free in {Path.cwd()}",
        "data": f"{DATA}: {machine.data or 'complete'}",
        "SmolLM2": fetch.why_missing("smollm2") or f"{fetch.find('smollm2')}",
        "notebooks": f"{len(study.read_copies(study.MINE))} files in {study.MINE}",
        "settings": " ".join(sorted(settings)) or "none",
    }
    lines = [f"{name:<10} {value}" for name, value in facts.items()]
    found = problems(machine)
    if not found:
        lines += ["", "No problems found."]
    for problem in found:
        kind = "problem" if problem.serious else "slower"
        lines += ["", f"{kind:<10} {problem.what}", f"{'':10} {problem.remedy}"]
    return "\n".join(lines)
