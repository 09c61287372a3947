"""Wrong ideas for the exercises of 09_gpt2_speed, and mutants that are right."""

RATE = "rate = tokens / (ms / 1e3)"
SHARE = "rate * flops_per_token / peak"
CALL = "F.scaled_dot_product_attention(q, k, v, is_causal=True)"
SCORES = (
    "scores = (q @ k[keys].T / math.sqrt(d)).masked_fill(keys > queries, -math.inf)",
    "new = torch.maximum(m, scores.amax(1, keepdim=True))",
    "old, weights = torch.exp(m - new), torch.exp(scores - new)",
)
ADAMW = "torch.optim.AdamW(groups, lr=config.learning_rate, betas=(0.9, 0.95), fused=True)"
PRECISION = 'torch.set_float32_matmul_precision("high")  # TF32'
DEVICE = "device = model.lm_head.weight.device.type"
COMPILED = "torch.compile(model) if config.compile else model"

SPEED_IDEAS: dict[str, str | list[tuple[str, str]]] = {
    "the notebook's numbers of tokens": [
        ("rate = tokens", "tokens = 16 * 1024\n    rate = tokens")
    ],
    "the peak of an A6000": [
        ("rate * flops_per_token / peak", "rate * flops_per_token / 154.8e12")
    ],
    "milliseconds taken for seconds": [("(ms / 1e3)", "ms")],
    "microseconds": [("1e3", "1e6")],
    "time of one token": [(RATE, "rate = ms / 1e3 / tokens")],
    "tokens per second rounded down": [(RATE, "rate = int(tokens / (ms / 1e3))")],
    "FLOPs of one token": [(SHARE, "flops_per_token / (ms / 1e3) / peak")],
    "FLOPs of a step without its time": [(SHARE, "tokens * flops_per_token / peak")],
    "peak in TFLOP/s": [(SHARE, "rate * flops_per_token / 1e12 / peak")],
    "forward pass counted alone": [(SHARE, "rate * flops_per_token / 3 / peak")],
    "backward pass counted again": [(SHARE, "3 * rate * flops_per_token / peak")],
    "multiply-adds counted again": [(SHARE, "2 * rate * flops_per_token / peak")],
    "percentage": [(SHARE, "100 * rate * flops_per_token / peak")],
    "inverted MFU": [(SHARE, "peak / (rate * flops_per_token)")],
    "MFU rounded to percents": [(SHARE, "round(rate * flops_per_token / peak, 2)")],
    "FLOP/s instead of MFU": [(SHARE, "rate * flops_per_token")],
    "swapped results": [("return rate, " + SHARE, f"return {SHARE}, rate")],
}

ATTENTION_IDEAS: dict[str, str | list[tuple[str, str]]] = {
    "no mask": [(", is_causal=True", "")],
    "causal only for several tokens in the first row": [(CALL, CALL.replace("q, k", "q[:1], k"))],
    "mask of all scores": [
        ("is_causal=True", "attn_mask=torch.ones(q.size(2), q.size(2), dtype=torch.bool).tril()")
    ],
    "tril with zeros, which is added": [
        ("is_causal=True", "attn_mask=torch.ones(q.size(2), q.size(2)).tril()")
    ],
    "mask without the own position": [
        ("is_causal=True", "attn_mask=torch.ones(q.size(2), q.size(2), dtype=torch.bool).tril(-1)")
    ],
    "inverted mask": [
        ("is_causal=True", "attn_mask=torch.ones(q.size(2), q.size(2), dtype=torch.bool).triu(1)")
    ],
    "scaled twice": [("(q, k", "(q / math.sqrt(q.size(-1)), k")],
    "scaled by the notebook's head_dim": [("is_causal=True", "is_causal=True, scale=0.125")],
    "scaled by the root of the sequence": [
        ("is_causal=True", "is_causal=True, scale=q.size(2) ** -0.5")
    ],
    "keys first": [("(q, k, v", "(k, q, v")],
    "heads and positions swapped": [
        (CALL, CALL.replace("q, k, v", "*(x.transpose(1, 2) for x in (q, k, v))") + ".mT")
    ],
    "heads merged": [(CALL, CALL + ".transpose(1, 2).flatten(2)")],
    "heads folded into the batch": [
        (CALL, CALL.replace("q, k, v", "*(x.flatten(0, 1) for x in (q, k, v))") + ".view(q.shape)")
    ],
    "dropout": [("is_causal=True", "is_causal=True, dropout_p=0.1")],
    "fp32 result": [("q, k, v, is", "q.float(), k.float(), v.float(), is")],
    "q scaled in place": [
        ("return", "with torch.no_grad():\n        q *= q.size(-1) ** -0.5\n    return"),
        ("is_causal=True", "is_causal=True, scale=1.0"),
    ],
    "written out": [
        (
            CALL,
            "(q @ k.mT / math.sqrt(q.size(-1))).masked_fill(torch.ones(q.size(2), q.size(2), "
            "dtype=torch.bool).triu(1), -math.inf).softmax(-1) @ v",
        )
    ],
    "one query after the other": [
        (
            CALL,
            "torch.cat([(q[:, :, t : t + 1] @ k[:, :, : t + 1].mT / math.sqrt(q.size(-1)))"
            ".softmax(-1) @ v[:, :, : t + 1] for t in range(q.size(2))], 2)",
        )
    ],
    "no gradient for keys": [("(q, k, v", "(q, k.detach(), v")],
    "extreme logits clamped": [("(q, k, v", "(q.clamp(-10, 10), k, v")],
}

