"""Answers to the exercises of the page low_bits."""

import torch


def q4_1_in_torch(block):
    """Decode with PyTorch."""
    data = torch.tensor(list(block), dtype=torch.uint8)
    scale, minimum = data[:4].view(torch.float16).double()
    return torch.cat((data[4:] & 15, data[4:] >> 4)).double() * scale + minimum


RIGHT = {
    "decode_q4_1": [
        q4_1_in_torch,
        lambda block: q4_1_in_torch(block).float().numpy(),
        lambda block: tuple(q4_1_in_torch(block).tolist()),
    ],
}
REFUSED = {
    "decode_q4_1": [
        ("minimum + scale * q", "minimum + scale * (q + 1)"),
        ("byte >> 4", "byte >> 5"),
    ],
}
