"""Read the shape of published models by their name, or of a config.json."""

import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

from cs336_lib.accounting import Architecture, count_parameters
from cs336_lib.config import Shape, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.formatting import short
from cs336_lib.io import read_json

Kind = TypeVar("Kind")


@dataclass(frozen=True)
class Published:
    """A model with its title and the source of its config and of its number of parameters."""

    title: str
    source: str
    architecture: Architecture
    parameters: int


TABLES = read_json(DATA / "families.json")
# The names of a number in a config.json, by the field of `Architecture`. Families differ.
NAMES: dict[str, list[str]] = TABLES["names"]
# What a family has, by the model_type of a config.json. Each is checked against transformers.
FAMILIES: dict[str, dict[str, Any]] = TABLES["families"]
# Which families have a flag for biases, latent attention (MLA), sliding windows, and experts, which
# are as wide as `intermediate_size` or have a width of their own
READS: dict[str, list[str]] = TABLES["reads"]
# What a config.json of a family means where it says nothing
DEFAULTS: dict[str, dict[str, Any]] = TABLES["defaults"]
SHAPE = tuple(field.name for field in fields(Shape) if field.name != "model")
MANY, MOST = 10**6, 10**9
ATTENTION = ("full_attention", "sliding_attention")
# Starts of names in a config.json whose layers don't have attention and MLPs only
OTHER_LAYERS = ("mamba", "ssm", "state_size", "d_state", "linear_", "is_encoder_decoder")


class Config:
    """A config.json whose values are checked as they are read. A null means the default."""

    def __init__(self, raw: Mapping[str, Any]):
        self.kind = raw["model_type"]
        given = {name: value for name, value in raw.items() if value is not None}
        self.values = DEFAULTS.get(self.kind, {}) | given

    def reads(self, what: str) -> bool:
        """Whether this family has something of `READS`."""
        return self.kind in READS[what]

    def number(self, field: str, default: int | None = None, low: int = 1, high: int = MANY) -> int:
        """Return the whole number of a field of `NAMES`, or of this name.

        Raises:
            UserError: If it's none or out of range, or missing without a default.
        """
        names = NAMES.get(field, (field,))
        there = [name for name in names if name in self.values]
        if not there and default is not None:
            return default
        value = self.values[there[0]] if there else None
        if type(value) is not int or not low <= value <= high:
            missing = f"{' or '.join(names)} is missing"
            told = f"{there[0]} is {reprlib.repr(value)}" if there else missing
            raise UserError(f"{told}; a whole number from {low} to {high} expected")
        return value

    def typed(self, name: str, default: Kind) -> Kind:
        """Return a flag or a list, or the default where it is missing."""
        value = self.values.get(name, default)
        if type(value) is not type(default):
            expected = "a list" if default == [] else "true or false"
            raise UserError(f"{name} is {reprlib.repr(value)}; {expected} expected")
        return value


