"""What a language model costs: parameters, FLOPs, bytes, time, from its shape alone."""

from dataclasses import dataclass

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


def train_flops_per_token(config: GPTConfig, seq: int | None = None) -> int:
    """FLOPs of forward and backward per token: the backward pass costs twice the forward."""
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
    """How long `devices` of `peak` FLOP/s take at this utilisation."""
    require(devices >= 1 and peak > 0, f"{devices} devices of {peak} FLOP/s: both must be positive")
    require(0 < mfu <= 1, f"mfu is {mfu}; above 0 and up to 1 expected")
    return flops / (devices * peak * mfu)


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


# Optimizer state in bytes per parameter; adafactor keeps a row and a column for each matrix.
STATE_BYTES = {
    "sgd": 0,
    "momentum": 4,
    "adagrad": 4,
    "rmsprop": 4,
    "adamw": 8,
    "lion": 4,
    "muon": 4,
    "adafactor": 0,
    "adamw8bit": 2,
}

# Weights, gradient, and the fp32 copy that updates are added to.
PRECISION_BYTES = {
    "fp32": (4, 4, 0),
    "mixed": (2, 2, 4),  # bf16 for the matmuls beside fp32 master weights
    "bf16": (2, 2, 0),  # no master weights: small updates are lost
}


def bytes_per_parameter(optimizer: str = "adamw", precision: str = "fp32") -> BytesPerParameter:
    """Training memory of one parameter.

    Raises:
        ValueError: an unknown optimizer or precision.
    """
    require(optimizer in STATE_BYTES, f"optimizer {optimizer!r}: one of {', '.join(STATE_BYTES)}")
    require(
        precision in PRECISION_BYTES,
        f"precision {precision!r}: one of {', '.join(PRECISION_BYTES)}",
    )
    return BytesPerParameter(*PRECISION_BYTES[precision], STATE_BYTES[optimizer])


def largest_model(memory: float, optimizer: str = "adamw", precision: str = "fp32") -> float:
    """Parameters whose training state just fills `memory` bytes, activations left out."""
    return memory / bytes_per_parameter(optimizer, precision).total


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
