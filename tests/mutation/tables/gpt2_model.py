"""Wrong ideas for the exercises of 07_gpt2_model, and mutants that are right."""

POSITIONS = "positions = torch.arange(idx.size(1), device=idx.device)"
SUM = "return wte(idx) + wpe(positions)"
GELU = 'F.gelu(self.c_fc(x), approximate="tanh")'
SCORES = "scores = q @ k.mT / math.sqrt(q.size(-1))"
FUTURE = "future = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)"
WEIGHTS = "scores.masked_fill(future, -math.inf).softmax(-1)"
HEADS = "head=self.n_head)"
CALL = "y = attention(q, k, v)"
FIRST = "x = x + self.attn(self.ln_1(x))"
SECOND = "return x + self.mlp(self.ln_2(x))"
SMALL = "parameter.normal_(0.0, 0.02 / math.sqrt(2 * model.config.n_layer))"
OTHER = "            parameter.normal_(0.0, 0.02)\n"
LOSS = "return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())"
START = "x = embed(idx, self.transformer.wte, self.transformer.wpe)"
LINEAR = 'is_linear = name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))'
TURNED = "tensor = tensor.t() if is_linear else tensor"
COPY = "ours[name][: len(tensor)] = tensor[: len(ours[name])]"
KTH = "kth = logits.topk(top_k).values[:, -1:]"
PROBABILITIES = "probabilities = logits.masked_fill(logits < kth, -math.inf).softmax(-1)"
WINDOW = "model(idx[:, -model.config.block_size :])"
DRAW = "torch.multinomial(probabilities, 1)"
PREFIXED = '"transformer." + name.removeprefix("transformer.")'
UNPREFIXED_HEAD = f'name if name.startswith("lm_head") else {PREFIXED}'
KEPT = "kept[order] = ordered.where(before < p, 0.0)"

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "embed": {
        "positions for the notebook's eight tokens": [("idx.size(1)", "8")],
        "positions for the whole table": [("idx.size(1)", "wpe.num_embeddings")],
        "positions by token": [("wpe(positions)", "wpe(idx % wpe.num_embeddings)")],
        "one position for all": [("wpe(positions)", "wpe.weight[idx.size(1) - 1]")],
        "positions along the batch": [("idx.size(1)", "idx.size(0)")],
        "positions from one": [(SUM, "return wte(idx) + wpe((positions + 1) % len(wpe.weight))")],
        "positions counted from the end": [("wpe(positions)", "wpe(positions.flip(0))")],
        "positions continue in the next text": [
            (POSITIONS, "positions = torch.arange(idx.numel(), device=idx.device).view(idx.shape)"),
            ("wpe(positions)", "wpe(positions % len(wpe.weight))"),
        ],
        "positions restart at a repeated token": [
            ("wpe(positions)", "wpe((idx[:, :, None] == idx[:, None]).int().argmax(-1))")
        ],
        "tokens count half": [(SUM, "return (wte(idx) + wpe(positions)) / 2")],
        "concatenated": [
            (SUM, "return torch.cat((wte(idx), wpe(positions).expand(*idx.shape, -1)), -1)")
        ],
        "tables without gradient": [(SUM, "return wte.weight.data[idx] + wpe(positions)")],
        "id 0 as padding": [(SUM, f"{SUM.replace('return ', 'return (')}) * (idx > 0)[..., None]")],
        "ids changed": [(SUM, f"idx %= len(wte.weight)\n    idx += 0 * idx + 1\n    {SUM}")],
        "positions on the CPU": [(", device=idx.device", "")],
        "single precision": [(SUM, "return wte(idx).float() + wpe(positions).float()")],
    },
    "mlp": {
        "frozen": [("config.n_embd)\n\n", "config.n_embd).requires_grad_(False)\n\n")],
        "width of GPT-2": [("4 * config.n_embd", "3072")],
        "exact GELU": [(', approximate="tanh"', "")],
        "sigmoid GELU": [(GELU, "self.c_fc(x) * torch.sigmoid(1.702 * self.c_fc(x))")],
        "square for cube": [
            (
                GELU,
                "(h := self.c_fc(x)) * 0.5 * (1 + torch.tanh((2 / math.pi) ** 0.5 "
                "* (h + 0.044715 * h**2)))",
            )
        ],
        "forgotten root": [
            (
                GELU,
                "(h := self.c_fc(x)) * 0.5 * (1 + torch.tanh(2 / math.pi * (h + 0.044715 * h**3)))",
            )
        ],
        "ReLU": [(GELU, "F.relu(self.c_fc(x))")],
        "GELU first": [(GELU, 'self.c_fc(F.gelu(x, approximate="tanh"))')],
        "GELU last": [
            (f"self.c_proj({GELU})", 'F.gelu(self.c_proj(self.c_fc(x)), approximate="tanh")')
        ],
        "own residual": [("return self", "return x + self")],
        "dropout": [
            (f"self.c_proj({GELU})", f"F.dropout(self.c_proj({GELU}), 0.1, self.training)")
        ],
        "no bias": [("4 * config.n_embd)", "4 * config.n_embd, bias=False)")],
        "tied layers": [(f"self.c_proj({GELU})", f"{GELU} @ self.c_fc.weight")],
        "eval without nonlinearity": [(GELU, f"({GELU} if self.training else self.c_fc(x))")],
        "rounded constant": [
            (
                GELU,
                "0.5 * (h := self.c_fc(x)) * (1 + torch.tanh((2 / math.pi) ** 0.5 "
                "* (h + 0.0447 * h**3)))",
            )
        ],
    },
    "attention": {
        "a billion for infinity": [("-math.inf", "-1e9")],
        "library call": [
            (
                f"return {WEIGHTS} @ v",
                "from torch.nn.functional import scaled_dot_product_attention as call\n"
                "    return call(q, k, v, is_causal=True)",
            )
        ],
        "GPT-2's head_dim": [("math.sqrt(q.size(-1))", "8")],
        "tril with zeros": [(WEIGHTS, "scores.tril().softmax(-1)")],
        "mask after softmax": [(WEIGHTS, "scores.softmax(-1).tril()")],
        "mask after softmax, and divided by the sum": [
            (f"return {WEIGHTS}", f"w = {WEIGHTS}\n    return w / w.sum(-1, keepdim=True)"),
            (WEIGHTS, "scores.softmax(-1).tril()"),
        ],
        "softmax by exp": [
            (f"return {WEIGHTS} @ v", "e = scores.exp().tril()\n    return e / e.sum(-1, True) @ v")
        ],
        "not so far from zero": [("-math.inf", "-1e4")],
        "never its own position": [(".triu(1)", ".triu(0)")],
        "a window of four": [(FUTURE, f"{FUTURE}\n    future |= torch.ones_like(future).tril(-4)")],
        "mask of the notebook's text": [
            (FUTURE, "future = torch.ones(8, 8, dtype=torch.bool).triu(1)")
        ],
        "first text's scores": [(WEIGHTS, f"({WEIGHTS})[:1]")],
        "first head's scores": [(WEIGHTS, f"({WEIGHTS})[:, :1]")],
        "mean of the heads": [(FUTURE, f"scores = scores.mean(1, keepdim=True)\n    {FUTURE}")],
        "softmax over heads": [(".softmax(-1)", ".softmax(1)")],
        "queries and keys swapped": [("q @ k.mT", "k @ q.mT")],
        "mask on the CPU": [
            (FUTURE, "future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)")
        ],
        "scaled in place": [(SCORES, "scores = q.data.div_(math.sqrt(q.size(-1))) @ k.mT")],
        "no gradient of the weights": [(WEIGHTS, f"{WEIGHTS}.detach()")],
        "dropout": [(WEIGHTS, f"F.dropout({WEIGHTS}, 0.1)")],
        "zeros taken for the mask": [
            (WEIGHTS, "scores.masked_fill(scores.tril() == 0, -math.inf).softmax(-1)")
        ],
        "zeros taken for the mask, after tril": [
            (SCORES, f"{SCORES.replace('= ', '= (')}).tril()"),
            (WEIGHTS, "scores.masked_fill(scores == 0, -math.inf).softmax(-1)"),
        ],
        "mask in fp32": [
            (
                WEIGHTS,
                "(scores + torch.full_like(scores, -math.inf, dtype=torch.float32).triu(1))"
                ".softmax(-1)",
            )
        ],
        "scores in fp32": [(f"{WEIGHTS} @ v", f"{WEIGHTS}.float() @ v")],
        "scores and values in fp32": [(f"{WEIGHTS} @ v", f"{WEIGHTS}.float() @ v.float()")],
        "a window of 64": [(FUTURE, f"{FUTURE}\n    future |= torch.ones_like(future).tril(-64)")],
        "-inf as a factor": [
            (WEIGHTS, "(scores * torch.where(future, -math.inf, 1.0)).softmax(-1)")
        ],
        "a small number in the denominator": [
            (
                f"return {WEIGHTS} @ v",
                "w = scores.softmax(-1).tril()\n"
                "    return w / (w.sum(-1, keepdim=True) + 1e-6) @ v",
            )
        ],
    },
    "causal_self_attention": {
        "a mask for 64 tokens": [
            (
                CALL,
                "mask = torch.full((64, 64), -math.inf, device=x.device).triu(1)\n"
                "        mask = mask[: x.size(1), : x.size(1)]\n"
                "        y = (q @ k.mT / math.sqrt(q.size(-1)) + mask).softmax(-1) @ v",
            )
        ],
        "a softmax without its maximum": [
            (
                CALL,
                "weights = (q @ k.mT / math.sqrt(q.size(-1))).exp().tril()\n"
                "        y = weights / weights.sum(-1, keepdim=True) @ v",
            )
        ],
        "GPT-2's head_dim": [(HEADS, "head=x.size(-1) // 64)")],
        "heads in a global": [
            ("self.n_head = config", "global N_HEAD\n        N_HEAD = config"),
            ("self.n_head", "N_HEAD"),
        ],
        "twelve heads": [("config.n_head", "12")],
        "causal only in training": [
            (CALL, "y = F.scaled_dot_product_attention(q, k, v, is_causal=self.training)")
        ],
        "no mask": [(CALL, "y = F.scaled_dot_product_attention(q, k, v)")],
        "keys first": [("q, k, v = rearrange", "k, q, v = rearrange")],
        "values before keys": [("q, k, v = rearrange", "q, v, k = rearrange")],
        "three parts per head": [("(three head head_dim)", "(head three head_dim)")],
        "interleaved heads": [("(three head head_dim)", "(three head_dim head)")],
        "interleaved merge": [("batch seq (head head_dim)", "batch seq (head_dim head)")],
        "view without transpose": [
            (
                "q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)",
                "q, k, v = (part.reshape(len(x), self.n_head, x.size(1), -1) "
                "for part in self.c_attn(x).chunk(3, -1))",
            )
        ],
        "heads as positions": [
            ("-> three batch head seq head_dim", "-> three batch seq head head_dim"),
            ('"batch head seq head_dim ->', '"batch seq head head_dim ->'),
        ],
        "scaled twice": [(CALL, "y = attention(q / math.sqrt(q.size(-1)), k, v)")],
        "no output layer": [("return self.c_proj(", "return (")],
        "output layer on the input": [("self.c_attn(x)", "self.c_attn(self.c_proj(x))")],
        "own residual": [("return self.c_proj(", "return x + self.c_proj(")],
        "no bias": [("3 * config.n_embd)", "3 * config.n_embd, bias=False)")],
        "mask that stays on the CPU": [
            (
                "self.c_proj =",
                "self.mask = torch.ones(config.block_size, config.block_size).tril() == 0\n"
                "        self.c_proj =",
            ),
            (
                CALL,
                "t = q.size(2)\n        scores = q @ k.mT / math.sqrt(q.size(-1))\n        "
                "y = scores.masked_fill(self.mask[:t, :t], -math.inf).softmax(-1) @ v",
            ),
        ],
        "keys of the first call": [
            (CALL, "self.k = getattr(self, 'k', k)\n        y = attention(q, self.k, v)")
        ],
        "dropout": [(CALL, f"{CALL}\n        y = F.dropout(y, 0.1, self.training)")],
    },
    "block": {
        "post-norm": [
            (FIRST, "x = self.ln_1(x + self.attn(x))"),
            (SECOND, "return self.ln_2(x + self.mlp(x))"),
        ],
        "parallel": [
            (FIRST, "y = self.attn(self.ln_1(x))"),
            (SECOND, "return x + y + self.mlp(self.ln_2(x))"),
        ],
        "no residual around attention": [(FIRST, "x = self.attn(self.ln_1(x))")],
        "no residual around the MLP": [("return x + self.mlp", "return self.mlp")],
        "norm on the stream": [
            (FIRST, "x = self.ln_1(x)\n        x = x + self.attn(x)"),
            (SECOND, "x = self.ln_2(x)\n        return x + self.mlp(x)"),
        ],
        "no MLP": [(SECOND, "return x")],
        "MLP first": [
            (FIRST, "x = x + self.mlp(self.ln_2(x))"),
            (SECOND, "return x + self.attn(self.ln_1(x))"),
        ],
        "one norm for both": [("self.ln_2 = nn.LayerNorm(config.n_embd)", "self.ln_2 = self.ln_1")],
        "ln_1 twice": [("self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))")],
        "another eps": [("nn.LayerNorm(config.n_embd)", "nn.LayerNorm(config.n_embd, eps=1e-6)")],
        "RMSNorm": [("nn.LayerNorm(config.n_embd)", "nn.RMSNorm(config.n_embd)")],
        "stream in place": [(FIRST, "x.data += self.attn(self.ln_1(x))")],
        "halved stream": [(SECOND, "return (x + self.mlp(self.ln_2(x))) / math.sqrt(2)")],
        "detached stream": [(FIRST, "x = x.detach() + self.attn(self.ln_1(x))")],
        "width of GPT-2": [("nn.LayerNorm(config.n_embd)", "nn.LayerNorm(768)")],
    },
    "init_weights": {
        "twelve layers": [("model.config.n_layer", "12")],
        "once per block": [("2 * model", "model")],
        "without the root": [("math.sqrt(2 * model.config.n_layer)", "(2 * model.config.n_layer)")],
        "only attention's projection": [('"c_proj" in name', '"attn.c_proj" in name')],
        "all linear layers smaller": [('"c_proj" in name', '".c_" in name')],
        "OpenAI's positions": [
            (
                "        else:",
                '        elif "wpe" in name:\n            parameter.normal_(0.0, 0.01)\n'
                "        else:",
            )
        ],
        "forgotten last norm": [('".ln_" in name', '".ln_1" in name or ".ln_2" in name')],
        "the variance": [(OTHER, OTHER.replace("0.02", "0.02**2"))],
        "uniform": [(OTHER, OTHER.replace("normal_(0.0, 0.02", "uniform_(-0.0346, 0.0346"))],
        "cut at two stds": [
            (OTHER, "            nn.init.trunc_normal_(parameter, 0.0, 0.02, -0.04, 0.04)\n")
        ],
        "one row for all": [
            (OTHER, "            parameter.copy_(0.02 * torch.randn(parameter.size(-1)))\n")
        ],
        "seeded per weight": [(OTHER, f"            torch.manual_seed(1337)\n{OTHER}")],
        "seeded once": [("    for name", "    torch.manual_seed(1337)\n    for name")],
        "by depth of the block": [
            (SMALL, "parameter.normal_(0.0, 0.02 / math.sqrt(2 * (int(name.split('.')[2]) + 1)))")
        ],
        "scaled from what was there": [
            (OTHER, "            parameter.mul_(0.02 / parameter.std().clamp(1e-9))\n")
        ],
        "new tensors on the CPU": [
            (OTHER, "            parameter.data = 0.02 * torch.randn(parameter.shape)\n")
        ],
        "another dtype": [
            (OTHER, "            parameter.data = 0.02 * torch.randn_like(parameter).double()\n")
        ],
        "Laplace": [
            (
                OTHER,
                "            laplace = torch.distributions.Laplace(0.0, 0.02 / math.sqrt(2))\n"
                "            parameter.copy_(laplace.sample(parameter.shape))\n",
            )
        ],
        "heads times layers": [("2 * model.config", "model.config.n_head * model.config")],
        "Xavier": [(OTHER, "            nn.init.xavier_normal_(parameter)\n")],
        "untied": [
            (
                "    for name",
                "    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())\n"
                "    for name",
            )
        ],
        "eval mode": [("    for name", "    model.eval()\n    for name")],
    },
    "gpt": {
        "copied head": [
            ("self.lm_head.weight = wte.weight", "self.lm_head.weight.data = wte.weight")
        ],
        "init before the blocks": [
            ("        init_weights(self)\n", ""),
            (
                "        h = nn.ModuleList(",
                "        self.transformer = nn.ModuleDict({'wte': wte})\n"
                "        init_weights(self)\n        h = nn.ModuleList(",
            ),
        ],
        "one block repeated": [
            ("Block(config) for _ in range(config.n_layer)", "[Block(config)] * config.n_layer")
        ],
        "twelve blocks": [("range(config.n_layer)", "range(12)")],
        "no last norm": [("self.transformer.ln_f(x)", "x")],
        "config of the class": [("self.config = config", "GPT.config = config")],
        "clamped logits": [("self.config.vocab_size]\n", "self.config.vocab_size].clamp(-9, 9)\n")],
        "one text's loss": [(LOSS, "return F.cross_entropy(logits.float()[0], targets[0])")],
        "no positions": [(START, "x = self.transformer.wte(idx)")],
        "embeddings scaled": [
            (
                START,
                "x = math.sqrt(self.config.n_embd) * self.transformer.wte(idx)\n        "
                "x = x + self.transformer.wpe.weight[: idx.size(1)]",
            )
        ],
        "last position only": [("self.transformer.ln_f(x)", "self.transformer.ln_f(x[:, -1:])")],
        "padded logits": [("[..., : self.config.vocab_size]", "")],
        "GPT-2's vocabulary": [(": self.config.vocab_size]", ": 50257]")],
        "shifted again": [
            (
                LOSS,
                "return F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())",
            )
        ],
        "id 0 as padding": [("targets.flatten())", "targets.flatten(), ignore_index=0)")],
        "smoothed labels": [("targets.flatten())", "targets.flatten(), label_smoothing=0.1)")],
        "sum": [("targets.flatten())", 'targets.flatten(), reduction="sum")')],
        "loss of the last position": [
            (LOSS, "return F.cross_entropy(logits[:, -1], targets[:, -1])")
        ],
        "bits": [(LOSS, f"{LOSS} / math.log(2)")],
        "targets that are zero are none": [
            ("if targets is None:", "if targets is None or not targets.any():")
        ],
        "softmax": [("            return logits\n", "            return logits.softmax(-1)\n")],
        "pair": [("            return logits\n", "            return logits, None\n")],
        "blocks in a list": [
            (', "h": h', ""),
            ("self.transformer.h", "self.blocks"),
            ("        init_w", "        self.blocks = list(h)\n        init_w"),
        ],
        "whole context": [(START, "x = self.transformer.wte(idx) + self.transformer.wpe.weight")],
        "positions on the CPU": [
            (
                START,
                "x = self.transformer.wte(idx) + self.transformer.wpe(torch.arange(idx.size(1)))",
            )
        ],
        "embeddings without gradient": [(START, f"{START}.detach()")],
        "targets in place": [(LOSS, f"targets.clamp_(min=1)\n        {LOSS}")],
        "seeded": [("        super()", "        torch.manual_seed(1337)\n        super()")],
    },
    "load_weights": {
        "a new value for a name": [(COPY, "ours[name] = tensor")],
        "by shape": [
            (LINEAR, "is_linear = tensor.shape[1:] != ours[name].shape[1:]"),
        ],
        "by shape, and square ones, too": [
            (
                LINEAR,
                "is_linear = tensor.ndim == 2 and (tensor.shape[0] == tensor.shape[1] "
                "or tensor.shape[1:] != ours[name].shape[1:])",
            )
        ],
        "every matrix": [(LINEAR, "is_linear = tensor.ndim == 2")],
        "none": [(TURNED, "pass")],
        "reshape": [("tensor.t() if", "tensor.reshape(tensor.shape[::-1]) if")],
        "only with a prefix": [
            ('name = "transformer." + name.removeprefix("transformer.")', "pass")
        ],
        "only without a prefix": [
            ('"transformer." + name.removeprefix("transformer.")', '"transformer." + name')
        ],
        "whatever ends like a mask": [
            ("if name in ours:", 'if name in ours and not name.endswith("attn.bias"):')
        ],
        "a list of what to skip": [
            (
                "if name in ours:",
                'if not name.endswith((".attn.bias", "masked_bias", "lm_head.weight")):',
            )
        ],
        "one digit per layer": [("if name in ours:", 'if name in ours and ".h.10." not in name:')],
        "equal rows only": [(COPY, "ours[name].copy_(tensor)")],
        "our rows": [(COPY, "ours[name][:] = tensor[: len(ours[name])]")],
        "shared memory": [(COPY, "ours[name].data = tensor[: len(ours[name])]")],
        "in double": [(COPY, f"ours[name].data = ours[name].data.double()\n            {COPY}")],
        "new parameters": [
            (
                COPY,
                "module = model.get_submodule(name.rpartition('.')[0])\n"
                "            new = ours[name].detach().clone()\n"
                "            new[: len(tensor)] = tensor[: len(new)]\n"
                "            setattr(module, name.rpartition('.')[2], nn.Parameter(new))",
            )
        ],
        "turned in place": [(TURNED, "tensor = tensor.t_() if is_linear else tensor")],
        "removed from the file": [
            ("in theirs.items():", "in list(theirs.items()):\n        theirs.pop(name)")
        ],
        "frozen": [("    for name", "    model.requires_grad_(False)\n    for name")],
        "no norms": [("if name in ours:", 'if name in ours and "ln_" not in name:')],
        "prefix from the first name": [
            (
                "    for name",
                '    prefix = "transformer."\n'
                "    if next(iter(theirs)).startswith(prefix):\n"
                '        prefix = ""\n'
                "    for name",
            ),
            ('"transformer." + name.removeprefix("transformer.")', "prefix + name"),
        ],
        "lm_head from state_dict": [
            ("dict(model.named_parameters())", "model.state_dict()"),
            (PREFIXED, UNPREFIXED_HEAD),
        ],
        "lm_head from all names": [
            ("model.named_parameters()", "model.named_parameters(remove_duplicate=False)"),
            (PREFIXED, UNPREFIXED_HEAD),
        ],
        "zeros first": [(COPY, f"ours[name].zero_()\n            {COPY}")],
        "eval mode": [("    for name", "    model.eval()\n    for name")],
        "equal shapes only": [
            ("if name in ours:", "if name in ours and tensor.numel() == ours[name].numel():")
        ],
        "errors ignored": [
            (
                COPY,
                "try:\n                ours[name].copy_(tensor)\n"
                "            except RuntimeError:\n                pass",
            )
        ],
    },
    "generate": {
        "greedy": [(DRAW, "probabilities.argmax(-1, keepdim=True)")],
        "never cropped": [(WINDOW, "model(idx)")],
        "cropped to GPT-2's context": [(WINDOW, "model(idx[:, -1024:])")],
        "cropped from the left": [(WINDOW, "model(idx[:, : model.config.block_size])")],
        "one token fewer": [(WINDOW, "model(idx[:, 1 - model.config.block_size :])")],
        "last token only": [(WINDOW, "model(idx[:, -1:])")],
        "cropped once": [
            ("    for _", "    prompt, idx = idx, idx[:, -model.config.block_size :]\n    for _"),
            (WINDOW, "model(idx)"),
        ],
        "first text's threshold": [(KTH, "kth = logits.topk(top_k).values[0, -1]")],
        "threshold excluded": [("logits < kth", "logits <= kth")],
        "zeros for -inf": [("-math.inf", "0.0")],
        "finite fill": [("-math.inf", "-10.0")],
        "no filter": [("logits < kth", "logits < -math.inf")],
        "always fifty": [("topk(top_k)", "topk(50)")],
        "least likely": [
            ("topk(top_k)", "topk(top_k, largest=False)"),
            ("logits < kth", "logits > kth"),
        ],
        "uniform among the likeliest": [
            (DRAW, "torch.multinomial((probabilities > 0).float(), 1)")
        ],
        "nanoGPT's temperature": [(".softmax(-1)", ".div(0.8).softmax(-1)")],
        "end at token 0": [
            (
                "    return idx",
                "        if (idx[:, -1] == 0).all():\n            break\n    return idx",
            )
        ],
        "last text's threshold": [(KTH, "kth = logits.topk(top_k).values[-1, -1]")],
        "two softmaxes": [(".softmax(-1)", ".softmax(-1).softmax(-1)")],
        "places in the list": [
            (KTH, "kth = logits.topk(top_k).values"),
            (PROBABILITIES, "probabilities = kth.softmax(-1)"),
        ],
        "one draw for all texts": [
            (DRAW, "torch.multinomial(probabilities[:1], 1).expand(len(idx), 1)")
        ],
        "own generator": [
            (
                DRAW,
                "torch.multinomial(probabilities, 1, generator=torch.Generator().manual_seed(0))",
            )
        ],
        "seeded": [("    for _", "    torch.manual_seed(42)\n    for _")],
        "prepended": [("torch.cat((idx, ", "torch.cat(("), (f"{DRAW})", f"{DRAW}, idx)")],
        "without the prompt": [("    return idx", "    return idx[:, -new_tokens:]")],
        "prompt counts": [("range(new_tokens)", "range(new_tokens - idx.size(1))")],
        "first position's logits": [("[:, -1]\n", "[:, 0]\n")],
        "prompt in place": [
            ("    for _", "    given = idx\n    for _"),
            ("    return idx", "    given[:, 0] = 0\n    return idx"),
        ],
        "floats": [("    return idx", "    return idx.float()")],
        "buffer on the CPU": [
            (
                "    for _",
                "    empty = torch.zeros(len(idx), 0, dtype=torch.long)\n"
                "    idx = torch.cat((empty, idx), 1)\n    for _",
            )
        ],
        "exponential numbers as factors": [
            (
                DRAW,
                "(probabilities.log() + torch.empty_like(probabilities).exponential_().log())"
                ".argmax(-1, keepdim=True)",
            )
        ],
        "training mode": [("    for _", "    model.train()\n    for _")],
        "with gradients": [("@torch.no_grad()\n", "")],
        "one token too many": [("topk(top_k)", "topk(min(top_k + 1, logits.size(-1)))")],
        "logits before the loop": [
            ("    for _", f"    logits = {WINDOW}[:, -1]\n    for _"),
            (f"        logits = {WINDOW}[:, -1]\n", ""),
        ],
        "mean over the positions": [("[:, -1]\n", ".mean(1)\n")],
        "squared probabilities": [(".softmax(-1)", ".softmax(-1) ** 2")],
    },
    "nucleus": {
        "threshold": [
            (KEPT, "kept = probabilities.where(probabilities >= ordered[before < p].min(), 0.0)")
        ],
        "at most p": [("before < p", "before <= p")],
        "one token fewer": [("before < p", "(before + ordered <= p) | (before == 0)")],
        "one token more": [("before < p", "before - ordered.max() < p")],
        "not rescaled": [("return kept / kept.sum()", "return kept")],
        "softmax again": [
            ("return kept / kept.sum()", "return kept.masked_fill(kept == 0, -math.inf).softmax(0)")
        ],
        "sorted": [(KEPT, "kept = ordered.where(before < p, 0.0)")],
        "sorted twice": [(KEPT, "kept = ordered.where(before < p, 0.0)[order]")],
        "in their own order": [
            (
                "probabilities.sort(descending=True)",
                "probabilities, torch.arange(len(probabilities))",
            )
        ],
        "two tokens": [("before < p", "torch.arange(len(ordered)) < 2")],
        "at least two tokens": [("before < p", "(before < p) | (torch.arange(len(ordered)) < 2)")],
        "more than 1 - p": [(KEPT, "kept = probabilities.where(probabilities > 1 - p, 0.0)")],
        "a share of the likeliest": [
            (KEPT, "kept = probabilities.where(probabilities >= (1 - p) * ordered[0], 0.0)")
        ],
        "a share of the tokens": [("before < p", "torch.arange(len(ordered)) < p * len(ordered)")],
        "in place": [("torch.zeros_like(probabilities)", "probabilities.zero_()")],
        "five tokens": [("torch.zeros_like(probabilities)", "torch.zeros(5)")],
        "double": [("kept / kept.sum()", "kept.double() / kept.sum()")],
        "only the kept": [("return kept / kept.sum()", "return (kept / kept.sum())[kept > 0]")],
        "a new tensor in fp32": [
            ("torch.zeros_like(probabilities)", "torch.zeros(len(probabilities))"),
            ("ordered.where(before < p, 0.0)", "ordered.where(before < p, 0.0).float()"),
        ],
        "single precision": [("return kept / kept.sum()", "return (kept / kept.sum()).float()")],
        "first sum that reaches p, by argmax": [
            (
                KEPT,
                "count = int((ordered.cumsum(0) >= p).int().argmax()) + 1\n"
                "    kept[order[:count]] = ordered[:count]",
            )
        ],
        "first sum that reaches p, by nonzero": [
            (
                KEPT,
                "count = int((ordered.cumsum(0) >= p).nonzero()[0]) + 1\n"
                "    kept[order[:count]] = ordered[:count]",
            )
        ],
        "rounded": [("before < p", "before.round(decimals=2) < p")],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "gpt": {
        "self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)  =>  "
        "self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=None)": (
            "None is as false as False, so there is no bias either."
        ),
    },
    "generate": {
        "probabilities = logits.masked_fill(logits < kth, -math.inf).softmax(-1)  =>  "
        "probabilities = logits.masked_fill(logits < kth, -math.inf).softmax(+1)": (
            "The logits have two axes, so axis 1 is the last one."
        ),
        "last axis: idx = torch.cat((idx, torch.multinomial(probabilities, 1)), dim=1)": (
            "The ids have two axes, so axis 1 is the last one."
        ),
    },
    "nucleus": {
        "no gradient": "Sampling needs no gradient, and the task doesn't ask for one.",
    },
}
