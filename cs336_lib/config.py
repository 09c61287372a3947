"""Configs of models and training runs, and the presets."""

import dataclasses
import reprlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

from cs336_lib.optim import OPTIMIZERS

Config = TypeVar("Config", bound="GPTConfig | TrainConfig")
Choice = Literal["auto", "on", "off"]

# These decide where and how a run is computed, not its result, so they may change on resume. With
# on_nan, a run that stopped at NaN has no result yet.
CHANGEABLE = (
    "run_dir",
    "resume",
    "device",
    "compile",
    "parallel",
    "micro_batch_size",
    "on_nan",
    "log_to",
    "log_every",
    "eval_every",
    "eval_tokens",
    "hellaswag",
    "sample",
    "checkpoint_every",
    "keep_checkpoints",
    "keep_every",
)
PATHS = ("train_data", "val_data", "init_from")  # the same path can be written in several ways

SHAPE_FIELDS = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")  # of a model
MOST_WINDOWS = 2**20  # sequences in a batch

# Numbers are 0 or more. These have other bounds, of which the upper one is excluded.
COUNT, SHARE = (1, 2**63), (0, 1)
BOUNDS: dict[str, tuple[float, float]] = {
    "block_size": COUNT,
    "vocab_size": COUNT,
    "n_head": COUNT,
    "n_embd": COUNT,
    "n_layer": (1, 4097),  # each costs 100 kB even if it has no weights
    "dropout": SHARE,
    "batch_tokens": COUNT,
    "micro_batch_size": COUNT,
    "max_steps": (1, 2**43),  # so that sequences in all are a 64-bit number
    "batch_growth_steps": (0, 10**6 + 1),  # summed at each step
    "beta1": SHARE,
    "beta2": SHARE,
    "momentum": SHARE,
    "log_every": COUNT,
    "eval_tokens": COUNT,
    "keep_checkpoints": COUNT,
}


class UserError(ValueError):
    """Error of the user's: bad input, told in one line."""


class ConfigError(UserError):
    """Mistakes of a config, told in a line each."""


def refuse(mistakes: Iterable[str]) -> None:
    """Raise `ConfigError` if there is any mistake."""
    if lines := "\n".join(mistakes):
        raise ConfigError(lines)


def wrong_fields(config: Any) -> dict[str, str]:
    """Return a line for each field that has the wrong type or is outside `BOUNDS`."""
    wrong = {}
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        if choices := get_args(kind):
            valid, expected = value in choices, f"one of {', '.join(choices)}"
        elif kind in (int, float):
            low, high = BOUNDS.get(name, (0, 2**63 if kind is int else sys.float_info.max))
            number = "a whole number" if kind is int else "a number"
            valid = type(value) in (int, kind) and low <= value < high  # NaN is not
            expected = f"{number} of at least {low} and below {high:g}"
        else:
            valid, expected = type(value) is kind, {bool: "true or false", str: "text"}[kind]
        if not valid:
            wrong[name] = f"{name} is {reprlib.repr(value)}; {expected} expected"
    return wrong


def from_json(kind: type[Config], content: Any, where: object) -> Config:
    """Create a config from the untrusted content of a JSON file.

    Args:
        kind: Class of the config.
        content: Parsed content of the file. A valid file contains an object with config fields.
        where: File name for error messages.

    Raises:
        UserError: If the content isn't an object, or has an unknown field or an invalid value.
    """
    if not isinstance(content, dict):
        raise UserError(f"{where}: {reprlib.repr(content)}; {{…}} expected")
    if unknown := content.keys() - {field.name for field in dataclasses.fields(kind)}:
        names = reprlib.repr(sorted(unknown))
        raise UserError(f"{where}: {names} unknown; was it made by another version?")
    try:
        return kind(**content)
    except ConfigError as error:
        lines = str(error).split("\n")
        raise ConfigError("\n".join(f"{where}: {line}" for line in lines)) from None