FLASH_IDEAS: dict[str, str | list[tuple[str, str]]] = {
    "scores of all blocks kept": [
        ("    for start", "    kept = []\n    for start"),
        ("        m = new", "        m = new\n        kept.append(scores)"),
    ],
    "no blocks": [("block):", "seq):"), ("start + block", "start + seq")],
    "one call": [
        (
            "    seq, d = q.shape",
            "    return F.scaled_dot_product_attention(q[None, None], k[None, None], "
            "v[None, None], is_causal=True)[0, 0]\n    seq, d = q.shape",
        )
    ],
    "softmax of one query after the other": [
        (
            "    seq, d = q.shape",
            "    return torch.cat([(q[t : t + 1] @ k[: t + 1].T / math.sqrt(q.size(1)))"
            ".softmax(1) @ v[: t + 1] for t in range(len(q))])\n    seq, d = q.shape",
        )
    ],
    "mask of all scores": [
        ("    m, total", "    mask = torch.ones(seq, seq).triu(1).bool()\n    m, total"),
        ("keys > queries", "mask[:, keys]"),
    ],
    "blocks of 16": [("    seq, d", "    block = 16\n    seq, d")],
    "total detached": [("result / total", "result / total.detach()")],
    "weights detached": [("torch.exp(scores - new)", "torch.exp(scores - new).detach()")],
    "short last block left out": [("range(0, seq, block)", "range(0, seq - block + 1, block)")],
    "masked scores of 0": [("-math.inf)\n        new", "0.0)\n        new")],
    "mask after the maximum": [
        (SCORES[0], "scores = q @ k[keys].T / math.sqrt(d)"),
        (
            SCORES[2],
            "old, weights = torch.exp(m - new), torch.exp(scores - new) * (keys <= queries)",
        ),
    ],
    "keys counted from 0 in each block": [("keys > queries", "keys - start > queries")],
    "strictly earlier keys": [("keys > queries", "keys >= queries")],
    "maximum of all queries": [("scores.amax(1, keepdim=True)", "scores.max()")],
    "maximum of the block only": [(SCORES[1], "new = scores.amax(1, keepdim=True)")],
    "no maximum": [(SCORES[1], "new = torch.zeros(seq, 1)"), ("-math.inf), torch", "0.0), torch")],
    "maximum that begins at 0": [("torch.full((seq, 1), -math.inf)", "torch.zeros(seq, 1)")],
    "total not rescaled": [("old * total + weights.sum", "total + weights.sum")],
    "result not rescaled": [("old * result + weights @", "result + weights @")],
    "rescaled the wrong way round": [("torch.exp(m - new)", "torch.exp(new - m)")],
    "each block normalized": [
        (
            "torch.exp(scores - new)",
            "torch.exp(scores - new).div(torch.exp(scores - new).sum(1, True))",
        )
    ],
    "number of keys instead of their weights": [("weights.sum(1, keepdim=True)", "len(keys)")],
    "scaled by d": [("math.sqrt(d)", "d")],
    "scaled by the root of the block": [("math.sqrt(d)", "math.sqrt(block)")],
    "q scaled in place": [
        ("    queries", "    q /= math.sqrt(d)\n    queries"),
        (".T / math.sqrt(d)", ".T"),
    ],
    "first values for every block": [("v[keys]", "v[: len(keys)]")],
    "last block first": [("range(0, seq, block)", "reversed(range(0, seq, block))")],
    "keys in fp64": [
        ("k[keys].T", "k[keys].double().T"),
        ("(q @", "(q.double() @"),
        ("v[keys]", "v[keys].double()"),
    ],
}

