"""Wrong ideas for the exercises of 04_flops_and_memory, and mutants that are right."""

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "backward_flops": {
        "two matmuls in every layer": [(" - forward[0]", "")],
        "the last layer has one": [("forward[0]", "forward[-1]")],
        "the widest layer has one": [("forward[0]", "max(forward)")],
        "the forward pass": [("2 * sum(forward) - forward[0]", "sum(forward)")],
        "forward and backward": [("2 * sum(forward)", "3 * sum(forward)")],
        "without the first layer": [("2 * sum(forward) - forward[0]", "2 * sum(forward[1:])")],
        "one FLOP for a multiply-add": [("[2 * batch", "[batch")],
        "the two layers of the example": """
def backward(batch, widths):
    d_in, hidden, d_out = widths[:3]
    return 2 * batch * (d_in * hidden + 2 * hidden * d_out)
""",
        "equal layers": """
def backward(batch, widths):
    return 2 * batch * widths[0] * widths[1] * (2 * len(widths) - 3)
""",
        "the widths of the notebook": """
sizes = (784, 256, 10)
def backward(batch, widths):
    forward = [2 * batch * d_in * d_out for d_in, d_out in pairwise(sizes)]
    return 2 * sum(forward) - forward[0]
""",
        "a batch of 8": [("2 * batch", "2 * 8")],
        "the batch at the end, without the first layer": [
            ("[2 * batch *", "[2 *"),
            ("2 * sum(forward) - forward[0]", "2 * batch * sum(forward) - forward[0]"),
        ],
        "two layers at least": [
            ("    return", "    if len(forward) < 2:\n        return 0\n    return"),
        ],
        "each pair of layers": [
            ("pairwise(widths)", "zip(widths[::2], widths[1::2])"),
        ],
        "32-bit integers": """
import numpy as np
def backward(batch, widths):
    widths = np.array(widths, dtype=np.int32)
    forward = 2 * np.int32(batch) * widths[:-1] * widths[1:]
    return 2 * forward.sum() - forward[0]
""",
        "biases": [("d_in * d_out", "(d_in + 1) * d_out")],
        "every layer as wide as the first": """
def backward(batch, widths):
    return sum((2 if a == widths[0] else 4) * batch * a * b for a, b in pairwise(widths))
""",
        "the position of the width": """
def backward(batch, widths):
    return sum((2 if widths.index(a) == 0 else 4) * batch * a * b for a, b in pairwise(widths))
""",
        "the first layer and those of other widths": """
def backward(batch, widths):
    flops = 2 * batch * widths[0] * widths[1]
    return flops + sum(4 * batch * a * b for a, b in pairwise(widths) if a != widths[0])
""",
        "every layer like the first": """
def backward(batch, widths):
    first = widths[0], widths[1]
    return sum((2 if (a, b) == first else 4) * batch * a * b for a, b in pairwise(widths))
""",
        "layers of one shape counted once": """
def backward(batch, widths):
    forward = list({(a, b): 2 * batch * a * b for a, b in pairwise(widths)}.values())
    return 2 * sum(forward) - forward[0]
""",
        "FLOPs that are those of the first": [
            (
                "2 * sum(forward) - forward[0]",
                "sum(x if x == forward[0] else 2 * x for x in forward)",
            )
        ],
        "the smallest layer has one": [("forward[0]", "min(forward)")],
        "float32": [
            (
                "2 * sum(forward) - forward[0]",
                "int(torch.tensor(forward).float().sum() * 2) - forward[0]",
            ),
        ],
        "almost": [("2 * sum(forward)", "(1 + 1e-7) * 2 * sum(forward)")],
        "five widths at most": [("pairwise(widths)", "pairwise(widths[:4])")],
    },
    "transformer_cost": {
        "6 N": [
            ("flops = 2 * (blocks + output) + n_layer * 4 * seq * n_embd", "flops = 6 * parameters")
        ],
        "2 N": [
            ("flops = 2 * (blocks + output) + n_layer * 4 * seq * n_embd", "flops = 2 * parameters")
        ],
        "a training step": [
            (
                "flops = 2 * (blocks + output) + n_layer * 4 * seq * n_embd",
                "flops = 3 * (2 * (blocks + output) + n_layer * 4 * seq * n_embd)",
            )
        ],
        "without attention": [(" + n_layer * 4 * seq * n_embd", "")],
        "attention once": [("n_layer * 4 * seq", "4 * seq")],
        "attention in training": [("n_layer * 4 * seq", "n_layer * 12 * seq")],
        "the causal half": [("n_layer * 4 * seq", "n_layer * 2 * seq")],
        "attention of the whole sequence": [("4 * seq * n_embd", "4 * seq**2 * n_embd")],
        "one FLOP for a multiply-add": [("flops = 2 *", "flops = 1 *"), ("4 * seq", "2 * seq")],
        "token look-up as a matmul": [("2 * (blocks + output)", "2 * (blocks + 2 * output)")],
        "position look-up as a matmul": [("2 * (blocks + output)", "2 * parameters")],
        "no output matrix": [("2 * (blocks + output)", "2 * blocks")],
        "untied": [("parameters = blocks + output", "parameters = blocks + 2 * output")],
        "no positions": [
            ("parameters = blocks + output + seq * n_embd", "parameters = blocks + output")
        ],
        "1,024 positions": [("output + seq * n_embd", "output + 1024 * n_embd")],
        "32 positions": [("output + seq * n_embd", "output + 32 * n_embd")],
        "GPT-2's vocabulary": [("vocab_size * n_embd", "50304 * n_embd")],
        "embeddings in every block": [
            (
                "parameters = blocks + output + seq * n_embd",
                "parameters = n_layer * (12 * n_embd**2 + output + seq * n_embd)",
            ),
        ],
        "no output projection": [("12 * n_embd**2", "11 * n_embd**2")],
        "one matrix in the MLP": [("12 * n_embd**2", "8 * n_embd**2")],
        "biases": [("12 * n_embd**2", "(12 * n_embd**2 + 9 * n_embd)")],
        "norms": [("12 * n_embd**2", "(12 * n_embd**2 + 4 * n_embd)")],
        "mixed precision": [("(4 + 4 + 8)", "(2 + 2 + 8)")],
        "a master copy": [("(4 + 4 + 8)", "(4 + 4 + 4 + 8)")],
        "one moment": [("(4 + 4 + 8)", "(4 + 4 + 4)")],
        "no gradient": [("(4 + 4 + 8)", "(4 + 8)")],
        "numbers for bytes": [("(4 + 4 + 8)", "(1 + 1 + 2)")],
        "another order": [("return parameters, flops,", "return flops, parameters,")],
        "32-bit integers": [
            ("    blocks =", "    import numpy as np\n    n_embd = np.int32(n_embd)\n    blocks ="),
        ],
        "parameters in float32": [
            ("return parameters,", "return int(torch.tensor(float(parameters))),")
        ],
        "a width of 64": [("4 * seq * n_embd", "4 * seq * 64")],
        "numbers of 2 bytes": [("(4 + 4 + 8)", "(2 + 2 + 4)")],
        "as wide as long": [("4 * seq * n_embd", "4 * n_embd * n_embd")],
    },
    "step_gap": {
        "computing and moving one after the other": [
            (
                "max(op.work.flops / peak, op.work.bytes / bandwidth)",
                "op.work.flops / peak + op.work.bytes / bandwidth",
            ),
        ],
        "the shorter": [("at_best = max(", "at_best = min(")],
        "only computing": [
            ("max(op.work.flops / peak, op.work.bytes / bandwidth)", "op.work.flops / peak"),
        ],
        "the two totals": """
def explain(operations, peak, bandwidth):
    least = max(
        sum(op.work.flops for op in operations) / peak,
        sum(op.work.bytes for op in operations) / bandwidth,
    )
    lost = {}
    for op in operations:
        at_best = max(op.work.flops / peak, op.work.bytes / bandwidth)
        lost[op.kind] = lost.get(op.kind, 0.0) + op.seconds - at_best
    return least, max(lost, key=lost.get)
""",
        "the two totals of each kind": """
def explain(operations, peak, bandwidth):
    least, lost = 0.0, {}
    for kind in {op.kind for op in operations}:
        ops = [op for op in operations if op.kind == kind]
        flops, moved = sum(op.work.flops for op in ops), sum(op.work.bytes for op in ops)
        at_best = max(flops / peak, moved / bandwidth)
        least += at_best
        lost[kind] = sum(op.seconds for op in ops) - at_best
    return least, max(lost, key=lost.get)
""",
        "neighbors of a kind": """
from itertools import groupby
def explain(operations, peak, bandwidth):
    least, lost = 0.0, {}
    for kind, ops in groupby(operations, key=lambda op: op.kind):
        for op in ops:
            at_best = max(op.work.flops / peak, op.work.bytes / bandwidth)
            least += at_best
            lost[kind] = op.seconds - at_best
    return least, max(lost, key=lost.get)
""",
        "the last of each kind": [("lost.get(op.kind, 0.0) + op.seconds", "op.seconds")],
        "the longest time": [("op.seconds - at_best\n", "op.seconds\n")],
        "the longest gap": [
            (
                "lost.get(op.kind, 0.0) + op.seconds - at_best",
                "max(lost.get(op.kind, 0.0), op.seconds - at_best)",
            ),
        ],
        "the largest ratio": [
            (
                "lost.get(op.kind, 0.0) + op.seconds - at_best",
                "max(lost.get(op.kind, 0.0), op.seconds / at_best)",
            ),
        ],
        "the size of the gap": [("op.seconds - at_best\n", "abs(op.seconds - at_best)\n")],
        "the least": [("max(lost", "min(lost")],
        "by the operator's name": [
            ("lost[op.kind] = lost.get(op.kind,", "lost[op.name] = lost.get(op.name,")
        ],
        "the measured seconds": [("least += at_best", "least += op.seconds")],
        "milliseconds": [("return least", "return 1e3 * least")],
        "another order": [
            ("return least, max(lost, key=lost.get)", "return max(lost, key=lost.get), least"),
        ],
        "the kinds of this notebook": [
            (
                "least, lost = 0.0, {}",
                'least, lost = 0.0, dict.fromkeys(("matmul", "loss", "AdamW"), 0.0)',
            ),
            ("lost[op.kind] = lost.get(op.kind, 0.0) +", "lost[op.kind] = lost[op.kind] +"),
        ],
        "always the norms": [("max(lost, key=lost.get)", '"norms"')],
        "always the matmuls": [("max(lost, key=lost.get)", '"matmul"')],
        "the alphabet": [("max(lost, key=lost.get)", "max(lost)")],
        "the most calls": [("op.seconds - at_best\n", "1\n")],
        "only a kind above its roofline": [
            (
                "    return least, max(lost, key=lost.get)",
                '    worst, most = "", 0\n    for kind, seconds in lost.items():\n'
                "        if seconds > most:\n            worst, most = kind, seconds\n"
                "    return least, worst",
            ),
        ],
        "the loss by each kind's roofline": """
def explain(operations, peak, bandwidth):
    least, flops, moved, took = 0.0, {}, {}, {}
    for op in operations:
        least += max(op.work.flops / peak, op.work.bytes / bandwidth)
        flops[op.kind] = flops.get(op.kind, 0.0) + op.work.flops
        moved[op.kind] = moved.get(op.kind, 0.0) + op.work.bytes
        took[op.kind] = took.get(op.kind, 0.0) + op.seconds
    lost = {k: took[k] - max(flops[k] / peak, moved[k] / bandwidth) for k in took}
    return least, max(lost, key=lost.get)
""",
        "losses are kept between calls": """
lost = {}
def explain(operations, peak, bandwidth):
    least = 0.0
    for op in operations:
        at_best = max(op.work.flops / peak, op.work.bytes / bandwidth)
        least += at_best
        lost[op.kind] = lost.get(op.kind, 0.0) + op.seconds - at_best
    return least, max(lost, key=lost.get)
""",
        "the last operator is left out": [("in operations:", "in operations[:-1]:")],
        "a ridge at 1": [
            (
                "max(op.work.flops / peak, op.work.bytes / bandwidth)",
                "op.work.flops / peak if op.work.intensity > 1 else op.work.bytes / bandwidth",
            ),
        ],
        "the list is emptied": [("    return", "    operations.clear()\n    return")],
        "the list is sorted": [
            ("    least, lost", "    operations.sort(key=lambda op: op.kind)\n    least, lost"),
        ],
        "an H100": [("peak, op.work", "989.5e12, op.work")],
        "the peak and bandwidth of the first step": [
            ("peak, op.work.bytes / bandwidth", "100e12, op.work.bytes / 2e12"),
        ],
    },
    "zero_bytes": {
        "everything at every stage": """
def on_each_gpu(per, gpus, stage):
    return (per.weights + per.gradient + per.master + per.state) / gpus
""",
        "everything from stage 1": """
def on_each_gpu(per, gpus, stage):
    total = per.weights + per.gradient + per.master + per.state
    return total / gpus if stage else total
""",
        "the library": """
def on_each_gpu(per, gpus, stage):
    return per.sharded(gpus, stage)
""",
        "the library's method of the class": """
def on_each_gpu(per, gpus, stage):
    return accounting.BytesPerParameter.sharded(per, gpus, stage)
""",
        "the library's method of a copy": """
def on_each_gpu(per, gpus, stage):
    fields = per.weights, per.gradient, per.master, per.state
    return accounting.BytesPerParameter(*fields).sharded(gpus, stage)
""",
        "64 GPUs at most": [("gpus if", "min(gpus, 64) if")],
        "gradients are never sharded": [("stage >= 2", "stage >= 4")],
        "gradients at stage 2 only": [("stage >= 2", "stage == 2")],
        "rounded down": [
            ("return optimizer + gradient + weight", "return int(optimizer + gradient + weight)")
        ],
        "each stage alone": [(">=", "==")],
        "one stage early": [
            ("stage >= 1", "stage >= 0"),
            ("stage >= 2", "stage >= 1"),
            ("stage >= 3", "stage >= 2"),
        ],
        "one stage late": [(">=", ">")],
        "weights before gradients": [("stage >= 2", "stage > 2"), ("stage >= 3", "stage >= 2")],
        "weights first": [("stage >= 1", "stage > 2"), ("stage >= 3", "stage >= 1")],
        "moments only": [
            (
                "(per.master + per.state) / (gpus if stage >= 1 else 1)",
                "per.master + per.state / (gpus if stage >= 1 else 1)",
            )
        ],
        "master with the weights": [
            ("(per.master + per.state)", "per.state"),
            ("per.weights / (", "(per.weights + per.master) / ("),
        ],
        "no master weights": [("(per.master + per.state)", "per.state")],
        "whole bytes": [("/", "//")],
        "of all GPUs": [
            (
                "return optimizer + gradient + weight",
                "return gpus * (optimizer + gradient + weight)",
            )
        ],
        "what is saved": [
            (
                "return optimizer + gradient + weight",
                "return per.total - (optimizer + gradient + weight)",
            ),
        ],
        "16 bytes": """
def on_each_gpu(per, gpus, stage):
    parts = (12, 2, 2)
    return sum(part / gpus for part in parts[:stage]) + sum(parts[stage:])
""",
        "8 GPUs": [("gpus if", "8 if")],
        "fields of the first call": """
def on_each_gpu(per, gpus, stage):
    parts = (14, 3, 2)
    return sum(part / gpus for part in parts[:stage]) + sum(parts[stage:])
""",
        "one more GPU": [("gpus if", "gpus + 1 if")],
        "stage 3 has it all": [
            ("    return", "    if stage == 3:\n        return per.total / gpus**3\n    return"),
        ],
        "each stage divides once more": """
def on_each_gpu(per, gpus, stage):
    return per.total / gpus**stage
""",
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "step_gap": {
        "lost[op.kind] = lost.get(op.kind, 0.0) + op.seconds - at_best  =>  "
        "lost[op.kind] = lost.get(op.kind, 1.0) + op.seconds - at_best": (
            "Every kind gets the same second more, so their order stays."
        ),
    },
}
