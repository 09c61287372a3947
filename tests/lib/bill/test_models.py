"""The counts of today's models equal published ones, transformers' models and PyTorch's counter."""

import itertools
import json
import re
from dataclasses import replace

import pytest
import torch
import transformers
from families import SMALL
from torch.utils.flop_counter import FlopCounterMode
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from cs336_lib import accounting
from cs336_lib.bill import memory, models
from cs336_lib.config import EstimateConfig, GPTConfig, SimulateConfig, UserError
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
    if name.startswith("llama4"):  # transformers computes all of its experts
        shape = replace(shape, n_active=shape.n_expert)
    assert counted == 2 * seq * accounting.forward_flops_per_token(shape, seq)


# gpt-sw3 is a GPT-2, and transformers can't build the default config of the other.
UNKNOWN = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES) - set(models.FAMILIES)
UNKNOWN -= {"gpt-sw3", "gemma4_assistant"}


@pytest.mark.parametrize("kind", sorted(UNKNOWN))
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
        match=r"'new' is .* by --n-layer 3 --n-embd 64 --n-head 4 --mlp-width 40 --n-expert 8$",
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


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ([], r"\[\] is no config.json; an object expected"),
        ("llama", "'llama' is no config.json; an object expected"),
        ({"model_type": ["llama"]}, r"model_type \['llama'\] is unknown"),
        ({"model_type": "gemma3"}, "text_config is missing, which model_type 'gemma3' has"),
        ({"model_type": "gemma3", "text_config": 3}, "text_config is 3; an object expected"),
        (
            {"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}},
            "num_hidden_layers or .* is missing; a whole number from 1",
        ),
        (LLAMA | {"layer_types": 3}, "layer_types is 3; a list expected"),
        (
            LLAMA | {"layer_types": ["full_attention"]},
            "layer_types has 1 entries; one for each of 3",
        ),
        (
            LLAMA | {"layer_types": ["linear_attention"] * 3},
            "layer_types has 'linear_attention'; .* by --n-layer 3 --n-embd 64 --n-head 4",
        ),
        (LLAMA | {"model_type": "opt", "word_embed_proj_dim": 9}, "word_embed_proj_dim is 9; the"),
        (
            SMALL["qwen2_moe-0"] | {"shared_expert_intermediate_size": 41},
            "the shared expert's width is 41; a multiple of 40 expected",
        ),
        (
            SMALL["deepseek_v3-0"] | {"attention_bias": True},
            "attention_bias is True; false expected",
        ),
        (SMALL["hy_v3-0"] | {"mlp_bias": True}, "mlp_bias is True; false expected with moe_inter"),
        (SMALL["bloom-0"] | {"n_head": 7}, "n_head 7 doesn't divide hidden_size 64"),
    ],
)
def test_a_config_that_no_model_has_is_one_line(raw, message):
    with pytest.raises(UserError, match=rf"^config\.json(, text_config)?: {message}"):
        models.from_hugging_face(raw)


def test_gemma3_has_the_defaults_that_its_published_configs_leave_out():
    inner = {"model_type": "gemma3_text", "hidden_size": 256, "intermediate_size": 512}
    inner |= {"num_hidden_layers": 7, "sliding_window": 1024}
    shape = models.from_hugging_face({"model_type": "gemma3", "text_config": inner})
    model = built(inner, "meta")
    assert sum(p.numel() for p in model.parameters()) == accounting.count_parameters(shape)
    assert (shape.window, shape.n_window, shape.n_kv_head) == (1024, 6, 4)


def test_a_model_is_a_name_a_folder_or_a_file(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA))
    other = tmp_path / "mine.json"
    other.write_bytes(path.read_bytes())
    expected = models.from_hugging_face(LLAMA)
    assert {models.model(str(p)).architecture for p in (tmp_path, path, other)} == {expected}
    path.unlink()
    with pytest.raises(UserError, match=r"config\.json is missing; a folder with a config.json"):
        models.model(str(tmp_path))


SHAPE = {"n_layer": 32, "n_embd": 4096}


