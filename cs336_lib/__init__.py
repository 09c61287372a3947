"""GPT-2 in PyTorch: model, data, training loop, and the arithmetic of what they cost."""

import os

# PyTorch's CPU threads spin while they wait for each other. Where anything else wants the cores,
# that made a small training step 20 times slower (docs/decisions.md); sleeping costs next to
# nothing. OpenMP reads this once, when torch is loaded, so it must stand before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

__version__ = "0.1.0"
