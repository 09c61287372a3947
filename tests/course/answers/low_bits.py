"""Answers to the exercises of the page low_bits."""

import numpy as np
import torch


def in_numpy(x):
    """Compute without PyTorch."""
    scale = np.abs(x.numpy()).max() / 127 or 1.0
    return torch.from_numpy(np.rint(x.numpy() / scale).astype(np.int8)), scale


def in_a_loop(x):
    """Compute one number at a time."""
    scale = max(abs(number) for number in x.flatten().tolist()) / 127
    scale = scale if scale > 0 else 0.5
    rounded = [round(number / scale) for number in x.flatten().tolist()]
    return torch.tensor(rounded, dtype=torch.int8).view(x.shape), scale


def by_factor(x):
    """Multiply by the inverse of the scale."""
    largest = max(x.max().item(), -x.min().item())
    factor = 127 / largest if largest else 1e9
    return (x.double() * factor).round().clamp(-128, 127).char(), 1 / factor


def q4_1_in_torch(block):
    """Decode with PyTorch."""
    data = torch.tensor(list(block), dtype=torch.uint8)
    scale, minimum = data[:4].view(torch.float16).double()
    return torch.cat((data[4:] & 15, data[4:] >> 4)).double() * scale + minimum


RIGHT = {
    "int8_round_trip": [
        ("torch.round(x / scale)", "torch.floor(x / scale + 0.5)"),
        in_numpy,
        in_a_loop,
        by_factor,
        ("int8), scale", "int8), np.float64(scale)"),
    ],
    "decode_q4_1": [
        q4_1_in_torch,
        lambda block: q4_1_in_torch(block).float().numpy(),
        lambda block: tuple(q4_1_in_torch(block).tolist()),
    ],
}
REFUSED = {
    "int8_round_trip": [
        ("x / scale", "x.div_(scale)"),
        ("x.abs().max()", "x[:1].abs().max()"),
        ("int8), scale", "int8) * scale, scale"),
        ("int8), scale", "int8), str(scale)"),
        ("int8), scale", "int8).tolist(), scale"),
        lambda x: (torch.round(x * 63.5), 2 / 127),
        "def int8_round_trip(x):\n"
        "    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-30) / 127\n"
        "    return torch.round(x / scale).to(torch.int8), scale\n",
    ],
    "decode_q4_1": [
        ("minimum + scale * q", "minimum + scale * (q + 1)"),
        ("byte >> 4", "byte >> 5"),
    ],
}
