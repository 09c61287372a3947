"""The counts of today's models equal published ones, transformers' models and PyTorch's counter."""

import itertools
import json
import re

import pytest
import torch
import transformers
from families import SMALL
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cs336_lib import accounting
from cs336_lib.bill import memory, models
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import DATA

CONFIGS = {
    n: entry["config"] for n, entry in json.loads((DATA / "models.json").read_text()).items()
}
SHRUNK = {  # a small model of each family: enough of everything to tell the parts apart
    "gpt2": {"n_layer": 3, "n_embd": 64, "n_head": 4, "vocab_size": 257, "n_positions": 64},
    **{
        name: {
            "hidden_size": 64,
            "num_hidden_layers": 3,
            "num_attention_heads": 4,
            "num_key_value_heads": 4 if name == "deepseek-v3" else 2,
            "intermediate_size": 48,
            "vocab_size": 257,
            "max_position_embeddings": 64,
            **more,
        }
        for name, more in {
            "llama3-8b": {},
            "qwen3-8b": {"head_dim": 24},
            "qwen3-30b-a3b": {
                "head_dim": 24,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
            },
            "mixtral-8x7b": {"num_local_experts": 6},
            "deepseek-v3": {
                "q_lora_rank": 24,
                "kv_lora_rank": 16,
                "qk_nope_head_dim": 12,
                "qk_rope_head_dim": 8,
                "v_head_dim": 20,
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "first_k_dense_replace": 1,
                "n_group": 2,
                "topk_group": 1,
            },
            "olmo2-7b": {},
            "gpt-oss-20b": {"head_dim": 24, "num_local_experts": 6, "sliding_window": 5},
        }.items()
    },
}


def built(config: dict, device: str) -> torch.nn.Module:
    """Build transformers' model of a config.json."""
    made = transformers.AutoConfig.for_model(**config)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(made)


def small(name: str) -> dict:
    """Return the config of a small model of this family."""
    return CONFIGS[name] | SHRUNK[name]


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_equal_the_published_number(name):
    published = models.model(name)
    assert accounting.count_parameters(published.architecture) == published.parameters


@pytest.mark.parametrize("name", CONFIGS)
def test_parameters_equal_those_of_transformers(name):
    model = built(CONFIGS[name], "meta")
    assert sum(p.numel() for p in model.parameters()) == models.model(name).parameters


@pytest.mark.parametrize("name", SHRUNK)
def test_parameters_of_a_small_model_equal_those_of_transformers(name):
    model = built(small(name), "meta")
    shape = models.from_hugging_face(small(name))
    assert sum(p.numel() for p in model.parameters()) == accounting.count_parameters(shape)


def test_every_family_has_a_small_config():
    assert {config["model_type"] for config in SMALL.values()} == set(models.FAMILIES)


@pytest.mark.parametrize("name", SMALL)
def test_parameters_of_every_family_equal_those_of_transformers(name):
    model = built(SMALL[name], "meta")
    shape = models.from_hugging_face(SMALL[name])
    assert sum(p.numel() for p in model.parameters()) == accounting.count_parameters(shape)


# Transformers can't build the default configs of these.
NO_DEFAULT = {"dots1", "hunyuan_v1_dense", "hunyuan_v1_moe", "ministral", "nemotron"}
# These have defaults that no model has: no active experts, and heads that don't divide the width.
ODD_DEFAULT = {"deepseek_v2", "glm4_moe"}


@pytest.mark.parametrize("kind", sorted(models.FAMILIES.keys() - NO_DEFAULT - ODD_DEFAULT))
def test_parameters_of_a_default_config_equal_those_of_transformers(kind):
    config = transformers.AutoConfig.for_model(kind)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    shape = models.from_hugging_face(config.to_dict())
    assert sum(p.numel() for p in model.parameters()) == accounting.count_parameters(shape)


@pytest.mark.parametrize("name", SMALL)
def test_windows_of_every_family_are_those_of_transformers(name):
    config = transformers.AutoConfig.for_model(**SMALL[name])
    kinds = getattr(config, "attention_layers", None) or getattr(config, "layer_types", None)
    shape = models.from_hugging_face(SMALL[name])
    if kinds is not None:
        assert shape.n_window == sum(kind not in ("full_attention", "global") for kind in kinds)
    elif getattr(config, "sliding_window", None):
        assert shape.n_window == shape.n_layer
    else:
        assert shape.n_window == 0
    assert shape.window in (0, SMALL[name].get("window_size", 5))


@pytest.mark.parametrize("name", SMALL)
def test_forward_flops_of_every_family_equal_pytorchs_counter(name):
    model, seq = built(SMALL[name], "cpu").eval(), 16
    model.config._attn_implementation = model.config._experts_implementation = "eager"
    with torch.no_grad(), FlopCounterMode(display=False, depth=9) as counter:
        model(torch.arange(2 * seq).view(2, seq), use_cache=False)
    rope = sum(n for m, c in counter.flop_counts.items() if "rotary_emb" in m for n in c.values())
    counted = counter.get_total_flops() - rope
    shape = models.from_hugging_face(SMALL[name])
    assert counted == 2 * seq * accounting.forward_flops_per_token(shape, seq)


