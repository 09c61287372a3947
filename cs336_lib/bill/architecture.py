"""Count the parameters, FLOPs and cache bytes of today's language models."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from cs336_lib.accounting import require_choice
from cs336_lib.config import UserError, require
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json


@dataclass(frozen=True)
class Architecture:
    """Shape of a decoder-only transformer.

    Attributes:
        n_layer: Number of blocks.
        n_embd: Width of the residual stream.
        n_head: Number of query heads.
        n_kv_head: Number of key and value heads. Fewer than `n_head` is grouped-query attention.
        head_dim: Width of a head. In MLA, the part of a query and key without position.
        vocab_size: Rows of the embedding, with padding.
        block_size: Longest context in tokens.
        mlp_width: Inner width of the dense MLPs.
        gated: Whether an MLP has a gate (SwiGLU), and so three matrices instead of two.
        tied: Whether the output matrix is the embedding.
        positions: Whether positions have a learned embedding, as in GPT-2.
        qkv_bias: Whether queries, keys and values have biases.
        out_bias: Whether the attention output has a bias.
        mlp_bias: Whether the MLP's layers have biases, also in experts.
        norm_bias: Whether norms have a bias (LayerNorm), or only a weight (RMSNorm).
        qk_norm: Whether queries and keys are normalized: not, per "head", or at "full" width.
        sinks: Whether each head has a learned attention sink.
        n_dense: Number of first layers with a dense MLP, if the others have experts.
        n_expert: Number of routed experts in a layer, or 0 for a dense model.
        n_active: Number of routed experts that process a token.
        n_group: Number of groups that these experts are from at most, or 0 for any number.
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
    norm_bias: bool = False
    qk_norm: Literal["", "head", "full"] = ""
    sinks: bool = False
    n_dense: int = 0
    n_expert: int = 0
    n_active: int = 0
    n_group: int = 0
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


@dataclass(frozen=True)
class Published:
    """A published model.

    Attributes:
        title: Name as its authors write it.
        source: Where the config and the numbers come from.
        architecture: The shape.
        parameters: The exact number of parameters that was published.
        active: The number of active parameters as stated, or "" if it isn't stated.
    """

    title: str
    source: str
    architecture: Architecture
    parameters: int
    active: str = ""


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
    norms = {"": 0, "head": 2 * a.head_dim, "full": q + kv}[a.qk_norm] + a.q_rank + a.kv_rank
    biases = a.qkv_bias * (q + 2 * kv) + a.out_bias * a.n_embd
    return norms + biases + a.sinks * a.n_head


def mlp_matrices(a: Architecture, width: int) -> int:
    """Count the matrix entries of an MLP or an expert of this inner width."""
    return (3 if a.gated else 2) * a.n_embd * width


def mlp_vectors(a: Architecture, width: int) -> int:
    """Count the biases of an MLP or an expert of this inner width."""
    return a.mlp_bias * ((2 if a.gated else 1) * width + a.n_embd)


def parameter_counts(a: Architecture) -> dict[str, int]:
    """Count the parameters by part. A tied output matrix counts as the embedding only."""
    expert = mlp_matrices(a, a.expert_width) + mlp_vectors(a, a.expert_width)
    dense = mlp_matrices(a, a.mlp_width) + mlp_vectors(a, a.mlp_width)
    norm = a.n_embd * (2 if a.norm_bias else 1)
    return {
        "embedding": a.vocab_size * a.n_embd,
        "positions": a.positions * a.block_size * a.n_embd,
        "attention": a.n_layer * (attention_matrices(a) + attention_vectors(a)),
        "mlp": a.dense_layers * dense,
        "experts": a.expert_layers * a.n_expert * expert,
        "shared experts": a.expert_layers * a.n_shared * expert,
        "router": a.expert_layers * a.n_expert * (a.n_embd + a.router_bias),
        "norms": (2 * a.n_layer + 1) * norm,
        "output": 0 if a.tied else a.vocab_size * a.n_embd,
    }


def count_parameters(a: Architecture) -> int:
    """Count all parameters.

    Example:
        >>> count_parameters(model("llama3-8b").architecture)
        8030261248
    """
    return sum(parameter_counts(a).values())


def active_parameters(a: Architecture) -> int:
    """Count the parameters that process one token, which are all but the experts not chosen."""
    counts = parameter_counts(a)
    idle = counts["experts"] * (a.n_expert - a.n_active) // max(1, a.n_expert)
    return sum(counts.values()) - idle


def matmul_parameters(a: Architecture) -> int:
    """Count the parameters that one token meets in matmuls, with the output matrix."""
    experts = (a.n_active + a.n_shared) * mlp_matrices(a, a.expert_width)
    return (
        a.n_layer * attention_matrices(a)
        + a.dense_layers * mlp_matrices(a, a.mlp_width)
        + a.expert_layers * (experts + a.n_expert * a.n_embd)
        + a.vocab_size * a.n_embd
    )


