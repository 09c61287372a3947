"""Answers to the exercises of page 02."""

import torch
from einops import rearrange


def from_each_token_on(model, tokens, vocab_size):
    """Change all tokens from each position on, and list the rows before it that move."""
    before, leaks = model(tokens), set()
    for first in range(1, tokens.size(1)):
        changed = torch.cat([tokens[:, :first], (tokens[:, first:] + 1) % vocab_size], dim=1)
        rows = ((model(changed) - before).abs() > 1e-6).any(dim=-1).any(dim=0)[:first]
        leaks.update(rows.nonzero().flatten().tolist())
    return sorted(leaks)


def by_as_strided(qkv, n_head):
    """Compute the strides and the starts."""
    (batch, seq, width), (outer, row, step) = qkv.shape, qkv.stride()
    size = width // (3 * n_head)
    shape, stride = (batch, n_head, seq, size), (outer, size * step, row, step)
    starts = [qkv.storage_offset() + n * n_head * size * step for n in range(3)]
    return [qkv.as_strided(shape, stride, start) for start in starts]


RIGHT = {
    "rows_that_leak": [
        from_each_token_on,
        ("+ 1) % vocab_size", "- 1) % vocab_size"),
    ],
    "split_heads": [
        by_as_strided,
        lambda qkv, n_head: [
            part.unflatten(-1, (n_head, -1)).movedim(2, 1) for part in qkv.chunk(3, -1)
        ],
        lambda qkv, n_head: rearrange(qkv, "b t (n h d) -> n b h t d", n=3, h=n_head).unbind(0),
        (".unbind(0)", ""),
    ],
}
REFUSED = {
    "rows_that_leak": [
        lambda *_: None,
        ("(changed[:, later] + 1)", "torch.randint(vocab_size, (len(tokens),))"),
        ("1e-6", "0.1"),
    ],
    "split_heads": [
        ("2, 0, 3, 1, 4", "2, 0, 3, 4, 1"),
        ("channels // (3 * n_head)", "4"),
        ("n_head, channels // (3 * n_head)", "channels // (3 * n_head), n_head"),
        ("qkv.view(batch, seq, 3", "qkv.view(batch * seq, -1).view(batch, seq, 3"),
        ("qkv.view(batch, seq", "qkv[:1].expand(batch, -1, -1).view(batch, seq"),
        (".unbind(0)", ".contiguous().unbind(0)"),
        ("batch, seq, channels = qkv", "qkv = qkv.squeeze(0)\n    batch, seq, channels = qkv"),
        ("parts = qkv.view", "parts = qkv.mul_(1.5).div_(1.5).view"),
        ("qkv.view", "qkv.detach().view"),
    ],
}
