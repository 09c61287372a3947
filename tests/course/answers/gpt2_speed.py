"""Answers to the exercises of page 10."""

from cs336_course.engine import edits

ONE_CALL = "F.scaled_dot_product_attention(q[None], k[None], v[None], is_causal=True)[0]"


def instead(code: str) -> tuple[str, str]:
    """Return the idea of computing something else."""
    return "    seq, d = q.shape", f"    {code}\n    seq, d = q.shape"


RIGHT = {
    "flash_attention": [
        """
def flash_attention(q, k, v, block):
    result, lse = torch.zeros_like(v), torch.full((len(q), 1), -math.inf)
    for ks, vs, numbers in zip(k.split(block), v.split(block), torch.arange(len(k)).split(block)):
        scores = torch.einsum("td,sd->ts", q, ks) / q.shape[1] ** 0.5
        scores = torch.where(numbers <= torch.arange(len(q))[:, None], scores, -math.inf)
        own = scores.logsumexp(1, keepdim=True)
        both = torch.logaddexp(lse, own)
        weights = torch.nan_to_num(scores.softmax(1))
        result, lse = (lse - both).exp() * result + (own - both).exp() * (weights @ vs), both
    return result
""",
        """
def flash_attention(q, k, v, block):
    rows = []
    for t in range(len(q)):
        m, total, result = torch.tensor(-math.inf), torch.tensor(0.0), torch.zeros(v.shape[1])
        for start in range(0, t + 1, block):
            seen = slice(start, min(start + block, t + 1))
            scores = k[seen] @ q[t] * q.size(1) ** -0.5
            new = torch.maximum(m, scores.max())
            weights = (scores - new).exp()
            result = result * (m - new).exp() + weights @ v[seen]
            total, m = total * (m - new).exp() + weights.sum(), new
        rows.append(result / total)
    return torch.stack(rows)
""",
    ],
    "fast": [
        edits(
            ('"high")', '"high")\n    torch.backends.cuda.matmul.allow_tf32 = True'),
            ("torch.autocast(", "torch.amp.autocast("),
            (
                "torch.compile(model) if config.compile else model",
                "torch.compile(model, disable=not config.compile)",
            ),
        ),
        ("torch.compile(model)", 'torch.compile(model, mode="max-autotune")'),
        (
            'torch.set_float32_matmul_precision("high")',
            "torch.backends.cuda.matmul.allow_tf32 = True",
        ),
        ("model.lm_head.weight", "model.transformer.wte.weight"),
    ],
}
REFUSED = {
    "flash_attention": [
        """
def flash_attention(q, k, v, block):
    queries, scores = torch.arange(len(q))[:, None], []
    for keys in torch.arange(len(k)).split(block):
        scores.append((q @ k[keys].T / q.size(1) ** 0.5).masked_fill(keys > queries, -math.inf))
    highest = torch.full((len(q), 1), -math.inf)
    for part in scores:
        highest = torch.maximum(highest, part.amax(1, keepdim=True))
    result, total = torch.zeros_like(v), torch.zeros(len(q), 1)
    for part, values in zip(scores, v.split(block)):
        weights = (part - highest).exp()
        result, total = result + weights @ values, total + weights.sum(1, keepdim=True)
    return result / total
""",
        instead(
            "return (q @ k.T / math.sqrt(q.size(1))).masked_fill(torch.ones(len(q), len(q))"
            ".triu(1).bool(), -math.inf).softmax(1) @ v"
        ),
        instead(f"return {ONE_CALL}"),
        instead(
            "return torch.cat([(q[t : t + 1] @ k[: t + 1].T / math.sqrt(q.size(1))).softmax(1) "
            "@ v[: t + 1] for t in range(len(q))])"
        ),
        instead("block = 16"),
        edits(
            ("    m, total", "    mask = torch.ones(seq, seq).triu(1).bool()\n    m, total"),
            ("keys > queries", "mask[:, keys]"),
        ),
        ("result / total", "(result / total).detach()"),
        ("result / total", "result / total.detach()"),
        ("result / total", "(result / total).double()"),
    ],
    "fast": [
        ('torch.set_float32_matmul_precision("high")', ""),
        (", autocast", ", autocast if config.bf16 else nullcontext()"),
        (", config.bf16)", ", True)"),
        ("torch.compile(model) if config.compile else model", "model"),
        ("torch.compile(model)", "torch.compile(copy.deepcopy(model))"),
        ("(model) if", "(model, backend='eager') if"),
        ("    return", "    config.compile and model.compile()\n    return"),
        ("    return", "    model.eval()\n    return"),
        ("    return", "    model.bfloat16().float()\n    return"),
        ("    return", "    autocast.__enter__()\n    return"),
        (
            "    return",
            "    autocast = contextmanager(lambda: (yield autocast.__enter__()))()\n    return",
        ),
    ],
}
