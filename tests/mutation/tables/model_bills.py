"""Wrong ideas for the exercises of 10b_models_of_today, and mutants that are right."""

BYTES = 'kept * 2 * config["num_key_value_heads"] * config["head_dim"] * 2'
LAYER = "layer = attention + router + experts * expert"
RETURN = 'return count(config["num_experts"]), count(config["num_experts_per_tok"])'
WINDOW = 'min(tokens, config["sliding_window"])'

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "mixture_sizes": {
        "another order": [
            (RETURN, 'return count(config["num_experts_per_tok"]), count(config["num_experts"])')
        ],
        "two matrices in an expert": [("3 * width", "2 * width")],
        "a router for the chosen experts": [("+ router +", "+ width * experts +")],
        "a router as wide as its choice": [
            ('width * config["num_experts"]\n', 'width * config["num_experts_per_tok"]\n')
        ],
        "no router": [("+ router +", "+")],
        "one router": [
            ("+ router +", "+"),
            ("+ embeddings\n", "+ embeddings + router\n"),
        ],
        "a router with biases": [("+ router +", '+ router + config["num_experts"] +')],
        "tied embeddings": [("embeddings = 2 *", "embeddings =")],
        "embeddings where they are tied": [
            ("embeddings = 2 *", 'embeddings = (2 if config["tie_word_embeddings"] else 1) *')
        ],
        "no embeddings": [("+ embeddings\n", "\n")],
        "embeddings in every layer": [
            (LAYER, f"{LAYER} + embeddings"),
            ("* layer + embeddings", "* layer"),
        ],
        "as many heads of keys as of queries": [
            ('config["num_key_value_heads"]', 'config["num_attention_heads"]')
        ],
        "queries with the heads of keys": [
            ('config["num_attention_heads"]', 'config["num_key_value_heads"]')
        ],
        "one head of keys": [('config["num_key_value_heads"] * head', "head")],
        "heads of keys are the queries of a group": [
            ("kv_width =", 'kv_width = config["num_attention_heads"] //')
        ],
        "heads as wide as in Llama": [
            ('config["head_dim"]', 'config["hidden_size"] // config["num_attention_heads"]')
        ],
        "square queries": [("(queries + 2 * kv_width)", "(width + 2 * kv_width)")],
        "a square output": [("+ queries * width", "+ width * width")],
        "no output": [(" + queries * width", "")],
        "keys without values": [("2 * kv_width", "kv_width")],
        "heads of 128": [('config["head_dim"]', "128")],
        "128 experts, of which 8 are chosen": [(RETURN, "return count(128), count(8)")],
        "the dense width": [('config["moe_intermediate_size"]', 'config["intermediate_size"]')],
        "a dense MLP beside the experts": [
            (LAYER, f'{LAYER} + 3 * width * config["intermediate_size"]')
        ],
        "a shared expert": [("experts * expert", "(experts + 1) * expert")],
        "a share of everything": [
            (
                RETURN,
                'total = count(config["num_experts"])\n'
                '    return total, total * config["num_experts_per_tok"] / config["num_experts"]',
            )
        ],
        "a share of the layers": [
            (
                RETURN,
                'total = count(config["num_experts"])\n'
                '    share = config["num_experts_per_tok"] / config["num_experts"]\n'
                "    return total, (total - embeddings) * share + embeddings",
            )
        ],
        "the inverse of whole groups of experts": [
            (
                'count(config["num_experts_per_tok"])',
                'count(config["num_experts"] '
                '// (config["num_experts"] // config["num_experts_per_tok"]))',
            )
        ],
        "active without embeddings": [
            (RETURN, f"{RETURN} - embeddings"),
        ],
        "active without the input embedding": [(RETURN, f"{RETURN} - embeddings // 2")],
        "active without the router": [(RETURN, f'{RETURN} - config["num_hidden_layers"] * router')],
        "active without attention": [
            (RETURN, f'{RETURN} - config["num_hidden_layers"] * attention')
        ],
        "only the chosen experts": [
            (
                'count(config["num_experts_per_tok"])',
                'config["num_hidden_layers"] * config["num_experts_per_tok"] * expert',
            )
        ],
        "all are active": [
            ('count(config["num_experts_per_tok"])', 'count(config["num_experts"])')
        ],
        "one is active": [('config["num_experts_per_tok"]', "1")],
        "the rest is active": [
            (
                'count(config["num_experts_per_tok"])',
                'count(config["num_experts"] - config["num_experts_per_tok"])',
            )
        ],
        "one layer": [('config["num_hidden_layers"] * layer', "layer")],
        "one layer more": [("* layer + emb", "* layer + layer + emb")],
        "norms": [(LAYER, f"{LAYER} + 2 * width")],
        "norms of queries and keys": [(LAYER, f"{LAYER} + 2 * head")],
        "a last norm": [("+ embeddings\n", "+ embeddings + width\n")],
        "biases of queries, keys and values": [(LAYER, f"{LAYER} + queries + 2 * kv_width")],
        "bytes": [("    return config", "    return 2 * config"), ("+ emb", "+ 2 * emb")],
        "billions": [
            ("* layer + embeddings", "* layer / 1e9 + embeddings / 1e9"),
        ],
        "float32": [
            ("    return config", "    return np.float32(config"),
            ("+ embeddings\n", "+ embeddings)\n"),
            ("    width,", "    import numpy as np\n    width,"),
        ],
        "32-bit integers": [
            ("    width,", "    import numpy as np\n    width,"),
            ("* layer + embeddings", "* np.int64(layer).astype(np.int32) + embeddings"),
        ],
        "the config of the notebook": [
            ("    width,", '    config = checks.published("qwen3-30b-a3b")\n    width,')
        ],
        "a padded vocabulary": [
            ('config["vocab_size"]', '(-(-config["vocab_size"] // 128) * 128)')
        ],
        "the sum alone": [(RETURN, 'return count(config["num_experts"])')],
        "a dict": [
            (
                RETURN,
                'return {"total": count(config["num_experts"]), '
                '"active": count(config["num_experts_per_tok"])}',
            )
        ],
        "the config is changed": [
            ("    def count", '    config["hidden_size"] = width * 2\n\n    def count')
        ],
        "the library": """
def sizes(config):
    found = architecture.from_hugging_face(config)
    return architecture.count_parameters(found), architecture.active_parameters(found)
""",
        "the library's parts without norms": """
def sizes(config):
    found = architecture.from_hugging_face(config)
    counts = architecture.parameter_counts(found)
    total = sum(counts.values()) - counts["norms"]
    idle = 1 - config["num_experts_per_tok"] / config["num_experts"]
    return total, total - counts["experts"] * idle
""",
        "the library's matrices": """
def sizes(config):
    found = architecture.from_hugging_face(config)
    active = architecture.matmul_parameters(found) + config["vocab_size"] * config["hidden_size"]
    rest = config["num_experts"] - config["num_experts_per_tok"]
    expert = 3 * config["hidden_size"] * config["moe_intermediate_size"]
    return active + config["num_hidden_layers"] * rest * expert, active
""",
    },
    "cache_bytes": {
        "only keys": [("kept * 2 *", "kept *")],
        "one byte": [('["head_dim"] * 2', '["head_dim"]')],
        "fp32": [('["head_dim"] * 2', '["head_dim"] * 4')],
        "bits": [('["head_dim"] * 2', '["head_dim"] * 16')],
        "the heads of the queries": [
            ('config["num_key_value_heads"]', 'config["num_attention_heads"]')
        ],
        "one head": [('config["num_key_value_heads"] * ', "")],
        "the width of the model": [
            ('config["num_key_value_heads"] * config["head_dim"]', 'config["hidden_size"]')
        ],
        "heads as wide as in Llama": [
            ('config["head_dim"]', 'config["hidden_size"] // config["num_attention_heads"]')
        ],
        "heads of 64": [('config["head_dim"]', "64")],
        "8 heads": [('config["num_key_value_heads"]', "8")],
        "heads are the queries of a group": [
            (
                'config["num_key_value_heads"]',
                '(config["num_attention_heads"] // config["num_key_value_heads"])',
            )
        ],
        "all layers are full": [("tokens if is_full else", "tokens if True else")],
        "all layers are windows": [("tokens if is_full else ", "")],
        "the other way round": [('kind == "full_attention"', 'kind != "full_attention"')],
        "the larger": [("min(tokens,", "max(tokens,")],
        "the whole window": [(WINDOW, 'config["sliding_window"]')],
        "a window of 128": [('config["sliding_window"]', "128")],
        "no window": [(WINDOW, "0")],
        "no full layers": [("tokens if", "0 if")],
        "before the window": [(WINDOW, 'max(0, tokens - config["sliding_window"])')],
        "the rest of the window": [(WINDOW, 'tokens % config["sliding_window"]')],
        "whole windows": [
            (
                WINDOW,
                'config["sliding_window"] * max(1, tokens // config["sliding_window"])',
            )
        ],
        "without the new token": [('config["sliding_window"])', 'config["sliding_window"] - 1)')],
        "with the new token": [('config["sliding_window"])', 'config["sliding_window"] + 1)')],
        "the window for longer texts only": [
            (
                WINDOW,
                '(tokens if tokens < config["sliding_window"] else config["sliding_window"] + 1)',
            )
        ],
        "the first half": [
            ('for kind in config["layer_types"]', 'for n, _ in enumerate(config["layer_types"])'),
            ('kind == "full_attention"', 'n >= len(config["layer_types"]) // 2'),
        ],
        "every other layer": [
            ('for kind in config["layer_types"]', 'for n, _ in enumerate(config["layer_types"])'),
            ('kind == "full_attention"', "n % 2 == 1"),
        ],
        "every fourth layer": [
            ('for kind in config["layer_types"]', 'for n, _ in enumerate(config["layer_types"])'),
            ('kind == "full_attention"', "n % 4 == 3"),
        ],
        "like the first layer": [("kind ==", 'config["layer_types"][0] ==')],
        "like the last layer": [("kind ==", 'config["layer_types"][-1] ==')],
        "each kind once": [('in config["layer_types"]', 'in set(config["layer_types"])')],
        "without the last layer": [('in config["layer_types"]', 'in config["layer_types"][:-1]')],
        "36 layers": [('in config["layer_types"]', 'in config["layer_types"][:36]')],
        "the last layer alone": [("kept +=", "kept =")],
        "times the layers": [(BYTES, f'{BYTES} * config["num_hidden_layers"]')],
        "of one layer": [(BYTES, f'{BYTES} / config["num_hidden_layers"]')],
        "of one token": [("tokens if is_full else " + WINDOW, "1")],
        "a window while all is full": [
            (
                "    return",
                '    if tokens <= config["sliding_window"]:\n        kept = 0\n    return',
            )
        ],
        "long texts": [("    kept = 0", "    tokens = max(tokens, 128)\n    kept = 0")],
        "at least one token": [("    kept = 0", "    tokens = max(tokens, 1)\n    kept = 0")],
        "at most the context": [("    kept = 0", "    tokens = min(tokens, 16_384)\n    kept = 0")],
        "kilobytes": [(BYTES, f"{BYTES} / 1e3")],
        "GiB": [(BYTES, f"{BYTES} / 2**30")],
        "float32": [
            (BYTES, f"torch.tensor(float({BYTES}))"),
            ("    kept = 0", "    import torch\n    kept = 0"),
        ],
        "32-bit integers": [(BYTES, f"({BYTES} + 2**31) % 2**32 - 2**31")],
        "blocks of 16 tokens": [
            ("    kept = 0", "    tokens = -(-tokens // 16) * 16\n    kept = 0")
        ],
        "scores": [("tokens if is_full", "tokens**2 if is_full")],
        "queries too": [("kept * 2 *", "kept * 3 *")],
        "sorted layers": [("    kept = 0", '    config["layer_types"].sort()\n    kept = 0')],
        "the layers are used up": """
def cache_bytes(config, tokens):
    kept = 0
    while config["layer_types"]:
        is_full = config["layer_types"].pop() == "full_attention"
        kept += tokens if is_full else min(tokens, config["sliding_window"])
    return kept * 4 * config["num_key_value_heads"] * config["head_dim"]
""",
        "the library": """
def cache_bytes(config, tokens):
    return architecture.kv_cache_bytes(architecture.from_hugging_face(config), tokens)
""",
        "the library with the layers counted": """
from dataclasses import replace
def cache_bytes(config, tokens):
    found = architecture.from_hugging_face(config)
    windows = config["layer_types"].count("sliding_attention")
    return architecture.kv_cache_bytes(replace(found, n_window=windows), tokens)
""",
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {}
