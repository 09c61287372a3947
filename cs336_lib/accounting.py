"""Count the parameters, FLOPs and bytes of a language model, and the time to train it.

FLOPs are counted in one convention, "palm", unless another is named. It is that of the paper that
defined MFU (Chowdhery et al. 2022, PaLM, appendix B): a multiply-add is two FLOPs, the output
matrix counts and the lookup of embeddings doesn't, attention counts all keys of a sequence, and the
backward pass takes twice the forward pass. "causal" counts only the keys that the mask lets
through, about half. Neither counts norms, the padding of the vocabulary or recomputation. nanoGPT
counts as in "palm", and norms and biases too, 0.1% more for GPT-2 124M.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from cs336_lib.config import GPTConfig, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.optim import OPTIMIZERS

Convention = Literal["palm", "causal"]


def require_choice(what: str, value: str, choices: Iterable[str]) -> None:
    """Raise `UserError` unless `value` is in `choices`."""
    choices = list(choices)
    if value not in choices:
        raise UserError(f"{what} {value!r} is unknown; one of {', '.join(choices)} expected")


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder-only transformer, ours or another.

    Attributes:
        n_layer: Number of blocks.
        n_embd: Width of the residual stream.
        n_head: Number of query heads.
        n_kv_head: Number of key and value heads. Fewer than `n_head` is grouped-query attention.
        head_dim: Width of a head. In MLA, the part of a query and key without position.
        vocab_size: Rows of the embedding, with padding if the authors count it.
        block_size: Longest context in tokens.
        mlp_width: Inner width of the dense MLPs.
        gated: Whether an MLP has a gate (SwiGLU), and so three matrices instead of two.
        tied: Whether the output matrix is the embedding.
        positions: Whether positions have a learned embedding, as in GPT-2.
        qkv_bias: Whether queries, keys and values have biases.
        out_bias: Whether the attention output has a bias.
        mlp_bias: Whether the MLP's layers have biases, also in experts.
        block_norms: Number of norms in a block: 4 if attention and MLP also have one behind them.
        norm_bias: Whether norms have a bias (LayerNorm), or only a weight (RMSNorm).
        qk_norm: Whether queries and keys are normalized: not, per "head", or at "full" width. Those
            per head have a bias if the other norms have one.
        sinks: Whether each head has a learned attention sink.
        n_dense: Number of layers with a dense MLP, if the others have experts.
        n_expert: Number of routed experts in a layer, or 0 for a dense model.
        n_active: Number of routed experts that process a token.
        n_shared: Number of experts that process every token.
        expert_width: Inner width of an expert.
        router_bias: Whether the router has a bias that is trained.
        q_rank: Rank of the queries in multi-head latent attention (MLA), or 0 for full rank.
        kv_rank: Rank of keys and values in MLA, or 0 for other attention.
        rope_dim: Width of the part of an MLA key that has positions, shared by all heads.
        v_dim: Width of an MLA value.
        window: Number of tokens that a sliding-window layer sees.
        n_window: Number of sliding-window layers.
    """

    n_layer: int
    n_embd: int
    n_head: int
    n_kv_head: int
    head_dim: int
    vocab_size: int
    block_size: int
    mlp_width: int
    gated: bool = True
    tied: bool = False
    positions: bool = False
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    block_norms: int = 2
    norm_bias: bool = False
    qk_norm: Literal["", "head", "full"] = ""
    sinks: bool = False
    n_dense: int = 0
    n_expert: int = 0
    n_active: int = 0
    n_shared: int = 0
    expert_width: int = 0
    router_bias: bool = False
    q_rank: int = 0
    kv_rank: int = 0
    rope_dim: int = 0
    v_dim: int = 0
    window: int = 0
    n_window: int = 0

    @property
    def dense_layers(self) -> int:
        """Number of layers with a dense MLP."""
        return self.n_dense if self.n_expert else self.n_layer

    @property
    def expert_layers(self) -> int:
        """Number of layers with experts."""
        return self.n_layer - self.dense_layers

    @property
    def qk_dim(self) -> int:
        """Width of a query and a key of one head."""
        return self.head_dim + self.rope_dim

    @property
    def value_dim(self) -> int:
        """Width of a value of one head."""
        return self.v_dim or self.head_dim

    @property
    def norm_size(self) -> int:
        """Number of parameters of a norm of the residual stream."""
        return self.n_embd * (1 + self.norm_bias)