def architecture(config: Config) -> Architecture:
    """Return the shape that a config.json of a known family has.

    Raises:
        UserError: If a field is missing, or a value is none that a model can have.
    """
    kind, number = config.kind, config.number
    layers, width, heads = number("n_layer"), number("n_embd"), number("n_head")
    shape = FAMILIES[kind] | {
        "n_layer": layers,
        "n_embd": width,
        "n_head": heads,
        "n_kv_head": number("n_kv_head", heads),
        "head_dim": number("head_dim", width // heads),
        "vocab_size": number("vocab_size", high=MOST),
        "block_size": number("block_size", high=MOST),
        "mlp_width": number("mlp_width", 4 * width if kind == "gpt2" else None),
        "tied": config.typed("tie_word_embeddings", False),
    }
    bias = config.typed("attention_bias", False)
    if config.reads("bias"):
        shape |= {"qkv_bias": bias, "out_bias": bias}
    if kind == "llama":
        shape["mlp_bias"] = config.typed("mlp_bias", False)
    if config.reads("latent"):
        if bias:  # no published model has it, and families place it differently
            raise UserError("attention_bias is True; false expected with kv_lora_rank")
        shape |= {name: number(name) for name in ("kv_rank", "rope_dim", "v_dim")}
        shape |= {"q_rank": number("q_rank", 0), "head_dim": number("qk_nope_head_dim")}
        shape["n_shared"] = number("n_shared", 0, low=0)
    elif "head_dim" not in config.values and width % heads:
        raise UserError(f"n_head {heads} doesn't divide n_embd {width}")
    if heads % shape["n_kv_head"]:
        raise UserError(f"n_kv_head {shape['n_kv_head']} doesn't divide n_head {heads}")
    shape |= windows(config, layers)
    if config.reads("experts"):
        shape |= experts(config, layers)
    return Architecture(**shape)


def windows(config: Config, layers: int) -> dict[str, int]:
    """Return a family's sliding window and the number of layers with one.

    The families differ: all layers have a window, all but each n-th, or those from some layer on,
    unless a list has the kind of each.
    """
    kinds: list[Any] = config.typed("layer_types", [])
    if kinds and len(kinds) != layers:
        expected = f"one for each of {layers} layers expected"
        raise UserError(f"layer_types has {len(kinds)} entries; {expected}")
    for one in kinds:
        if one not in ATTENTION:
            shown = f"layer_types has {reprlib.repr(one)}, which we don't count"
            raise UserError(f"{shown}; {' or '.join(ATTENTION)} expected")
    unused = config.kind.startswith("qwen") and not config.typed("use_sliding_window", False)
    if not config.reads("window") or unused:
        return {}
    size = config.number("window", 0, low=0, high=MOST)
    if kinds:
        windowed = kinds.count("sliding_attention")
    elif config.kind in ("qwen2", "qwen3"):
        windowed = max(0, layers - config.number("max_window_layers", low=0))
    else:
        windowed = layers - layers // config.number("sliding_window_pattern", layers + 1)
    return {"window": size, "n_window": windowed} if size else {}


def experts(config: Config, layers: int) -> dict[str, int]:
    """Return the numbers of a family with experts, and of its layers without.

    A config has a list of these layers, their number, or a period of layers with experts.
    """
    dense: list[Any] = config.typed("mlp_only_layers", [])
    step, start = config.number("decoder_sparse_step", 1), config.number("n_dense", 0, low=0)
    count, active = config.number("n_expert"), config.number("n_active")
    if active > count:
        raise UserError(f"n_active {active} is more than n_expert {count}")
    return {
        "n_expert": count,
        "n_active": active,
        "expert_width": config.number(
            "mlp_width" if config.reads("wide_experts") else "expert_width"
        ),
        "n_dense": sum(n < start or n in dense or (n + 1) % step > 0 for n in range(layers)),
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
    if kind not in [*FAMILIES]:
        if "text_config" in raw:
            return from_hugging_face(raw["text_config"], f"{where}, text_config")
        if kind is None and "dim" in raw:
            return from_hugging_face(as_llama(raw), where)
        shown = f"model_type {reprlib.repr(kind)} is unknown"
        raise UserError(f"{where}: {shown}; {described(raw)}")
    try:
        return architecture(Config(raw))
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def as_llama(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the params.json of Meta's or Mistral's own code as a config.json.

    Meta's has no width of the MLP, but a rule (github.com/meta-llama/llama3, model.py).
    """
    experts = raw["moe"] if isinstance(raw.get("moe"), Mapping) else {}
    named = {"max_position_embeddings": 8192, **raw, **experts}
    factor, multiple = raw.get("ffn_dim_multiplier", 1), raw.get("multiple_of", 1)
    if "hidden_dim" not in raw and {type(raw["dim"]), type(multiple)} == {int}:
        width = int(float(factor) * int(8 * raw["dim"] / 3))
        named["hidden_dim"] = -(-width // max(1, multiple)) * multiple
    return {"model_type": "mixtral" if experts else "llama"} | named


def described(raw: Mapping[str, Any]) -> str:
    """Return which flags describe a shape, with the values that a config.json of any type has."""
    for name, value in raw.items():
        if value and name.startswith(OTHER_LAYERS):
            return f"its {name} tells of layers that we don't count, so no flags describe it"
    shown = []
    for field in SHAPE:
        names = NAMES[field]
        if field == "mlp_width":
            names = [*NAMES["expert_width"], *names]  # in a model with experts, it is theirs
        values = (raw[name] for name in names if type(raw.get(name)) is int)
        if value := next(values, "N" if field in ("n_layer", "n_embd") else ""):
            shown.append(f"--{field.replace('_', '-')} {value}")
    return f"if each layer has attention and an MLP or experts, describe it by {' '.join(shown)}"


def models() -> dict[str, Published]:
    """Return the published models of data/models.json by name, such as llama3-405b."""
    found = {}
    for name, entry in read_json(DATA / "models.json").items():
        shape = from_hugging_face(entry["config"], name)
        found[name] = Published(entry["title"], entry["source"], shape, entry["parameters"])
    return found


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
    wanted = name.lower().replace("_", "-").replace("llama-3", "llama3")
    if wanted not in listed:
        names = ", ".join(listed)
        raise UserError(f"model {name!r:.60} is unknown; one of {names} expected")
    return listed[wanted]


def chosen(wanted: Shape, seq: int) -> Published | None:
    """Return the model that a command names or describes, or None without any.

    A described model has a Llama's blocks, or a Mixtral's with experts, and a context of at least
    `seq` tokens.

    Raises:
        UserError: If the model is unknown, or if it is both named and described.
    """
    flags = {name: value for name, value in asdict(wanted).items() if name in SHAPE}
    flags = {name: value for name, value in flags.items() if value is not None}
    if not flags:
        return model(wanted.model) if wanted.model else None
    if wanted.model != type(wanted).model:
        shown = f"model is {wanted.model} and {next(iter(flags))} is given"
        raise UserError(f"{shown}; give a model or its shape")
    width = flags.get("n_embd", 0)
    usual = {
        "n_head": max(1, width // 128),
        "mlp_width": -(-8 * width // 3 // 256) * 256,  # as Llama: 8/3, in multiples of 256
        "vocab_size": 128_256,
        "block_size": min(max(8192, seq), MOST),
    }
    kind = "mixtral" if flags.keys() & {"n_expert", "n_active"} else "llama"
    shape = from_hugging_face({"model_type": kind} | flags | usual | flags, "shape")
    count = count_parameters(shape)
    ends = 2 * shape.vocab_size * width
    if "vocab_size" not in flags and ends > 0.05 * count:
        sizes = ", ".join(
            f"{short(count - ends + 2 * rows * width)} with {rows:,} ({name})"
            for name, rows in (("GPT-2", 50_257), ("Llama 2", 32_000), ("Llama 3", 128_256))
        )
        raise UserError(f"vocab_size is missing, and it matters: {sizes} parameters; give one")
    title = f"Decoder of {shape.n_layer} layers, {shape.n_embd:,} wide, {short(count)} parameters"
    source = f"your flags, and {kind.title()}'s blocks: RMSNorm, SwiGLU, no biases, untied output"
    return Published(title, source, shape, count)
