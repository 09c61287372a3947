"""Right answers that differ in kind, and wrong ones that no mutation makes."""

import torch
import torch.nn.functional as F

from cs336_course.engine import edits
from cs336_course.pages.gpt2_speaks.exercises import (
    BEFORE,
    CHANCES,
    CROP,
    DRAW,
    LOOP,
    RESCALED,
    rescaled,
)
from cs336_lib.sampling import filter_logits


def in_plain_python(probabilities, p):
    rows = []
    for row in probabilities.tolist():
        kept, total = [0.0] * len(row), 0.0
        for i in sorted(range(len(row)), key=lambda i: -row[i]):
            if total < p:
                kept[i] = row[i]
                total += kept[i]
        rows.append([value / total for value in kept])
    return torch.tensor(rows, dtype=probabilities.dtype)


def by_mask(probabilities, p):
    order = torch.argsort(probabilities, dim=-1, descending=True, stable=True)
    total = torch.cumsum(probabilities.gather(-1, order), dim=-1)
    dropped = torch.cat((torch.zeros_like(total[:, :1]), total[:, :-1]), dim=-1) >= p
    back = dropped.gather(-1, order.argsort(-1))
    return F.normalize(probabilities.masked_fill(back, 0.0), p=1, dim=-1)


@torch.no_grad()
def among_topk(model, idx, new_tokens, temperature=1.0, top_k=50, top_p=1.0):
    text = idx.clone()
    while text.size(1) < idx.size(1) + new_tokens:
        logits = model(text[:, -model.config.block_size :])[:, -1, :]
        values, places = torch.topk(logits, min(top_k, logits.size(-1)), dim=-1)
        chances = (values / temperature).softmax(-1)
        chances = chances.where(chances.cumsum(-1) - chances < top_p, 0.0)
        noise = -torch.log(-torch.log(torch.rand_like(values)))
        choice = (chances.log() + noise).argmax(-1, keepdim=True)
        text = torch.hstack((text, places.gather(-1, choice)))
    return text


@torch.no_grad()
def by_library(model, idx, new_tokens, temperature=1.0, top_k=50, top_p=1.0):
    begin, size = idx.shape[1], model.config.block_size
    text = torch.cat([idx, idx.new_zeros(idx.shape[0], new_tokens)], dim=-1)
    for end in range(begin, begin + new_tokens):
        logits = model(text[:, max(0, end - size) : end])[:, -1, :]
        kept = filter_logits(logits, temperature, top_k, top_p)
        text[:, end] = torch.multinomial(F.softmax(kept, dim=-1), num_samples=1).squeeze(1)
    return text


RIGHT = {
    "nucleus": [in_plain_python, by_mask],
    "generate": [among_topk, by_library],
}
REFUSED = {
    "nucleus": [
        rescaled("probabilities.copy_(kept / kept.sum(-1, keepdim=True))"),
        rescaled("kept.double() / kept.sum(-1, keepdim=True)"),
        (BEFORE, "torch.arange(ordered.size(-1)) < p * ordered.size(-1)"),
        (BEFORE, "ordered.cumsum(-1) - ordered < min(p, 0.7)"),
        (RESCALED, "return probabilities.where(probabilities > 1 - p, 0.0)"),
    ],
    "generate": [
        ("top_k=50", "top_k=40"),
        ("@torch.no_grad()\n", ""),
        (LOOP, f"    model.train()\n{LOOP}"),
        (LOOP, f"    idx[:, 0] = 0\n{LOOP}"),
        (LOOP, f"    torch.manual_seed(0)\n{LOOP}"),
        edits((LOOP, f"    idx = {CROP}\n{LOOP}"), (CROP, "idx")),
        (DRAW, f"({CHANCES} * torch.empty_like(logits).exponential_()).argmax(-1, True)"),
        (DRAW, f"torch.multinomial(({CHANCES} > 0).float(), 1)"),
        ("-math.inf", "-10.0"),
        (
            "    return idx",
            "        if (idx[:, -1] == 0).all():\n            break\n    return idx",
        ),
    ],
}
