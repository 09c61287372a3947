"""GPT-2 in PyTorch: model, data, training loop, and the arithmetic of what they cost."""

__version__ = "0.1.0"