Model = GPTConfig | Architecture


def architecture_of(model: Model) -> Architecture:
    """Return the shape of a model. The vocabulary of our GPT-2 counts without padding."""
    if isinstance(model, Architecture):
        return model
    return Architecture(
        n_layer=model.n_layer,
        n_embd=model.n_embd,
        n_head=model.n_head,
        n_kv_head=model.n_head,
        head_dim=model.n_embd // model.n_head,
        vocab_size=model.vocab_size,
        block_size=model.block_size,
        mlp_width=4 * model.n_embd,
        gated=False,
        tied=True,
        positions=True,
        qkv_bias=model.bias,
        out_bias=model.bias,
        mlp_bias=model.bias,
        norm_bias=model.bias,
    )


# Parameters


def attention_matrices(a: Architecture) -> int:
    """Count the matrix entries of one layer's attention.

    MLA compresses queries to `q_rank` numbers and keys and values to `kv_rank` numbers, and expands
    them per head (DeepSeek-AI 2024, DeepSeek-V2, section 2.1). Without `q_rank`, queries have one
    matrix, as in DeepSeek-V2-Lite.
    """
    out = a.n_head * a.value_dim * a.n_embd
    if a.kv_rank:
        wide = a.n_head * a.qk_dim
        queries = a.q_rank * (a.n_embd + wide) if a.q_rank else a.n_embd * wide
        compressed = a.n_embd * (a.kv_rank + a.rope_dim)
        return queries + compressed + a.kv_rank * a.n_head * (a.head_dim + a.value_dim) + out
    return a.n_embd * (a.n_head + 2 * a.n_kv_head) * a.head_dim + out


def attention_vectors(a: Architecture) -> int:
    """Count the biases, norms and sinks of one layer's attention."""
    q, kv = a.n_head * a.head_dim, a.n_kv_head * a.head_dim
    per_head = 2 * a.head_dim * (1 + a.norm_bias)
    norms = {"": 0, "head": per_head, "full": q + kv}[a.qk_norm] + a.q_rank + a.kv_rank
    biases = a.qkv_bias * (q + 2 * kv) + a.out_bias * a.n_embd
    return norms + biases + a.sinks * a.n_head


def mlp_matrices(a: Architecture, width: int) -> int:
    """Count the matrix entries of an MLP or an expert of this inner width."""
    return (3 if a.gated else 2) * a.n_embd * width


def mlp_vectors(a: Architecture, width: int) -> int:
    """Count the biases of an MLP or an expert of this inner width."""
    return a.mlp_bias * ((2 if a.gated else 1) * width + a.n_embd)


def parameter_counts(model: Model) -> Counter[str]:
    """Count the parameters by part. A part that the model doesn't have isn't listed, and counts 0.

    `wte` is the embedding of tokens, and `wpe` that of positions. A tied output matrix counts as
    the embedding only.
    """
    a = architecture_of(model)
    expert = mlp_matrices(a, a.expert_width) + mlp_vectors(a, a.expert_width)
    dense = mlp_matrices(a, a.mlp_width) + mlp_vectors(a, a.mlp_width)
    return +Counter(
        {
            "wte": a.vocab_size * a.n_embd,
            "wpe": a.positions * a.block_size * a.n_embd,
            "attention": a.n_layer * (attention_matrices(a) + attention_vectors(a)),
            "mlp": a.dense_layers * dense,
            "experts": a.expert_layers * a.n_expert * expert,
            "shared experts": a.expert_layers * a.n_shared * expert,
            "router": a.expert_layers * a.n_expert * (a.n_embd + a.router_bias),
            "norms": (a.block_norms * a.n_layer + 1) * a.norm_size,
            "output": 0 if a.tied else a.vocab_size * a.n_embd,
        }
    )


