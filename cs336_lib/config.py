"""What a model and a training run are made of: two dataclasses and the presets that ship."""

import dataclasses
import math
import os
import reprlib
from dataclasses import dataclass
from typing import Any, Literal, TypeVar, get_args, get_type_hints

Config = TypeVar("Config", bound="GPTConfig | TrainConfig")
Choice = Literal["auto", "on", "off"]

# These decide where and how a run is computed, not what comes out, so they may change on resume
# (on_nan: nothing has come out yet of a run that it stopped).
CHANGEABLE = (
    *("run_dir", "resume", "device", "compile", "parallel", "micro_batch_size", "on_nan"),
    *("log_to", "log_every", "eval_every", "eval_tokens", "checkpoint_every", "keep_checkpoints"),
)
PATHS = ("train_data", "val_data", "init_from")  # which can be written in more than one way
AT_LEAST_ONE = (
    *("max_steps", "batch_tokens", "micro_batch_size"),
    *("log_every", "eval_tokens", "keep_checkpoints"),
)
AT_LEAST_ZERO = (
    *("warmup_steps", "eval_every", "checkpoint_every", "weight_decay", "grad_clip"),
    *("initial_batch_tokens", "batch_growth_steps"),
)
MOST_LAYERS = 4096  # four times the deepest ever trained; each costs 100 kB even where it is empty
MOST_WINDOWS = 2**20  # sequences in a batch
MOST_GROWTH = 10**6  # steps over which a batch grows; they are counted one by one


def require(condition: bool, message: str) -> None:
    """Raise `ValueError(message)` unless `condition` holds: for mistakes that a user can make."""
    if not condition:
        raise ValueError(message)


def same_path(one: object, other: object) -> bool:
    """Whether two paths, as written, lead to one place; an empty one is no path."""
    if not (isinstance(one, str) and isinstance(other, str) and one and other):
        return False
    return os.path.abspath(one) == os.path.abspath(other)


def check_types(config: Any) -> None:
    """Raise `ValueError` for a field that is not of its type, or no finite or 64-bit number."""
    for name, kind in get_type_hints(type(config)).items():
        value = getattr(config, name)
        is_int = type(value) is int and abs(value) < 2**63
        if choices := get_args(kind):
            fits, expected = value in choices, f"one of {', '.join(choices)}"
        elif kind is int:
            fits, expected = is_int, "a whole number below 2**63"
        elif kind is float:
            fits = is_int or (type(value) is float and math.isfinite(value))
            expected = "a finite number"
        else:
            fits, expected = type(value) is kind, {bool: "true or false", str: "a text"}[kind]
        require(fits, f"{name} is {reprlib.repr(value)}; {expected} expected")


def from_json(kind: type[Config], content: object, where: object) -> Config:
    """A config made from what a JSON file holds, which may be anything.

    Raises:
        ValueError: it is no object, has a name that is no field, or a bad value; `where` says it.
    """
    require(isinstance(content, dict), f"{where}: {reprlib.repr(content)}; {{…}} expected")
    unknown = set(content) - {field.name for field in dataclasses.fields(kind)}
    require(
        not unknown,
        f"{where}: {reprlib.repr(sorted(unknown))} unknown; was it made by another version?",
    )
    try:
        return kind(**content)
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from None


