"""Estimate the parameters, FLOPs, memory and training time of a language model."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from cs336_lib.config import GPTConfig, require
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json

SECONDS_PER_DAY = 86_400


def parameter_counts(config: GPTConfig) -> dict[str, int]:
    """Count the parameters of a GPT-2 by part.

    The output matrix is tied to wte, so it is counted only once, as wte.
    """
    c, bias = config.n_embd, int(config.bias)
    return {
        "wte": config.vocab_size * c,
        "wpe": config.block_size * c,
        "attention": config.n_layer * (4 * c * c + bias * 4 * c),
        "mlp": config.n_layer * (8 * c * c + bias * 5 * c),
        "layer norms": (2 * config.n_layer + 1) * (c + bias * c),
    }


def count_parameters(config: GPTConfig) -> int:
    """Count the parameters of a GPT-2 (124,439,808 for the default config)."""
    return sum(parameter_counts(config).values())


def matmul_parameters(config: GPTConfig) -> int:
    """Count the parameters used in matmuls.

    Each block has 12 C^2 such parameters. wte is included because it is also the output matrix. wpe
    is excluded because an embedding lookup isn't a matmul.
    """
    return config.n_layer * 12 * config.n_embd**2 + config.vocab_size * config.n_embd


def forward_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """Return the FLOPs of the forward pass per token.

    Each matmul parameter costs 2 FLOPs. In each block, attention adds 2 * seq * C FLOPs for the
    scores and 2 * seq * C for the weighted sum of the values. By convention, the masked half of the
    scores is counted too (Chowdhery et al. 2022, appendix B). `seq` defaults to block_size.
    """
    seq = seq or config.block_size
    return 2 * matmul_parameters(config) + config.n_layer * 4 * seq * config.n_embd


def largest_matmul_flops(config: GPTConfig, batch: int) -> int:
    """Return the FLOPs of the largest matmul in the forward pass.

    The largest matmul is in the MLP, the output layer or the attention scores.
    """
    width = max(4 * config.n_embd, config.padded_vocab_size, config.block_size)
    return 2 * batch * config.block_size * config.n_embd * width


def train_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """Return the FLOPs of the forward and backward pass per token.

    The total is three times the FLOPs of the forward pass. Recomputation in flash attention or
    activation checkpointing isn't counted.
    """
    return 3 * forward_flops_per_token(config, seq)


def mfu(flops_per_second: float, peak: float | None) -> float | None:
    """Return the model FLOPs utilization (MFU), or `None` if the peak is unknown.

    MFU is the model's FLOP/s divided by the peak FLOP/s (Chowdhery et al. 2022, section 4.1).
    """
    return None if peak is None else flops_per_second / peak


def training_flops(parameters: float, tokens: float) -> float:
    """Return the training FLOPs as 6 N D (Kaplan et al. 2020, section 2.1).

    The forward pass takes 2 N D and the backward pass takes 4 N D.
    """
    return 6 * parameters * tokens


def training_seconds(flops: float, devices: int, peak: float, mfu: float) -> float:
    """Return the training time in seconds.

    Args:
        flops: FLOPs of the training run.
        devices: Number of devices.
        peak: Peak FLOP/s of one device.
        mfu: Model FLOPs utilization, greater than 0 and at most 1.
    """
    return flops / (devices * peak * mfu)


# Memory that persists between steps: weights, gradients, master weights, optimizer state.


@dataclass(frozen=True)
class BytesPerParameter:
    """Training memory in bytes per parameter, without activations.

    Attributes:
        weights: Weights that the model stores.
        gradient: Gradients, also those of earlier micro-batches.
        master: The fp32 copy that updates are added to, if `weights` aren't in fp32.
        state: State of the optimizer.
        copies: Copies of the weights in the format of the matmuls, which live as long as
            activations.
    """

    weights: float
    gradient: float
    master: float
    state: float
    copies: float = 0

    @property
    def total(self) -> float:
        """The total number of bytes per parameter."""
        return self.weights + self.gradient + self.master + self.state + self.copies

    def sharded(self, devices: int, stage: int) -> float:
        """Return the bytes per parameter on each device under ZeRO.

        Stage 0 is plain data parallelism. Stage 1 shards the optimizer state and the master
        weights. Stage 2 also shards gradients, and stage 3 also shards weights (Rajbhandari et al.
        2020, figure 1). Copies have the life of weights. Raises `ValueError` if the stage isn't 0,
        1, 2 or 3.
        """
        require(stage in (0, 1, 2, 3), f"ZeRO stage is {stage}; 0, 1, 2 or 3 expected")
        parts = (self.master + self.state, self.gradient, self.weights + self.copies)
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


@dataclass(frozen=True)
class Recipe:
    """Bytes per number in training with one number format.

    Attributes:
        weights: Weights that the model stores.
        gradient: Gradients.
        master: fp32 master weights, or 0.
        copies: Copies of the weights for the matmuls, also those for the backward pass.
        residual: The residual stream.
        compute: Results of matmuls, and queries, keys and values.
        saved: Inputs of matmuls, as the forward pass saves them.
        source: Where the recipe comes from.
    """

    weights: float
    gradient: float
    master: float
    copies: float
    residual: float
    compute: float
    saved: float
    source: str


PRECISIONS = {key: Recipe(**recipe) for key, recipe in read_json(DATA / "precisions.json").items()}


def require_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise `ValueError` unless `value` is in `choices`."""
    choices = list(choices)
    require(value in choices, f"{what} {value!r} is unknown; one of {', '.join(choices)} expected")


