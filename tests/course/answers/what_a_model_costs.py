"""Other answers to the exercises of the room what_a_model_costs."""

from decimal import Decimal

import numpy as np

from cs336_course.shared.published_configs import Config


def flops_by_query(config: Config, seq: int) -> float:
    """Add up the FLOPs of each token of a sequence, and divide by their number."""
    width, heads = config["hidden_size"], config["num_attention_heads"]
    kv_width = width // heads * config["num_key_value_heads"]
    shapes = [(width, width + 2 * kv_width), (width, width)]
    shapes += [(width, config["intermediate_size"])] * 3
    weights = sum(rows * columns for rows, columns in shapes)
    total = 0
    for keys in (1, seq):  # the mean of an arithmetic series is that of its ends
        total += 2 * weights + 4 * width * keys
    return 3 * (config["num_hidden_layers"] * total / 2 + 2 * width * config["vocab_size"])


def flops_in_integers(config: Config, seq: int) -> int:
    """Compute twelve halves, so that no number is a fraction."""
    width, layers = config["hidden_size"], config["num_hidden_layers"]
    narrow = width * config["num_key_value_heads"] // config["num_attention_heads"]
    block = 2 * width * (width + narrow) + 3 * width * config["intermediate_size"]
    return 6 * (layers * (block + width * (seq + 1)) + config["vocab_size"] * width)


RIGHT = {
    "training_flops": [
        flops_by_query,
        flops_in_integers,
        lambda config, seq: np.float64(flops_by_query(config, seq)),
        lambda config, seq: Decimal(flops_in_integers(config, seq)),
    ],
}
REFUSED = {
    "training_flops": [
        lambda config, seq: (flops_by_query(config, seq), config.clear())[0],
        "def training_flops(config, seq):\n"
        "    found = models.from_hugging_face(config)\n"
        "    return accounting.train_flops_per_token(found, seq, 'causal')\n",
    ],
}
