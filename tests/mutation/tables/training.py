"""Wrong ideas for the exercises of 06_training_loop, and mutants that are right."""

WINDOWS = "windows = (len(tokens) - 1) // block_size"
STARTS = "starts = [w * block_size for w in range(first, min(first + batch_size, windows))]"
WEIGHED = "loss = loss_function(model(x), y) * (len(x) / total)"

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "epoch_batch": {
        "window without a last target": [("(len(tokens) - 1)", "len(tokens)")],
        "last window forgotten": [(WINDOWS, f"{WINDOWS} - 1")],
        "windows of block_size + 1": [("// block_size", "// (block_size + 1)")],
        "windows that share no token": [
            ("w * block_size", "w * (block_size + 1)"),
            ("// block_size", "// (block_size + 1)"),
        ],
        "overlapping windows": [("w * block_size", "w")],
        "last batch dropped": [(WINDOWS, f"{WINDOWS} // batch_size * batch_size")],
        "last batch moved back": [
            (STARTS, f"first = min(first, windows - batch_size)\n    {STARTS}")
        ],
        "last batch wraps around": [
            (
                STARTS,
                "starts = [w % windows * block_size for w in range(first, first + batch_size)]",
            )
        ],
        "number ignored": [("number * batch_size", "0")],
        "number counted from 1": [("number * batch_size", "max(0, number - 1) * batch_size")],
        "number counts windows": [("number * batch_size", "number")],
        "number counts tokens": [("w * block_size for", "number * batch_size + w for")],
        "block size of the first call": [("windows =", "block_size = 4\n    windows =")],
        "batch size of the first call": [("windows =", "batch_size = 3\n    windows =")],
        "each row reads its own part": [
            (
                STARTS,
                "lanes = windows // batch_size\n"
                "    starts = [(r * lanes + number) * block_size for r in range(batch_size)]",
            )
        ],
        "random windows": [
            (STARTS, f"{STARTS}\n    starts = np.random.default_rng(number).permutation(starts)")
        ],
        "targets rolled within the window": [("both[:, 1:]", "both[:, :-1].roll(-1, dims=1)")],
        "targets are the inputs": [("both[:, 1:]", "both[:, :-1]")],
        "targets before the inputs": [
            ("return both[:, :-1], both[:, 1:]", "return both[:, 1:], both[:, :-1]")
        ],
        "targets of the last position only": [("both[:, 1:]", "both[:, -1]")],
        "int32": [("np.int64", "np.int32")],
        "int16 on the way": [("rows.astype(np.int64)", "rows.astype(np.int16).astype(np.int64)")],
        "uint16 left": [("torch.from_numpy(rows.astype(np.int64))", "torch.from_numpy(rows)")],
        "whole file copied": [("windows =", "tokens = np.array(tokens)\n    windows =")],
        "whole file as a tensor": [
            ("windows =", "tokens = torch.tensor(tokens, dtype=torch.int64).numpy()\n    windows =")
        ],
        "whole file as int64": [
            ("windows =", "tokens = torch.from_numpy(tokens).long().numpy()\n    windows =")
        ],
        "whole file as a list": [
            ("windows =", "tokens = np.array(tokens.tolist())\n    windows =")
        ],
        "everything before the batch copied": [
            (
                "windows =",
                "end = (number + 1) * batch_size * block_size + 1\n"
                "    tokens = tokens[:end].astype(np.int64)\n    windows =",
            )
        ],
        "uint8": [("rows.astype(np.int64)", "rows.astype(np.uint8).astype(np.int64)")],
        "axis of a single row removed": [
            (
                "return both[:, :-1], both[:, 1:]",
                "return both[:, :-1].squeeze(), both[:, 1:].squeeze()",
            )
        ],
        "both in one tensor": [("return both[:, :-1], both[:, 1:]", "return both")],
    },
    "accumulate": {
        "number of pieces": [("len(x) / total", "1 / len(micro_batches)")],
        "no factor": [("* (len(x) / total)", "")],
        "sum of all examples": [("(len(x) / total)", "len(x)")],
        "mean divided again": [("len(x) / total", "1 / total")],
        "length of the first piece for all": [
            ("len(x) / total", "len(micro_batches[0][0]) / total")
        ],
        "length of the first piece for the total": [
            (
                "sum(len(x) for x, _ in micro_batches)",
                "len(micro_batches[0][0]) * len(micro_batches)",
            )
        ],
        "total of the first call": [("sum(len(x) for x, _ in micro_batches)", "8")],
        "counts numbers instead of examples": [("len(x) / total", "x.numel() / total")],
        "gradient zeroed in between": [("loss =", "model.zero_grad()\n        loss =")],
        "gradient zeroed at the end": [("return mean", "model.zero_grad()\n    return mean")],
        "last piece missing": [("for x, y in micro_batches:", "for x, y in micro_batches[:-1]:")],
        "one backward pass for all": [
            ("loss.backward()", "mean = mean + loss"),
            ("mean += loss.item()", ""),
            ("return mean", "mean.backward()\n    return mean.item()"),
        ],
        "pieces joined again": """
def run(model, micro_batches, loss_function):
    x, y = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    loss = loss_function(model(x), y)
    loss.backward()
    return loss.item()
""",
        "loss with its graph": [("loss.item()", "loss")],
        "loss of the last piece": [("mean += loss.item()", "mean = loss.item()")],
        "mean of means": [
            ("mean += loss.item()", "mean += loss.item() * total / len(x) / len(micro_batches)")
        ],
        "sum of means": [("mean += loss.item()", "mean += loss.item() * total / len(x)")],
        "loss weighed twice": [("loss.item()", "loss.item() * len(x) / total")],
        "running mean of two": [
            ("mean += loss.item()", "mean = (mean + loss.item() * total / len(x)) / 2")
        ],
        "squared error for any loss": [("loss_function(model(x), y)", "F.mse_loss(model(x), y)")],
        "step taken": [
            ("return mean", "torch.optim.SGD(model.parameters(), lr=0.1).step()\n    return mean")
        ],
        "gradient clipped": [
            ("return mean", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    return mean")
        ],
        "step by hand": [
            (
                "return mean",
                "for p in model.parameters():\n        p.data -= 0.1 * p.grad\n    return mean",
            )
        ],
        "only the weight": [
            (
                "return mean",
                "for p in list(model.parameters())[1:]:\n        p.grad = None\n    return mean",
            )
        ],
        "pieces taken from the list": [
            (
                "for x, y in micro_batches:",
                "while micro_batches:\n        x, y = micro_batches.pop()",
            )
        ],
        "inputs changed": [("loss =", "x -= x.mean()\n        loss =")],
        "graphs kept": [("loss.backward()", "loss.backward(retain_graph=True)")],
        "outputs kept": [
            ("mean = 0.0", "mean, kept = 0.0, []"),
            ("loss_function(model(x), y)", "loss_function(kept.append(model(x)) or kept[-1], y)"),
        ],
        "eval mode": [("mean = 0.0", "mean = 0.0\n    model.eval()")],
        "train mode": [("mean = 0.0", "mean = 0.0\n    model.train()")],
        "loss of a second pass": [
            (
                "mean += loss.item()",
                "with torch.no_grad():\n"
                "            mean += loss_function(model(x), y).item() * len(x) / total",
            )
        ],
        "every parameter has a gradient": [
            (" * (len(x) / total)", " * len(x)"),
            (
                "return mean",
                "for p in model.parameters():\n        p.grad /= total\n    return mean / total",
            ),
        ],
        "every trainable parameter has a gradient": [
            (" * (len(x) / total)", " * len(x)"),
            (
                "return mean",
                "for p in model.parameters():\n        if p.requires_grad:\n"
                "            p.grad /= total\n    return mean / total",
            ),
        ],
        "zeros for every parameter": [
            ("mean = 0.0", "mean = 0.0\n    for p in model.parameters():\n        p.grad = p * 0"),
        ],
        "every parameter requires a gradient": [
            ("mean = 0.0", "mean = 0.0\n    model.requires_grad_(True)")
        ],
        "a copy of the model": [
            ("total =", "import copy\n\n    model = copy.deepcopy(model)\n    total =")
        ],
        "factor rounded down": [("len(x) / total", "len(x) // total")],
        "inputs with a gradient": [("loss =", "x.requires_grad_()\n        loss =")],
        "loss forgotten": [("return mean", "return None")],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {}