def bytes_per_parameter(optimizer: str = "adamw", precision: str = "fp32") -> BytesPerParameter:
    """Return the training memory per parameter for an optimizer and a precision.

    Raises `ValueError` if the optimizer or the precision is unknown.
    """
    require_choice("optimizer", optimizer, STATE_BYTES)
    require_choice("precision", precision, PRECISIONS)
    of = PRECISIONS[precision]
    return BytesPerParameter(of.weights, of.gradient, of.master, STATE_BYTES[optimizer], of.copies)


def largest_model(memory: float, optimizer: str = "adamw", precision: str = "fp32") -> float:
    """Return how many parameters fit into `memory` bytes if activations are ignored."""
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
    """Return the bytes of the activations that autograd saves for the backward pass, by kind.

    The forward pass computes the loss. Per token and block, attention saves 5 C values (input, q,
    k, v and result). The MLP saves 9 C values (its input, and 4 C before and after GELU). The norms
    save 2 C values. Flash attention also saves one fp32 number per head, and eager attention saves
    `seq` probabilities per head. Under autocast, linear layers save their inputs and copies of
    their weights in bf16. Dropout masks aren't counted. Raises `ValueError` if `attention` is
    neither "flash" nor "eager".
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
    """Return the bytes in memory at the start of the backward pass, by kind.

    Weights are in fp32. The result includes the gradients of earlier micro-batches and the padding
    of the vocabulary. It excludes temporary tensors of the backward pass, which `peak_memory`
    includes. `how` is passed to `activation_bytes`.
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
    """Return the peak memory of the backward pass in bytes, in addition to the saved activations.

    With GPT-2's vocabulary, the peak occurs in the backward pass of the loss. At that point, the
    gradients of the log-probabilities and of the logits are in memory. Both have shape (batch, seq,
    vocabulary). With a small vocabulary, the peak occurs in the last block. It is either in the MLP
    or in eager attention, which creates T x T matrices.
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
    """Return the peak memory of a training step in bytes, by kind.

    This adds the key "backward" to the result of `training_memory`. The estimate assumes gradient
    accumulation without torch.compile. A step with a single micro-batch needs less memory, because
    the gradients don't exist yet when the backward pass starts.
    """
    kinds = training_memory(config, batch, seq, optimizer=optimizer, **how)
    return {**kinds, "backward": backward_bytes(config, batch, seq, **how)}


def human(value: float) -> str:
    """Format a number with three digits and an SI prefix, such as "124 M"."""
    for power, prefix in ((15, "P"), (12, "T"), (9, "G"), (6, "M"), (3, "k")):
        if abs(value) >= 10**power:
            return f"{value / 10**power:.3g} {prefix}"
    return f"{value:.3g} "


def duration(seconds: float) -> str:
    """Format a time as seconds, minutes, hours or days."""
    for unit, size in (("days", 86_400), ("hours", 3_600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:,.1f} {unit}"
    return f"{seconds:.0f} seconds"
