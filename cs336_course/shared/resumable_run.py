"""Small training run with complete checkpoints, and a tracer for the dtypes of a step."""

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

BATCH, LENGTH = 8, 32


class SmallRun:
    """Small training run on the CPU with dropout, AdamW, a schedule and random batches.

    Args:
        tokens: Token ids of the training data.
        vocab: Vocabulary size.
        seed: Seed for the initial weights, the batches and dropout.
    """

    def __init__(self, tokens: np.ndarray, vocab: int, seed: int):
        torch.manual_seed(seed)
        layers = nn.Embedding(vocab, 32), nn.Linear(32, 128), nn.GELU(), nn.Dropout(0.1)
        self.model = nn.Sequential(*layers, nn.Linear(128, vocab))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: min(1, (step + 1) / 8) * (1 - step / 50)
        )
        number = int(np.random.SeedSequence((seed, 1)).generate_state(1)[0])
        self.data = torch.Generator().manual_seed(number)  # decides the batches
        self.tokens = tokens
        self.step = 0

    def batch(self) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of the next batch."""
        starts = torch.randint(len(self.tokens) - LENGTH, (BATCH,), generator=self.data)
        rows = np.stack([self.tokens[start : start + LENGTH + 1] for start in starts.tolist()])
        both = torch.from_numpy(rows.astype(np.int64))
        return both[:, :-1], both[:, 1:]

    def loss(self) -> Tensor:
        """Return the loss of the next batch."""
        x, y = self.batch()
        return F.cross_entropy(self.model(x).flatten(0, 1), y.flatten())

    def until(self, last: int) -> list[float]:
        """Train until step `last`, and return the loss of every step."""
        losses = []
        while self.step < last:
            loss = self.loss()
            loss.backward()
            self.optimizer.step()
            self.schedule.step()
            self.optimizer.zero_grad()
            self.step += 1
            losses.append(loss.item())
        return losses


def dtypes_of_step(
    layers: Mapping[str, nn.Module],
    optimizer: torch.optim.Optimizer,
    loss_function: Callable[[], Tensor],
    autocast: AbstractContextManager,
) -> dict[str, list[tuple[str, str]]]:
    """Run a training step, and return the dtype names of its tensors by stage.

    The dtypes of activations and their gradients are recorded by hooks. torch calls these hooks
    after the forward pass of a layer, and when the gradient of its output has been computed.

    Args:
        layers: Layers to inspect, by name.
        optimizer: Optimizer of the parameters of these layers.
        loss_function: Function that runs the forward pass and returns the loss.
        autocast: Context of the forward pass.
    """
    stages = ("weights", "forward", "backward", "weight grads", "AdamW state")
    seen: dict[str, list[tuple[str, str]]] = {stage: [] for stage in stages}

    def note(stage: str, name: str, tensor: Tensor) -> None:
        seen[stage].append((name, str(tensor.dtype).removeprefix("torch.")))

    def watch(name: str) -> Callable[[nn.Module, tuple[Tensor, ...], Tensor], None]:
        def hook(_layer: nn.Module, _inputs: tuple[Tensor, ...], output: Tensor) -> None:
            note("forward", name, output)
            output.register_hook(lambda gradient: note("backward", name, gradient))

        return hook

    handles = [layer.register_forward_hook(watch(name)) for name, layer in layers.items()]
    with autocast:
        loss = loss_function()
    note("forward", "loss", loss)
    loss.backward()
    optimizer.step()
    for handle in handles:
        handle.remove()
    for name, layer in layers.items():
        if (weight := getattr(layer, "weight", None)) is not None:
            note("weights", name, weight)
            note("weight grads", name, weight.grad)
            note("AdamW state", name, optimizer.state[weight]["exp_avg"])
    return seen
