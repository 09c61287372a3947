"""What a language model costs: parameters, FLOPs, bytes and time from its shape, and two meters.

The formulas take numbers and give numbers. The meters, `SavedTensors` and `LiveBytes`, watch a real
step, so that a reader can hold the formulas against what PyTorch does; they also work on the meta
device, where tensors have shapes and no memory.
"""

import math
import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cs336_lib.config import GPTConfig, require

SECONDS_PER_DAY = 86_400


def parameter_counts(config: GPTConfig) -> dict[str, int]:
    """Parameters of GPT-2 by part, the tied output matrix counted once (with wte)."""
    c, bias = config.n_embd, int(config.bias)
    return {
        "wte": config.vocab_size * c,
        "wpe": config.block_size * c,
        "attention": config.n_layer * (4 * c * c + bias * 4 * c),
        "mlp": config.n_layer * (8 * c * c + bias * 5 * c),
        "layer norms": (2 * config.n_layer + 1) * (c + bias * c),
    }


def count_parameters(config: GPTConfig) -> int:
    """All parameters: 124,439,808 for the default config."""
    return sum(parameter_counts(config).values())


def matmul_parameters(config: GPTConfig) -> int:
    """Parameters that every token is multiplied by: 12 C^2 a block, and the output matrix.

    Looking up an embedding is not a matmul, so wpe is left out; wte counts as the output matrix.
    """
    return config.n_layer * 12 * config.n_embd**2 + config.vocab_size * config.n_embd


def forward_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """FLOPs of the forward pass per token, at sequences of `seq` tokens (default: block_size).

    2 for each matmul parameter, and for attention 2 * seq * C for the scores and as many for their
    product with the values, in every block (the causal half is not subtracted, as is the custom:
    Chowdhery et al. 2022, appendix B).
    """
    seq = seq or config.block_size
    return 2 * matmul_parameters(config) + config.n_layer * 4 * seq * config.n_embd


def largest_matmul_flops(config: GPTConfig, batch: int) -> int:
    """FLOPs of the largest matmul forward: of an MLP, the output matrix, or all heads' scores."""
    width = max(4 * config.n_embd, config.padded_vocab_size, config.block_size)
    return 2 * batch * config.block_size * config.n_embd * width


def train_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """FLOPs of forward and backward per token: the backward pass costs twice the forward.

    What is computed a second time (flash attention's scores, checkpointed activations) is no work
    of the model's and is left out, so that it lowers MFU.
    """
    return 3 * forward_flops_per_token(config, seq)


def mfu(flops_per_second: float, peak: float | None) -> float | None:
    """Model FLOPs utilisation: the share of the peak that does the model's arithmetic.

    None where the peak is unknown (Chowdhery et al. 2022, section 4.1).
    """
    return None if peak is None else flops_per_second / peak


def training_flops(parameters: float, tokens: float) -> float:
    """The napkin formula 6 N D: 2 forward, 4 backward (Kaplan et al. 2020, section 2.1)."""
    return 6 * parameters * tokens


def training_seconds(flops: float, devices: int, peak: float, mfu: float) -> float:
    """How long `devices` of `peak` FLOP/s take at this utilisation.

    Raises:
        ValueError: no devices, no peak, or a utilisation outside (0, 1].
    """
    require(devices >= 1 and peak > 0, f"{devices} devices of {peak} FLOP/s: both must be positive")
    require(0 < mfu <= 1, f"mfu is {mfu}; above 0 and up to 1 expected")
    return flops / (devices * peak * mfu)


# The roofline (Williams et al. 2009): a kernel computes, or it waits for memory.


@dataclass(frozen=True)
class Work:
    """What a kernel does: floating-point operations, and bytes moved to and from memory."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved."""
        return self.flops / self.bytes


def matmul_work(m: int, k: int, n: int, value_bytes: int = 2) -> Work:
    """(m, k) @ (k, n), where each of the three matrices crosses the memory bus once."""
    return Work(2 * m * k * n, value_bytes * (m * k + k * n + m * n))


def elementwise_work(values: int, flops_per_value: int = 1, value_bytes: int = 2) -> Work:
    """One tensor read, as large a one written: ReLU, GELU, scaling."""
    return Work(flops_per_value * values, 2 * value_bytes * values)


def ridge(peak: float, bandwidth: float) -> float:
    """The intensity in FLOP/B from which a device of these FLOP/s and B/s is compute-bound."""
    return peak / bandwidth


def roofline(intensity: float, peak: float, bandwidth: float) -> float:
    """The most FLOP/s that a kernel of this intensity can reach."""
    return min(peak, intensity * bandwidth)


def seconds_at_best(work: Work, peak: float, bandwidth: float) -> float:
    """The least time a kernel takes, computing and moving at once: the longer of the two."""
    return max(work.flops / peak, work.bytes / bandwidth)


# What stays in memory from step to step: weights, gradients, master weights, optimizer state.


