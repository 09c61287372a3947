"""Measure the tensor bytes of a training step, and predict activation checkpointing.

Both measurements also work on the meta device, where tensors have a shape but no data.
"""

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint_sequential

from cs336_lib import accounting
from cs336_lib.bill import memory
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT, Block


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Count the bytes that autograd saves for the backward pass. Each storage counts once.

    Example:
        with SavedTensors(model.parameters()) as saved:
            loss = model(x, y)
        print(saved.bytes)

    Args:
        known: Tensors to exclude, such as the weights.
    """

    def __init__(self, known: Iterable[Tensor] = ()):
        super().__init__(self._pack, lambda tensor: tensor)
        # Keep the storages alive, so that no address is used twice.
        self.known = {t.untyped_storage()._cdata: t for t in known}
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __enter__(self) -> "SavedTensors":  # type: ignore[override]  # torch's returns None
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.storages[storage._cdata] = storage
        return tensor

    @property
    def bytes(self) -> int:
        """The bytes of all storages saved so far."""
        return sum(storage.nbytes() for storage in self.storages.values())


class LiveBytes(TorchDispatchMode):
    """Track the bytes of all live tensors after each operator.

    `now` is the current value, `timeline` has the value after each operator, and `peak` is the
    maximum.

    Args:
        known: Tensors that already exist.
    """

    def __init__(self, known: Iterable[Tensor] = ()):
        super().__init__()
        self.now = 0
        self._seen: weakref.WeakSet[torch.UntypedStorage] = weakref.WeakSet()
        for tensor in known:
            self._watch(tensor)
        self.timeline = [self.now]

    def _watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage not in self._seen:
            self._seen.add(storage)
            self.now += storage.nbytes()
            weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, freed: int) -> None:
        self.now -= freed

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator, and track its result tensors."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._watch(leaf)
        self.timeline.append(self.now)
        return made

    @property
    def peak(self) -> int:
        """The maximum number of live bytes after any operator."""
        return max(self.timeline)


def checkpointed_peak(layers: int, segments: int) -> float:
    """Measure the peak of the activations in a step of a stack of small GPT-2 blocks.

    The result is in multiples of the size of a block's input.
    """
    tiny = GPTConfig(n_layer=1, n_head=2, n_embd=32, block_size=16, vocab_size=64)
    blocks = nn.ModuleList(Block(tiny, layer) for layer in range(layers))
    for p in blocks.parameters():
        p.grad = torch.zeros_like(p)  # there already, so that only activations come and go
    x = torch.randn(8, 16, 32, requires_grad=True)
    with LiveBytes(t for p in blocks.parameters() for t in (p, p.grad)) as live:
        checkpoint_sequential(blocks, segments, x, use_reentrant=False).sum().backward()
    return (live.peak - live.timeline[0]) / x.nbytes


def first_step(config: GPTConfig, batch: int, seq: int) -> dict[str, int]:
    """Measure the peak of each phase of a model's first training step, in bytes.

    AdamW updates all weights together ("foreach"), as it does on GPUs by default.
    """
    model = GPT(config)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.randint(0, config.vocab_size, (batch, seq))
    peaks, begin = {}, 0
    with LiveBytes([*model.parameters(), tokens]) as live:
        loss = model(tokens, tokens)
        for phase, run in {
            "forward": lambda: None,
            "backward": loss.backward,
            "AdamW": optimizer.step,
        }.items():
            run()
            peaks[phase] = max(live.timeline[begin:])
            begin = len(live.timeline) - 1
    return peaks


def peak_by_kind(batch: int, autocast: bool = False) -> dict[str, float]:
    """Return the peak memory of a training step of GPT-2 124M in GB, by kind, from formulas."""
    a = accounting.architecture_of(GPTConfig())
    of = accounting.PRECISIONS["autocast" if autocast else "fp32"]
    kinds, tokens = memory.of_gpt(GPTConfig(), batch, autocast=autocast), batch * a.block_size
    norms = a.n_layer * tokens * memory.norms_bytes(a, of)
    attention = a.n_layer * tokens * memory.attention_part(a, of, "flash", a.block_size).saved
    mlp = a.n_layer * tokens * memory.mlp_part(a, of).saved
    parts = {
        "weights, gradients": kinds["weights"] + kinds["gradients"],
        "optimizer state": kinds["optimizer state"],
        "attention": attention - norms,
        "mlp": mlp - norms,
        "layer norms": 2 * norms + tokens * memory.norm_bytes(a, of),
    }
    parts["loss"] = sum(kinds.values()) - sum(parts.values())
    return {kind: size / 1e9 for kind, size in parts.items()}
