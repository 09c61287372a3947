"""GPT-2 in PyTorch, with data loading, training, and cost estimates.

Import the main names with `from cs336_lib import GPT, GPTConfig, TrainConfig, train, generate`.
"""

import importlib
import os
import sys
from typing import Any

# PyTorch's CPU threads spin while they wait for each other. Where anything else wants the cores,
# that made a small training step 20 times slower (docs/decisions.md); sleeping costs next to
# nothing. GCC's OpenMP lets them spin for a moment first, which saves wake-ups between short
# operations. OpenMP reads both once, when torch is loaded, so we set them before that. Later, they
# would only say what isn't true (see hardware.THREADS_SLEEP). With OMP_WAIT_POLICY=ACTIVE they must
# spin on, and a count would end that.
if "torch" not in sys.modules:
    policy = os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    if policy.upper() == "PASSIVE":  # OpenMP takes small letters, too
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")

# cuBLAS gives the same bits twice only with a fixed workspace (--deterministic on). It reads the
# size at its first matmul, so it must be set before any. 8 buffers of 4096 KiB are 32 MiB, which
# is what PyTorch takes on a Hopper GPU anyway.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

# PyTorch 2.13's profiler writes two lines to stderr around every profile ("USDT: ...
# profiler_start"), which a notebook shows on red ground. They have level 5, the highest of its log.
os.environ.setdefault("KINETO_LOG_LEVEL", "6")

__version__ = "0.1.0"

# Loaded when they are asked for, so that `cs336 --help` needn't wait for torch.
EXPORTS = {
    "GPT": "model",
    "GPTConfig": "config",
    "TrainConfig": "config",
    "generate": "sampling",
    "train": "training.loop",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use."""
    if name not in EXPORTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{EXPORTS[name]}"), name)
