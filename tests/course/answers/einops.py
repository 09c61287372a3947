"""Answers to the exercises of page 03."""

import torch
import torch.nn.functional as F
from einops import einsum


def back(g, k, pattern="b h q k, b k h d -> b q h d"):
    """Return the gradient of the queries, or what another pattern gives."""
    return einsum(g, k, pattern)


def by_library(q, k, v, heads, kv_heads):
    """Use PyTorch's attention, which shares keys and values itself."""
    q = q.unflatten(-1, (heads, -1)).transpose(1, 2)
    k, v = (x.unflatten(-1, (kv_heads, -1)).transpose(1, 2) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return mixed.transpose(1, 2).flatten(2)


def by_query_head(q, k, v, heads, kv_heads):
    """Compute one query head after the other."""
    dim, group = q.size(-1) // heads, heads // kv_heads
    mixed = []
    for head in range(heads):
        shared = slice(head // group * dim, (head // group + 1) * dim)
        found = q[..., head * dim : (head + 1) * dim] @ k[..., shared].mT / dim**0.5
        found = found + torch.full_like(found, -torch.inf).triu(1)
        mixed.append(found.softmax(-1) @ v[..., shared])
    return torch.cat(mixed, dim=-1)


RIGHT = {
    "query_gradient": [
        lambda g, k: (g @ k.transpose(1, 2)).transpose(1, 2),
        lambda g, k: (g.permute(0, 2, 1, 3)[..., None] * k.transpose(1, 2)[:, None]).sum(3),
    ],
    "grouped_query_attention": [
        by_library,
        by_query_head,
        ("-torch.inf", "torch.finfo(scores.dtype).min"),
    ],
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
    "grouped_query_attention": [
        ("-torch.inf", "torch.finfo(scores.dtype).tiny"),
        ("math.sqrt(q.size(-1))", "int(math.sqrt(q.size(-1)))"),
        ("heads // kv_heads", "3"),
        ("    mixed =", "    v = v[:, :1].expand_as(v)\n    mixed ="),
        ("    sizes =", "    q = q.view(-1).view(q.shape)\n    sizes ="),
        ("    sizes =", "    heads, kv_heads = 6, 2\n    sizes ="),
        ("    mixed =", "    weights *= 1\n    mixed ="),
        (
            "    sizes =",
            "    if q.element_size() < 4:\n        q, k, v = q.float(), k.float(), v.float()\n"
            "    sizes =",
        ),
        (
            "torch.ones_like(scores, dtype=torch.bool).triu(1)",
            "torch.ones(q.size(-2), q.size(-2)).triu(1).bool()",
        ),
        lambda q, k, v, *heads: by_library(q, k, v.detach(), *heads),
        lambda q, k, v, *heads: by_library(q, k.detach(), v, *heads),
        torch.no_grad()(by_library),
        lambda *given: (torch.set_grad_enabled(False), by_library(*given))[1],
    ],
}