@dataclass(frozen=True)
class BytesPerParameter:
    """Where the bytes of one parameter go during training, activations left out."""

    weights: float
    gradient: float
    master: float
    state: float

    @property
    def total(self) -> float:
        """All of them."""
        return self.weights + self.gradient + self.master + self.state

    def sharded(self, devices: int, stage: int) -> float:
        """Bytes on each of `devices` under ZeRO's stage 0 to 3 (Rajbhandari et al. 2020, figure 1).

        Stage 1 shards master weights and state, stage 2 gradients too, stage 3 also the weights.

        Raises:
            ValueError: another stage, or no devices.
        """
        require(stage in (0, 1, 2, 3), f"ZeRO stage is {stage}; 0, 1, 2 or 3 expected")
        require(devices >= 1, f"devices is {devices}; at least 1 needed")
        parts = (self.master + self.state, self.gradient, self.weights)
        return sum(part / devices for part in parts[:stage]) + sum(parts[stage:])


# bitsandbytes keeps a byte for each value and an fp32 scale for each block of 256 values.
INT8_STATE_BYTES = 1 + 4 / 256

# Optimizer state in bytes per parameter. Adafactor keeps one row and one column of fp32 for a
# matrix, which for large ones is next to nothing: `state_bytes` counts it. Muon is for hidden
# matrices; what it leaves to AdamW (embeddings, vectors) has AdamW's 8.
STATE_BYTES: dict[str, float] = {
    "sgd": 0,
    "momentum": 4,
    "adagrad": 4,
    "rmsprop": 4,
    "adam": 8,
    "adamw": 8,
    "lion": 4,
    "muon": 4,
    "adafactor": 0,
    "adamw8bit": 2 * INT8_STATE_BYTES,
}

# Weights, gradient, and the fp32 copy that updates are added to.
PRECISION_BYTES = {
    "fp32": (4, 4, 0),  # autocast's too: its bf16 copies live only as long as activations do
    "mixed": (2, 2, 4),  # bf16 for the matmuls beside fp32 master weights
    "bf16": (2, 2, 0),  # no master weights: small updates are lost
}