@dataclass(frozen=True)
class GPTConfig:
    """The shape of a GPT-2; the defaults are the 124M model's (Radford et al. 2019, table 2)."""

    block_size: int = 1024
    vocab_size: int = 50257
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    dropout: float = 0.0
    bias: bool = True

    def __post_init__(self) -> None:
        check_types(self)
        for name in ("block_size", "vocab_size", "n_layer", "n_head", "n_embd"):
            value = getattr(self, name)
            require(value >= 1, f"{name} is {value}; it must be at least 1")
        require(
            self.n_layer <= MOST_LAYERS,
            f"n_layer is {self.n_layer}; at most {MOST_LAYERS} expected",
        )
        require(
            self.n_embd % self.n_head == 0,
            f"n_head {self.n_head} does not divide n_embd {self.n_embd}; "
            f"choose n_head among the divisors of n_embd",
        )
        require(0 <= self.dropout < 1, f"dropout is {self.dropout}; it must be in [0, 1)")

    @property
    def padded_vocab_size(self) -> int:
        """The vocabulary rounded up to a multiple of 64, which is faster: 50257 -> 50304."""
        return -(-self.vocab_size // 64) * 64


@dataclass(frozen=True)
class TrainConfig:
    """Everything a training run depends on; the same values give the same run."""

    run_dir: str = ""
    """Folder for checkpoints, metrics and config (default: runs/PRESET)."""
    resume: bool = False
    """Continue from the newest good checkpoint in run_dir; start at step 0 where there is none."""

    train_data: str = ""
    """A folder made by `cs336 prepare`, or a pattern of .bin shards; empty: the plays that ship."""
    val_data: str = ""
    """A pattern of .bin shards for validation; empty: the folder's, or the corpus' last tenth."""
    tokenizer: Literal["gpt2", "char"] = "gpt2"
    """How text becomes token ids: GPT-2's byte-pair encoding, or one id per character."""
    init_from: str = ""
    """Begin with these weights, which then decide n_layer, n_head, n_embd and bias: one of our run
    folders, a folder in Hugging Face's layout, or gpt2, gpt2-medium, gpt2-large, gpt2-xl."""

    n_layer: int = 12
    """Number of transformer blocks."""
    n_head: int = 12
    """Attention heads per block; must divide n_embd."""
    n_embd: int = 768
    """Width of the residual stream."""
    block_size: int = 1024
    """Context length in tokens."""
    dropout: float = 0.0
    """Dropout probability; 0 for pretraining on more data than is seen once."""
    bias: bool = True
    """Biases in Linear and LayerNorm, as GPT-2 has them."""

    max_steps: int = 19073
    """Optimizer steps in the whole run."""
    batch_tokens: int = 524288
    """Tokens per optimizer step over all devices; a multiple of block_size."""
    initial_batch_tokens: int = 0
    """Tokens of the first step, growing linearly to batch_tokens; 0: batch_tokens throughout."""
    batch_growth_steps: int = 0
    """How many steps the growth of the batch takes."""
    micro_batch_size: int = 16
    """Sequences per forward pass on one device; what is missing to batch_tokens is accumulated."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """adamw, or muon: Muon for the blocks' matrices and AdamW for everything else."""
    learning_rate: float = 6e-4
    """Peak learning rate, reached at the end of the warm-up."""
    min_learning_rate: float = 6e-5
    """Learning rate of the last step."""
    schedule: Literal["cosine", "linear"] = "cosine"
    """How the learning rate falls from the one to the other."""
    warmup_steps: int = 715
    """Steps of linear warm-up."""
    weight_decay: float = 0.1
    """AdamW's decoupled weight decay, on matrices and embeddings only."""
    beta1: float = 0.9
    """AdamW's decay of the running mean of gradients."""
    beta2: float = 0.95
    """AdamW's decay of the running mean of squared gradients."""
    momentum: float = 0.95
    """Muon's decay of the running mean of gradients."""
    grad_clip: float = 1.0
    """Largest allowed norm of the whole gradient; 0 turns clipping off."""
    on_nan: Literal["stop", "skip"] = "stop"
    """When a loss or gradient is NaN or infinite: stop the run, or skip the batch and count it."""
    seed: int = 1337
    """Decides initial weights, data order and dropout."""

    log_to: Literal["", "wandb", "tensorboard", "trackio"] = ""
    """A tracker that gets the rows of metrics too; its package must be installed."""
    log_every: int = 1
    """Steps after which the rows of metrics are written. The device is waited for only then."""
    eval_every: int = 250
    """Steps between validations; the last step always validates. 0: only there."""
    eval_tokens: int = 1048576
    """Validation tokens, the same ones each time (fewer where the data has fewer)."""
    checkpoint_every: int = 1000
    """Steps between checkpoints; the last step always saves. 0: only there."""
    keep_checkpoints: int = 2
    """How many of the newest checkpoints to keep; the best by validation loss stays as well."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:1, mps; auto takes the fastest there is."""
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    """Matmul precision under autocast; auto: bf16 where the hardware has it, else fp32."""
    parallel: Literal["ddp", "fsdp"] = "ddp"
    """Under torchrun: a copy of the model on every device, or shards of one (FSDP2)."""
    compile: Choice = "auto"
    """torch.compile; auto: on CUDA."""
    deterministic: Choice = "auto"
    """Bit-identical runs; auto: on CPU, where it costs next to nothing."""

    def __post_init__(self) -> None:
        check_types(self)
        self.model_config(vocab_size=1)  # the shape's own checks
        for name in AT_LEAST_ONE:
            require(getattr(self, name) >= 1, f"{name} is {getattr(self, name)}; at least 1 needed")
        for name in AT_LEAST_ZERO:
            require(getattr(self, name) >= 0, f"{name} is {getattr(self, name)}; 0 or more needed")
        require(
            self.batch_tokens % self.block_size == 0,
            f"batch_tokens {self.batch_tokens} is not a multiple of block_size {self.block_size}; "
            f"try {max(1, round(self.batch_tokens / self.block_size)) * self.block_size}",
        )
        require(
            self.batch_windows <= MOST_WINDOWS,
            f"batch_tokens {self.batch_tokens} is {self.batch_windows} sequences of block_size "
            f"{self.block_size}; at most {MOST_WINDOWS} expected",
        )
        require(
            self.max_steps * self.batch_windows < 2**63,
            f"max_steps is {self.max_steps}; fewer than 2**63 sequences in all expected",
        )
        require(
            self.batch_growth_steps <= MOST_GROWTH,
            f"batch_growth_steps is {self.batch_growth_steps}; at most {MOST_GROWTH} expected",
        )
        growth = f"initial_batch_tokens {self.initial_batch_tokens}"
        require(
            self.initial_batch_tokens % self.block_size == 0
            and self.initial_batch_tokens <= self.batch_tokens,
            f"{growth} must be a multiple of block_size {self.block_size} "
            f"and at most batch_tokens {self.batch_tokens}",
        )
        require(
            (self.initial_batch_tokens > 0) == (self.batch_growth_steps > 0),
            f"{growth} and batch_growth_steps {self.batch_growth_steps}: "
            f"a batch that grows needs both, one that does not needs neither",
        )
        require(
            self.optimizer == "adamw" or self.parallel == "ddp",
            "optimizer muon needs whole matrices, which parallel fsdp cuts up; use one of the two",
        )
        require(
            0 <= self.min_learning_rate <= self.learning_rate and self.learning_rate > 0,
            f"learning_rate {self.learning_rate} and min_learning_rate {self.min_learning_rate}: "
            f"0 <= min_learning_rate <= learning_rate and learning_rate > 0 expected",
        )
        require(
            all(0 <= value < 1 for value in (self.beta1, self.beta2, self.momentum)),
            f"beta1 {self.beta1}, beta2 {self.beta2} and momentum {self.momentum} "
            f"must be in [0, 1)",
        )
        require(
            self.warmup_steps <= self.max_steps,
            f"warmup_steps {self.warmup_steps} is more than max_steps {self.max_steps}",
        )
        require(0 <= self.seed < 2**63, f"seed is {self.seed}; 0 to 2**63 - 1 expected")

    def model_config(self, vocab_size: int) -> GPTConfig:
        """The model's shape, once the tokenizer has said how many ids there are."""
        shape = ("block_size", "n_layer", "n_head", "n_embd", "dropout", "bias")
        return GPTConfig(vocab_size=vocab_size, **{name: getattr(self, name) for name in shape})

    @property
    def batch_windows(self) -> int:
        """Sequences per optimizer step over all devices, once the batch has grown."""
        return self.batch_tokens // self.block_size

    def conflicts(self, saved: dict) -> list[str]:
        """What differs from a saved run's config in a way that would change its result."""
        pairs = {
            f.name: (saved.get(f.name, f.default), getattr(self, f.name))
            for f in dataclasses.fields(self)
            if f.name not in CHANGEABLE
        }
        return [
            f"{name} was {before!r}, now {now!r}"
            for name, (before, now) in pairs.items()
            if before != now and not (name in PATHS and same_path(before, now))
        ]


def gpt2(n_layer: int, n_head: int, n_embd: int, micro_batch_size: int, rate: float) -> TrainConfig:
    """A GPT-2 (Radford et al. 2019, table 2) on 10B tokens, at GPT-3's rate for its size.

    GPT-2's learning rates were not published; Brown et al. 2020 (table 2.1) give theirs.
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


# Each with one line of help. What is not named has TrainConfig's default, GPT-2 124M's.
PRESETS: dict[str, tuple[str, TrainConfig]] = {
    "shakespeare-char": (
        "A small GPT on the plays that ship, letter by letter: 20 seconds on two cores.",
        TrainConfig(
            tokenizer="char",
            n_layer=2,
            n_head=2,
            n_embd=64,
            block_size=64,
            max_steps=465,
            batch_tokens=16 * 64,
            micro_batch_size=16,
            optimizer="muon",
            learning_rate=3e-2,
            min_learning_rate=0.0,
            schedule="linear",
            warmup_steps=5,
            momentum=0.9,
            beta2=0.98,
            eval_every=155,
            eval_tokens=16384,
            checkpoint_every=155,
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
            micro_batch_size=16,
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            warmup_steps=50,
            beta2=0.99,
            eval_every=250,
            eval_tokens=16384,
            checkpoint_every=500,
        ),
    ),
    "gpt2-124m": (
        "GPT-2 124M on your own shards: 10B tokens, 0.5M a step (--train-data).",
        gpt2(12, 12, 768, micro_batch_size=16, rate=6e-4),
    ),
    "gpt2-medium": (
        "GPT-2 355M, trained as gpt2-124m is.",
        gpt2(24, 16, 1024, micro_batch_size=8, rate=3e-4),
    ),
    "gpt2-large": (
        "GPT-2 774M, trained as gpt2-124m is.",
        gpt2(36, 20, 1280, micro_batch_size=4, rate=2.5e-4),
    ),
    "gpt2-xl": (
        "GPT-2 1558M, trained as gpt2-124m is.",
        gpt2(48, 25, 1600, micro_batch_size=2, rate=2e-4),
    ),
}


def preset_for(tokenizer: str, tokens: int) -> str:
    """Return the preset to propose for so many tokens of training data."""
    if tokenizer == "char":
        return "shakespeare-char"
    # Up to four passes over data are about as good as new data (Muennighoff et al. 2023).
    gpt2 = PRESETS["gpt2-124m"][1]
    return "gpt2-124m" if 4 * tokens >= gpt2.max_steps * gpt2.batch_tokens else "shakespeare"
