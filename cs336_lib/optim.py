"""The optimizers that `cs336 train` knows, and the groups of parameters that they update.

The table `OPTIMIZERS` has a row for each. `cs336 train --help` and the estimates of memory read it,
so importing this module needs no PyTorch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import nn

TrainConfig = Any  # config.TrainConfig, whose choices this module decides


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict]:
    """Split parameters into two groups, with and without weight decay.

    Matrices and embeddings get weight decay. Biases and norm gains don't.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    return [
        {"params": [p for p in parameters if p.dim() >= 2], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


def adamw(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Create AdamW (Loshchilov and Hutter 2019)."""
    from torch.optim import AdamW

    return AdamW(parameter_groups(model, config.weight_decay), **settings(model, config))


def muon(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Create Muon for the matrices inside the blocks, and AdamW for embeddings and vectors."""
    from cs336_lib.muon import Muon

    matrices, vectors = parameter_groups(model, config.weight_decay)
    inside = [p for name, p in model.named_parameters() if ".h." in name and p.dim() == 2]
    outside = [p for p in matrices["params"] if all(p is not q for q in inside)]
    orthogonal = {**matrices, "params": inside, "muon_momentum": config.momentum}
    groups = [orthogonal, {**matrices, "params": outside}, vectors]
    return Muon(groups, **settings(model, config))


def settings(model: nn.Module, config: TrainConfig) -> dict:
    """Return what AdamW and Muon have in common. Only the meta device has no fused kernel."""
    fused = next(model.parameters()).device.type != "meta"
    betas = (config.beta1, config.beta2)
    return {"lr": config.learning_rate, "betas": betas, "eps": 1e-8, "fused": fused}


@dataclass(frozen=True)
class Row:
    """What the package must know about an optimizer.

    Attributes:
        make: Function that creates it for the parameters of a model.
        state_bytes: Bytes of state per parameter.
        can_shard: Whether it can update a part of a matrix, as FSDP needs.
    """

    make: Callable[[nn.Module, TrainConfig], torch.optim.Optimizer]
    state_bytes: float
    can_shard: bool = True


OPTIMIZERS = {
    "adamw": Row(adamw, 8),  # the two running means, in fp32
    # One mean for the matrices that it updates. Embeddings and vectors have AdamW's 8 bytes.
    "muon": Row(muon, 4, can_shard=False),
}


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """Create the optimizer that `config.optimizer` names, for the parameters of a model."""
    return OPTIMIZERS[config.optimizer].make(model, config)
