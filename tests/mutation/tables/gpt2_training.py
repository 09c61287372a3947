"""Wrong ideas for the exercises of 08_gpt2_training, and mutants that are right."""

OPEN_DTYPE = "The task leaves the dtype of the number open, and a float64 has the same value."
NO_GRAPH = "The result of the solution has no graph either."

# Parts of the solutions
PROGRESS = "(step - first) / max(config.max_steps - 1 - first, 1)"
COSINE = "(1 + math.cos(math.pi * min(progress, 1))) / 2"
DECAYED = "[p for p in parameters if p.dim() >= 2]"
OTHERS = "[p for p in parameters if p.dim() < 2]"
CLIP = "norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)"
COUNT = "max(1, min(available, config.eval_tokens // config.block_size))"

RATE = '    for group in optimizer.param_groups:\n        group["lr"] = rate\n'
STEP = "    optimizer.step()\n"

# Other code
NORM = "norm = nn.utils.get_total_norm([p.grad for p in model.parameters()]); "
EACH_GRADIENT = "\n        for p in model.parameters():\n            p.grad"


def named(condition: str) -> str:
    """Return code that lists the parameters of which this is true."""
    return f"[p for n, p in model.named_parameters() if {condition}]"


# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "windows": {
        "next token is id + 1": [("both[:, 1:]", "both[:, :-1] + 1")],
        "targets two tokens later": [("+ 1)", "+ 2)"), (":-1], both[:, 1:]", ":-2], both[:, 2:]")],
        "last target is the first input": [("both[:, 1:]", "both[:, :-1].roll(-1, 1)")],
        "targets from the next row": [
            ("both[:, 1:]", "both[:, :-1].flatten().roll(-1).view(len(starts), -1)")
        ],
        "starts are window numbers": [("read(start,", "read(start * block_size,")],
        "rows in the order of the text": [("in starts", "in sorted(starts)")],
        "each start once": [("in starts", "in dict.fromkeys(starts)")],
        "first start for all rows": [("read(start,", "read(starts[0],")],
        "rows follow the first start": [
            ("read(start,", "read(starts[0] + i * block_size,"),
            ("for start in starts", "for i in range(len(starts))"),
        ],
        "starts used up": [
            ("for start in starts", "for start in [starts.pop(0) for _ in starts[:]]")
        ],
        "starts sorted in place": [
            ("    rows", "    order = list(starts); starts.sort()\n    rows"),
            ("in starts", "in order"),
        ],
        "whole stream read": [
            ("tokens.read(start, block_size + 1)", "every[start : start + block_size + 1]"),
            ("    rows", "    every = tokens.read(0, len(tokens))\n    rows"),
        ],
        "rest of the stream read": [
            ("read(start, block_size + 1)", "read(start, len(tokens) - start)[: block_size + 1]")
        ],
        "copied shards": [
            ("tokens.read(start, block_size + 1)", "every[start : start + block_size + 1]"),
            ("    rows", "    every = np.concatenate(tokens.shards)\n    rows"),
        ],
        "first shard only": [
            ("read(start, block_size + 1)", "shards[0][start : start + block_size + 1]")
        ],
        "block size of the example": [("block_size + 1", "7")],
        "int32": [("np.int64", "np.int32")],
        "through int16": [("astype(np.int64)", "astype(np.int16).astype(np.int64)")],
        "arrays instead of tensors": [
            ("torch.from_numpy(rows.astype(np.int64))", "rows.astype(np.int64)")
        ],
        "a row per position": [("both[:, :-1], both[:, 1:]", "both[:, :-1].T, both[:, 1:].T")],
    },
    "learning_rate": {
        "warm-up of the recipe": [("config.warmup_steps", "TrainConfig().warmup_steps")],
        "steps of the recipe": [("config.max_steps", "TrainConfig().max_steps")],
        "peak of the recipe": [("config.learning_rate", "6e-4")],
        "minimum is a tenth of the peak": [
            ("config.min_learning_rate", "config.learning_rate / 10")
        ],
        "minimum of the recipe": [("config.min_learning_rate", "6e-5")],
        "warm-up from 0": [("(step + 1) / warmup", "step / warmup")],
        "warm-up from the minimum": [
            ("peak * (step + 1) / warmup", "lowest + (peak - lowest) * (step + 1) / warmup")
        ],
        "warm-up ends a step late": [("(step + 1) / warmup", "(step + 1) / (warmup + 1)")],
        "peak twice": [("max(warmup - 1, 0)", "warmup")],
        "minimum after the last step": [
            ("config.max_steps - 1 - first", "config.max_steps - first")
        ],
        "cosine over the whole run": [(PROGRESS, "step / max(config.max_steps - 1, 1)")],
        "progress in steps of the warm-up": [
            (PROGRESS, "(step - first) / max(config.max_steps - 1, 1)")
        ],
        "degrees": [("math.pi", "180")],
        "pi is 3.14": [("math.pi", "3.14")],
        "straight line": [(COSINE, "(1 - min(progress, 1))")],
        "quarter of a cosine": [(COSINE, "math.cos(math.pi / 2 * min(progress, 1))")],
        "cosine scales the peak": [("(peak - lowest) *", "peak *")],
        "peak cut at the minimum": [
            (
                "lowest + (peak - lowest) * (1 + math.cos(math.pi * min(progress, 1))) / 2",
                "max(lowest, peak * (1 + math.cos(math.pi * min(progress, 1))) / 2)",
            )
        ],
        "rises again after the end": [("min(progress, 1)", "progress")],
        "0 after the end": [
            ("    first =", "    if step >= config.max_steps:\n        return 0.0\n    first =")
        ],
        "no care without a warm-up": [("max(warmup - 1, 0)", "warmup - 1")],
        "no care for a run of warm-up": [
            ("max(config.max_steps - 1 - first, 1)", "(config.max_steps - 1 - first)")
        ],
        "peak after a run of warm-up": [
            (PROGRESS, "(step - first) / (config.max_steps - 1 - first)"),
            (
                "    progress =",
                "    if config.max_steps - 1 <= first:\n        return peak\n    progress =",
            ),
        ],
        "a minimum of 0 taken for none": [
            ("config.min_learning_rate", "(config.min_learning_rate or 0.1 * peak)"),
            (
                "    peak, lowest, warmup",
                "    peak = config.learning_rate\n    peak, lowest, warmup",
            ),
        ],
        "minimum at the last step in any case": [
            (
                "    if step <",
                "    if step >= config.max_steps - 1:\n        return lowest\n    if step <",
            )
        ],
        "text": [("return lowest", "return '%.9f' % (lowest"), (" / 2", " / 2)")],
        "an array": [("return lowest", "return np.zeros(1) + lowest")],
    },
    "parameter_groups": {
        "a dict for each parameter": (
            "def parameter_groups(model, weight_decay):\n"
            "    return [{'params': [p], 'weight_decay': weight_decay * (p.dim() > 1)}"
            " for p in model.parameters()]"
        ),
        "tuples": [(DECAYED, f"tuple({DECAYED})")],
        "by the name weight": [
            (DECAYED, named("n.endswith('weight')")),
            (OTHERS, named("not n.endswith('weight')")),
        ],
        "everything but biases": [
            (DECAYED, named("'bias' not in n")),
            (OTHERS, named("'bias' in n")),
        ],
        "embeddings not decayed": [
            (DECAYED, named("p.dim() >= 2 and 'te' not in n and 'wpe' not in n")),
            (OTHERS, named("p.dim() < 2 or 'te' in n or 'wpe' in n")),
        ],
        "position embedding not decayed": [
            (DECAYED, named("p.dim() >= 2 and 'wpe' not in n")),
            (OTHERS, named("p.dim() < 2 or 'wpe' in n")),
        ],
        "linear layers only": [
            (
                "list(model.parameters())",
                "[m.weight for m in model.modules() if isinstance(m, nn.Linear)]",
            )
        ],
        "blocks only": [("model.parameters()", "model.transformer.h.parameters()")],
        "first block only": [
            ("list(model.parameters())", named("'.h.' not in n or '.h.0.' in n or '.h.1.' in n"))
        ],
        "tied matrix twice": [
            ("list(model.parameters())", "[*model.parameters(), model.lm_head.weight]")
        ],
        "duplicates kept": [
            ("model.parameters()", "p for _, p in model.named_parameters(remove_duplicate=False)")
        ],
        "iterator used twice": [("list(model.parameters())", "model.parameters()")],
        "pairs of a name and a parameter": [
            ("model.parameters()", "model.named_parameters()"),
            ("p.dim()", "p[1].dim()"),
        ],
        "generators": [
            (DECAYED, "(p for p in parameters if p.dim() >= 2)"),
            (OTHERS, "(p for p in parameters if p.dim() < 2)"),
        ],
        "filter objects": [
            (DECAYED, "filter(lambda p: p.dim() >= 2, parameters)"),
            (OTHERS, "filter(lambda p: p.dim() < 2, parameters)"),
        ],
        "by the names bias and ln": [
            (DECAYED, named("not (n.endswith('bias') or 'ln_' in n)")),
            (OTHERS, named("n.endswith('bias') or 'ln_' in n")),
        ],
        "sets": [
            (
                '"params": [p for p in parameters if p.dim() >= 2]',
                '"params": {p for p in parameters if p.dim() >= 2}',
            )
        ],
        "copies": [("list(model.parameters())", "[p.detach() for p in model.parameters()]")],
        "all decayed": [("0.0", "weight_decay")],
        "none decayed": [('"weight_decay": weight_decay', '"weight_decay": 0.0')],
        "decay of the recipe": [('"weight_decay": weight_decay', '"weight_decay": 0.1')],
        "weaker decay for vectors": [("0.0", "weight_decay / 10")],
        "axes of one number ignored": [("p.dim()", "p.squeeze().dim()")],
        "large tensors are matrices": [
            ("p.dim() >= 2", "p.numel() >= 40"),
            ("p.dim() < 2", "p.numel() < 40"),
        ],
        "longer than their first axis": [
            ("p.dim() >= 2", "p.numel() > len(p)"),
            ("p.dim() < 2", "p.numel() == len(p)"),
        ],
        "wider than the model": [
            ("p.dim() >= 2", "p.shape[-1] != p.numel()"),
            ("p.dim() < 2", "p.shape[-1] == p.numel()"),
        ],
        "dict of groups": [("return [", "return dict(enumerate(["), ("    ]\n", "    ]))\n")],
    },
    "update": {
        "clipped after the step": [(f"    {CLIP}\n", ""), (STEP, f"{STEP}    {CLIP}\n")],
        "rate after the step": [(RATE + STEP, STEP + RATE)],
        "zeroed before the step": [
            (
                "    optimizer.step()\n    optimizer.zero_grad()",
                "    optimizer.zero_grad()\n    optimizer.step()",
            )
        ],
        "zeroed first": [("    norm =", "    optimizer.zero_grad()\n    norm =")],
        "never zeroed": [("    optimizer.zero_grad()\n", "")],
        "first group only": [("optimizer.param_groups:", "optimizer.param_groups[:1]:")],
        "two groups only": [("optimizer.param_groups:", "optimizer.param_groups[:2]:")],
        "first and last group only": [
            (
                "optimizer.param_groups:",
                "(optimizer.param_groups[0], optimizer.param_groups[-1]):",
            )
        ],
        "two groups clipped": [
            (
                "clip_grad_norm_(model.parameters()",
                "clip_grad_norm_([p for g in optimizer.param_groups[:2] for p in g['params']]",
            )
        ],
        "a copy of the norm on the CPU": [("return norm", "return torch.tensor(norm.item())")],
        "norm moved to the CPU": [("return norm", "return norm.to('cpu')")],
        "last group only": [("optimizer.param_groups:", "optimizer.param_groups[-1:]:")],
        "rate as the optimizer's default": [
            ('group["lr"] = rate', 'optimizer.defaults["lr"] = rate')
        ],
        "rate as an attribute": [('group["lr"] = rate', "optimizer.lr = rate")],
        "rate multiplied": [('group["lr"] = rate', 'group["lr"] *= rate')],
        "rate set in the first call": [
            (
                'group["lr"] = rate',
                'group.setdefault("initial_lr", rate); group["lr"] = group["initial_lr"]',
            )
        ],
        "rate only grows": [
            (
                'group["lr"] = rate',
                'group["lr"] = rate if group["lr"] == 7.0 else max(rate, group["lr"])',
            )
        ],
        "clipped at 1": [("model.parameters(), grad_clip", "model.parameters(), 1.0")],
        "each number clipped": [
            (CLIP, NORM + "nn.utils.clip_grad_value_(model.parameters(), grad_clip)")
        ],
        "each tensor clipped": [
            (CLIP, NORM + "[nn.utils.clip_grad_norm_([p], grad_clip) for p in model.parameters()]")
        ],
        "each group clipped": [
            (
                CLIP,
                NORM + "[nn.utils.clip_grad_norm_(g['params'], grad_clip) "
                "for g in optimizer.param_groups]",
            )
        ],
        "one group clipped": [
            (
                "clip_grad_norm_(model.parameters()",
                "clip_grad_norm_(optimizer.param_groups[0]['params']",
            )
        ],
        "always scaled to the limit": [
            (CLIP, NORM + "[p.grad.mul_(grad_clip / (norm + 1e-6)) for p in model.parameters()]")
        ],
        "division by a norm of 0": [
            (
                CLIP,
                NORM + "[p.grad.mul_(torch.fmin(grad_clip / norm, norm / norm)) "
                "for p in model.parameters()]",
            )
        ],
        "sum of absolute values": [("grad_clip)\n    for", "grad_clip, norm_type=1)\n    for")],
        "largest gradient": [
            ("grad_clip)\n    for", "grad_clip, norm_type=float('inf'))\n    for")
        ],
        "norm after clipping": [
            ("    for group", "    norm = norm.clamp(max=grad_clip)\n    for group")
        ],
        "norm of the weights": [
            (
                "return norm",
                "return nn.utils.get_total_norm([p.detach() for p in model.parameters()])",
            )
        ],
        "square of the norm": [("return norm", "return norm**2")],
        "norm as a number": [("return norm", "return norm.item()")],
        "two steps": [(STEP, "    optimizer.step()\n    optimizer.step()\n")],
        "no step if the gradient is long": [
            (STEP, "    if norm <= grad_clip:\n        optimizer.step()\n")
        ],
        "no step for a gradient of zeros": [(STEP, "    if norm:\n        optimizer.step()\n")],
        "step of SGD by hand": [
            (STEP, "    for p in model.parameters():\n        p.data -= rate * p.grad\n")
        ],
    },
    "backward": {
        "autocast that stays open": [("with autocast:", "if not autocast.__enter__():")],
        "not divided": [(" / count", "")],
        "divided by the pieces at hand": [
            ("    for x", "    pieces = list(pieces)\n    for x"),
            ("/ count", "/ len(pieces)"),
        ],
        "divided by the rows": [("/ count", "/ len(x)")],
        "divided by the tokens": [("/ count", "/ y.numel()")],
        "divided twice": [("total += loss.detach()", "total += loss.detach() / count")],
        "gradient divided twice": [("loss.backward()", "(loss / count).backward()")],
        "gradient undivided": [("loss.backward()", "(loss * count).backward()")],
        "gradient divided at each piece": [
            ("/ count\n", "\n"),
            ("loss.backward()", "loss.backward()" + EACH_GRADIENT + " /= count"),
            ("loss.detach()", "loss.detach() / count"),
        ],
        "zeroed at each piece": [("loss.backward()", "model.zero_grad()\n        loss.backward()")],
        "backward after the loop": [
            (
                "        loss.backward()\n        total += loss.detach()\n    return total",
                "        total = total + loss\n    total.backward()\n    return total.detach()",
            )
        ],
        "pieces joined": """
def backward(model, pieces, count, autocast):
    xs, ys = zip(*pieces)
    device = model.lm_head.weight.device
    with autocast:
        loss = model(torch.cat(xs).to(device), torch.cat(ys).to(device)) * len(xs) / count
    loss.backward()
    return loss.detach()
""",
        "pieces joined in pairs": """
def backward(model, pieces, count, autocast):
    total = torch.zeros((), device=model.lm_head.weight.device)
    for piece in pieces:
        second = next(pieces, None)
        both = [piece] if second is None else [piece, second]
        x, y = (torch.cat(part).to(total.device) for part in zip(*both))
        with autocast:
            loss = model(x, y) * len(both) / count
        loss.backward()
        total += loss.detach()
    return total
""",
        "backward a piece late": [
            ("    for x", "    late = None\n    for x"),
            (
                "        loss.backward()\n",
                "        if late is not None:\n            late.backward()\n        late = loss\n",
            ),
            ("    return total", "    late.backward()\n    return total"),
        ],
        "graphs retained": [
            ("    for x", "    losses = []\n    for x"),
            ("loss.backward()", "loss.backward(retain_graph=True)\n        losses.append(loss)"),
        ],
        "a graph returned": [("total += loss.detach()", "total = total + loss")],
        "last loss returned": [("return total", "return loss.detach()")],
        "last mean returned": [("return total", "return loss.detach() * count")],
        "mean of the pieces at hand": [
            ("    for x", "    n = 0\n    for x"),
            ("total +=", "n += 1\n        total +="),
            ("return total", "return total * count / n"),
        ],
        "a number returned": [("return total", "return total.item()")],
        "losses returned": [("return total", "return total.repeat(3)")],
        "total outside the loop": [
            ("        total += loss.detach()", "    total += loss.detach()")
        ],
        "first piece for all": [("for x, y in pieces", "for x, y in [next(pieces)] * count")],
        "last piece left out": [("in pieces", "in list(pieces)[: max(1, count - 1)]")],
        "first row of each piece": [
            (
                "model(x.to(total.device), y.to(total.device))",
                "model(x[:1].to(total.device), y[:1].to(total.device))",
            )
        ],
        "targets are the inputs": [("y.to(total.device)", "x.to(total.device)")],
        "clipped": [
            (
                "        total +=",
                "        nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n        total +=",
            )
        ],
        "a step of SGD": [
            (
                "    return total",
                "    torch.optim.SGD(model.parameters(), 0.1).step()\n    return total",
            )
        ],
        "evaluation mode": [("    for x", "    model.eval()\n    for x")],
        "no autocast": [("with autocast", "with contextlib.nullcontext()")],
        "an autocast of its own": [("with autocast", "with torch.autocast('cpu')")],
        "inputs in the CPU's memory": [("x.to(total.device)", "x")],
        "targets in the CPU's memory": [("y.to(total.device)", "y")],
        "the notebook's device": [("total.device", "torch.device('cpu')")],
        "sum of numbers": [
            ("total += loss.detach()", "total += loss.item()"),
            ("return total", "return torch.tensor(total.item())"),
        ],
        "result on the CPU": [("return total", "return total.cpu()")],
        "result moved to the CPU": [("return total", "return total.to('cpu')")],
        "half precision": [
            ("loss.backward()", "loss.backward()" + EACH_GRADIENT + ".copy_(p.grad.bfloat16())")
        ],
        "total in half precision": [
            (
                "device=model.lm_head.weight.device",
                "device=model.lm_head.weight.device, dtype=torch.bfloat16",
            )
        ],
    },
    "evaluate": {
        "autocast that stays open": [("with autocast:", "if not autocast.__enter__():")],
        "gradients that stay off": [
            ("@torch.no_grad()\n", ""),
            ("    model.eval()", "    torch.set_grad_enabled(False)\n    model.eval()"),
        ],
        "one window too many": [("(len(tokens) - 1)", "len(tokens)")],
        "window of block_size + 1 tokens": [
            ("(len(tokens) - 1) // config.block_size", "len(tokens) // (config.block_size + 1)")
        ],
        "tokens counted as windows": [
            ("config.eval_tokens // config.block_size)", "config.eval_tokens)")
        ],
        "count rounded up": [
            (
                "config.eval_tokens // config.block_size)",
                "-(-config.eval_tokens // config.block_size))",
            )
        ],
        "count rounded": [
            (
                "config.eval_tokens // config.block_size)",
                "round(config.eval_tokens / config.block_size))",
            )
        ],
        "no window for few tokens": [
            (COUNT, "min(available, config.eval_tokens // config.block_size)")
        ],
        "all windows": [(COUNT, "available")],
        "first windows": [("i * available // count", "i")],
        "last windows": [("i * available // count", "(available - count + i)")],
        "equal gaps": [("i * available // count", "i * (available // count)")],
        "places by a gap of floats": [("i * available // count", "int(i * (available / count))")],
        "places by a share of floats": [("i * available // count", "int(i / count * available)")],
        "rounded places": [("i * available // count", "round(i * available / count)")],
        "up to the last window": [
            ("i * available // count", "round(i * (available - 1) / max(count - 1, 1))")
        ],
        "spread over the tokens": [
            (
                "i * available // count * config.block_size",
                "i * (len(tokens) - config.block_size - 1) // max(count, 1)",
            )
        ],
        "random windows": [("i * available // count", "torch.randint(available, ()).item()")],
        "block of windows for each process": [
            (
                "range(rank, count, world)",
                "range(rank * count // world, (rank + 1) * count // world)",
            )
        ],
        "all windows for each process": [("range(rank, count, world)", "range(count)")],
        "rank ignored": [("range(rank, count, world)", "range(0, count, world)")],
        "as many windows for each process": [
            ("range(rank, count, world)", "range(rank, max(count // world, 1) * world, world)")
        ],
        "a window for a process without one": [
            ("range(rank, count, world)]", "range(rank, count, world)] or [0]")
        ],
        "nothing for a process without a window": [
            ("    model.eval()", "    if not starts:\n        return None\n    model.eval()")
        ],
        "mean over the own windows": [("/ count\n", "/ len(starts)\n")],
        "mean over the own windows, divided by world": [("/ count\n", "/ len(starts) / world\n")],
        "mean of means": [("* len(mine) / count", "/ -(-len(starts) // config.micro_batch_size)")],
        "sum of means": [("* len(mine) / count", "")],
        "sum of means / count": [("* len(mine) / count", "/ count")],
        "full micro-batches assumed": [("* len(mine)", "* config.micro_batch_size")],
        "sum of losses": [("* len(mine) / count", "* len(mine)")],
        "last micro-batch dropped": [
            (
                "range(0, len(starts), config.micro_batch_size)",
                "range(0, len(starts) - config.micro_batch_size + 1, config.micro_batch_size)",
            )
        ],
        "all windows at once": [("config.micro_batch_size", "10**6")],
        "micro-batches of 4": [("config.micro_batch_size", "4")],
        "training mode": [("    model.eval()\n", "")],
        "left in evaluation mode": [("    model.train()\n", "")],
        "left in evaluation mode without windows": [
            ("    model.train()\n", "    if starts:\n        model.train()\n")
        ],
        "gradients kept": [("@torch.no_grad()\n", "")],
        "no autocast": [("with autocast", "with contextlib.nullcontext()")],
        "inputs in the CPU's memory": [("x.to(total.device)", "x")],
        "the notebook's device": [("total.device", "torch.device('cpu')")],
        "a number returned": [("return total", "return total.item()")],
        "sum of numbers": [("return total", "return torch.tensor(total.item())")],
        "result on the CPU": [("return total", "return total.cpu()")],
        "result moved to the CPU": [("return total", "return total.to('cpu')")],
        "perplexity": [("return total", "return total.exp()")],
        "bits": [("return total", "return total / math.log(2)")],
        "targets are the inputs": [("y.to(total.device)", "x.to(total.device)")],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "parameter_groups": {
        "by the names bias and ln": "GPT-2's vectors are its biases and the weights of its norms."
    },
    **{
        name: {"other dtype": OPEN_DTYPE, "no gradient": NO_GRAPH}
        for name in ("update", "backward", "evaluate")
    },
}