def count_parameters(model: Model) -> int:
    """Count all parameters.

    Example:
        >>> count_parameters(GPTConfig())
        124439808
    """
    return parameter_counts(model).total()


def active_parameters(a: Architecture) -> int:
    """Count the parameters that process one token, which are all but the experts not chosen."""
    counts = parameter_counts(a)
    return counts.total() - counts["experts"] * (a.n_expert - a.n_active) // max(1, a.n_expert)


def matmul_parameters(model: Model) -> int:
    """Count the parameters that one token meets in matmuls, with the output matrix.

    `wpe` has none, because an embedding lookup isn't a matmul. A block of GPT-2 has 12 C^2.
    """
    a = architecture_of(model)
    experts = (a.n_active + a.n_shared) * mlp_matrices(a, a.expert_width)
    return (
        a.n_layer * attention_matrices(a)
        + a.dense_layers * mlp_matrices(a, a.mlp_width)
        + a.expert_layers * (experts + a.n_expert * a.n_embd)
        + a.vocab_size * a.n_embd
    )


# FLOPs


def keys_per_query(seq: int, window: int = 0) -> float:
    """Return the mean number of keys that a query sees in a causal layer.

    Query i sees itself and the i - 1 tokens before it, but at most `window` tokens if that isn't 0.
    """
    width = min(seq, window or seq)
    return (width * (width + 1) / 2 + (seq - width) * width) / seq


def attention_flops(a: Architecture, seq: int, convention: Convention = "palm") -> float:
    """Return the forward FLOPs per token of scores and weighted values over all layers.

    "palm" counts all `seq` keys in every layer. "causal" counts the keys that the causal mask, and
    a window, let through.
    """
    require_choice("convention", convention, ("palm", "causal"))
    per_key = 2 * a.n_head * (a.qk_dim + a.value_dim)
    if convention == "palm":
        return a.n_layer * per_key * seq
    full = (a.n_layer - a.n_window) * keys_per_query(seq)
    return per_key * (full + a.n_window * keys_per_query(seq, a.window))


def forward_flops_per_token(
    model: Model, seq: int | None = None, convention: Convention = "palm"
) -> float:
    """Return the FLOPs of the forward pass per token.

    Each matmul parameter costs 2 FLOPs. `seq` defaults to `block_size`.
    """
    a = architecture_of(model)
    return 2 * matmul_parameters(a) + attention_flops(a, seq or a.block_size, convention)


def train_flops_per_token(
    model: Model, seq: int | None = None, convention: Convention = "palm"
) -> float:
    """Return the FLOPs of the forward and backward pass per token, three times the forward pass."""
    return 3 * forward_flops_per_token(model, seq, convention)


def six_n_d(parameters: float, tokens: float) -> float:
    """Return the training FLOPs if only the number of parameters is known, as 6 N D.

    The forward pass takes 2 N D and the backward pass takes 4 N D (Kaplan et al. 2020, section
    2.1). This leaves out attention, and counts parameters outside of matmuls.
    """
    return 6 * parameters * tokens


def largest_matmul_flops(config: GPTConfig, batch: int) -> int:
    """Return the FLOPs of the largest matmul in the forward pass.

    The largest matmul is in the MLP, the output layer or the attention scores.
    """
    width = max(4 * config.n_embd, config.padded_vocab_size, config.block_size)
    return 2 * batch * config.block_size * config.n_embd * width


def mfu(flops_per_second: float, peak: float | None) -> float | None:
    """Return the model FLOPs utilization (MFU), or `None` if the peak is unknown.

    MFU is the model's FLOP/s divided by the peak FLOP/s (Chowdhery et al. 2022, section 4.1).
    """
    return None if peak is None else flops_per_second / peak


def training_seconds(flops: float, devices: int, peak: float, mfu: float) -> float:
    """Return the seconds of so many FLOPs on devices with this peak and utilization each."""
    return flops / (devices * peak * mfu)


