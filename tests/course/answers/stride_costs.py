"""Answers to the exercises of the page stride_costs."""

import numpy as np
import torch

from cs336_course.engine import edits

RIGHT = {
    "im2col": [
        lambda image, k: image.unfold(0, k, 1).unfold(1, k, 1),
        lambda image, k: image.unfold(1, k, 1).unfold(0, k, 1).transpose(2, 3),
        ("(down, right, down, right)", "[image.stride(d) for d in (0, 1, 0, 1)]"),
    ],
}
REFUSED = {
    "im2col": [
        lambda image, k: None,
        lambda image, k: image.unfold(0, k, 1).unfold(1, k, 1).clone(),
        ("height - k + 1, width - k + 1", "height, width"),
        edits(("k, k)", "3, 3)"), ("- k", "- 3")),
        ("width - k", "height - k"),
        ("right))", "right)).flatten(2)"),
        ("right))", "right)).numpy()"),
        ("image.as_strided", "image.detach().as_strided"),
        ("image.stride()", "image.contiguous().stride()"),
        ("down, right = image.stride()", "down, right = image.stride(0), 1"),
        ("height, width", "image.sub_(1)\n    height, width"),
        lambda image, k: torch.from_numpy(
            np.lib.stride_tricks.sliding_window_view(image.detach().numpy(), (k, k), writeable=True)
        ),
    ],
}
