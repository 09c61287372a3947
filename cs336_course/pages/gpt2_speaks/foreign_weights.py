"""A loader of published weights that makes the classic mistake, for notebook 07 to find."""

from collections.abc import Mapping

import torch
from torch import Tensor

from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT


@torch.no_grad()
def load(tensors: Mapping[str, Tensor], config: GPTConfig) -> GPT:
    """Return a GPT with published weights, transposed only where a shape doesn't fit.

    Hugging Face stores the weights of linear layers as (in, out). This loader leaves square ones as
    they are, so every name and shape fits, and the model computes nonsense.

    Args:
        tensors: Weights in Hugging Face's layout, by name.
        config: The shape of the model.
    """
    model = GPT(config).eval()
    for name, parameter in model.named_parameters():
        tensor = tensors[name]
        fits = tensor.shape[1:] == parameter.shape[1:]
        tensor = tensor if fits else tensor.T
        parameter[: len(tensor)] = tensor  # wte may be padded
    return model