PADDED_IDEAS: dict[str, str | list[tuple[str, str]]] = {
    "down": [("-(-n // multiple)", "n // multiple")],
    "one multiple more": [("-(-n // multiple)", "(n // multiple + 1)")],
    "remainder added": [("-(-n // multiple) * multiple", "n + multiple - n % multiple")],
    "number of multiples": [(" * multiple", "")],
    "missing numbers": [("-(-n // multiple) * multiple", "-n % multiple")],
    "nearest multiple": [("-(-n // multiple)", "round(n / multiple)")],
    "float": [("-(-n // multiple) * multiple", "math.ceil(n / multiple) * float(multiple)")],
    "multiples of 64": [("multiple) *", "64) *"), ("* multiple", "* 64")],
    "multiples of 128": [("-(-n // multiple) * multiple", "n + -n % 128")],
    "next power of 2": [("-(-n // multiple) * multiple", "1 << (n - 1).bit_length()")],
    "bits": [("-(-n // multiple) * multiple", "(n + multiple - 1) & ~(multiple - 1)")],
    "GPT-2's vocabulary": [("-(-n // multiple) * multiple", "50304")],
    "at least one more column": [("-n //", "-(n + 1) //")],
    "sum": [("-(-n // multiple) * multiple", "n + multiple")],
    "nearly one multiple more": [("-(-n // multiple)", "int(n / multiple + 0.999)")],
    "larger of both": [
        ("-(-n // multiple) * multiple", "n if n % multiple == 0 else max(n, multiple)")
    ],
}

OPTIMIZER_IDEAS: dict[str, str | list[tuple[str, str]]] = {
    "fused never passed on": [(", fused=True", ", **({} if {'fused': True} else {})")],
    "fused on a GPU only": [("fused=True", "fused=next(model.parameters()).is_cuda")],
    "foreach instead": [("fused=True", "foreach=True")],
    "first group fused": [
        ("    return", "    groups[0]['fused'] = True\n    return"),
        (", fused=True", ""),
    ],
    "default betas": [(", betas=(0.9, 0.95)", "")],
    "swapped betas": [("(0.9, 0.95)", "(0.95, 0.9)")],
    "GPT-2's learning rate fixed": [("config.learning_rate", "6e-4")],
    "no learning rate": [("lr=config.learning_rate, ", "")],
    "decay fixed": [("config.weight_decay)", "0.1)")],
    "a decay of 0 replaced": [("config.weight_decay)", "config.weight_decay or 0.1)")],
    "a learning rate of 0 replaced": [("config.learning_rate", "config.learning_rate or 6e-4")],
    "everything decays": [
        ("(groups, ", "(model.parameters(), weight_decay=config.weight_decay, "),
    ],
    "decay passed to AdamW only": [
        (
            "(groups, ",
            "([{'params': g['params']} for g in groups], weight_decay=config.weight_decay, ",
        )
    ],
    "decay times the learning rate": [
        ("config.weight_decay)", "config.weight_decay * config.learning_rate)")
    ],
    "matrices only": [("(groups, ", "(groups[:1], ")],
    "swapped groups": [
        (
            "    return",
            "    groups[0]['weight_decay'], groups[1]['weight_decay'] = 0.0, config.weight_decay\n"
            "    return",
        )
    ],
    "groups by name": [
        (
            "groups = parameter_groups(model, config.weight_decay)",
            "groups = [{'params': [p for n, p in model.named_parameters() if ('bias' in n) == b], "
            "'weight_decay': 0.0 if b else config.weight_decay} for b in (False, True)]",
        )
    ],
    "matrices of two axes only": [
        (
            "groups = parameter_groups(model, config.weight_decay)",
            "groups = [{'params': [p for p in model.parameters() if (p.dim() == 2) == b], "
            "'weight_decay': config.weight_decay if b else 0.0} for b in (True, False)]",
        )
    ],
    "matrices of several rows only": [
        (
            "groups = parameter_groups(model, config.weight_decay)",
            "groups = [{'params': [p for p in model.parameters() if (p.squeeze().dim() > 1) == b], "
            "'weight_decay': config.weight_decay if b else 0.0} for b in (True, False)]",
        )
    ],
    "Adam": [("torch.optim.AdamW", "torch.optim.Adam")],
    "larger eps": [("fused=True", "fused=True, eps=1e-5")],
    "amsgrad": [("fused=True", "fused=True, amsgrad=True")],
    "maximize": [("fused=True", "fused=True, maximize=True")],
    "a copy of the model": [("(model, config.w", "(__import__('copy').deepcopy(model), config.w")],
    "initializes the model": [
        ("    return", "    [nn.init.normal_(p, std=0.02) for p in model.parameters()]\n    return")
    ],
}