@pytest.mark.parametrize(
    ("flags", "same"),
    [
        (
            {"n_layer": 32, "n_embd": 4096, "n_kv_head": 8, "mlp_width": 14336},
            "llama3-8b",
        ),
        (
            {
                "n_layer": 32,
                "n_embd": 4096,
                "n_kv_head": 8,
                "mlp_width": 14336,
                "vocab_size": 32000,
                "n_expert": 8,
                "n_active": 2,
            },
            "mixtral-8x7b",
        ),
    ],
)
def test_flags_describe_a_published_model(flags, same):
    described = models.chosen(EstimateConfig(**flags), 0)
    published = models.model(same).architecture
    usual = replace(described.architecture, block_size=published.block_size)
    assert usual == published
    assert described.parameters == models.model(same).parameters


def test_flags_have_the_usual_shape_of_a_llama():
    shape = models.chosen(SimulateConfig(n_layer=4, n_embd=5120), 30000).architecture
    assert (shape.n_head, shape.n_kv_head, shape.head_dim) == (40, 40, 128)
    assert (shape.mlp_width, shape.vocab_size, shape.block_size) == (13824, 128256, 30000)
    assert models.chosen(SimulateConfig(), 0) == models.model("llama3-8b")
    assert models.chosen(EstimateConfig(), 0) is None


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"n_layer": 32}, "n_embd is missing; this shape needs n_layer and n_embd"),
        ({"n_head": 32}, "n_layer is missing; this shape needs n_layer and n_embd"),
        (SHAPE | {"n_expert": 8}, "n_active is missing; this shape needs n_expert and n_active"),
        (SHAPE | {"n_active": 2}, "n_expert is missing; this shape needs n_expert and n_active"),
        (SHAPE | {"n_embd": -1}, "shape: n_embd is -1; a whole number from 1"),
        (SHAPE | {"n_embd": 1000}, "shape: n_head 7 doesn't divide n_embd 1000"),
        (SHAPE | {"n_head": 0}, "shape: n_head is 0; a whole number from 1"),
        (SHAPE | {"n_kv_head": 5}, "shape: n_kv_head 5 doesn't divide n_head 32"),
        (SHAPE | {"model": "gpt2"}, "model is gpt2 and n_layer is 32; give a model or its shape"),
        (SHAPE | {"params": 1e9}, r"params is 1000000000\.0 and a shape is given; give one"),
    ],
)
def test_bad_shapes_are_one_line(flags, message):
    from cs336_lib.bill.text import estimate

    with pytest.raises(UserError, match=f"^{message}"):
        estimate(**flags)


@pytest.mark.parametrize("layout", [{}, {"tp": 2}])
def test_the_convention_of_mfu_is_named(layout):
    from cs336_lib.bill.text import simulation

    palm, causal = (
        simulation(gpus=8, seq=8192, convention=convention, **layout)
        for convention in ("palm", "causal")
    )
    shape = models.model("llama3-8b").architecture
    ratio = accounting.train_flops_per_token(shape, 8192, "causal")
    ratio /= accounting.train_flops_per_token(shape, 8192)
    first, second = (float(re.search(r"([\d.]+)%", said)[1]) for said in (palm, causal))
    assert second == pytest.approx(first * ratio, abs=0.11)
    assert "MFU (as in PaLM" in palm or "MFU as in PaLM" in palm
    assert "MFU (causal: keys that the mask lets through)" in causal or "; MFU causal" in causal


def test_bad_configs_are_one_line():
    with pytest.raises(ValueError, match="model 'gpt-5' is unknown; one of gpt2, gpt2-medium"):
        models.model("gpt-5")
    with pytest.raises(ValueError, match=r"mine: model_type 'mamba' is unknown; if .*--n-layer N"):
        models.from_hugging_face({"model_type": "mamba"}, "mine")
    with pytest.raises(ValueError, match=r"config\.json: hidden_size or .* is missing"):
        models.from_hugging_face(
            {"model_type": "llama", "num_attention_heads": 4, "num_hidden_layers": 1}
        )
