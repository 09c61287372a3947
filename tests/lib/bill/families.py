"""A small config of each decoder family of transformers, and of each of its switches."""

NAMES = {
    "hidden_size": 64,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "vocab_size": 257,
    "max_position_embeddings": 64,
}
HEAD = {"head_dim": 24}
PAD = {"pad_token_id": 0}
WINDOW = {"sliding_window": 5}
SWITCHED = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 2}
ROUTED = {"num_experts_per_tok": 2, "moe_intermediate_size": 40}
LOCAL = {"num_local_experts": 6, "num_experts_per_tok": 2}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "vocab_size": 257, "n_positions": 64}
MLA = {
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
}
DEEPSEEK = {
    **MLA,
    **ROUTED,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
OPT = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "ffn_dim": 48,
    "vocab_size": 257,
    "max_position_embeddings": 64,
    "word_embed_proj_dim": 64,
}
FALCON = {
    "hidden_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "vocab_size": 257,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
UNTIED, TIED = {"tie_word_embeddings": False}, {"tie_word_embeddings": True}

PLAIN = "apertus arcee granite llama nanochat nemotron olmo olmo2 starcoder2".split()
OWN_HEAD = "ernie4_5 gemma hunyuan_v1_dense internlm3 iquestcoder jais2 seed_oss".split()
OWN_HEAD_AND_WINDOW = "cwm gemma2 ministral vaultgemma".split()

# By family, what its small configs add to NAMES. A config without `hidden_size` here has others.
ADDED: dict[str, list[dict]] = {
    **{kind: [{}] for kind in PLAIN},
    **{kind: [HEAD] for kind in OWN_HEAD},
    **{kind: [HEAD | WINDOW] for kind in OWN_HEAD_AND_WINDOW},
    "cohere": [{}, {"use_qk_norm": True, "attention_bias": True} | UNTIED],
    "cohere2": [WINDOW, {"attention_bias": True, "sliding_window_pattern": 3} | WINDOW],
    "deepseek_v2": [DEEPSEEK, DEEPSEEK | {"q_lora_rank": None, "first_k_dense_replace": 0}],
    "deepseek_v3": [DEEPSEEK, DEEPSEEK | {"q_lora_rank": None}],
    "dots1": [ROUTED | {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 2}],
    "ernie4_5_moe": [
        {"moe_num_experts": 6, "moe_k": 2, "moe_intermediate_size": 40, **more}
        for more in (
            {},
            {"moe_num_shared_experts": 1, "moe_layer_start_index": 2, "moe_layer_end_index": 4},
            {"moe_layer_interval": 2, "moe_num_shared_experts": 0},
        )
    ],
    "exaone4": [WINDOW, {"sliding_window": None, "layer_types": ["full_attention"] * 6}],
    "exaone_moe": [
        ROUTED | WINDOW | {"num_experts": 6, "num_shared_experts": 2, "first_k_dense_replace": 2}
    ],
    "flex_olmo": [
        {"num_experts": 6, "num_experts_per_tok": 2, "attention_bias": True, "pad_token_id": 0}
    ],
    "gemma3_text": [HEAD | WINDOW, HEAD | WINDOW | {"sliding_window_pattern": 2}],
    "glm": [HEAD | PAD],
    "glm4": [HEAD | PAD],
    "glm4_moe": [
        ROUTED | HEAD | {"n_routed_experts": 8, "n_shared_experts": 2, "first_k_dense_replace": 2},
        ROUTED
        | HEAD
        | {"n_routed_experts": 8, "n_shared_experts": 1, "first_k_dense_replace": 0}
        | {"use_qk_norm": True, "attention_bias": True},
    ],
    "glm4_moe_lite": [DEEPSEEK | {"mlp_layer_types": ["dense", *["sparse"] * 5]}],
    "gpt_neox": [{"num_key_value_heads": 4}],
    "gpt_oss": [LOCAL | HEAD | WINDOW],
    "granitemoe": [LOCAL],
    "granitemoeshared": [LOCAL | {"shared_intermediate_size": n} for n in (0, 48, 96)],
    "helium": [HEAD | {"head_dim": 16}],
    "hunyuan_v1_moe": [HEAD | {"num_experts": 6, "moe_topk": 2}],
    "hy_v3": [ROUTED | HEAD | {"num_experts": 6, "num_shared_experts": 1}],
    "hyperclovax": [HEAD, BIASES | {"use_post_norm": False}],
    "llama4_text": [
        LOCAL | HEAD | {"intermediate_size_mlp": 56, "attention_chunk_size": 5},
        LOCAL
        | HEAD
        | {"intermediate_size_mlp": 56, "attention_chunk_size": 5, "interleave_moe_layer_step": 2},
    ],
    "mellum": [ROUTED | HEAD | {"num_local_experts": 6}],
    "minicpm3": [MLA],
    "minimax_m2": [LOCAL | HEAD],
    "ministral3": [HEAD, HEAD | WINDOW],
    "mistral": [{"sliding_window": None}, HEAD | WINDOW],
    "mixtral": [LOCAL, LOCAL | HEAD | WINDOW],
    "olmo3": [WINDOW],
    "olmoe": [{"num_experts": 6, "num_experts_per_tok": 2}],
    "persimmon": [
        {"num_key_value_heads": 4},
        {"num_key_value_heads": 4, "qk_layernorm": False},
    ],
    "phi": [{}, {"qk_layernorm": True}],
    "phi3": [PAD, PAD | WINDOW],
    "phimoe": [LOCAL, LOCAL | {"attention_bias": True, "lm_head_bias": True}],
    "qwen2": [{}, SWITCHED | TIED],
    "qwen2_moe": [
        ROUTED | {"num_experts": 6, "shared_expert_intermediate_size": 80},
        ROUTED
        | SWITCHED
        | {"num_experts": 6, "shared_expert_intermediate_size": 40, "decoder_sparse_step": 2}
        | {"qkv_bias": False},
    ],
    "qwen3": [HEAD, HEAD | SWITCHED | {"attention_bias": True}],
    "qwen3_moe": [
        ROUTED | HEAD | {"num_experts": 6},
        ROUTED | HEAD | {"num_experts": 6, "mlp_only_layers": [0, 3], "decoder_sparse_step": 2},
    ],
    "smollm3": [PAD],
    "solar_open": [ROUTED | HEAD | {"n_routed_experts": 8, "n_shared_experts": 1}],
    "stablelm": [
        {},
        {"use_qkv_bias": True, "qk_layernorm": True},
        {"use_parallel_residual": True},
    ],
    "youtu": [MLA],
}
# By family, small configs with names of their own.
OWN: dict[str, list[dict]] = {
    "biogpt": [
        {k: v for k, v in NAMES.items() if k != "num_key_value_heads"},
    ],
    "bloom": [{"hidden_size": 64, "n_layer": 3, "n_head": 4, "vocab_size": 257}],
    "codegen": [GPT2 | {"rotary_dim": 8}],
    "falcon": [
        FALCON | more
        for more in (
            {},
            {"bias": True, "parallel_attn": False, "multi_query": False, "alibi": True},
            {"new_decoder_architecture": True, "num_kv_heads": 2, "ffn_hidden_size": 80},
            {"new_decoder_architecture": True, "num_ln_in_parallel_attn": 1},
        )
    ],
    "gpt2": [GPT2, GPT2 | {"n_inner": 100} | UNTIED],
    "gpt_bigcode": [GPT2, GPT2 | {"multi_query": False, "n_inner": 100}],
    "gpt_neo": [
        {
            "hidden_size": 64,
            "num_layers": 4,
            "num_heads": 4,
            "vocab_size": 257,
            "max_position_embeddings": 64,
            "attention_types": [[["global", "local"], 2]],
            "window_size": 5,
        }
    ],
    "gptj": [GPT2 | {"rotary_dim": 8}, GPT2 | {"rotary_dim": 8, "n_inner": 100}],
    "mpt": [{"d_model": 64, "n_layers": 3, "n_heads": 4, "vocab_size": 257, "max_seq_len": 64}],
    "opt": [
        OPT,
        OPT | {"enable_bias": False, "layer_norm_elementwise_affine": False},
        OPT | {"do_layer_norm_before": False},
    ],
    "xglm": [
        {
            "d_model": 64,
            "num_layers": 3,
            "attention_heads": 4,
            "ffn_dim": 48,
            "vocab_size": 257,
            "max_position_embeddings": 64,
        }
    ],
}
SMALL: dict[str, dict] = {
    f"{kind}-{number}": {"model_type": kind} | base | more
    for added, base in ((ADDED, NAMES), (OWN, {}))
    for kind, variants in added.items()
    for number, more in enumerate(variants)
}
