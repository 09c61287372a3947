"""Losses of notebook 09's recipes at many learning rates and from three seeds.

A loss is the mean over the last 20 of the 150 steps of the notebook's `race`, in nats per
character, measured on a CPU. The notebook repeats the race at the best rates and compares.
"""

# By recipe and peak learning rate, from seed 0.
SWEEP: dict[str, dict[float, float]] = {
    "GPT-2": {
        0.001: 2.561,
        0.002: 2.502,
        0.003: 2.485,
        0.004: 2.494,
        0.006: 2.489,
        0.008: 2.494,
        0.012: 2.592,
        0.02: 2.718,
        0.03: 2.873,
        0.04: 2.93,
        0.06: 3.077,
        0.08: 3.181,
        0.12: 3.164,
        0.2: 3.224,
    },
    "RMSNorm": {
        0.001: 2.565,
        0.002: 2.505,
        0.003: 2.488,
        0.004: 2.491,
        0.006: 2.488,
        0.008: 2.498,
        0.012: 2.786,
        0.02: 2.795,
        0.03: 2.898,
        0.04: 2.875,
        0.06: 3.0,
        0.08: 3.026,
        0.12: 3.117,
        0.2: 3.22,
    },
    "RoPE": {
        0.001: 2.45,
        0.002: 2.354,
        0.003: 2.311,
        0.004: 2.303,
        0.006: 2.283,
        0.008: 2.263,
        0.012: 2.297,
        0.02: 2.639,
        0.03: 2.858,
    },
    "Muon": {
        0.008: 2.385,
        0.012: 2.334,
        0.02: 2.232,
        0.03: 2.183,
        0.04: 2.203,
        0.06: 2.326,
        0.08: 2.5,
        0.12: 2.532,
    },
    "all three": {
        0.008: 2.122,
        0.012: 2.043,
        0.02: 2.008,
        0.03: 1.993,
        0.04: 1.999,
        0.08: 2.031,
        0.12: 2.118,
    },
}

# By recipe, at the rate with the lowest loss, from seeds 0, 1 and 2.
SEEDS: dict[str, list[float]] = {
    "GPT-2": [2.485, 2.496, 2.493],
    "RMSNorm": [2.488, 2.502, 2.494],
    "RoPE": [2.263, 2.3, 2.296],
    "Muon": [2.183, 2.201, 2.2],
    "all three": [1.993, 2.001, 2.005],
}
