"""Wrong ideas for the exercises of 10_gpt2_scale, and mutants that are right."""

FIRST = "range(step * batch + rank * size, (step + 1) * batch, world * size)"
PIECES = (
    "pieces.append(windows(tokens, starts, config.block_size))\n    yield from pieces[rank::world]"
)
READ_AT_ONCE = """def micro_batches(tokens, step, config, rank, world):
    size, batch = config.micro_batch_size, config.batch_tokens // config.block_size
    numbers = range(step * batch, (step + 1) * batch)
    starts = [window_start(number, len(tokens), config) for number in numbers]
    x, y = windows(tokens, starts, config.block_size)
    for first in range(rank * size, batch, world * size):
        yield x[first : first + size], y[first : first + size]
"""
SUM = "        dist.all_reduce(tensor)\n"
ROW = "row[:, -model.config.block_size - 1 :]"
MEAN = "F.cross_entropy(logits, row[0, -len(ending) :]).item()"
NEEDED = 'accounting.bytes_per_parameter("adamw", "fp32").total * parameters'
BY_DEFAULT = 'accounting.bytes_per_parameter("adamw", ).total * parameters'
QUOTIENT = "math.ceil(needed / (memory - reserved))"

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "micro_batches": {
        "every process reads the batch": [(FIRST, "range(step * batch, (step + 1) * batch, size)")],
        "every process begins with the first window": [(" + rank * size", "")],
        "ranks begin a window apart": [("rank * size", "rank")],
        "ranks begin a batch apart": [("rank * size", "rank * batch")],
        "without strides over the other processes": [("world * size", "size")],
        "the batch grows with the number of processes": [
            (
                "batch = config.micro_batch_size, config.batch_tokens",
                "batch = config.micro_batch_size, world * config.batch_tokens",
            )
        ],
        "the batch's tokens are windows": [
            ("config.batch_tokens // config.block_size", "config.batch_tokens")
        ],
        "step 0 in every step": [(FIRST, "range(rank * size, batch, world * size)")],
        "steps overlap by a micro-batch": [("(step + 1) * batch,", "(step + 1) * batch + size,")],
        "the last micro-batch is left out": [("(step + 1) * batch,", "(step + 1) * batch - size,")],
        "windows in the order of the file": [
            (
                "window_start(number, len(tokens), config)",
                "number * config.block_size % (len(tokens) - config.block_size)",
            )
        ],
        "the first epoch's order in every epoch": [
            (
                "window_start(number,",
                "window_start(number % ((len(tokens) - 1) // config.block_size),",
            )
        ],
        "micro-batches of 2": [("size, batch = config.micro_batch_size", "size, batch = 2")],
        "blocks of 4 tokens": [("starts, config.block_size)", "starts, 4)")],
        "two processes": [("world * size", "2 * size")],
        "a seed of its own for every rank": [
            (
                "        numbers = range",
                "        config = type(config)(size, config.block_size, 1, rank)\n"
                "        numbers = range",
            )
        ],
        "one window at a time": [
            (
                "        yield windows(tokens, starts, config.block_size)",
                "        for start in starts:\n"
                "            yield windows(tokens, [start], config.block_size)",
            )
        ],
        "every rank's windows are read": [
            (FIRST, "range(step * batch, (step + 1) * batch, size)"),
            ("    size, batch", "    pieces = []\n    size, batch"),
            ("yield windows(tokens, starts, config.block_size)", PIECES),
        ],
        "one read of the step, and slices of it": READ_AT_ONCE,
        "only the first micro-batch": [
            ("        yield windows", "        return [windows"),
            ("block_size)\n", "block_size)]\n"),
        ],
        "inputs without targets": [("config.block_size)\n", "config.block_size)[0]\n")],
        "int32 ids": [
            (
                "        yield windows(tokens, starts, config.block_size)",
                "        x, y = windows(tokens, starts, config.block_size)\n"
                "        yield x.int(), y.int()",
            )
        ],
    },
    "data_parallel": {
        "the mean": [(SUM, SUM + "        tensor /= dist.get_world_size()\n")],
        "the mean of gradients": [
            (
                "        sum_over_processes(parameter.grad)",
                "        sum_over_processes(parameter.grad)\n"
                "        parameter.grad /= dist.get_world_size() if dist.is_initialized() else 1",
            )
        ],
        "the maximum": [("all_reduce(tensor)", "all_reduce(tensor, op=dist.ReduceOp.MAX)")],
        "the product": [("all_reduce(tensor)", "all_reduce(tensor, op=dist.ReduceOp.PRODUCT)")],
        "rank 0's tensor for all": [("all_reduce(tensor)", "broadcast(tensor, 0)")],
        "a group is always there": [("    if dist.is_initialized():\n        ", "    ")],
        "all_reduce returns the sum": [(SUM, "        return dist.all_reduce(tensor)\n")],
        "a copy is summed": [("all_reduce(tensor)", "all_reduce(tensor.clone())")],
        "a new tensor is returned": [
            (
                SUM,
                "        new = tensor.clone()\n        dist.all_reduce(new)\n        return new\n",
            )
        ],
        "no wait": [("all_reduce(tensor)", "all_reduce(tensor, async_op=True)")],
        "rank 0 sums alone": [
            ("if dist.is_initialized():", "if dist.is_initialized() and dist.get_rank() == 0:")
        ],
        "the weights are summed": [("parameter.grad", "parameter.data")],
        "the gradient's copy is summed": [("parameter.grad)", "parameter.grad.clone())")],
        "one parameter of each shape": [
            (
                "parameter in model.parameters()",
                "parameter in {p.shape: p for p in [*model.parameters()][::-1]}.values()",
            )
        ],
        "matrices only": [
            ("        sum_over", "        if parameter.dim() > 1:\n            sum_over")
        ],
        "weights only, no biases": [
            (
                "parameter in model.parameters()",
                "parameter in (m.weight for m in model.modules() if hasattr(m, 'weight'))",
            )
        ],
        "a tied matrix by each name": [
            (
                "parameter in model.parameters()",
                "_, parameter in model.named_parameters(remove_duplicate=False)",
            )
        ],
        "children's parameters only": [
            (
                "parameter in model.parameters()",
                "parameter in (p for m in model.children() for p in m.parameters())",
            )
        ],
        "the first parameter only": [
            (
                "        sum_over_processes(parameter.grad)",
                "        sum_over_processes(parameter.grad)\n        break",
            )
        ],
        "gradients are cleared": [
            (
                "        sum_over_processes(parameter.grad)",
                "        sum_over_processes(parameter.grad)\n    model.zero_grad()",
            )
        ],
    },
    "loss_scale": {
        "one process": [(" * world", "")],
        "rounded to three digits": [("size / total * world", "round(size / total * world, 3)")],
        "DDP's mean once more": [("* world", "/ world")],
        "the world squared": [("* world", "* world**2")],
        "the mean of micro-batches": [("size / total * world", "1 / total * world")],
        "no weights": [("size / total * world", "1.0")],
        "equal shares": [("size / total * world", "1 / world")],
        "rounded down": [("size / total", "size // total")],
        "rounded to two digits": [("size / total * world", "round(size / total * world, 2)")],
        "at most 1": [("size / total * world", "min(1.0, size / total * world)")],
        "two processes": [("* world", "* 2")],
        "a batch of 12": [("/ total", "/ 12")],
        "inverted": [("size / total * world", "total / size / world")],
    },
    "most_likely": {
        "bf16 logits": [(".float()", ".bfloat16()")],
        "losses of two digits": [(MEAN, f"round({MEAN}, 2)")],
        "the sum": [
            (MEAN, "F.cross_entropy(logits, row[0, -len(ending) :], reduction='sum').item()")
        ],
        "the highest loss": [("min(losses)", "max(losses)")],
        "the context's losses too": [
            ("[0, -len(ending) :].float()", "[0].float()"),
            ("row[0, -len(ending) :]", "row[0, 1:]"),
        ],
        "divided by characters": [
            (MEAN, MEAN + " * len(ending) / sum(map(len, map(str, ending)))")
        ],
        "the logits of the same place": [("row[:, :-1]", "row[:, 1:]")],
        "one token of context too few": [(ROW, "row[:, -model.config.block_size :]")],
        "cropped at the end": [(ROW, "row[:, : model.config.block_size + 1]")],
        "not cropped": [(f"        row = {ROW}\n", "")],
        "the context is cropped before": [
            ("[context + ending]", "[context[-model.config.block_size + 6 :] + ending]")
        ],
        "only the last token of the context": [("[context + ending]", "[context[-1:] + ending]")],
        "without context": [("[context + ending]", "[ending[:1] + ending]")],
        "the last token only": [("-len(ending) :", "-1:")],
        "without the first token": [("-len(ending) :", "-max(1, len(ending) - 1) :")],
        "four endings": [("for ending in endings:", "for ending in endings[:4]:")],
        "counted from 1": [("losses.index(min(losses))", "losses.index(min(losses)) + 1")],
        "the ending itself": [("losses.index(min(losses))", "endings[losses.index(min(losses))]")],
        "the lists grow": [("[context + ending]", "[context.__iadd__(ending)]")],
        "ids on the CPU": [(", device=model.lm_head.weight.device", "")],
        "a block of 13": [("model.config.block_size", "13")],
        "the lowest loss of one token": [
            (MEAN, "F.cross_entropy(logits, row[0, -len(ending) :], reduction='none').min().item()")
        ],
    },
    "fewest_gpus": {
        "rounded down": [("math.ceil", "math.floor")],
        "rounded": [("math.ceil", "round")],
        "a float": [("math.ceil", "float(math.ceil"), ("reserved))", "reserved)))")],
        "one more": [(QUOTIENT, "int(needed / (memory - reserved)) + 1")],
        "not rounded": [(QUOTIENT, "needed / (memory - reserved)")],
        "nothing reserved": [("(memory - reserved)", "memory")],
        "reserved once": [(QUOTIENT, "math.ceil((needed + reserved) / memory)")],
        "reserved twice": [("(memory - reserved)", "(memory - 2 * reserved)")],
        "the weights alone": [(NEEDED, "4 * parameters")],
        "bf16 weights": [(NEEDED, "2 * parameters")],
        "weights and gradients": [(NEEDED, "8 * parameters")],
        "moments forgotten by half": [(NEEDED, "12 * parameters")],
        "whole machines": [(QUOTIENT, "8 * math.ceil(needed / (memory - reserved) / 8)")],
        "powers of two": [
            (QUOTIENT, "2 ** math.ceil(math.log2(max(1, needed / (memory - reserved))))")
        ],
        "GPUs of 80 GB": [("memory - reserved", "80e9 - reserved")],
        "at least two": [(QUOTIENT, "max(2, math.ceil(needed / (memory - reserved)))")],
        "weights aren't sharded": [
            (QUOTIENT, "math.ceil(12 * parameters / (memory - reserved - 4 * parameters))")
        ],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
RIGHT: dict[str, dict[str, str]] = {
    "data_parallel": {
        "no gradient (sum_over_processes)": (
            "`detach` shares the memory of its tensor, and a sum over processes has no gradient"
        ),
    },
    "fewest_gpus": {
        f"needed = {NEEDED}  =>  needed = {BY_DEFAULT}": (
            "fp32 is the default of `bytes_per_parameter`"
        ),
    },
}
