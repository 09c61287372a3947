"""Mutants that pass because they are right: by exercise, the changed line and why it is right."""

RIGHT: dict[str, dict[str, str]] = {
    "can_view": {
        "left //= size  =>  left /= size": "The division has no remainder there.",
    },
    "int8_round_trip": {
        "scale = x.abs().max().item() / 127 or 1.0  =>  "
        "scale = x.abs().max().item() / 127 or 2.0": "Zeros may have any positive scale.",
    },
    "grouped_query_attention": {
        'sizes = {"kv": kv_heads, "group": heads // kv_heads}  =>  '
        'sizes = {"kv": kv_heads, "group": heads / kv_heads}': (
            "The division has no remainder, and einops takes 3.0 for 3."
        ),
    },
}
