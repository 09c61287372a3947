"""Answers to the exercises of page 03."""

import torch
import torch.nn.functional as F
from einops import einsum

from cs336_course.engine import edits


def back(g, k):
    """Return the gradient of the queries, from a copy of its key head for each query head."""
    return einsum(g, k.repeat_interleave(g.size(1) // k.size(2), 2), "b h q k, b k h d -> b q h d")


def own_place_only(attend):
    """Ask the contract with one change at a time, each in a random text, head and token."""
    q, k, v = torch.randn(3, 3, 4, 6, 8)
    before = attend(q, k, v)
    for place in range(3 * 4 * 6):
        text, head, token = place // 24, place // 6 % 4, place % 6
        others = [x.clone() for x in (q, k, v)]
        for x in others:
            x[text, head, token] = torch.randn(8)
        moved = ((attend(*others) - before).abs() > 1e-6).any(-1)
        if not moved[text, head, token:].all() or moved.sum() > 6 - token:
            return False
    return (attend(q, k, torch.full_like(v, 3)) - 3).abs().max() < 1e-4


def like_the_library(attend):
    q, k, v = torch.randn(3, 2, 3, 7, 5)
    right = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return torch.allclose(attend(q, k, v), right, atol=1e-5)


RIGHT = {
    "query_gradient": [
        back,
        lambda g, k: back(g.double(), k.double()).to(g.dtype),
    ],
    "keeps_contract": [own_place_only, ("1e-6", "1e-5"), ("+= 1", "*= -2")],
}
REFUSED = {
    "query_gradient": [
        lambda g, k: back(g.mul_(2), k) / 2,
        lambda g, k: back(g, k[:1].expand_as(k)),
        lambda g, k: back(g, k.detach()),
        lambda g, k: back(g.data, k),
        lambda g, k: back(g.view(-1).view(g.shape), k.view(-1).view(k.shape)),
        lambda g, k: back(g, k).squeeze(),
        lambda g, k: back(g, k).to("meta"),
    ],
    "keeps_contract": [
        like_the_library,
        lambda attend: True,
        lambda attend: False,
        lambda attend: None,
        ("for x in changed:", "for x in changed[1:]:"),
        ("for x in changed:", "for x in changed[2:]:"),
        edits(("normal(2, 3", "normal(1, 3"), ("range(2)", "range(1)"), ("zeros(2", "zeros(1")),
        ("range(7)", "[3]"),
        ("return False  # the mean of ones is 1", "raise AssertionError"),
        ("torch.equal(moved, expected)", "(moved <= expected).all()"),
        ("torch.equal(moved, expected)", "(moved >= expected).all()"),
        ("(q, k, ones), ones", "(q, k, ones), ones, atol=9"),
    ],
}