def require_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise `ValueError` with the list of choices unless `value` is one of them."""
    choices = list(choices)
    require(value in choices, f"{what} {value!r} is unknown; one of {', '.join(choices)} expected")


def bytes_per_parameter(optimizer: str = "adamw", precision: str = "fp32") -> BytesPerParameter:
    """Training memory of one parameter.

    Raises:
        ValueError: an unknown optimizer or precision.
    """
    require_choice("optimizer", optimizer, STATE_BYTES)
    require_choice("precision", precision, PRECISION_BYTES)
    return BytesPerParameter(*PRECISION_BYTES[precision], STATE_BYTES[optimizer])


def state_bytes(optimizer: str, shape: tuple[int, ...]) -> float:
    """Bytes of optimizer state for a parameter of this shape.

    Adafactor (Shazeer and Stern 2018) factors the squared gradients of a matrix into its row and
    column means; of a vector it keeps them all.

    Raises:
        ValueError: an unknown optimizer.
    """
    require_choice("optimizer", optimizer, STATE_BYTES)
    if optimizer == "adafactor" and len(shape) >= 2:
        *stack, rows, columns = shape
        return 4 * math.prod(stack) * (rows + columns)
    if optimizer == "adafactor":
        return 4 * math.prod(shape)
    return STATE_BYTES[optimizer] * math.prod(shape)


def largest_model(memory: float, optimizer: str = "adamw", precision: str = "fp32") -> float:
    """Parameters whose training state just fills `memory` bytes, activations left out."""
    return memory / bytes_per_parameter(optimizer, precision).total


# What lives from the forward pass to the backward pass.

Attention = Literal["flash", "eager"]


def activation_bytes(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    autocast: bool = False,
    attention: Attention = "flash",
) -> dict[str, int]:
    """Bytes that autograd keeps of a GPT's forward pass, by kind; no dropout, targets given.

    In values per token and block: attention 5 C (its input, q, k, v, its result), the MLP 9 C (its
    input, and 4 C before and after GELU), the norms 2 C. Flash attention adds one fp32 number per
    head, eager attention a row of `seq` probabilities. Under autocast linear layers keep bf16
    inputs, and bf16 copies of their weights.

    Raises:
        ValueError: attention is neither flash nor eager.
    """
    require_choice("attention", attention, ("flash", "eager"))
    seq = seq or config.block_size
    tokens, c, low = batch * seq, config.n_embd, 2 if autocast else 4
    if attention == "flash":
        in_attention = low * 5 * tokens * c + 4 * tokens * config.n_head
    else:  # q, k, v and the probabilities stay fp32 under autocast
        in_attention = low * 2 * tokens * c + 4 * (3 * tokens * c + tokens * config.n_head * seq)
    norm = 4 * tokens * c + 2 * 4 * tokens  # the input, and each token's mean and 1/std
    copied = 12 * c * c * config.n_layer + config.padded_vocab_size * c
    return {
        "attention": config.n_layer * in_attention,
        "mlp": config.n_layer * low * 9 * tokens * c,
        "layer norms": (2 * config.n_layer + 1) * norm,
        # The output matrix's input; the loss keeps log-probabilities and the number of targets.
        "output": low * tokens * c + 4 * tokens * config.vocab_size + 4,
        "weight copies": 2 * copied if autocast else 0,
        "token ids": 8 * (2 * tokens + seq),  # inputs, targets, positions
    }


def training_memory(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    optimizer: str = "adamw",
    autocast: bool = False,
    attention: Attention = "flash",
) -> dict[str, float]:
    """Bytes of a training step with fp32 weights, by kind: what stays, then the activations.

    It is what is there when the backward pass begins, with the gradients of an earlier micro-batch;
    `peak_memory` adds what backward itself takes. The padded vocabulary counts: its rows take
    memory like all others.
    """
    padding = (config.padded_vocab_size - config.vocab_size) * config.n_embd
    parameters, per = count_parameters(config) + padding, bytes_per_parameter(optimizer)
    return {
        "weights": parameters * per.weights,
        "gradients": parameters * per.gradient,
        "optimizer state": parameters * per.state,
        **activation_bytes(config, batch, seq, autocast=autocast, attention=attention),
    }


def backward_bytes(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    autocast: bool = False,
    attention: Attention = "flash",
) -> int:
    """Bytes that a backward pass needs at its peak, beside what the forward pass kept.

    With GPT-2's vocabulary the peak is the loss's backward. It holds two more tensors of
    batch x seq x vocabulary, the gradients of the log-probabilities and of the logits. With a small
    vocabulary the peak comes later, in the last block, when the log-probabilities are gone: in the
    MLP, or in the T x T matrices of eager attention.

    Raises:
        ValueError: attention is neither flash nor eager.
    """
    require_choice("attention", attention, ("flash", "eager"))
    seq = seq or config.block_size
    c, low, log_probabilities = config.n_embd, 2 if autocast else 4, 4 * config.vocab_size
    # Per token. Each peak begins with what has been freed by then.
    loss = 2 * log_probabilities
    mlp = 3 * low * c - log_probabilities  # twice 4 C of gradients; 4 C + C of activations freed
    scores = 2 * 4 * config.n_head * seq - log_probabilities - (10 * low + 2 * 4) * c
    weights = 4 * (config.padded_vocab_size * c + 4 * c * c)  # gradients not yet added to .grad
    tokens, in_block = batch * seq, max(mlp, scores if attention == "eager" else 0)
    return max(tokens * loss, tokens * in_block + weights)


def peak_memory(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    optimizer: str = "adamw",
    autocast: bool = False,
    attention: Attention = "flash",
) -> dict[str, float]:
    """Bytes at the peak of a training step, by kind: `training_memory` and "backward".

    It holds for a step that accumulates gradients, and for PyTorch without a compiler. In a step of
    a single micro-batch no gradients are there yet when the loss's backward runs.
    """
    kinds = {"autocast": autocast, "attention": attention}
    return {
        **training_memory(config, batch, seq, optimizer=optimizer, **kinds),
        "backward": backward_bytes(config, batch, seq, **kinds),
    }


def checkpointed_values(layers: int, segments: int, inside: float) -> float:
    """Peak activations of a chain in units of one layer's input, under activation checkpointing.

    Each segment's input is kept, and of one segment at a time all that is `inside` its layers; the
    least is 2 sqrt(inside * layers), at sqrt(inside * layers) segments (Chen et al. 2016).
    """
    return segments + inside * layers / segments


# Meters.


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Counts what autograd keeps for the backward pass: each storage once, `known` ones never.

    `with SavedTensors(model.parameters()) as saved: loss = model(x, y)`, then `saved.bytes`.
    """

    def __init__(self, known: Iterable[Tensor] = ()):
        super().__init__(self._pack, lambda tensor: tensor)
        # Storages are held, so that no address is used twice while we count.
        self.known = {t.untyped_storage()._cdata: t for t in known}
        self.storages: dict[int, torch.UntypedStorage] = {}

    def __enter__(self) -> "SavedTensors":
        super().__enter__()
        return self

    def _pack(self, tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.known:
            self.storages[storage._cdata] = storage
        return tensor

    @property
    def bytes(self) -> int:
        """Bytes of all storages saved so far."""
        return sum(storage.nbytes() for storage in self.storages.values())


class LiveBytes(TorchDispatchMode):
    """Follows the bytes of all tensors alive, operator by operator, `known` from the start.

    `now` is the current value, `timeline` the value after each operator, `peak` its maximum.
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
        """Run the operator, then watch what it made."""
        made = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(made):
            if isinstance(leaf, Tensor):
                self._watch(leaf)
        self.timeline.append(self.now)
        return made

    @property
    def peak(self) -> int:
        """The most bytes that were alive after any operator."""
        return max(self.timeline)


def human(value: float) -> str:
    """A number with its SI prefix, three digits: 1.24e8 -> 124M."""
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "


def duration(seconds: float) -> str:
    """Seconds in the unit a person would use."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
