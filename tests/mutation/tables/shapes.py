"""Wrong ideas for the exercises of 03_einops, and mutants that are right."""

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "head_scores": {
        "sizes of the notebook's queries": """
batch, seq, heads, dim = 2, 3, 5, 7
def head_scores(q, k):
    q = q.reshape(batch, seq, heads, dim).transpose(1, 2)
    return q @ k.reshape(batch, -1, heads, dim).permute(0, 2, 3, 1)
""",
        "the last two axes": """
def head_scores(q, k):
    return q @ k.transpose(-2, -1)
""",
        "as many keys as queries": """
def head_scores(q, k):
    batch, seq, head, dim = q.shape
    q, k = (x.transpose(1, 2).reshape(-1, seq, dim) for x in (q, k[:, :seq]))
    return torch.bmm(q, k.mT).reshape(batch, head, seq, seq)
""",
        "the last keys only": [("einsum(q, k,", "einsum(q, k[:, -q.size(1):],")],
        "a reshape for a transpose": """
def head_scores(q, k):
    q, k = (x.reshape(x.size(0), x.size(2), x.size(1), x.size(3)) for x in (q, k))
    return q @ k.mT
""",
        "axes of one are dropped": [
            ('head query key")', 'head query key").squeeze()'),
        ],
        "the first example's keys for all": [
            ("einsum(q, k,", "einsum(q, k[:1].expand_as(k),"),
        ],
        "the first head's keys for all": [
            ("einsum(q, k,", "einsum(q, k[:, :, :1].expand_as(k),"),
        ],
        "the scores are scaled": [('head query key")', 'head query key") / q.size(-1) ** 0.5')],
        "views of contiguous memory": [
            ("einsum(q, k,", "einsum(q.view(-1).view(q.shape), k.view(-1).view(k.shape),"),
        ],
        "scores in half precision": [
            ("einsum(q, k,", "einsum(q.half(), k.half(),"),
            ('head query key")', 'head query key").to(q.dtype)'),
        ],
        "always float32": [("einsum(q, k,", "einsum(q.float(), k.float(),")],
        "float32 for half precision": [
            (
                "    return einsum(",
                "    if q.element_size() < 4:\n        q, k = q.float(), k.float()\n"
                "    return einsum(",
            ),
        ],
        "clamped": [('head query key")', 'head query key").clamp(-50, 50)')],
        "keys without a gradient": [("einsum(q, k,", "einsum(q, k.detach(),")],
        "softmax": [('head query key")', 'head query key").softmax(-1)')],
        "scaled and softmax": [
            ('head query key")', 'head query key").div(q.size(-1) ** 0.5).softmax(-1)'),
        ],
        "queries scaled in place": [
            ("    return einsum(", "    q /= q.norm()\n    return q.norm() * einsum("),
        ],
    },
    "masked_mean": {
        "padding comes last": """
def masked_mean(x, mask):
    counts = mask.sum(1)
    return torch.stack([row[:n].mean(0) for row, n in zip(x, counts)])
""",
        "padding comes first or last": """
def masked_mean(x, mask):
    rows = []
    for row, keep in zip(x, mask):
        places = keep.nonzero().flatten()
        rows.append(row[places[0] : places[-1] + 1].mean(0))
    return torch.stack(rows)
""",
        "padding is zero": """
def masked_mean(x, mask):
    kept = x * mask[..., None]
    return kept.sum(1) / (kept != 0).sum(1)
""",
        "a token of zeros is padding": """
def masked_mean(x, mask):
    kept = x * mask[..., None]
    return kept.sum(1) / (kept != 0).any(-1).sum(1, keepdim=True)
""",
        "count in bfloat16": [
            (
                'reduce(weight, "batch seq -> batch 1", "sum")',
                'reduce(weight.bfloat16(), "batch seq -> batch 1", "sum").to(x.dtype)',
            ),
        ],
        "at most 512 tokens": [("weight =", "x, mask = x[:, :512], mask[:, :512]\n    weight =")],
        "the mask is ignored in the sum": [("einsum(x, weight,", "einsum(x, weight * 0 + 1,")],
        "the mask is ignored in the count": [
            ('reduce(weight, "batch seq -> batch 1", "sum")', "x.size(1)"),
        ],
        "the first row's count for all": [
            ('reduce(weight, "batch seq -> batch 1", "sum")', "weight[0].sum()"),
        ],
        "the first row's mask for all": [
            ("mask.to(x.dtype)", "mask[:1].expand_as(mask).to(x.dtype)")
        ],
        "the mean count of the batch": [
            ('reduce(weight, "batch seq -> batch 1", "sum")', "weight.sum() / len(x)"),
        ],
        "one token is never divided": [
            (
                'reduce(weight, "batch seq -> batch 1", "sum")',
                "weight.sum(1, keepdim=True).clamp(min=2)",
            ),
        ],
        "the count and one": [
            ('"batch seq -> batch 1", "sum")', '"batch seq -> batch 1", "sum") + 1')
        ],
        "whole numbers": [("return total / ", "return total // ")],
        "a mask of weights that add up to one over the batch": [
            ("    total =", "    weight = weight / weight.sum()\n    total ="),
            (' / reduce(weight, "batch seq -> batch 1", "sum")', ""),
        ],
        "padding set to zero in place": [
            ("    weight =", "    x[~mask] = 0\n    weight ="),
        ],
        "the mask inverted in place": [
            ("    return total", "    mask ^= True\n    return total"),
        ],
        "always float32": [
            ("mask.to(x.dtype)", "mask.float()"),
            ("einsum(x,", "einsum(x.float(),"),
        ],
        "a mask of float32": """
def masked_mean(x, mask):
    weight = mask.float()
    return (x * weight[..., None]).sum(1) / weight.sum(1, keepdim=True)
""",
        "an epsilon of float32": """
def masked_mean(x, mask):
    return (x * mask[..., None]).sum(1) / (mask.sum(1, keepdim=True) + 1e-9)
""",
        "a count of 8 bits": """
def masked_mean(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True, dtype=torch.uint8)
""",
        "a signed count of 8 bits": """
def masked_mean(x, mask):
    return (x * mask[..., None]).sum(1) / mask.sum(1, keepdim=True, dtype=torch.int8)
""",
        "the first of many tokens doesn't count": [
            (
                "    weight =",
                "    mask = mask.clone()\n    mask[:, 0] &= x.size(1) < 20\n    weight =",
            ),
        ],
        "the largest count for all": [
            (
                'reduce(weight, "batch seq -> batch 1", "sum")',
                "weight.sum(1).max()",
            ),
        ],
        "a view of contiguous memory": [("einsum(x,", "einsum(x.view(-1).view(x.shape),")],
        "axes of one are dropped": [
            ('"batch seq -> batch 1", "sum")', '"batch seq -> batch 1", "sum").squeeze()')
        ],
        "the largest": """
def masked_mean(x, mask):
    return x.masked_fill(~mask[..., None], -torch.inf).amax(1)
""",
        "the last kept token": """
def masked_mean(x, mask):
    return x[torch.arange(len(x)), mask.long().cumsum(1).argmax(1)]
""",
    },
    "image_to_patches": {
        "three channels": """
def to_patches(images, size):
    b, c, h, w = images.shape
    x = images.reshape(b, 3, h // size, size, w // size, size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, size * size * 3)
""",
        "square images": """
def to_patches(images, size):
    n = images.size(2) // size
    x = images.reshape(*images.shape[:2], n, size, -1, size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(len(images), n * n, -1)
""",
        "sizes of the notebook's images": """
b, c, h, w = 2, 3, 8, 12
def to_patches(images, size):
    x = images.reshape(b, c, h // size, size, w // size, size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(b, -1, size * size * c)
""",
        "patches of 4": [("p1=size, p2=size", "p1=4, p2=4")],
        "the number of patches": [("p1=size, p2=size", "h=size, w=size")],
        "channels first": [("(p1 p2 c)", "(c p1 p2)")],
        "column by column": [("b (h w)", "b (w h)")],
        "swapped inside": [("(p1 p2 c)", "(p2 p1 c)")],
        "thinned out": [("(h p1) (w p2)", "(p1 h) (p2 w)")],
        "unfold as it comes": """
def to_patches(images, size):
    return F.unfold(images, size, stride=size).mT
""",
        "overlapping": """
def to_patches(images, size):
    x = images.unfold(2, size, 1).unfold(3, size, 1)
    return rearrange(x, "b c h w p1 p2 -> b (h w) (p1 p2 c)")
""",
        "a reshape alone": """
def to_patches(images, size):
    return images.reshape(len(images), -1, size * size * images.size(1))
""",
        "a view of contiguous memory": [
            ("rearrange(images,", "rearrange(images.view(-1).view(images.shape),"),
        ],
        "axes of one are dropped": [("p2=size)", "p2=size).squeeze()")],
        "one value too few channels": [("rearrange(images,", "rearrange(images[:, :3],")],
        "always float32": [("rearrange(images,", "rearrange(images.float(),")],
        "float32 for half precision": [
            (
                "    return ",
                "    images = images.float() if images.element_size() < 4 else images\n    return ",
            ),
        ],
        "values scaled in place": [("    return ", "    images /= 2\n    return 2 * ")],
    },
    "grouped_query_attention": {
        "groups of query heads": [
            ("(kv group dim) -> batch kv", "(group kv dim) -> batch kv"),
            ("batch seq (kv group dim)", "batch seq (group kv dim)"),
        ],
        "heads are the fast part": [("(kv dim)", "(dim kv)"), ("(kv group dim)", "(dim kv group)")],
        "merged as (dim head)": [("-> batch seq (kv group dim)", "-> batch seq (dim kv group)")],
        "merged without moving seq": [
            (
                'rearrange(mixed, "batch kv group seq dim -> batch seq (kv group dim)")',
                "mixed.reshape(len(mixed), mixed.size(-2), -1)",
            ),
        ],
        "tril with zeros": [("-torch.inf", "0.0")],
        "the smallest positive number": [("-torch.inf", "torch.finfo(scores.dtype).tiny")],
        "a mask of -10": [("-torch.inf", "-10.0")],
        "a mask of -100": [("-torch.inf", "-100.0")],
        "a mask of -1e4": [("-torch.inf", "-1e4")],
        "a mask of -1e9": [("-torch.inf", "-1e9")],
        "the future lowered by 1,000": [
            ("scores.masked_fill(future, -torch.inf)", "scores - 1000 * future"),
        ],
        "a mask of float32": [
            (
                "scores.masked_fill(future, -torch.inf)",
                "scores + torch.full(scores.shape[-2:], -torch.inf).triu(1)",
            ),
        ],
        "float32 for half precision": [
            (
                "    sizes =",
                "    if q.element_size() < 4:\n        q, k, v = q.float(), k.float(), v.float()\n"
                "    sizes =",
            ),
        ],
        "a mask for 8 tokens": [
            (
                "torch.ones_like(scores, dtype=torch.bool).triu(1)",
                "torch.ones(8, 8).bool().triu(1)[: q.size(-2), : q.size(-2)]",
            ),
        ],
        "a mask for 64 tokens": [
            (
                "torch.ones_like(scores, dtype=torch.bool).triu(1)",
                "torch.ones(64, 64).bool().triu(1)[: q.size(-2), : q.size(-2)]",
            ),
        ],
        "masked after the softmax": [
            (
                "torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)",
                "torch.softmax(scores, dim=-1).masked_fill(future, 0.0)",
            ),
        ],
        "masked after the softmax, and divided": [
            (
                "torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)",
                "torch.softmax(scores, dim=-1).masked_fill(future, 0.0)",
            ),
            ("    mixed =", "    weights = weights / weights.sum(-1, keepdim=True)\n    mixed ="),
        ],
        "a softmax without the maximum": [
            (
                "torch.softmax(scores.masked_fill(future, -torch.inf), dim=-1)",
                "scores.masked_fill(future, -torch.inf).exp()",
            ),
            ("    mixed =", "    weights = weights / weights.sum(-1, keepdim=True)\n    mixed ="),
        ],
        "no mask": [("scores.masked_fill(future, -torch.inf)", "scores")],
        "a token doesn't see itself": [("triu(1)", "triu(0)")],
        "the past is masked": [(".triu(1)", ".tril(-1)")],
        "not scaled": [("scores / math.sqrt(q.size(-1))", "scores")],
        "scaled by the width": [("math.sqrt(q.size(-1))", "math.sqrt(q.size(-1) * heads)")],
        "scaled by dim": [("math.sqrt(q.size(-1))", "q.size(-1)")],
        "scaled by the number of tokens": [("math.sqrt(q.size(-1))", "math.sqrt(scores.size(-1))")],
        "a head of 4 numbers": [("math.sqrt(q.size(-1))", "math.sqrt(4)")],
        "the scale of dim // 2": [("math.sqrt(q.size(-1))", "int(math.sqrt(q.size(-1)))")],
        "softmax over the queries": [("dim=-1)", "dim=-2)")],
        "two key heads": [
            ("kv=kv_heads", "kv=2"),
            ('"kv": kv_heads', '"kv": 2'),
            ("heads // kv_heads", "heads // 2"),
        ],
        "groups of three": [("heads // kv_heads", "3")],
        "heads of 4 from the width": """
def grouped_query_attention(q, k, v, heads, kv_heads):
    q, k, v = (rearrange(x, "b s (h d) -> b h s d", d=4) for x in (q, k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return rearrange(mixed, "b h s d -> b s (h d)")
""",
        "the first key head for all": [
            (
                "    scores = einsum(q, k,",
                "    k = k[:, :1].expand_as(k)\n    scores = einsum(q, k,",
            ),
        ],
        "the first value head for all": [
            ("    mixed =", "    v = v[:, :1].expand_as(v)\n    mixed ="),
        ],
        "keys for values": [("einsum(weights, v,", "einsum(weights, k,")],
        "axes of one are dropped": [('(kv group dim)")', '(kv group dim)").squeeze()')],
        "always float32": [
            ("    sizes =", "    q, k, v = q.float(), k.float(), v.float()\n    sizes ="),
        ],
        "views of contiguous memory": [
            ("    sizes =", "    q = q.view(-1).view(q.shape)\n    sizes ="),
        ],
        "queries scaled in place": [
            ("    sizes =", "    q /= math.sqrt(q.size(-1) // heads)\n    sizes ="),
            ("    scores = scores / math.sqrt(q.size(-1))\n", ""),
        ],
        "one sequence of all examples": """
def grouped_query_attention(q, k, v, heads, kv_heads):
    shape = q.shape
    q, k, v = (x.flatten(0, 1)[None] for x in (q, k, v))
    split = "b s (h d) -> b h s d"
    q = rearrange(q, split, h=heads)
    k, v = (rearrange(x, split, h=kv_heads) for x in (k, v))
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return rearrange(mixed, "b h s d -> b s (h d)").reshape(shape)
""",
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "grouped_query_attention": {
        'sizes = {"kv": kv_heads, "group": heads // kv_heads}  =>  '
        'sizes = {"kv": kv_heads, "group": heads / kv_heads}': (
            "The division has no remainder, and einops takes 3.0 for 3."
        ),
    },
}
