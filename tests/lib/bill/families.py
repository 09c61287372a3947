"""A small config of each decoder family that we read, and of each of its switches."""

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
DEEPSEEK = {
    **ROUTED,
    "num_key_value_heads": 4,
    "q_lora_rank": 24,
    "kv_lora_rank": 16,
    "qk_nope_head_dim": 12,
    "qk_rope_head_dim": 8,
    "v_head_dim": 20,
    "n_routed_experts": 8,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
    "n_group": 2,
    "topk_group": 1,
}
BIASES = {"attention_bias": True, "mlp_bias": True}
TIED = {"tie_word_embeddings": True}

# By family, what its small configs add to NAMES.
ADDED: dict[str, list[dict]] = {
    "deepseek_v2": [DEEPSEEK, DEEPSEEK | {"q_lora_rank": None, "first_k_dense_replace": 0}],
    "deepseek_v3": [DEEPSEEK, DEEPSEEK | {"q_lora_rank": None}],
    "gemma3_text": [HEAD | WINDOW, HEAD | WINDOW | {"sliding_window_pattern": 2}],
    "gpt_oss": [LOCAL | HEAD | WINDOW],
    "llama": [{}, BIASES | TIED],
    "mistral": [{"sliding_window": None}, HEAD | WINDOW],
    "mixtral": [LOCAL, LOCAL | HEAD | WINDOW],
    "olmo2": [{}],
    "phi3": [PAD, PAD | WINDOW],
    "qwen2": [{}, SWITCHED | TIED],
    "qwen3": [HEAD, HEAD | SWITCHED | {"attention_bias": True}],
    "qwen3_moe": [
        ROUTED | HEAD | {"num_experts": 6},
        ROUTED | HEAD | {"num_experts": 6, "mlp_only_layers": [0, 3], "decoder_sparse_step": 2},
    ],
}
SMALL: dict[str, dict] = {
    f"{kind}-{number}": {"model_type": kind} | NAMES | more
    for kind, variants in ADDED.items()
    for number, more in enumerate(variants)
}
SMALL["gpt2-0"] = {"model_type": "gpt2"} | GPT2
SMALL["gpt2-1"] = {"model_type": "gpt2"} | GPT2 | {"n_inner": 100, "tie_word_embeddings": False}
