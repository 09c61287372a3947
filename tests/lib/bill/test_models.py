"""The counts of today's models equal published ones, transformers' models and PyTorch's counter."""

from dataclasses import replace

import pytest
import torch
import transformers
from families import SMALL
from torch.utils.flop_counter import FlopCounterMode

from cs336_lib import accounting
from cs336_lib.bill import models
from cs336_lib.config import EstimateConfig, GPTConfig, UserError
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json

CONFIGS = {name: entry["config"] for name, entry in read_json(DATA / "models.json").items()}
LLAMA = SMALL["llama-0"]
NO_DEFAULT = {"deepseek_v2"}  # the default config of transformers has no active experts


def built(config: dict, device: str = "meta") -> torch.nn.Module:
    """Build transformers' model of a config.json."""
    made = transformers.AutoConfig.for_model(**config)
    with torch.device(device):
        return transformers.AutoModelForCausalLM.from_config(made)


def numbers(model: torch.nn.Module) -> int:
    """Count a model's parameters."""
    return sum(p.numel() for p in model.parameters())


def check_windows(config: dict, shape: accounting.Architecture) -> None:
    """Compare the layers with a sliding window with those of transformers."""
    made = transformers.AutoConfig.for_model(**config)
    kinds = getattr(made, "layer_types", None)
    if kinds is not None:
        assert shape.n_window == sum(kind != "full_attention" for kind in kinds)
    else:
        assert shape.n_window == (shape.n_layer if getattr(made, "sliding_window", 0) else 0)


def check_flops(config: dict, shape: accounting.Architecture) -> None:
    """Compare the FLOPs of a forward pass with PyTorch's counter."""
    model, seq = built(config, "cpu").eval(), 16
    model.config._attn_implementation = model.config._experts_implementation = "eager"
    with torch.no_grad(), FlopCounterMode(display=False, depth=9) as counter:
        model(torch.arange(2 * seq).view(2, seq), use_cache=False)
    # The angles of the rotation are a constant
    rope = sum(n for m, c in counter.flop_counts.items() if "rotary_emb" in m for n in c.values())
    expected = 2 * seq * accounting.forward_flops_per_token(shape, seq)
    assert counter.get_total_flops() - rope == expected


@pytest.mark.parametrize("kind", sorted(models.FAMILIES))
def test_a_family_is_that_of_transformers(kind):
    """Parameters, windows and FLOPs of small models, and the parameters of its defaults."""
    small = [config for config in SMALL.values() if config["model_type"] == kind]
    assert small, "a family needs a small config"
    for config in small:
        shape = models.from_hugging_face(config)
        assert accounting.count_parameters(shape) == numbers(built(config)), config
        check_windows(config, shape)
        assert shape.window in (0, 5), config
        check_flops(config, shape)
    if kind not in NO_DEFAULT:
        default = transformers.AutoConfig.for_model(kind).to_dict()
        shape = models.from_hugging_face(default)
        assert accounting.count_parameters(shape) == numbers(built({"model_type": kind}))


def test_parameters_are_the_published_ones_and_those_of_transformers():
    for name, config in CONFIGS.items():
        published = models.model(name)
        assert accounting.count_parameters(published.architecture) == published.parameters, name
        assert numbers(built(config)) == published.parameters, name
        check_windows(config, published.architecture)
    assert accounting.architecture_of(GPTConfig()) == models.model("gpt2").architecture


def test_cache_and_training_flops_are_as_published():
    """DeepSeek-AI 2025, "Insights into DeepSeek-V3", tables 1 and 2 (arXiv 2505.09343)."""
    for name, kilobytes, gflops in (("deepseek-v3", 70.272, 250), ("llama3-405b", 516.096, 2448)):
        shape = models.model(name).architecture
        assert accounting.kv_cache_bytes(shape, 1) == pytest.approx(1000 * kilobytes, rel=1e-9)
        ours = accounting.train_flops_per_token(shape, 4096, "causal") / 1e9
        assert ours == pytest.approx(gflops, rel=0.02)


def test_the_cache_is_as_large_as_that_of_transformers():
    seq = 11
    for name in ("gpt2-0", "llama-0", "qwen3-0", "mixtral-0", "gpt_oss-0"):
        model = built(SMALL[name], "cpu").eval()
        with torch.no_grad():
            cache = model(torch.arange(seq)[None], use_cache=True).past_key_values
        size = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
        shape = models.from_hugging_face(SMALL[name])
        kept = accounting.kv_cache_bytes(shape, seq, 4)
        if shape.window:  # transformers keeps one token less, as the next one comes
            kept -= 4 * 2 * shape.n_kv_head * shape.head_dim * shape.n_window
        assert size == kept, name


