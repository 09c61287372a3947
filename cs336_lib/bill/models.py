"""Read the shape of published models by their name, or of any config.json."""

import reprlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from cs336_lib.accounting import Architecture, count_parameters
from cs336_lib.config import Shape, UserError
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


Config = Mapping[str, Any]  # a config.json without its nulls
Reader = Callable[[Config], Any]

# The names of a number in a config.json, by the field of `Architecture`. Families differ.
NAMES: dict[str, tuple[str, ...]] = {
    "n_layer": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "n_embd": ("hidden_size", "n_embd", "n_embed", "d_model"),
    "n_head": ("num_attention_heads", "n_head", "n_heads", "num_heads", "attention_heads"),
    "n_kv_head": ("num_key_value_heads", "num_kv_heads", "n_kv_head"),
    "head_dim": ("head_dim",),
    "mlp_width": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size", "mlp_width"),
    "vocab_size": ("vocab_size",),
    "block_size": (
        "max_position_embeddings",
        "n_positions",
        "max_seq_len",
        "seq_length",
        "block_size",
    ),
    "n_expert": ("num_experts", "num_local_experts", "n_routed_experts", "n_expert"),
    "n_active": ("num_experts_per_tok", "n_active"),
    "n_shared": ("n_shared_experts",),
    "n_dense": ("first_k_dense_replace",),
    "expert_width": ("moe_intermediate_size",),
    "window": ("sliding_window",),
}
SHAPE = tuple(field.name for field in fields(Shape) if field.name != "model")
SPARSE = ("n_expert", "n_active")
MANY, MOST = 10**6, 10**9
# The smallest and the largest value of each number that is read from a config.json.
RANGES: dict[str, tuple[int, int]] = {
    **{name: (1, MANY) for names in NAMES.values() for name in names},
    **dict.fromkeys((*NAMES["vocab_size"], *NAMES["block_size"]), (1, MOST)),
    **dict.fromkeys((*NAMES["n_shared"], *NAMES["n_dense"]), (0, MANY)),
    **dict.fromkeys(NAMES["window"], (0, MOST)),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "decoder_sparse_step"), (1, MANY)),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"), (1, MANY)),
    **dict.fromkeys(("topk_group", "max_window_layers"), (0, MANY)),
    "sliding_window_pattern": (1, MOST),
}
FLAGS = ("tie_word_embeddings", "attention_bias", "mlp_bias", "use_sliding_window")
LISTS = ("layer_types", "mlp_only_layers")
ATTENTION = ("full_attention", "sliding_attention")


def need(field: str) -> Reader:
    """Return a reader of a field of `NAMES` that a config must have."""

    def read(config: Config) -> Any:
        for name in NAMES.get(field, (field,)):
            if name in config:
                return config[name]
        raise KeyError(field)

    return read


def found(field: str, default: Any) -> Reader:
    """Return a reader of a field of `NAMES` that a config may have."""
    names = NAMES.get(field, (field,))
    return lambda config: next((config[name] for name in names if name in config), default)


def four_wide(config: Config) -> int:
    """Return the inner width of an MLP, four times the width where a config has none."""
    return found("mlp_width", 4 * need("n_embd")(config))(config)


