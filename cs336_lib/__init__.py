"""GPT-2 in PyTorch: model, data, training loop, and the arithmetic of what they cost."""

import os

# PyTorch's CPU threads spin while they wait for each other. Where anything else wants the cores,
# that made a small training step 20 times slower (docs/decisions.md); sleeping costs next to
# nothing. OpenMP reads this once, when torch is loaded, so we set it before that.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# cuBLAS gives the same bits twice only with a fixed workspace (--deterministic on). It reads the
# size at its first matmul, so it must be set before any. 8 buffers of 4096 KiB are 32 MiB, which
# is what PyTorch takes on a Hopper GPU anyway.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

__version__ = "0.1.0"