UNKNOWN = sorted(set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(models.FAMILIES))


@pytest.mark.parametrize("kind", UNKNOWN)
def test_another_family_is_refused_with_the_flags_of_a_shape(kind):
    config = transformers.AutoConfig.for_model(kind).to_dict()
    try:
        models.from_hugging_face(config)
    except ValueError as error:
        said = str(error)
    else:
        assert config["text_config"]["model_type"] in models.FAMILIES
        return
    assert re.fullmatch(r"config\.json(, text_config)?: .* describe it by --n-layer .*", said), said
    assert len(said) < 300, said


def test_the_flags_have_the_values_of_the_file():
    raw = {"model_type": "new", "num_hidden_layers": 3, "d_model": 64, "n_heads": 4}
    raw |= {
        "num_experts": 8,
        "moe_intermediate_size": 40,
        "intermediate_size": 99,
        "vocab_size": [],
    }
    with pytest.raises(
        ValueError,
        match="'new' is unknown; .* --n-layer 3 --n-embd 64 --n-head 4 --mlp-width 40 --n-expert 8$",
    ):
        models.from_hugging_face(raw)


@pytest.mark.parametrize(
    ("name", "without_embedding"),
    [
        ("qwen3-30b-a3b", False),
        ("mixtral-8x7b", False),
        ("gpt-oss-120b", True),
        ("gpt-oss-20b", True),
    ],
)
def test_active_parameters_are_as_stated(name, without_embedding):
    published = models.model(name)
    count = accounting.active_parameters(published.architecture)
    if without_embedding:  # as gpt-oss's model card counts
        count -= accounting.parameter_counts(published.architecture)["wte"]
    stated = published.active.rstrip("B")
    digits = len(stated.partition(".")[2])
    assert f"{count / 1e9:.{digits}f}" == {"3.3": "3.4"}.get(stated, stated)


def test_our_gpt2_has_the_published_shape():
    assert accounting.architecture_of(GPTConfig()) == models.model("gpt2").architecture


@pytest.mark.parametrize("name", SHRUNK)
def test_forward_flops_equal_pytorchs_counter(name):
    model, seq = built(small(name), "cpu").eval(), 16
    model.config._attn_implementation = model.config._experts_implementation = "eager"
    ids = torch.arange(2 * seq).view(2, seq)
    with torch.no_grad(), FlopCounterMode(display=False, depth=9) as counter:
        model(ids, use_cache=False)
    rope = sum(
        n for m, c in counter.flop_counts.items() if m.endswith("rotary_emb") for n in c.values()
    )
    shape = models.from_hugging_face(small(name))
    counted = counter.get_total_flops() - rope  # angles of the rotation, which are a constant
    assert counted == 2 * seq * accounting.forward_flops_per_token(shape, seq)


@pytest.mark.parametrize(("seq", "window"), [(1, 0), (7, 0), (7, 3), (7, 7), (7, 9), (64, 5)])
def test_keys_per_query_counts_a_mask(seq, window):
    rows, columns = torch.arange(seq)[:, None], torch.arange(seq)
    mask = (columns <= rows) & (columns > rows - (window or seq))
    assert accounting.keys_per_query(seq, window) == pytest.approx(
        mask.sum().item() / seq, rel=1e-12
    )


def test_the_window_of_gpt_oss_is_that_of_transformers():
    config = transformers.AutoConfig.for_model(**CONFIGS["gpt-oss-120b"])
    sliding = sum(kind == "sliding_attention" for kind in config.layer_types)
    assert models.model("gpt-oss-120b").architecture.n_window == sliding == 18


# DeepSeek-AI 2025, "Insights into DeepSeek-V3", tables 1 and 2 (arXiv 2505.09343)
@pytest.mark.parametrize(
    ("name", "kilobytes", "gflops"), [("deepseek-v3", 70.272, 250), ("llama3-405b", 516.096, 2448)]
)
def test_cache_and_training_flops_are_as_published(name, kilobytes, gflops):
    shape = models.model(name).architecture
    assert accounting.kv_cache_bytes(shape, context=1) == pytest.approx(1000 * kilobytes, rel=1e-9)
    ours = accounting.train_flops_per_token(shape, 4096, "causal") / 1e9
    assert ours == pytest.approx(gflops, rel=0.02)


@pytest.mark.parametrize("name", [name for name in SHRUNK if name != "deepseek-v3"])
def test_the_cache_is_as_large_as_that_of_transformers(name):
    model, seq = built(small(name), "cpu").eval(), 11
    with torch.no_grad():
        cache = model(torch.arange(seq)[None], use_cache=True).past_key_values
    size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    shape = models.from_hugging_face(small(name))
    kept = accounting.kv_cache_bytes(shape, seq, 4)
    if shape.window:  # transformers keeps one token less, as the next one comes
        kept -= 4 * 2 * shape.n_kv_head * shape.head_dim * shape.n_window
    assert size == kept