FAST_IDEAS: dict[str, str | list[tuple[str, str]]] = {
    "no TF32": [(PRECISION, "")],
    "bf16 for fp32 matmuls": [('"high"', '"medium"')],
    "TF32 for convolutions only": [(PRECISION, "torch.backends.cudnn.allow_tf32 = True")],
    "TF32 without bf16": [(PRECISION, 'config.bf16 or torch.set_float32_matmul_precision("high")')],
    "TF32 with bf16": [(PRECISION, 'config.bf16 and torch.set_float32_matmul_precision("high")')],
    "TF32 for compiled models": [
        (PRECISION, 'config.compile and torch.set_float32_matmul_precision("high")')
    ],
    "device of the notebook": [(DEVICE, 'device = "cuda" if torch.cuda.is_available() else "cpu"')],
    "always a GPU": [(DEVICE, 'device = "cuda"')],
    "device with its index": [(".device.type", ".device")],
    "name of the device with its index": [(DEVICE, "device = str(model.lm_head.weight.device)")],
    "fp16": [("torch.bfloat16", "torch.float16")],
    "default dtype": [("dtype=torch.bfloat16, ", "")],
    "autocast always on": [("enabled=config.bf16", "enabled=True")],
    "autocast without the compiler": [("config.bf16)", "config.bf16 and not config.compile)")],
    "autocast if compiled": [("enabled=config.bf16", "enabled=config.compile")],
    "autocast for either setting": [
        ("enabled=config.bf16", "enabled=config.bf16 or config.compile")
    ],
    "nullcontext without bf16": [
        (
            COMPILED + ", autocast",
            COMPILED + ", autocast if config.bf16 else __import__('contextlib').nullcontext()",
        )
    ],
    "no autocast without bf16": [
        (COMPILED + ", autocast", COMPILED + ", autocast if config.bf16 else None")
    ],
    "entered autocast": [("    return", "    autocast.__enter__()\n    return")],
    "weights in bf16": [
        (DEVICE, DEVICE + "\n    model = model.bfloat16() if config.bf16 else model")
    ],
    "weights rounded to bf16": [(DEVICE, DEVICE + "\n    model.bfloat16().float()")],
    "always compiled": [(COMPILED, "torch.compile(model)")],
    "never compiled": [(COMPILED, "model")],
    "compiled in place": [
        ("    return " + COMPILED, "    config.compile and model.compile()\n    return model")
    ],
    "a compiled copy": [
        ("torch.compile(model)", "torch.compile(__import__('copy').deepcopy(model))")
    ],
    "a compiled function": [("torch.compile(model)", "torch.compile(model.forward)")],
    "compiled by an eager backend": [("(model) if", "(model, backend='eager') if")],
    "compiled without bf16": [("config.compile else", "config.compile and not config.bf16 else")],
    "evaluation mode": [("torch.compile(model)", "torch.compile(model.eval())")],
    "bf16 as the default": [
        (PRECISION, PRECISION + "\n    torch.set_default_dtype(torch.bfloat16)")
    ],
    "autocast switched on": [
        (PRECISION, PRECISION + "\n    torch.set_autocast_enabled('cpu', config.bf16)")
    ],
    "swapped results": [(COMPILED + ", autocast", f"autocast, ({COMPILED})")],
}

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "speed": SPEED_IDEAS,
    "fused_attention": ATTENTION_IDEAS,
    "flash_attention": FLASH_IDEAS,
    "padded": PADDED_IDEAS,
    "make_optimizer": OPTIMIZER_IDEAS,
    "fast": FAST_IDEAS,
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "flash_attention": {
        "m, total = torch.full((seq, 1), -math.inf), torch.zeros(seq, 1)  =>  "
        "m, total = torch.full((seq, 1), -math.inf), torch.zeros(1)": (
            "A total of one zero broadcasts to one per query in the first addition."
        ),
    },
}