def test_causal_flops_count_the_mask_and_decoding_adds_up_to_them():
    for seq, window in ((1, 0), (7, 0), (7, 3), (7, 7), (7, 9), (64, 5)):
        rows, columns = torch.arange(seq)[:, None], torch.arange(seq)
        mask = (columns <= rows) & (columns > rows - (window or seq))
        assert accounting.keys_per_query(seq, window) == pytest.approx(mask.sum().item() / seq)
    shape, seq = models.model("gpt-oss-20b").architecture, 500
    tokens = [accounting.decode_flops(shape, context) for context in range(1, seq + 1)]
    whole = seq * accounting.forward_flops_per_token(shape, seq, "causal")
    assert sum(tokens) == pytest.approx(whole, rel=1e-12)


BAD_CONFIGS = [
    ([], r"\[\] is no config.json; an object expected"),
    ({"model_type": ["llama"]}, r"model_type \['llama'\] is unknown"),
    ({"model_type": "mpt", "d_model": 64, "n_heads": 4}, ".*; if .*--n-layer N --n-embd 64 --n-h"),
    ({"model_type": "mamba", "state_size": 16}, "model_type 'mamba' .* so no flags describe it$"),
    ({"model_type": "jamba", "mamba_d_state": 16}, ".* its mamba_d_state tells of layers that we"),
    ({"dim": 64, "n_layers": 2, "n_heads": 4}, "vocab_size is missing"),  # Llama 2 has it as -1
    ({"model_type": "llama", "num_hidden_layers": 1}, "hidden_size or .* is missing; a whole"),
    (LLAMA | {"hidden_size": "wide"}, "hidden_size is 'wide'; a whole number from 1"),
    (LLAMA | {"layer_types": ["full_attention"]}, "layer_types has 1 entries; one for each of 6"),
    (
        LLAMA | {"layer_types": ["linear_attention"] * 6},
        "layer_types has 'linear_attention', which we don't count; full_attention or",
    ),
    (SMALL["deepseek_v3-0"] | {"attention_bias": True}, "attention_bias is True; false expected"),
]


def test_a_config_that_no_model_has_is_one_line():
    for raw, message in BAD_CONFIGS:
        with pytest.raises(UserError, match=rf"^config\.json(, text_config)?: {message}"):
            models.from_hugging_face(raw)


SHAPE = {"n_layer": 32, "n_embd": 4096}
# params.json of Llama 3 8B, Mistral 7B v0.1 and Mixtral 8x7B, as their authors' code has them
META = {"dim": 4096, "n_layers": 32, "n_heads": 32, "n_kv_heads": 8, "vocab_size": 128256}
META |= {"multiple_of": 1024, "ffn_dim_multiplier": 1.3, "norm_eps": 1e-5, "rope_theta": 5e5}
MISTRAL = {"dim": 4096, "n_layers": 32, "head_dim": 128, "hidden_dim": 14336, "n_heads": 32}
MISTRAL |= {"n_kv_heads": 8, "norm_eps": 1e-5, "vocab_size": 32000}
MIXTRAL = MISTRAL | {"moe": {"num_experts_per_tok": 2, "num_experts": 8}}


def test_other_dialects_are_counted():
    for raw, count in ((META, 8_030_261_248), (MISTRAL, 7_241_732_096), (MIXTRAL, 46_702_792_704)):
        assert accounting.count_parameters(models.from_hugging_face(raw)) == count
    dialect = {"model_type": "llama", "d_model": 64, "d_ff": 48, "n_layers": 6, "n_heads": 4}
    dialect |= {"n_kv_heads": 2, "vocab_size": 257, "max_seq_len": 64}
    assert models.from_hugging_face(dialect) == models.from_hugging_face(LLAMA)


def test_flags_describe_a_published_model():
    mixtral = {"n_kv_head": 8, "mlp_width": 14336, "vocab_size": 32000}
    mixtral |= {"n_expert": 8, "n_active": 2}
    for flags, same in (
        ({"n_kv_head": 8, "mlp_width": 14336, "vocab_size": 128256}, "llama3-8b"),
        (mixtral, "mixtral-8x7b"),
    ):
        described = models.chosen(EstimateConfig(**SHAPE, **flags), 0)
        published = models.model(same)
        shape = replace(described.architecture, block_size=published.architecture.block_size)
        assert shape == published.architecture
        assert described.parameters == published.parameters