def test_decoding_the_last_token_costs_what_a_forward_pass_does_for_it():
    shape, seq = models.model("gpt-oss-20b").architecture, 500
    tokens = [accounting.decode_flops(shape, context) for context in range(1, seq + 1)]
    assert sum(tokens) == pytest.approx(
        seq * accounting.forward_flops_per_token(shape, seq, "causal"), rel=1e-12
    )


LLAMA = {"model_type": "llama"} | SHRUNK["llama3-8b"]


@pytest.mark.parametrize(
    ("name", "nulls"),
    [
        ("llama3-8b", ("num_key_value_heads", "head_dim", "attention_bias", "mlp_bias")),
        ("olmo2-7b", ("num_key_value_heads",)),
        ("deepseek-v3", ("q_lora_rank",)),
        ("gpt2", ("n_inner",)),
    ],
)
def test_null_is_what_transformers_takes_it_for(name, nulls):
    config = small(name) | dict.fromkeys(nulls)
    model = built({k: v for k, v in config.items() if v is not None or k == "q_lora_rank"}, "meta")
    shape = models.from_hugging_face(config)
    assert sum(p.numel() for p in model.parameters()) == accounting.count_parameters(shape)
    for recompute in ("none", "selective", "full"):
        assert sum(memory.peak(shape, recompute=recompute).values()) > 0


def test_full_queries_of_mla_are_one_matrix():
    config = small("deepseek-v3") | {"q_lora_rank": None}
    model, seq = built(config, "cpu").eval(), 16
    model.config._attn_implementation = model.config._experts_implementation = "eager"
    with torch.no_grad(), FlopCounterMode(display=False, depth=9) as counter:
        model(torch.arange(2 * seq).view(2, seq), use_cache=False)
    rope = sum(
        n for m, c in counter.flop_counts.items() if m.endswith("rotary_emb") for n in c.values()
    )
    shape = models.from_hugging_face(config)
    counted = counter.get_total_flops() - rope
    assert counted == 2 * seq * accounting.forward_flops_per_token(shape, seq)
    part = memory.attention_part(shape, accounting.PRECISIONS["mixed"], "flash", seq)
    assert part.outputs[0] > 0


def test_the_inner_width_of_a_gpt2_may_be_another():
    config = small("gpt2") | {"n_inner": 100}
    model = built(config, "meta")
    shape = models.from_hugging_face(config)
    assert sum(p.numel() for p in model.parameters()) == accounting.count_parameters(shape)


ODD = [0, -1, 1, 1.5, "768", None, True, [], {}, 10**30, 10**400, float("nan"), float("inf"), ""]


@pytest.mark.parametrize("name", SHRUNK)
def test_an_odd_value_in_a_config_is_counted_or_one_line(name, tmp_path):
    from cs336_lib.bill.text import estimate

    path = tmp_path / "config.json"
    for key, value in itertools.product(small(name), ODD):
        config = small(name) | {key: value}
        path.write_text(json.dumps(config))
        try:
            shape = models.from_hugging_face(config)
        except ValueError as error:
            said = str(error)
        else:
            assert 0 < accounting.active_parameters(shape) <= accounting.count_parameters(shape)
            assert f"{accounting.count_parameters(shape):,} param" in estimate(
                model=str(tmp_path), seq=1
            )
            continue
        assert said.startswith("config.json: "), (key, value, said)
        assert key in said, (key, value, said)
        assert said.isprintable(), (key, value, said)
        assert len(said) < 300, (key, value, said)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"num_attention_heads": 0}, "num_attention_heads is 0; a whole number from 1"),
        ({"hidden_size": "wide"}, "hidden_size is 'wide'; a whole number from 1"),
        ({"hidden_size": -1}, "hidden_size is -1; a whole number from 1"),
        ({"hidden_size": None}, "hidden_size is None; a whole number from 1"),
        ({"num_attention_heads": 9, "hidden_size": 8}, "num_attention_heads 9 .* hidden_size 8"),
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 doesn't divide num_attention_heads 4"),
        ({"tie_word_embeddings": "no"}, "tie_word_embeddings is 'no'; true or false expected"),
    ],
)
def test_a_bad_field_is_named_as_in_the_file(changed, message):
    with pytest.raises(ValueError, match=rf"^config\.json: {message}"):
        models.from_hugging_face(LLAMA | changed)


def test_bad_configs_are_one_line():
    with pytest.raises(ValueError, match="model 'gpt-5' is unknown; one of gpt2, gpt2-medium"):
        models.model("gpt-5")
    with pytest.raises(ValueError, match="mine: model_type 'mamba' is unknown; if .*--n-layer N"):
        models.from_hugging_face({"model_type": "mamba"}, "mine")
    with pytest.raises(ValueError, match=r"config\.json: hidden_size or .* is missing"):
        models.from_hugging_face(
            {"model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 1}
        )