# FLOPs

Count = Literal["computed", "full"]


def keys_per_query(seq: int, window: int = 0) -> float:
    """Return the mean number of keys that a query sees in a causal layer.

    Query i sees itself and the i - 1 tokens before it, but at most `window` tokens if that isn't 0.
    """
    width = min(seq, window or seq)
    return (width * (width + 1) / 2 + (seq - width) * width) / seq


def attention_flops(a: Architecture, seq: int, count: Count = "computed") -> float:
    """Return the FLOPs per token of scores and weighted values over all layers.

    Args:
        a: The shape.
        seq: Sequence length in tokens.
        count: "computed" counts the keys that the mask lets through. "full" counts all `seq` keys
            in every layer, which is the convention of Chowdhery et al. (2022, appendix B).
    """
    require_choice("count", count, ("computed", "full"))
    per_key = 2 * a.n_head * (a.qk_dim + a.value_dim)
    if count == "full":
        return a.n_layer * per_key * seq
    full = (a.n_layer - a.n_window) * keys_per_query(seq)
    return per_key * (full + a.n_window * keys_per_query(seq, a.window))


def forward_flops_per_token(
    a: Architecture, seq: int | None = None, count: Count = "computed"
) -> float:
    """Return the FLOPs of the forward pass per token. `seq` defaults to `block_size`."""
    return 2 * matmul_parameters(a) + attention_flops(a, seq or a.block_size, count)


def train_flops_per_token(
    a: Architecture, seq: int | None = None, count: Count = "computed"
) -> float:
    """Return the FLOPs of the forward and backward pass per token, without recomputation."""
    return 3 * forward_flops_per_token(a, seq, count)


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


# Published models

# The smallest and the largest value of each number that is read from a config.json.
RANGES: dict[str, tuple[int, int]] = {
    **dict.fromkeys(("n_layer", "n_embd", "n_head", "n_inner"), (1, 10**6)),
    **dict.fromkeys(("num_hidden_layers", "hidden_size", "intermediate_size"), (1, 10**6)),
    **dict.fromkeys(("num_attention_heads", "num_key_value_heads", "head_dim"), (1, 10**6)),
    **dict.fromkeys(("vocab_size", "n_positions", "max_position_embeddings"), (1, 10**9)),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), (1, 10**6)),
    **dict.fromkeys(("num_experts_per_tok", "moe_intermediate_size"), (1, 10**6)),
    **dict.fromkeys(("n_shared_experts", "first_k_dense_replace", "topk_group"), (0, 10**6)),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "sliding_window"), (1, 10**6)),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), (1, 10**6)),
}
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias")
# Null in these means what a missing field does, and in `q_lora_rank` that queries have full rank.
NULLABLE = ("n_inner", "num_key_value_heads", "head_dim", "n_shared_experts", "topk_group", *FLAGS)