def heads_wide(config: Config) -> int:
    """Return the width of a head, an equal part of the width where a config has none."""
    return found("head_dim", need("n_embd")(config) // need("n_head")(config))(config)


def always(config: Config, layer: int) -> bool:
    """Say that every layer has a sliding window."""
    return True


def but_every(period: int) -> Callable[[Config, int], bool]:
    """Return whether a layer has a sliding window, as all have but each `period`-th."""
    return lambda config, layer: (layer + 1) % config.get("sliding_window_pattern", period) > 0


def from_layer(first: int) -> Callable[[Config, int], bool]:
    """Return whether a layer has a sliding window, as those have from `max_window_layers` on."""
    return lambda config, layer: layer >= config.get("max_window_layers", first)


def windows(has: Callable[[Config, int], bool], switch: bool = False) -> dict[str, Any]:
    """Return a family's sliding window and the number of layers with one.

    A config's `layer_types` come before `has`.

    Args:
        has: Whether a layer has a window, by the config and its number from 0.
        switch: Whether windows are off without `use_sliding_window`.
    """

    def size(config: Config) -> int:
        if switch and not config.get("use_sliding_window", False):
            return 0
        return found("window", 0)(config)

    def count(config: Config) -> int:
        layers, kinds = need("n_layer")(config), config.get("layer_types")
        if not size(config):
            return 0
        if kinds is not None:
            return layers - kinds.count("full_attention")
        return sum(has(config, layer) for layer in range(layers))

    return {"window": size, "n_window": count}


def dense_layers(first: int) -> dict[str, Any]:
    """Return the number of layers with a dense MLP in a family whose first layers have one.

    A config has a list of these layers, their number, or a period of layers with experts.
    """

    def count(config: Config) -> int:
        step, dense = config.get("decoder_sparse_step", 1), config.get("mlp_only_layers", [])
        start = found("n_dense", first)(config)
        layers = range(need("n_layer")(config))
        return sum(n < start or n in dense or (n + 1) % step > 0 for n in layers)

    return {"n_dense": count}


def attention_bias(default: bool) -> dict[str, Any]:
    """Return the biases of a family that has one flag for all of attention."""
    one = found("attention_bias", default)
    return {"qkv_bias": one, "out_bias": one}


# What every family has, unless its own line says otherwise.
COMMON: dict[str, Any] = {
    "n_layer": need("n_layer"),
    "n_embd": need("n_embd"),
    "n_head": need("n_head"),
    "n_kv_head": lambda config: found("n_kv_head", need("n_head")(config))(config),
    "head_dim": heads_wide,
    "vocab_size": need("vocab_size"),
    "block_size": need("block_size"),
    "mlp_width": need("mlp_width"),
    "tied": found("tie_word_embeddings", False),
}
TIED = {"tied": found("tie_word_embeddings", True)}
BIASED = {"qkv_bias": True, "out_bias": True, "mlp_bias": True}
NORMED = attention_bias(False) | {"qk_norm": "head"}
WINDOWED = windows(always)
# Experts as wide as `intermediate_size`, and experts with a width of their own
MIXTRAL = {
    "n_expert": need("n_expert"),
    "n_active": need("n_active"),
    "expert_width": need("mlp_width"),
}
EXPERTS = MIXTRAL | {"expert_width": need("expert_width")} | dense_layers(0)
DEEPSEEK = EXPERTS | {
    "head_dim": need("qk_nope_head_dim"),
    "q_rank": need("q_lora_rank"),
    "kv_rank": need("kv_lora_rank"),
    "rope_dim": need("qk_rope_head_dim"),
    "v_dim": need("v_head_dim"),
    "n_shared": found("n_shared", 0),
    "n_group": found("topk_group", 0),
}

# By the model_type of a config.json. Each line is checked against transformers.
FAMILIES: dict[str, dict[str, Any]] = {
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK | dense_layers(3),
    "gemma3_text": TIED
    | NORMED
    | windows(but_every(6))
    | {
        "block_norms": 4,
        "n_head": found("n_head", 8),
        "n_kv_head": found("n_kv_head", 4),
        "head_dim": found("head_dim", 256),
        "vocab_size": found("vocab_size", 262_208),
        "block_size": found("block_size", 131_072),
    },
    "gpt2": TIED
    | BIASED
    | {"norm_bias": True, "gated": False, "positions": True, "mlp_width": four_wide},
    "gpt_oss": MIXTRAL | BIASED | windows(but_every(2)) | {"router_bias": True, "sinks": True},
    "llama": attention_bias(False) | {"mlp_bias": found("mlp_bias", False)},
    "mistral": WINDOWED,
    "mixtral": MIXTRAL | WINDOWED,
    "olmo2": attention_bias(False) | {"qk_norm": "full"},
    "phi3": WINDOWED,
    "qwen2": {"qkv_bias": True} | windows(from_layer(28), switch=True),
    "qwen3": NORMED | {"head_dim": found("head_dim", 128)} | windows(from_layer(28), switch=True),
    "qwen3_moe": EXPERTS | NORMED | windows(always, switch=True),
}


def from_hugging_face(raw: Any, where: object = "config.json") -> Architecture:
    """Read the shape from the content of a Hugging Face config.json.

    The shape of a model of images and text is that of its `text_config`.

    Raises:
        UserError: If the model type isn't supported, a field is missing, or a value is none that a
            model can have.
    """
    if not isinstance(raw, Mapping):
        raise UserError(f"{where}: {reprlib.repr(raw)} is no config.json; an object expected")
    kind = raw.get("model_type")
    if kind not in [*FAMILIES] and "text_config" in raw:
        inner = raw["text_config"]
        if not isinstance(inner, Mapping):
            raise UserError(f"{where}: text_config is {reprlib.repr(inner)}; an object expected")
        return from_hugging_face(inner, f"{where}, text_config")
    if kind not in [*FAMILIES]:
        if f"{kind!s:.60}_text" in FAMILIES:
            raise UserError(f"{where}: text_config is missing, which model_type {kind!r} has")
        shown = f"model_type {reprlib.repr(kind)} is unknown"
        raise UserError(f"{where}: {shown}; {described(raw)}")
    try:
        config = checked(raw)
        lines = (COMMON | FAMILIES[kind]).items()
        return Architecture(**{k: read(config) if callable(read) else read for k, read in lines})
    except KeyError as error:
        names = NAMES.get(error.args[0], error.args)
        null = next((f"{name} is None" for name in names if name in raw), "")
        missing = f"{' or '.join(names)} is missing"
        low, high = RANGES[names[0]]
        expected = f"a whole number from {low} to {high} expected"
        raise UserError(f"{where}: {null or missing}; {expected}") from None
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def described(raw: Config) -> str:
    """Return which flags describe a shape, with the values that a config.json of any type has."""
    shown = []
    for field in SHAPE:
        names = NAMES[field]
        if field == "mlp_width":
            names = (*NAMES["expert_width"], *names)  # in a model with experts, it is theirs
        values = (raw[name] for name in names if fits(name, raw.get(name)))
        if value := next(values, "N" if field in ("n_layer", "n_embd") else ""):
            shown.append(f"--{field.replace('_', '-')} {value}")
    return f"if each layer has attention and an MLP or experts, describe it by {' '.join(shown)}"


def fits(name: str, value: Any) -> bool:
    """Return whether a value of a config.json is a whole number in the range of its name."""
    low, high = RANGES[name]
    return type(value) is int and low <= value <= high


def checked(raw: Config) -> dict[str, Any]:
    """Return the fields of a config.json without nulls, which mean a default.

    Raises:
        UserError: If a value has the wrong type or is out of range, or two contradict each other.
    """
    config = {k: v for k, v in raw.items() if v is not None}
    if "q_lora_rank" in raw and raw["q_lora_rank"] is None:
        config["q_lora_rank"] = 0  # queries have full rank
    for name in (name for name in config if name in RANGES):
        value, (low, high) = config[name], RANGES[name]
        if not fits(name, value) and (name, value) != ("q_lora_rank", 0):
            shown = reprlib.repr(value)
            raise UserError(f"{name} is {shown}; a whole number from {low} to {high} expected")
    for name in FLAGS:
        if type(value := config.get(name, False)) is not bool:
            raise UserError(f"{name} is {reprlib.repr(value)}; true or false expected")
    check_layers(config)
    check_sizes(config)
    return config


def check_layers(config: Config) -> None:
    """Raise `UserError` unless the lists of a config have a known kind for each layer."""
    layers = found("n_layer", 0)(config)
    for name in LISTS:
        value = config.get(name, [])
        if not isinstance(value, list):
            raise UserError(f"{name} is {reprlib.repr(value)}; a list expected")
    kinds = config.get("layer_types", [])
    if kinds and len(kinds) != layers:
        expected = f"one for each of {layers} layers expected"
        raise UserError(f"layer_types has {len(kinds)} entries; {expected}")
    for one in kinds:
        if one not in ATTENTION:
            shown = f"layer_types has {reprlib.repr(one)}; {', '.join(ATTENTION)} expected"
            raise UserError(f"{shown}; {described(config)}")


def check_sizes(config: Config) -> None:
    """Raise `UserError` if one number of a config doesn't divide or exceeds another."""

    def both(small: str, large: str) -> tuple[str, str] | None:
        names = [next((n for n in NAMES[field] if n in config), "") for field in (small, large)]
        return (names[0], names[1]) if all(names) else None

    divisors = [both("n_kv_head", "n_head")]
    if "head_dim" not in config and "kv_lora_rank" not in config:
        divisors.insert(0, both("n_head", "n_embd"))
    for pair in filter(None, divisors):
        small, large = pair
        if config[large] % config[small]:
            raise UserError(f"{small} {config[small]} doesn't divide {large} {config[large]}")
    for pair in filter(None, (both("n_active", "n_expert"), both("n_dense", "n_layer"))):
        small, large = pair
        if config[small] > config[large]:
            raise UserError(f"{small} {config[small]} is more than {large} {config[large]}")
    for flag, beside in (
        ("attention_bias", "kv_lora_rank"),
        ("mlp_bias", "moe_intermediate_size"),
    ):  # no published model has these biases, and families place them differently
        if config.get(flag) and beside in config:
            raise UserError(f"{flag} is True; false expected with {beside}")


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
    """Return a published model, or the model of a config.json or of the folder with it.

    Raises:
        UserError: If there is no such model, or config.json isn't that of a supported model.
    """
    path = Path(name)
    if path.is_dir() and name:
        path = path / "config.json"
    if path.is_file():
        shape = from_hugging_face(read_json(path), path)
        return Published(name, str(path), shape, count_parameters(shape))
    listed = models()
    wanted = name.lower().replace("_", "-")
    if wanted not in listed:
        if path.parent.is_dir() and path.name == "config.json":
            raise UserError(f"{path} is missing; a folder with a config.json expected")
        names = ", ".join(listed)
        raise UserError(f"model {name!r:.60} is unknown; one of {names} expected")
    return listed[wanted]


def chosen(wanted: Shape, seq: int) -> Published | None:
    """Return the model that a command names or describes, or None without any.

    A described model has a Llama's blocks, or a Mixtral's with experts.

    Args:
        wanted: The options.
        seq: Tokens in a sequence, which a described model's context has at least.

    Raises:
        UserError: If the model is unknown, or if it is both named and described.
    """
    flags = {name: value for name, value in asdict(wanted).items() if name in SHAPE}
    flags = {name: value for name, value in flags.items() if value is not None}
    if not flags:
        return model(wanted.model) if wanted.model else None
    if wanted.model != type(wanted).model:
        both = f"model is {wanted.model} and {next(iter(flags))} is {next(iter(flags.values()))}"
        raise UserError(f"{both}; give a model or its shape")
    for name in ("n_layer", "n_embd", *(("n_expert", "n_active") if flags.keys() & SPARSE else ())):
        if name not in flags:
            need_both = "n_expert and n_active" if name in SPARSE else "n_layer and n_embd"
            raise UserError(f"{name} is missing; this shape needs {need_both}")
    width = flags["n_embd"]
    usual = {
        "n_head": max(1, width // 128),
        "mlp_width": -(-8 * width // 3 // 256) * 256,  # as Llama: 8/3, in multiples of 256
        "vocab_size": 128_256,
        "block_size": min(max(8192, seq), MOST),
    }
    kind = "mixtral" if "n_expert" in flags else "llama"
    shape = from_hugging_face({"model_type": kind} | flags | usual | flags, "shape")
    title = f"Decoder of {shape.n_layer} layers, {shape.n_embd:,} wide"
    source = f"your flags, and {kind.title()}'s blocks: RMSNorm, SwiGLU, no biases, untied output"
    return Published(title, source, shape, count_parameters(shape))