@dataclass(frozen=True)
class GPTConfig:
    """Shape of a GPT-2 model. The defaults describe GPT-2 124M (Radford et al. 2019, table 2)."""

    block_size: int = 1024
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        refuse(wrong_fields(self).values())
        heads, width = self.n_head, self.n_embd
        if width % heads:
            raise ConfigError(f"n_head {heads} does not divide n_embd {width}; choose a divisor")

    @property
    def padded_vocab_size(self) -> int:
        """The vocabulary size rounded up to a multiple of 64, for speed.

        50257 becomes 50304.
        """
        return -(-self.vocab_size // 64) * 64


@dataclass(frozen=True)
class TrainConfig:
    """All settings of a training run. The same settings give the same run."""

    run_dir: str = ""
    """Folder for checkpoints, metrics and config (default: runs/PRESET)."""
    resume: bool = False
    """Continue from the newest valid checkpoint in run_dir, or start at step 0 if there is none."""

    train_data: str = ""
    """A folder made by `cs336 prepare`, or a pattern of .bin shards (default: shipped plays)."""
    val_data: str = ""
    """Validation folder or pattern (default: from train_data, or the last tenth of the plays)."""
    tokenizer: Literal["gpt2", "gpt2-1k", "char"] = "gpt2"
    """GPT-2's byte-pair encoding, the first 1,024 of its tokens, or one id per character."""
    init_from: str = ""
    """Initial weights: a run folder, a Hugging Face folder, gpt2, gpt2-medium, gpt2-large or
    gpt2-xl. The weights determine n_layer, n_head, n_embd and bias."""

    n_layer: int = 12
    """Number of transformer blocks."""
    n_head: int = 12
    """Number of attention heads per block. It must divide n_embd."""
    n_embd: int = 768
    """Width of the residual stream."""
    block_size: int = 1024
    """Context length in tokens."""
    dropout: float = 0.0
    """Dropout probability. Use 0 if training sees each token only once."""
    bias: bool = True
    """Use biases in Linear and LayerNorm layers, as GPT-2 does."""

    max_steps: int = 19073
    """Total number of optimizer steps."""
    batch_tokens: int = 524288
    """Tokens per optimizer step over all devices, a multiple of block_size."""
    initial_batch_tokens: int = 0
    """Tokens in the first step. The batch grows linearly to batch_tokens. 0 disables growth."""
    batch_growth_steps: int = 0
    """Number of steps until the batch reaches batch_tokens."""
    micro_batch_size: int = 16
    """Sequences per forward pass on one device. Gradient accumulation reaches batch_tokens."""
    optimizer: Literal[tuple(OPTIMIZERS)] = "adamw"  # type: ignore[valid-type]
    """adamw, or muon. muon updates matrices in the blocks and uses AdamW for other parameters."""
    learning_rate: float = 6e-4
    """Peak learning rate, reached at the end of the warm-up."""
    min_learning_rate: float = 6e-5
    """Learning rate of the last step."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """Shape of the decay from learning_rate to min_learning_rate."""
    warmup_steps: int = 715
    """Number of linear warm-up steps."""
    weight_decay: float = 0.1
    """Decoupled weight decay for matrices and embeddings."""
    beta1: float = 0.9
    """Decay rate of AdamW's running mean of gradients."""
    beta2: float = 0.95
    """Decay rate of AdamW's running mean of squared gradients."""
    momentum: float = 0.95
    """Decay rate of Muon's running mean of gradients."""
    grad_clip: float = 1.0
    """Maximum gradient norm over all parameters. 0 disables clipping."""
    on_nan: Literal["stop", "skip"] = "stop"
    """Stop the run, or skip the update, if a loss or gradient is NaN or infinite."""
    seed: int = 1337
    """Seed for initial weights, data order and dropout."""

    log_to: Literal["", "wandb", "tensorboard", "trackio"] = ""
    """Also send metrics to this experiment tracker. Its package must be installed."""
    log_every: int = 1
    """Steps between writes of metrics. Each write waits for the device."""
    eval_every: int = 250
    """Steps between validations. 0 validates only after the last step."""
    eval_tokens: int = 1048576
    """Maximum number of validation tokens. Every validation uses the same tokens."""
    hellaswag: str = ""
    """Also score HellaSwag at every validation, from a JSON lines file or Rowan/hellaswag."""
    sample: str = ""
    """Also generate a continuation of this prompt at every validation."""
    checkpoint_every: int = 1000
    """Steps between checkpoints. 0 saves only after the last step."""
    keep_checkpoints: int = 2
    """Number of newest checkpoints to keep, in addition to the one with the best val loss."""
    keep_every: int = 0
    """Also keep the checkpoint of every step divisible by this number. 0 disables this."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1 or mps. auto selects cuda if there is a GPU, and otherwise cpu."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Matmul precision under autocast. auto is bf16 if the hardware supports it, else fp32."""
    tf32: bool = False
    """On CUDA, run fp32 matmuls on tensor cores, which round inputs to 10 mantissa bits."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun, replicate the model on every device (ddp) or shard it (fsdp)."""
    compile: Choice = "auto"
    """Use torch.compile. auto enables it on CUDA."""
    deterministic: Choice = "auto"
    """Make runs bit-identical. auto enables this on a CPU, where it costs almost no time."""

    def __post_init__(self) -> None:
        refuse(wrong_fields(self).values())
        refuse(self.contradictions())

    def contradictions(self) -> Iterator[str]:
        """Yield a line for each contradiction between fields that are right by themselves."""
        block, tokens, windows = self.block_size, self.batch_tokens, self.batch_windows
        first, growth = self.initial_batch_tokens, self.batch_growth_steps
        low, high = self.min_learning_rate, self.learning_rate
        try:
            self.model_config(vocab_size=1)
        except ConfigError as error:
            yield str(error)
        if tokens % block:
            nearest = max(1, round(tokens / block)) * block
            yield (f"batch_tokens {tokens} is not a multiple of block_size {block}; try {nearest}")
        if windows > MOST_WINDOWS:
            many = f"batch_tokens {tokens} is {windows} sequences"
            yield f"{many}; at most {MOST_WINDOWS} expected"
        if (first > 0) != (growth > 0) or first % block or first > tokens:
            yield (
                f"initial_batch_tokens {first} and batch_growth_steps {growth}: a growing batch "
                f"needs both, and starts with a multiple of block_size {block} up to batch_tokens "
                f"{tokens}"
            )
        if self.parallel == "fsdp" and not OPTIMIZERS[self.optimizer].can_shard:
            needs = f"optimizer {self.optimizer} needs full matrices, and fsdp shards them"
            yield f"{needs}; use one of the two"
        if low > high or high == 0:
            wanted = "0 <= min_learning_rate <= learning_rate and learning_rate > 0 expected"
            yield f"learning_rate {high} and min_learning_rate {low}; {wanted}"
        if self.warmup_steps > self.max_steps:
            yield f"warmup_steps {self.warmup_steps} is more than max_steps {self.max_steps}"

    def model_config(self, vocab_size: int) -> GPTConfig:
        """Return the model config for a given vocabulary size."""
        return GPTConfig(
            vocab_size=vocab_size, **{name: getattr(self, name) for name in SHAPE_FIELDS}
        )

    @property
    def batch_windows(self) -> int:
        """The number of sequences in a full batch of `batch_tokens` tokens, over all devices."""
        return self.batch_tokens // self.block_size


@dataclass(frozen=True)
class Shape:
    """A model by its name or file, or by the shape of its blocks."""

    model: str = ""
    """A published model such as llama3-405b, or a Hugging Face config.json or its folder."""
    n_layer: int | None = None
    """Number of blocks, if there is no such file. The shape needs this and --n-embd."""
    n_embd: int | None = None
    """Width of the residual stream."""
    n_head: int | None = None
    """Number of query heads (None: one for 128 of the width)."""
    n_kv_head: int | None = None
    """Number of key and value heads (None: as many as query heads)."""
    head_dim: int | None = None
    """Width of a head (None: width / heads)."""
    mlp_width: int | None = None
    """Inner width of an MLP or an expert (None: 8/3 of the width)."""
    vocab_size: int | None = None
    """Rows of the embedding (None: 128256)."""
    n_expert: int | None = None
    """Number of experts in each block, if there are any."""
    n_active: int | None = None
    """Number of experts that process a token."""


@dataclass(frozen=True)
class RunConfig(Shape):
    """A training run of a model on some hardware."""

    seq: int = 0
    """Tokens in a training sequence of this model (0: its context, at most 8192)."""
    extend: bool = False
    """Allow a --seq beyond the model's context."""
    tokens: float | None = None
    """Number of training tokens, such as 15T, for the time."""
    gpus: int = 1
    """Number of devices."""
    hardware: str = "h100"
    """A device of data/devices.json, such as h100, gb300, mi355x, tpu-v5p or rtx-4090."""
    peak: float | None = None
    """FLOP/s in bf16 and fp16 without sparsity, such as 71T (None: from the datasheet)."""
    bandwidth: float | None = None
    """Bytes per second of the device's memory, such as 936B (None: from the datasheet)."""
    memory: float | None = None
    """Memory per device in bytes, such as 80B (None: from the datasheet)."""
    price: float | None = None
    """Dollars per device and hour, for the cost."""
    optimizer: str = "adamw"
    """Whose state takes memory: sgd, momentum, adagrad, rmsprop, adam, adamw, lion, muon, adafactor
    or adamw8bit."""
    precision: str = "mixed"
    """Number formats in memory: mixed (bf16 plus fp32 master weights), fp32, autocast or bf16."""


@dataclass(frozen=True)
class EstimateConfig(RunConfig):
    """Estimate training days and the largest model that fits, and show the arithmetic."""

    params: float | None = None
    """Number of model parameters, such as 70B, if no model is named."""
    dtype: str = "bf16"
    """Precision of the matmuls, which sets the peak: bf16, fp16, tf32, fp32, fp8 or fp4."""
    mfu: float | None = None
    """Model FLOPs utilization, such as 0.4 or 40% (None: from low to high, as published)."""
    convention: Literal["palm", "causal"] = "palm"
    """Keys in a model's attention whose FLOPs count: all (palm), as in most papers' MFU, or those
    that the causal mask lets through (causal)."""


@dataclass(frozen=True)
class SimulateConfig(RunConfig):
    """Simulate a step on a cluster with --tp and --pp, or find its fastest layouts without one."""

    model: str = "llama3-8b"
    """A published model such as llama3-405b, or a Hugging Face config.json or its folder."""
    gpus: int = 8
    """Number of devices."""
    inner: str | None = None
    """Link between the devices of a machine, from data/links.json (None: the hardware's)."""
    outer: str | None = None
    """Link of a network card to other machines, from data/links.json (None: the hardware's)."""
    stack: str | None = None
    """The program: megatron-2021, megatron-2024, torchtitan, fsdp, fsdp2 or ddp. It also sets
    --recompute and --zero, unless such a flag says otherwise (None: torchtitan, and only that)."""
    batch: int = 0
    """Sequences in a step over all devices (0: two for each device)."""
    tp: int = 0
    """Devices that share each matrix (0: the fastest in the list). With --tp and --pp, one layout
    is shown in detail. Otherwise the fastest are listed, and all have what the flags set."""
    pp: int = 0
    """Pipeline stages (0: the fastest in the list)."""
    cp: int = 1
    """Devices that share each sequence."""
    ep: int | None = None
    """Devices that share the experts (None: 1, or the fastest in the list)."""
    zero: int | None = None
    """ZeRO stage: 0 shards nothing, 1 the optimizer state, 2 also gradients, 3 also weights
    (None: 3, or the fastest in the list)."""
    chunks: int | None = None
    """Parts of the model on each stage. More than one is an interleaved schedule (None: 1, or the
    fastest in the list)."""
    micro_batch: int | None = None
    """Sequences in a forward pass of a replica (None: 1, or the fastest in the list)."""
    recompute: Literal["none", "selective", "full"] | None = None
    """What the backward pass computes again (None: selective, or the fastest in the list)."""


def gpt2(n_layer: int, n_head: int, n_embd: int, micro_batch_size: int, rate: float) -> TrainConfig:
    """Return the config to train a GPT-2 (Radford et al. 2019, table 2) on 10B tokens.

    The GPT-2 paper doesn't state learning rates, so we use the rates of GPT-3 (Brown et al. 2020,
    table 2.1).
    """
    return TrainConfig(
        train_data="fineweb",  # as docs/reproduce_gpt2.md prepares it
        n_layer=n_layer,
        n_head=n_head,
        n_embd=n_embd,
        micro_batch_size=micro_batch_size,
        learning_rate=rate,
        min_learning_rate=rate / 10,
        log_every=10,
        eval_tokens=10_485_760,
    )


# A line of help and a config each. The defaults are those of GPT-2 124M.
PRESETS: dict[str, tuple[str, TrainConfig]] = {
    "shakespeare-char": (
        "A small GPT on the plays that ship, letter by letter: 15 seconds on two cores.",
        TrainConfig(
            tokenizer="char",
            n_layer=2,
            n_head=2,
            n_embd=64,
            block_size=64,
            max_steps=390,
            batch_tokens=32 * 64,
            micro_batch_size=32,
            optimizer="muon",
            learning_rate=3e-2,
            min_learning_rate=0.0,
            schedule="linear",
            warmup_steps=5,
            weight_decay=0.3,
            momentum=0.9,
            beta2=0.98,
            eval_every=195,
            eval_tokens=16384,
            checkpoint_every=195,
        ),
    ),
    "shakespeare": (
        "A small GPT on the plays that ship, in GPT-2's tokens: about ten minutes on two cores.",
        TrainConfig(
            n_layer=4,
            n_head=4,
            n_embd=256,
            block_size=128,
            dropout=0.1,
            max_steps=1000,
            batch_tokens=16 * 128,
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            warmup_steps=50,
            beta2=0.99,
            eval_tokens=16384,
            checkpoint_every=500,
        ),
    ),
    # Layers, heads, width, micro-batch size and peak learning rate.
    "gpt2-124m": ("GPT-2 124M on 10B tokens of your shards.", gpt2(12, 12, 768, 16, 6e-4)),
    "gpt2-medium": ("GPT-2 355M, trained as gpt2-124m is.", gpt2(24, 16, 1024, 8, 3e-4)),
    "gpt2-large": ("GPT-2 774M, trained as gpt2-124m is.", gpt2(36, 20, 1280, 4, 2.5e-4)),
    "gpt2-xl": ("GPT-2 1558M, trained as gpt2-124m is.", gpt2(48, 25, 1600, 2, 2e-4)),
}


def preset_for(tokenizer: str, tokens: int) -> str:
    """Choose a preset by tokenizer and number of training tokens."""
    if tokenizer == "char":
        return "shakespeare-char"
    # Up to four passes over data are about as good as new data (Muennighoff et al. 2023).
    gpt2 = PRESETS["gpt2-124m"][1]
    return "gpt2-124m" if 4 * tokens >= gpt2.max_steps * gpt2.batch_tokens else "shakespeare"