def from_hugging_face(raw: Mapping[str, Any], where: object = "config.json") -> Architecture:
    """Read the shape from the content of a Hugging Face config.json.

    Raises:
        ValueError: If the model type isn't supported, a field is missing, or a value is none that a
            model can have.
    """
    kind, names = raw.get("model_type"), ", ".join(FAMILIES)
    message = f"{where}: model_type {reprlib.repr(kind)} is unknown; one of {names} expected"
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(message)
    try:
        fields = checked(raw)
        if kind == "gpt2":
            return gpt2(fields)
        heads = fields["num_attention_heads"]
        common = {
            "n_layer": fields["num_hidden_layers"],
            "n_embd": fields["hidden_size"],
            "n_head": heads,
            "n_kv_head": fields.get("num_key_value_heads", heads),
            "head_dim": fields.get("head_dim", fields["hidden_size"] // heads),
            "vocab_size": fields["vocab_size"],
            "block_size": fields["max_position_embeddings"],
            "mlp_width": fields["intermediate_size"],
            "tied": fields.get("tie_word_embeddings", False),
        }
        return Architecture(**common | FAMILIES[kind](fields))
    except KeyError as error:
        raise UserError(f"{where}: {error} is missing") from None
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None


def checked(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json without those whose null means a default.

    Raises:
        ValueError: If a value has the wrong type or is out of range, or two contradict each other.
    """
    fields = {k: v for k, v in raw.items() if not (v is None and k in NULLABLE)}
    for name in RANGES.keys() & fields.keys():
        value, (low, high) = fields[name], RANGES[name]
        if value is None and name == "q_lora_rank":
            continue
        message = f"{name} is {reprlib.repr(value)}; a whole number from {low} to {high} expected"
        require(type(value) is int and low <= value <= high, message)
    for name in FLAGS:
        value = fields.get(name, False)
        expected = f"{name} is {reprlib.repr(value)}; true or false expected"
        require(type(value) is bool, expected)
    has_width = "head_dim" in fields or "kv_lora_rank" in fields
    for small, large in (("num_attention_heads", "hidden_size"), ("n_head", "n_embd")):
        known = small in fields and large in fields and not has_width
        message = f"{small} {fields.get(small)} doesn't divide {large} {fields.get(large)}"
        require(not known or fields[large] % fields[small] == 0, message)
    heads, pairs = (fields.get(f"num_{of}_heads") for of in ("attention", "key_value"))
    message = f"num_key_value_heads {pairs} doesn't divide num_attention_heads {heads}"
    require(not heads or not pairs or heads % pairs == 0, message)
    for small, large in (
        *(("num_experts_per_tok", f"{one}_experts") for one in ("num", "num_local", "n_routed")),
        ("first_k_dense_replace", "num_hidden_layers"),
    ):
        known = small in fields and large in fields
        message = f"{small} {fields.get(small)} is more than {large} {fields.get(large)}"
        require(not known or fields[small] <= fields[large], message)
    return fields


def gpt2(raw: Mapping[str, Any]) -> Architecture:
    """Read the shape of a GPT-2, whose config has other names."""
    width = raw["n_embd"]
    return Architecture(
        n_layer=raw["n_layer"],
        n_embd=width,
        n_head=raw["n_head"],
        n_kv_head=raw["n_head"],
        head_dim=width // raw["n_head"],
        vocab_size=raw["vocab_size"],
        block_size=raw["n_positions"],
        mlp_width=raw.get("n_inner", 4 * width),
        gated=False,
        tied=True,
        positions=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        norm_bias=True,
    )


def llama(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Llama adds to the common fields."""
    bias = raw.get("attention_bias", False)
    return {"qkv_bias": bias, "out_bias": bias, "mlp_bias": raw.get("mlp_bias", False)}


def mixtral(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Mixtral adds, which has experts in every layer."""
    return {
        "n_expert": raw["num_local_experts"],
        "n_active": raw["num_experts_per_tok"],
        "expert_width": raw["intermediate_size"],
    }


def qwen3_moe(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what Qwen3's mixture of experts adds."""
    return {
        "qk_norm": "head",
        "n_expert": raw["num_experts"],
        "n_active": raw["num_experts_per_tok"],
        "expert_width": raw["moe_intermediate_size"],
    }


def deepseek_v3(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what DeepSeek-V3 adds: MLA, a few dense layers, and shared experts."""
    return {
        "head_dim": raw["qk_nope_head_dim"],
        "q_rank": raw["q_lora_rank"] or 0,
        "kv_rank": raw["kv_lora_rank"],
        "rope_dim": raw["qk_rope_head_dim"],
        "v_dim": raw["v_head_dim"],
        "n_dense": raw["first_k_dense_replace"],
        "n_expert": raw["n_routed_experts"],
        "n_active": raw["num_experts_per_tok"],
        "n_shared": raw.get("n_shared_experts", 0),
        "n_group": raw.get("topk_group", 0),
        "expert_width": raw["moe_intermediate_size"],
    }


def gpt_oss(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return what gpt-oss adds: biases, sinks, experts, and a window in every other layer."""
    return mixtral(raw) | {
        "qkv_bias": True,
        "out_bias": True,
        "mlp_bias": True,
        "router_bias": True,
        "sinks": True,
        "window": raw["sliding_window"],
        "n_window": (raw["num_hidden_layers"] + 1) // 2,
    }


# By the model_type of a config.json
FAMILIES: dict[str, Any] = {
    "gpt2": gpt2,
    "llama": llama,
    "olmo2": lambda raw: {"qk_norm": "full"},
    "qwen3": lambda raw: {"qk_norm": "head"},
    "qwen3_moe": qwen3_moe,
    "mixtral": mixtral,
    "deepseek_v3": deepseek_v3,
    "gpt_oss": gpt_oss,
}


def models() -> dict[str, Published]:
    """Return the published models of data/models.json by name, such as llama3-405b."""
    listed = read_json(DATA / "models.json")
    return {
        name: Published(
            entry["title"],
            entry["source"],
            from_hugging_face(entry["config"], name),
            entry["parameters"],
            entry.get("active", ""),
        )
        for name, entry in listed.items()
    }


def model(name: str) -> Published:
    """Return a published model.

    Raises:
        ValueError: If there is no model of this name.
    """
    listed = models()
    wanted = name.lower().replace("_", "-")
    names = ", ".join(listed)
    require(wanted in listed, f"model {name!r:.60} is unknown; one of {names} expected")
    return listed[wanted]
