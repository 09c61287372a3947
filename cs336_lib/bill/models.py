"""Read the shape of published models by their name, or of any config.json."""

import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cs336_lib.accounting import Architecture, architecture_of, count_parameters
from cs336_lib.config import GPTConfig, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json


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
        UserError: If the model type isn't supported, a field is missing, or a value is none that a
            model can have.
    """
    kind, names = raw.get("model_type"), ", ".join(FAMILIES)
    if not isinstance(kind, str) or kind not in FAMILIES:
        shown = reprlib.repr(kind)
        raise UserError(f"{where}: model_type {shown} is unknown; one of {names} expected")
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
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def checked(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a config.json without those whose null means a default.

    Raises:
        UserError: If a value has the wrong type or is out of range, or two contradict each other.
    """
    fields = {k: v for k, v in raw.items() if not (v is None and k in NULLABLE)}
    for name in RANGES.keys() & fields.keys():
        value, (low, high) = fields[name], RANGES[name]
        if value is None and name == "q_lora_rank":
            continue
        if type(value) is not int or not low <= value <= high:
            shown = reprlib.repr(value)
            raise UserError(f"{name} is {shown}; a whole number from {low} to {high} expected")
    for name in FLAGS:
        if type(value := fields.get(name, False)) is not bool:
            raise UserError(f"{name} is {reprlib.repr(value)}; true or false expected")
    divisors = [("num_key_value_heads", "num_attention_heads")]
    if "head_dim" not in fields and "kv_lora_rank" not in fields:
        divisors = [("num_attention_heads", "hidden_size"), ("n_head", "n_embd"), *divisors]
    for small, large in divisors:
        if small in fields and large in fields and fields[large] % fields[small]:
            raise UserError(f"{small} {fields[small]} doesn't divide {large} {fields[large]}")
    for small, large in (
        *(("num_experts_per_tok", f"{one}_experts") for one in ("num", "num_local", "n_routed")),
        ("first_k_dense_replace", "num_hidden_layers"),
    ):
        if small in fields and large in fields and fields[small] > fields[large]:
            raise UserError(f"{small} {fields[small]} is more than {large} {fields[large]}")
    return fields


def gpt2(raw: Mapping[str, Any]) -> Architecture:
    """Read the shape of a GPT-2, whose config has other names."""
    width, heads = raw["n_embd"], raw["n_head"]
    return replace(
        architecture_of(GPTConfig()),
        n_layer=raw["n_layer"],
        n_embd=width,
        n_head=heads,
        n_kv_head=heads,
        head_dim=width // heads,
        vocab_size=raw["vocab_size"],
        block_size=raw["n_positions"],
        mlp_width=raw.get("n_inner", 4 * width),
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
    """Return a published model, or the model of a folder with a config.json.

    Raises:
        UserError: If there is no such model, or config.json isn't that of a supported model.
    """
    path = Path(name) / "config.json"
    if path.is_file():
        shape = from_hugging_face(read_json(path), path)
        return Published(name, str(path), shape, count_parameters(shape))
    listed = models()
    wanted = name.lower().replace("_", "-")
    if wanted not in listed:
        names = ", ".join(listed)
        raise UserError(f"model {name!r:.60} is unknown; one of {names} expected")
    return listed[wanted]
