"""Parameters, FLOPs, bytes and time of a language model, from its shape.

The two meters, `SavedTensors` and `LiveBytes`, measure a real step, so you can compare the formulas
with PyTorch. They also work on the meta device, where tensors have shapes but no memory.
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
    """Count GPT-2's parameters by part, with the tied output matrix as part of wte."""
    c, bias = config.n_embd, int(config.bias)
    return {
        "wte": config.vocab_size * c,
        "wpe": config.block_size * c,
        "attention": config.n_layer * (4 * c * c + bias * 4 * c),
        "mlp": config.n_layer * (8 * c * c + bias * 5 * c),
        "layer norms": (2 * config.n_layer + 1) * (c + bias * c),
    }


def count_parameters(config: GPTConfig) -> int:
    """Count all parameters, which are 124,439,808 for the default config."""
    return sum(parameter_counts(config).values())


def matmul_parameters(config: GPTConfig) -> int:
    """Count the parameters in matmuls, which are 12 C^2 per block and the output matrix.

    Looking up an embedding is not a matmul, so wpe is left out. wte counts as the output matrix.
    """
    return config.n_layer * 12 * config.n_embd**2 + config.vocab_size * config.n_embd


def forward_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """Return the FLOPs of the forward pass per token.

    Each matmul parameter costs 2. In every block, attention adds 2 * seq * C for the scores and as
    many for their product with the values. By convention the causal half is not subtracted
    (Chowdhery et al. 2022, appendix B). By default a sequence has block_size tokens.
    """
    seq = seq or config.block_size
    return 2 * matmul_parameters(config) + config.n_layer * 4 * seq * config.n_embd


def largest_matmul_flops(config: GPTConfig, batch: int) -> int:
    """Return the FLOPs of the forward pass's largest matmul (MLP, output matrix or scores)."""
    width = max(4 * config.n_embd, config.padded_vocab_size, config.block_size)
    return 2 * batch * config.block_size * config.n_embd * width


def train_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """Return the FLOPs of forward and backward pass per token, three times those of forward alone.

    Recomputation (flash attention's scores, checkpointed activations) is left out, so it lowers
    MFU.
    """
    return 3 * forward_flops_per_token(config, seq)


def mfu(flops_per_second: float, peak: float | None) -> float | None:
    """Return the model FLOPs utilization, or `None` if the peak is unknown.

    MFU is the share of the peak that the model's arithmetic reaches (Chowdhery et al. 2022, section
    4.1).
    """
    return None if peak is None else flops_per_second / peak


def training_flops(parameters: float, tokens: float) -> float:
    """Return 6 N D, with 2 for forward and 4 for backward (Kaplan et al. 2020, section 2.1)."""
    return 6 * parameters * tokens


def training_seconds(flops: float, devices: int, peak: float, mfu: float) -> float:
    """Return the training time in seconds.

    Args:
        flops: FLOPs of the training run.
        devices: Number of devices.
        peak: FLOP/s of one device.
        mfu: Model FLOPs utilization, above 0 and up to 1.
    """
    return flops / (devices * peak * mfu)


# The roofline (Williams et al. 2009). A kernel is compute-bound or memory-bound.


@dataclass(frozen=True)
class Work:
    """Floating-point operations of a kernel, and bytes moved to and from memory."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved."""
        return self.flops / self.bytes


def matmul_work(m: int, k: int, n: int, value_bytes: int = 2) -> Work:
    """Return the work of (m, k) @ (k, n), moving each of the three matrices once."""
    return Work(2 * m * k * n, value_bytes * (m * k + k * n + m * n))


def elementwise_work(values: int, flops_per_value: int = 1, value_bytes: int = 2) -> Work:
    """Return the work of reading one tensor and writing one of equal size, such as ReLU."""
    return Work(flops_per_value * values, 2 * value_bytes * values)


def ridge(peak: float, bandwidth: float) -> float:
    """Return the intensity in FLOP/B above which kernels are compute-bound on this device."""
    return peak / bandwidth


def roofline(intensity: float, peak: float, bandwidth: float) -> float:
    """Return the most FLOP/s that a kernel of this intensity can reach."""
    return min(peak, intensity * bandwidth)


# Memory that persists between steps: weights, gradients, master weights, optimizer state.


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes of one parameter during training, without activations."""

    weights: float
    gradient: float
    master: float
    state: float

    @property
    def total(self) -> float:
        """The sum of all four."""
        return self.weights + self.gradient + self.master + self.state

    def sharded(self, devices: int, stage: int) -> float:
        """Return the bytes on each device under ZeRO (Rajbhandari et al. 2020, figure 1).

        Stage 1 shards master weights and optimizer state, stage 2 also gradients, and stage 3 also
        weights. Stage 0 is plain data parallelism. Raises `ValueError` for another stage.
        """
        require(stage in (0, 1, 2, 3), f"ZeRO stage is {stage}; 0, 1, 2 or 3 expected")
        parts = (self.master + self.state, self.gradient, self.weights)
        return sum(part / devices for part in parts[:stage]) + sum(parts[stage:])


# bitsandbytes stores one byte per value and one fp32 scale per block of 256 values.
INT8_STATE_BYTES = 1 + 4 / 256

# Optimizer state in bytes per parameter. Adafactor stores one fp32 row and column per matrix, which
# is negligible for large ones (`state_bytes` counts it). Muon updates hidden matrices only, so
# embeddings and vectors have the 8 bytes of AdamW.
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
    "fp32": (4, 4, 0),  # also under autocast, whose bf16 copies live as long as activations
    "mixed": (2, 2, 4),  # bf16 for the matmuls beside fp32 master weights
    "bf16": (2, 2, 0),  # no master weights: small updates are lost
}


def require_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise `ValueError` with the list of choices unless `value` is one of them."""
    choices = list(choices)
    require(value in choices, f"{what} {value!r} is unknown; one of {', '.join(choices)} expected")