def decode_flops(a: Architecture, context: int) -> float:
    """Return the FLOPs of one new token after `context` tokens in the cache."""
    per_key = 2 * a.n_head * (a.qk_dim + a.value_dim)
    seen = (a.n_layer - a.n_window) * context + a.n_window * min(context, a.window)
    return 2 * matmul_parameters(a) + per_key * seen


def kv_cache_bytes(a: Architecture, context: int, bytes_per_value: float = 2) -> float:
    """Return the bytes of the KV cache of one sequence.

    MLA stores the compressed keys and values and the rotated part of the key. A sliding-window
    layer stores its window.
    """
    per_token = a.kv_rank + a.rope_dim if a.kv_rank else 2 * a.n_kv_head * a.head_dim
    tokens = (a.n_layer - a.n_window) * context + a.n_window * min(context, a.window)
    return bytes_per_value * per_token * tokens


Attention = Literal["flash", "eager"]

# Optimizer state in bytes per parameter. Adafactor stores one fp32 row and column per matrix, which
# is negligible for large ones. 8-bit AdamW has an fp32 scale per block of 256 values, as that of
# bitsandbytes. `OPTIMIZERS` has those that we train with.
STATE_BYTES: dict[str, float] = {
    "sgd": 0,
    "momentum": 4,
    "adagrad": 4,
    "rmsprop": 4,
    "adam": 8,
    **{name: row.state_bytes for name, row in OPTIMIZERS.items()},
    "lion": 4,
    "adafactor": 0,
    "adamw8bit": 2 * (1 + 4 / 256),
}


@dataclass(frozen=True)
class BytesPerParameter:
    """Bytes per number in training with one number format and optimizer.

    Attributes:
        weights: Weights that the model stores.
        gradient: Gradients, also those of earlier micro-batches.
        master: The fp32 copy that updates are added to, if `weights` aren't in fp32.
        copies: Copies of the weights in the format of the matmuls, which live as long as
            activations.
        residual: The residual stream.
        compute: Inputs and results of matmuls, and queries, keys and values.
        source: Where these numbers come from.
        state: State of the optimizer.
    """

    weights: float
    gradient: float
    master: float
    copies: float
    residual: float
    compute: float
    source: str
    state: float = 0

    @property
    def total(self) -> float:
        """Training memory in bytes per parameter, without activations."""
        return self.weights + self.gradient + self.master + self.state + self.copies

    def sharded(self, devices: int, stage: int) -> float:
        """Return the bytes per parameter on each device under ZeRO.

        Stage 0 is plain data parallelism. Stage 1 shards the optimizer state and the master
        weights. Stage 2 also shards gradients, and stage 3 also shards weights (Rajbhandari et al.
        2020, figure 1). Copies have the life of weights. Raises `ValueError` if the stage isn't 0,
        1, 2 or 3.
        """
        if stage not in (0, 1, 2, 3):
            raise UserError(f"ZeRO stage is {stage}; 0, 1, 2 or 3 expected")
        parts = (self.master + self.state, self.gradient, self.weights + self.copies)
        return sum(part / devices for part in parts[:stage]) + sum(parts[stage:])


PRECISIONS = {
    key: BytesPerParameter(**row) for key, row in read_json(DATA / "precisions.json").items()
}


def bytes_per_parameter(optimizer: str = "adamw", precision: str = "fp32") -> BytesPerParameter:
    """Return the training memory per parameter for an optimizer and a precision.

    Raises `ValueError` if the optimizer or the precision is unknown.
    """
    require_choice("optimizer", optimizer, STATE_BYTES)
    require_choice("precision", precision, PRECISIONS)
    return replace(PRECISIONS[precision], state=STATE_BYTES[optimizer])


def largest_model(memory: float, optimizer: str = "adamw", precision: str = "fp32") -> float:
    """Return how many parameters fit into `memory` bytes if activations are ignored."""
    return memory / bytes_per_parameter(optimizer, precision).total