def bytes_per_parameter(optimizer: str = "adamw", precision: str = "fp32") -> BytesPerParameter:
    """Return the training memory of one parameter.

    Raises `ValueError` for an unknown optimizer or precision.
    """
    require_choice("optimizer", optimizer, STATE_BYTES)
    require_choice("precision", precision, PRECISION_BYTES)
    return BytesPerParameter(*PRECISION_BYTES[precision], STATE_BYTES[optimizer])


def state_bytes(optimizer: str, shape: tuple[int, ...]) -> float:
    """Return the bytes of optimizer state for a parameter of this shape.

    Adafactor (Shazeer and Stern 2018) factors the squared gradients of a matrix into row and column
    means. For a vector it stores all of them.
    """
    if optimizer == "adafactor" and len(shape) >= 2:
        *stack, rows, columns = shape
        return 4 * math.prod(stack) * (rows + columns)
    per_value = 4 if optimizer == "adafactor" else STATE_BYTES[optimizer]
    return per_value * math.prod(shape)


def largest_model(memory: float, optimizer: str = "adamw", precision: str = "fp32") -> float:
    """Return how many parameters fit into `memory` bytes, without activations."""
    return memory / bytes_per_parameter(optimizer, precision).total


# Memory that lives from the forward pass to the backward pass.

Attention = Literal["flash", "eager"]


def activation_bytes(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    autocast: bool = False,
    attention: Attention = "flash",
) -> dict[str, int]:
    """Return the bytes that autograd saves in a GPT's forward pass with targets, by kind.

    Per token and block, attention saves 5 C values (input, q, k, v, result), the MLP 9 C (input,
    and 4 C before and after GELU) and the norms 2 C. Flash attention adds one fp32 number per head,
    eager attention a row of `seq` probabilities. Under autocast, linear layers save bf16 inputs and
    bf16 copies of their weights. Dropout is not counted. Raises `ValueError` if attention is
    neither flash nor eager.
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
        # Input of the output matrix; the loss saves log-probabilities and the number of targets.
        "output": low * tokens * c + 4 * tokens * config.vocab_size + 4,
        "weight copies": 2 * copied if autocast else 0,
        "token ids": 8 * (2 * tokens + seq),  # inputs, targets, positions
    }


def training_memory(
    config: GPTConfig, batch: int, seq: int | None = None, *, optimizer: str = "adamw", **how: Any
) -> dict[str, float]:
    """Return the bytes in memory when the backward pass begins, by kind, with fp32 weights.

    Gradients of an earlier micro-batch are included. `peak_memory` adds the memory of the backward
    pass. The padded rows of the vocabulary count, because they take memory. The options in `how`
    are those of `activation_bytes`.
    """
    padding = (config.padded_vocab_size - config.vocab_size) * config.n_embd
    parameters, per = count_parameters(config) + padding, bytes_per_parameter(optimizer)
    return {
        "weights": parameters * per.weights,
        "gradients": parameters * per.gradient,
        "optimizer state": parameters * per.state,
        **activation_bytes(config, batch, seq, **how),
    }


def backward_bytes(
    config: GPTConfig,
    batch: int,
    seq: int | None = None,
    *,
    autocast: bool = False,
    attention: Attention = "flash",
) -> int:
    """Return the bytes that the backward pass adds at its peak to the saved activations.

    With GPT-2's vocabulary the peak is the backward of the loss, which holds two more tensors of
    batch x seq x vocabulary (gradients of the log-probabilities and of the logits). With a small
    vocabulary the peak comes later, in the last block, after the log-probabilities are freed. It is
    in the MLP, or in the T x T matrices of eager attention.
    """
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
    config: GPTConfig, batch: int, seq: int | None = None, *, optimizer: str = "adamw", **how: Any
) -> dict[str, float]:
    """Return the bytes at the peak of a training step, as `training_memory` and "backward".

    This holds for steps that accumulate gradients, without torch.compile. A step of a single
    micro-batch has no gradients yet during the backward of the loss.
    """
    kinds = training_memory(config, batch, seq, optimizer=optimizer, **how)
    return {**kinds, "backward": backward_bytes(config, batch, seq, **how)}


def checkpointed_values(layers: int, segments: int, inside: float) -> float:
    """Return the peak activations of a chain under activation checkpointing.

    Each segment saves only its input, and one at a time is recomputed. The result and `inside`, the
    activations of one layer, are in units of one layer's input. The minimum is
    2 sqrt(inside * layers), at sqrt(inside * layers) segments (Chen et al. 2016).
    """
    return segments + inside * layers / segments


# Meters.


class SavedTensors(torch.autograd.graph.saved_tensors_hooks):
    """Counter of the bytes that autograd saves for the backward pass, each storage once.

    Example:
        with SavedTensors(model.parameters()) as saved:
            loss = model(x, y)
        print(saved.bytes)

    Args:
        known: Tensors that aren't counted, such as the weights.
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
        """Bytes of all storages saved so far."""
        return sum(storage.nbytes() for storage in self.storages.values())


class LiveBytes(TorchDispatchMode):
    """Tracker of the bytes of all live tensors, operator by operator.

    `now` is the current value, `timeline` has the values after each operator, and `peak` is their
    maximum.

    Args:
        known: Tensors that exist from the start.
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
        """Run the operator, then track its results."""
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
    """Format a number with three digits and an SI prefix, such as "124 M" for 1.24e8."""
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "


def duration(seconds: float) -> str:
    """Format seconds in a readable unit."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.0f} seconds"
