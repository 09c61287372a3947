"""Exercises of notebook 06: batches, uneven micro-batches, 16-bit steps, and the verdict."""

import tracemalloc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from cs336_course.engine import Case, Exercise, edits, normal, sizes
from cs336_course.engine.observe import Observer
from cs336_course.engine.records import Record, plain
from cs336_course.engine.training import activations, flat_gradient, flat_weights, one_number
from cs336_course.pages.training_loop.run_with_nan import finish_and_adapt

NOTEBOOK = "06_training_loop"


# epoch_batch

LARGE = "a file of a million tokens"


def epoch_cases() -> Iterator[Case]:
    """Yield files and the shape of a batch."""
    yield Case(tokens=41, batch_size=3, block_size=4)  # exactly 10 windows and the last target
    yield Case("a last window without its last target", tokens=36, batch_size=3, block_size=4)
    for size in sizes(12, more=(1, 60), rows=(1, 5), block=(1, 7)):
        yield Case(tokens=size.block + size.more, batch_size=size.rows, block_size=size.block)
    yield Case(LARGE, tokens=1_000_001, batch_size=2, block_size=1000)


def ids_of(count: int) -> np.ndarray:
    """Return a file's tokens. Those of the first case tell their position."""
    if count == 41:
        return np.arange(1000, 1041, dtype=np.uint16)
    return np.random.default_rng(count).integers(0, 2**16, count, dtype=np.uint16)


class Copies(TorchFunctionMode):
    """Note the largest tensor that doesn't share the memory of an array."""

    def __init__(self, array: np.ndarray):
        super().__init__()
        self.shared, self.largest = array.ctypes.data, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run a function of PyTorch."""
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor) and out.untyped_storage().data_ptr() != self.shared:
            self.largest = max(self.largest, out.untyped_storage().nbytes())
        return out


def copies_much(call: Callable[[], Any], tokens: np.ndarray) -> bool:
    """Return whether a call copies more than half of a file."""
    tracemalloc.start()  # which sees NumPy's arrays and Python's lists
    try:
        with Copies(tokens) as copies:
            call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return max(peak, copies.largest) > tokens.nbytes // 2


def see_epoch(answer: Any, case: Case) -> Record:
    """Observe all batches of an epoch, or of a large file only what two of them copy."""
    count, rows, block = case.inputs.values()
    tokens = ids_of(count)
    if case.what == LARGE:
        calls = {
            f"copies for batch {n}": (lambda n=n: answer(tokens, n, rows, block)) for n in (3, 490)
        }
        return {name: copies_much(call, tokens) for name, call in calls.items()}
    record: Record = {}
    are_tensors = True
    for number in range(-(-((count - 1) // block) // rows)):
        result = answer(tokens, number, rows, block)
        record[f"batch {number}"] = plain(result)
        parts = result if isinstance(result, tuple | list) else []
        are_tensors &= all(isinstance(part, Tensor) for part in parts)
    changed = [] if np.array_equal(tokens, ids_of(count)) else ["tokens"]
    return record | {"tensors": are_tensors, "changed": changed}


WINDOWS = "windows = (len(tokens) - 1) // block_size"
STARTS = "starts = [w * block_size for w in range(first, min(first + batch_size, windows))]"
BOTH = "return both[:, :-1], both[:, 1:]"
COPIED = (
    "the batches are right, but you copy the whole file. Slice the tokens at both ends first, and "
    "convert only the slices."
)
ENDS_EARLY = (
    "41 tokens hold 10 windows of 4 inputs and a target, so batch 3 has one window. Window 9 ends "
    "with the file's very last token as its target, and the last batch may have fewer rows."
)
CONTINUE = "batch 1 must continue where batch 0 ended, at token batch_size * block_size."
INT64 = "embeddings and cross-entropy want int64."
SPAN = """
def batch(tokens, number, batch_size, block_size):
    start = number * batch_size * block_size
    windows = min(batch_size, (len(tokens) - 1 - start) // block_size)
    span = torch.from_numpy(tokens[start : start + windows * block_size + 1].astype(np.int64))
    return span[:-1].view(windows, block_size), span[1:].view(windows, block_size)
"""
epoch_batch = Exercise(
    NOTEBOOK,
    "epoch_batch",
    epoch_cases,
    observe=see_epoch,
    answers=("batch",),
    smaller="How many windows of 4 inputs do 9 tokens hold, and how many do 8 tokens hold?",
    says={
        "tensors": "inputs and targets must be tensors; torch.from_numpy makes one of an array.",
        "copies for batch 3": COPIED,
        "copies for batch 490": COPIED,
    },
    wrong={
        "batch 1 repeats batch 0, so `number` is ignored.": ("number * batch_size", "0"),
        CONTINUE: [
            ("number * batch_size", "max(0, number - 1) * batch_size"),
            ("number * batch_size", "number"),
            ("w * block_size for", "number * batch_size + w for"),
        ],
        "the targets equal the inputs; shift them by one.": ("both[:, 1:]", "both[:, :-1]"),
        "the inputs and the targets are swapped; return the inputs first.": (
            BOTH,
            "return both[:, 1:], both[:, :-1]",
        ),
        "the last target of a window is the window's own first token, as torch.roll leaves it. It "
        "must be the next token of the file, so read block_size + 1 tokens.": (
            "both[:, 1:]",
            "both[:, :-1].roll(-1, dims=1)",
        ),
        "a target must be the token right after its input.": edits(
            ("- 1) //", "- 2) //"),
            ("+ 1] for", "+ 2] for"),
            (BOTH, "return both[:, :-2], both[:, 2:]"),
        ),
        "one token is never an input. A window reads block_size + 1 tokens, but the next one "
        "begins block_size on; its first input is the last one's last target.": [
            ("w * block_size", "w * (block_size + 1)"),
            edits(
                ("w * block_size", "w * (block_size + 1)"), ("// block_size", "// (block_size + 1)")
            ),
        ],
        "the windows overlap. Each one begins where the inputs of the one before ended.": (
            "w * block_size",
            "w",
        ),
        "windows follow each other in the batch as in the file.": [
            (
                STARTS,
                "lanes = windows // batch_size\n"
                "    starts = [(r * lanes + number) * block_size for r in range(batch_size)]",
            ),
            (STARTS, f"{STARTS}[::-1]"),
            (STARTS, f"{STARTS}\n    starts = np.random.default_rng(number).permutation(starts)"),
        ],
        "the first window must begin with the file's first token.": edits(
            ("- 1) //", "- 2) //"), ("w * block_size", "w * block_size + 1")
        ),
        ENDS_EARLY: [
            (WINDOWS, f"{WINDOWS} - 1"),
            ("// block_size", "// (block_size + 1)"),
            (WINDOWS, f"{WINDOWS} // batch_size * batch_size"),
            ("min(first + batch_size, windows)", "first + batch_size"),
        ],
        "an epoch's last batch may have fewer rows; return it, too.": (
            "    starts =",
            "    if first + batch_size > windows:\n        return None\n    starts =",
        ),
        "the last batch of an epoch has fewer rows. It neither moves back nor begins again.": [
            (STARTS, f"first = min(first, windows - batch_size)\n    {STARTS}"),
            (
                STARTS,
                "starts = [w % windows * block_size for w in range(first, first + batch_size)]",
            ),
        ],
        "with 36 tokens the ninth window has no last target, so only 8 windows are full. "
        "len(tokens) // block_size counts one too many.": ("(len(tokens) - 1)", "len(tokens)"),
        "a batch with a single row has lost an axis. Does `squeeze` remove it?": (
            BOTH,
            "return both[:, :-1].squeeze(), both[:, 1:].squeeze()",
        ),
        "ids above 255 come out too small. The tokens are uint16, so convert them to int64 at "
        "once, and not by way of uint8.": ("rows.astype", "rows.astype(np.uint8).astype"),
        "large ids come out negative. The tokens are uint16, so convert them to int64 at once, and "
        "not by way of int16.": ("rows.astype", "rows.astype(np.int16).astype"),
        INT64: [("np.int64", "np.int32"), ("rows.astype(np.int64)", "rows")],
        "return two tensors: inputs, targets.": [
            (BOTH, "return both"),
            (BOTH, "return both[:, 1:]"),
        ],
        COPIED: [
            ("windows =", "tokens = np.array(tokens)\n    windows ="),
            ("windows =", "tokens = tokens.astype(np.int64)\n    windows ="),
            (
                "windows =",
                "tokens = torch.tensor(tokens, dtype=torch.int64).numpy()\n    windows =",
            ),
            ("windows =", "tokens = torch.from_numpy(tokens).long().numpy()\n    windows ="),
            ("windows =", "tokens = np.array(tokens.tolist())\n    windows ="),
            ("windows =", "tokens = np.roll(tokens, 0)\n    windows ="),
        ],
        "the batches are right, but you copy everything before a batch. Slice the tokens at both "
        "ends first, and convert only the slices.": (
            "windows =",
            "end = (number + 1) * batch_size * block_size + 1\n"
            "    tokens = tokens[:end].astype(np.int64)\n    windows =",
        ),
    },
    refused=[
        ("both[:, 1:]", "both[:, -1]"),
        ("windows =", "block_size = 4\n    windows ="),
        ("windows =", "batch_size = 3\n    windows ="),
        ("windows =", "tokens = tokens % 2**15\n    windows ="),
        (BOTH, "return both[:, :-1], both[:, 1:] % 2**15"),
        (BOTH, "return both[:, :-1].numpy(), both[:, 1:].numpy()"),
        ("    return both", "    tokens[:] = 0\n    return both"),
        "def batch(tokens, number, batch_size, block_size):\n    return None",
    ],
    right=[
        SPAN,
        """
def batch(tokens, number, batch_size, block_size):
    x, y = [], []
    start = number * batch_size * block_size
    while start + block_size < len(tokens) and len(x) < batch_size:
        x.append(tokens[start : start + block_size].tolist())
        y.append([int(token) for token in tokens[start + 1 : start + 1 + block_size]])
        start += block_size
    return [torch.tensor(x), torch.tensor(y)]
""",
        """
def batch(tokens, number, batch_size, block_size):
    rows = np.lib.stride_tricks.sliding_window_view(tokens, block_size + 1)[::block_size]
    rows = torch.tensor(rows[number * batch_size :][:batch_size].astype("int64"))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
""",
        """
def batch(tokens, number, batch_size, block_size):
    rows = torch.from_numpy(tokens).unfold(0, block_size + 1, block_size)
    rows = rows[number * batch_size : (number + 1) * batch_size].long()
    return rows[:, :-1], rows[:, 1:]
""",
        """
def batch(tokens, number, batch_size, block_size):
    starts = np.arange(0, len(tokens) - block_size, block_size)
    positions = starts[number * batch_size :][:batch_size, None] + np.arange(block_size)
    return tuple(torch.LongTensor(tokens[positions + i].astype(np.int64)) for i in (0, 1))
""",
        """
def batch(tokens, number, batch_size, block_size):
    count = (len(tokens) - 1) // block_size
    here = slice(number * batch_size, (number + 1) * batch_size)
    x = tokens[: count * block_size].reshape(count, block_size)[here]
    y = tokens[1 : count * block_size + 1].reshape(count, block_size)[here]
    return torch.as_tensor(x, dtype=torch.int64), torch.as_tensor(y, dtype=torch.int64)
""",
    ],
)


# accumulate

DROPOUT = "a model with dropout"


def accumulation_cases() -> Iterator[Case]:
    """Yield models, losses and the lengths of pieces."""
    yield Case(model="line", pieces=[4, 3, 1], loss="mse_loss")
    yield Case("a single piece and an L1 loss", model="line", pieces=[6], loss="l1_loss")
    yield Case(
        "pieces of one length and an L1 loss", model="line", pieces=[2, 2, 2], loss="l1_loss"
    )
    for n, size in enumerate(sizes(3, pieces=(2, 5))):
        pieces = [one.length for one in sizes(size.pieces, n, length=(1, 6))]
        yield Case(
            "two layers and cross-entropy", model="classes", pieces=pieces, loss="cross_entropy"
        )
    yield Case("a model in eval mode", model="in eval mode", pieces=[3, 1, 2], loss="mse_loss")
    yield Case(DROPOUT, model="dropout", pieces=[3, 1, 2], loss="mse_loss")
    frozen = "a model with a frozen and an unused parameter"
    yield Case(frozen, model="frozen", pieces=[3, 1, 2], loss="mse_loss")


def made(name: str) -> nn.Module:
    """Return a model with numbers that are the same in every run."""
    if name == "line":
        model: nn.Module = nn.Linear(3, 1, bias=False)
    else:
        middle = nn.Dropout(0.5) if name in ("dropout", "in eval mode") else nn.Tanh()
        model = nn.Sequential(nn.Linear(3, 4), middle, nn.Linear(4, 5 if name == "classes" else 1))
        model.train(name != "in eval mode")
    if name == "frozen":
        model[0].bias.requires_grad_(False)
        model[1].register_parameter("unused", nn.Parameter(torch.ones(2)))
    for number, p in enumerate(model.parameters()):
        p.data.copy_(normal(*p.shape, seed=10 + number))
    return model


def pieces_of(name: str, lengths: list[int]) -> list[tuple[Tensor, Tensor]]:
    """Return micro-batches of these lengths, whose losses differ a lot."""
    total = sum(lengths)
    x = normal(total, 3, seed=1)
    growing = torch.arange(1.0, total + 1)[:, None]
    y = torch.arange(total) % 5 if name == "classes" else normal(total, 1, seed=2) * growing
    return [(a.clone(), b.clone()) for a, b in zip(x.split(lengths), y.split(lengths), strict=True)]


class Watch:
    """What an answer does with a model."""

    def __init__(self, model: nn.Module, loss: Callable[[Tensor, Tensor], Tensor], total: int):
        self.loss, self.total = loss, total
        self.modes: set[bool] = set()
        self.passes: list[str] = []
        self.outputs: list[weakref.ref[Tensor]] = []
        self.is_kept = False
        self.weighed: list[float] = []  # losses of forward passes whose gradient may be taken
        kind = type(model)

        def forward(mine: nn.Module, *inputs: Tensor) -> Tensor:
            # The last output may still have a name, until the next one takes it
            self.is_kept |= any(self.alive) or any(ref() is not None for ref in self.outputs[:-1])
            self.modes.add(mine.training)
            self.passes.extend(["forward"] * torch.is_grad_enabled())
            self.outputs.append(weakref.ref(output := kind.forward(mine, *inputs)))
            return output

        # A class of its own, because a hook doesn't see model.forward(x), nor a copy of the model
        model.__class__ = type(kind.__name__, (kind,), {"forward": forward})
        next(model.parameters()).register_hook(lambda _: self.passes.append("backward"))

    def loss_function(self, output: Tensor, y: Tensor) -> Tensor:
        """Return the mean loss of a piece."""
        loss = self.loss(output, y)
        if loss.requires_grad:
            self.weighed.append(loss.item() * len(y) / self.total)
        return loss

    def run(self, answer: Any, model: nn.Module, pieces: list[tuple[Tensor, Tensor]]) -> Any:
        """Call the answer, and return what it returns."""
        with activations() as self.alive:
            return answer(model, pieces, self.loss_function)


def see_accumulation(answer: Any, case: Case) -> Record:
    """Observe the gradients, the loss, and what is in memory at once."""
    name, lengths, loss_name = case.inputs.values()
    model, pieces, given = made(name), pieces_of(name, lengths), pieces_of(name, lengths)
    before = flat_weights(model)
    watch = Watch(model, getattr(F, loss_name), sum(lengths))
    loss = watch.run(answer, model, given)
    parameters = dict(model.named_parameters())
    graph = isinstance(loss, Tensor) and loss.requires_grad
    number = one_number(loss)
    number = torch.tensor(float(number)) if isinstance(number, int | float) else number
    tensors = zip(sum(given, ()), sum(pieces, ()), strict=False)
    same = len(given) == len(pieces) and all(torch.equal(*pair) for pair in tensors)
    record: Record = {
        "backward": any(p.grad is not None for p in parameters.values()),
        "mode": watch.modes <= {name != "in eval mode"},
        "requires_grad": {key: p.requires_grad for key, p in parameters.items()},
        "without gradient": [key for key, p in parameters.items() if p.grad is None],
        "at once": watch.passes != ["forward", "backward"] * len(lengths),
        "kept": watch.is_kept,
        "moved": not torch.equal(before, flat_weights(model)),
        "changed": [] if same else ["micro_batches"],
        "inputs learn": any(x.requires_grad for x in sum(given, ())),
        "graph": graph,
    }
    if case.what == DROPOUT:  # whose masks are those of the draws
        total = torch.tensor(sum(watch.weighed))
        is_theirs = isinstance(number, Tensor) and torch.allclose(number, total, rtol=1e-4)
        return record | {"one mask": is_theirs}
    if not record["backward"]:
        return record
    return {"the gradient": flat_gradient(model), **record, "the loss": number}


WEIGHT = "(len(x) / total)"
SCALED = "loss = loss_function(model(x), y) * (len(x) / total)"
ADD = "mean += loss.item()"
TOTAL = "sum(len(x) for x, _ in micro_batches)"
ZEROS = "model.zero_grad(set_to_none=False)"
LOSS = "the gradient is right, but the loss you return is "
AT_ONCE = (
    "the gradient is right, but all pieces were in memory at once. Call backward for each one "
    "before the next goes forward."
)
KEPT = (
    "the gradient is right, but activations of earlier pieces stay in memory. Collect neither "
    "outputs nor graphs, and call backward without retain_graph."
)
MODE = "you change the model's mode. Leave model.train() and model.eval() to the caller."
THAWED = "a frozen parameter doesn't stay frozen. Leave requires_grad to the caller."
NO_ZEROS = (
    "a frozen or unused parameter gets a .grad of zeros. It should stay None, because AdamW would "
    "still decay it."
)
MOVED = "the weights have moved; take no optimizer step."
NO_GRADIENT = (
    "some gradients are missing, or you change the gradient of a parameter that has none. A frozen "
    "or unused parameter's .grad stays None; leave it out."
)
RUN = "def run(model, micro_batches, loss_function):"
SECOND_PASS = (
    "with torch.no_grad():\n            mean += loss_function(model(x), y).item() * len(x) / total"
)
DIVIDED = "for p in model.parameters():\n        p.grad /= total\n    return mean / total"
accumulate = Exercise(
    NOTEBOOK,
    "accumulate",
    accumulation_cases,
    observe=see_accumulation,
    answers=("run",),
    smaller="The pieces have losses (1, 3) and (8). Which weights turn their means, 2 and 8, into "
    "the mean of all three?",
    says={
        "backward": "every .grad is None; call backward, and keep the gradients.",
        "mode": MODE,
        "requires_grad": THAWED,
        "without gradient": NO_ZEROS,
        "the gradient": "the gradient isn't that of the mean over all examples.",
        "at once": AT_ONCE,
        "kept": KEPT,
        "moved": MOVED,
        "inputs learn": "your function lets the inputs require a gradient; only the parameters "
        "need one.",
        "graph": "the gradient is right, but the loss you return still holds the graph and all "
        "activations. Add up loss.item() (or loss.detach()).",
        "one mask": "with dropout, the loss you return isn't the one whose gradient you take, "
        "since each pass has another mask. Go forward once per piece.",
        "the loss": "the gradient is right, but the loss you return isn't the mean over all "
        "examples, as a number.",
    },
    wrong={
        "that is the sum of the pieces' mean gradients. Each loss must be scaled down before "
        "backward.": [
            (f" * {WEIGHT}", ""),
            edits((f" * {WEIGHT}", ""), ("loss.item()", "loss.item() * len(x) / total")),
        ],
        "you divide by the number of micro-batches, so an example in a short piece counts more "
        "than one in a long piece. Weigh by size, count / total.": (
            "len(x) / total",
            "1 / len(micro_batches)",
        ),
        "you divide each mean by the number of examples. A mean of `count` examples must be "
        "multiplied by count as well.": ("len(x) / total", "1 / total"),
        "you divide each mean by its own piece's count; multiply by it, and divide by the total.": (
            "len(x) / total",
            "1 / len(x)",
        ),
        "that is the sum over all examples, multiplied by count, but not divided by the total.": (
            WEIGHT,
            "len(x)",
        ),
        "you weigh each piece by count / total and divide by the number of pieces, too; the "
        "weights already add up to 1.": ("len(x) / total", "len(x) / total / len(micro_batches)"),
        "every piece is weighed as if it were as long as the first.": (
            "len(x) / total",
            "len(micro_batches[0][0]) / total",
        ),
        "only the last micro-batch is left; do not zero the gradients in between.": [
            edits(("loss =", "model.zero_grad()\n        loss ="), (f" * {WEIGHT}", "")),
            ("loss =", "model.zero_grad()\n        loss ="),
        ],
        "the last micro-batch is missing.": (
            "for x, y in micro_batches:",
            "for x, y in micro_batches[:-1]:",
        ),
        "the gradients are all 0. Do you zero them at the end?": (
            "return mean",
            f"{ZEROS}\n    return mean",
        ),
        "the gradients are all 0. Is a factor rounded down to 0 by //?": (
            "len(x) / total",
            "len(x) // total",
        ),
        "you take the mean over all numbers of a piece; weigh by the number of its examples, "
        "len(x).": ("len(x) / total", "x.numel() / total"),
        AT_ONCE: [
            edits(
                ("loss.backward()", "mean = mean + loss"),
                (ADD, ""),
                ("return mean", "mean.backward()\n    return mean.item()"),
            ),
            f"""
{RUN}
    x, y = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    loss = loss_function(model(x), y)
    loss.backward()
    return loss.item()
""",
        ],
        KEPT: [
            ("loss.backward()", "loss.backward(retain_graph=True)"),
            edits(
                ("mean = 0.0", "mean, kept = 0.0, []"),
                (
                    "loss_function(model(x), y)",
                    "loss_function(kept.append(model(x)) or kept[-1], y)",
                ),
            ),
        ],
        MOVED: [
            ("return mean", "torch.optim.SGD(model.parameters(), lr=0.1).step()\n    return mean"),
        ],
        MODE: [
            ("mean = 0.0", "mean = 0.0\n    model.eval()"),
            ("mean = 0.0", "mean = 0.0\n    model.train()"),
        ],
        NO_ZEROS: (
            "mean = 0.0",
            "mean = 0.0\n    for p in model.parameters():\n        p.grad = p * 0",
        ),
        THAWED: [
            ("mean = 0.0", "mean = 0.0\n    model.requires_grad_(True)"),
            ("return mean", "model.requires_grad_(True)\n    return mean"),
        ],
        NO_GRADIENT: [
            edits((f" * {WEIGHT}", " * len(x)"), ("return mean", DIVIDED)),
            edits(
                (f" * {WEIGHT}", " * len(x)"),
                (
                    "return mean",
                    "for p in model.parameters():\n        if p.requires_grad:\n"
                    "            p.grad /= total\n    return mean / total",
                ),
            ),
        ],
        f"{LOSS}the mean of the pieces' means. Weigh each by its size here, too.": (
            ADD,
            "mean += loss.item() * total / len(x) / len(micro_batches)",
        ),
        f"{LOSS}the sum of the pieces' means.": (ADD, "mean += loss.item() * total / len(x)"),
        f"{LOSS}the sum over all examples; divide it by their number.": (
            ADD,
            "mean += loss.item() * total",
        ),
        "the gradient is right, but you divide the loss by the number of examples twice.": (
            ADD,
            "mean += loss.item() / total",
        ),
        "the gradient is right, but you weigh the loss by the piece's length twice.": (
            ADD,
            "mean += loss.item() * len(x) / total",
        ),
        f"{LOSS}that of the last piece.": (ADD, "mean = loss.item() * total / len(x)"),
        f"{LOSS}the last piece's share of the mean; add up all of them.": (
            ADD,
            "mean = loss.item()",
        ),
        "the gradient is right; return the batch's mean loss as well.": [
            ("return mean", "return None"),
            ("return mean", "pass"),
        ],
        "the gradient is right, but the loss you return still holds the graph and all activations. "
        "Add up loss.item() (or loss.detach()).": ("loss.item()", "loss"),
        "with dropout, the loss you return isn't the one whose gradient you take, since each pass "
        "has another mask. Go forward once per piece.": (ADD, SECOND_PASS),
    },
    refused=[
        (TOTAL, "len(micro_batches[0][0]) * len(micro_batches)"),
        (TOTAL, "8"),
        ("len(x) / total", "len(x) ** 2 / total"),
        ("len(x) / total", "len(x) / 12"),
        ("return mean", "model.zero_grad()\n    return mean"),
        (ADD, "mean = (mean + loss.item() * total / len(x)) / 2"),
        ("loss_function(model(x), y)", "F.mse_loss(model(x), y)"),
        ("return mean", "nn.utils.clip_grad_norm_(model.parameters(), 1.0)\n    return mean"),
        (
            "return mean",
            "for p in model.parameters():\n        p.data -= 0.1 * p.grad\n    return mean",
        ),
        (
            "return mean",
            "for p in list(model.parameters())[1:]:\n        p.grad = None\n    return mean",
        ),
        ("return mean", "[p.grad.mul_(9) for p in list(model.parameters())[1:]]\n    return mean"),
        ("for x, y in micro_batches:", "while micro_batches:\n        x, y = micro_batches.pop()"),
        ("loss =", "x -= x.mean()\n        loss ="),
        ("total =", "model = copy.deepcopy(model)\n    total ="),
        ("loss =", "x.requires_grad_()\n        loss ="),
        ("return mean", "return [mean]"),
        ("return mean", "return 0.0"),
        f"{RUN}\n    return 0.0",
    ],
    right=[
        ("loss.item()", "loss.detach()"),
        ("model(x)", "model.forward(x)"),
        ("in micro_batches:", "in reversed(micro_batches):"),
        f"""
{RUN}
    total = sum(y.shape[0] for _, y in micro_batches)
    mean = torch.zeros(())
    for x, y in micro_batches:
        loss = loss_function(model(x), y)
        loss.backward(torch.tensor(len(x) / total))
        mean += loss.detach() * len(x) / total
    return mean
""",
        f"""
{RUN}
    sizes, losses = [], []
    for x, y in micro_batches:
        loss = loss_function(model(x), y)
        (loss * len(x)).backward()
        sizes.append(len(x))
        losses.append(loss.item())
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= sum(sizes)
    return np.average(losses, weights=sizes)
""",
        f"""
{RUN}
    parameters = [p for p in model.parameters() if p.requires_grad]
    mean, seen = 0.0, 0
    for x, y in micro_batches:
        loss = loss_function(model(x), y)
        seen += len(x)
        mean += (loss.item() - mean) * len(x) / seen
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        for p, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                old = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = old + (grad - old) * len(x) / seen
    return np.float32(mean)
""",
        f"""
{RUN}
    total, losses = sum(len(x) for x, _ in micro_batches), []
    for x, y in micro_batches:
        inputs = x.clone()
        weight = torch.tensor(len(x) / total)
        output = model(inputs)
        loss = loss_function(output, y) * weight
        loss.backward()
        losses.append(loss)
    return torch.stack(losses).sum().item()
""",
    ],
)


# autocast_dtypes and verdict, which are dictionaries of decisions


def one_word(allowed: tuple[str, ...]) -> Observer:
    """Return the observer of a dictionary that has one of the allowed words for each question."""

    def observe(answer: Any, case: Case) -> Record:
        if not isinstance(answer, dict):
            return {"form": plain(answer)}
        if answer and all(given is ... for given in answer.values()):
            raise NotImplementedError
        given = answer.get(case.what, ...)
        if given is ...:
            return {"form": "a dict", "answer": "is missing"}
        given = plain(given)
        given = given.strip().lower() if isinstance(given, str) else given
        is_known = given in allowed if isinstance(given, str) else False
        return {"form": "a dict", "answer": "is there", "known": is_known, "word": given}

    return observe


def says_of(allowed: tuple[str, str]) -> dict[str, str]:
    """Return the sentences for dictionaries whose form is wrong."""
    one, other = (f'"{word}"' for word in allowed)
    return {
        "form": "keep the dictionary, and replace each `...` in it.",
        "answer": "it has no answer yet; every answer above it is right.",
        "known": f"answer {one} or {other}.",
        "word": "it isn't right.",
    }


def flipped(name: str, right: str, wrong: str) -> tuple[str, str]:
    """Return the idea that answers one question wrongly."""
    return f'"{name}": "{right}"', f'"{name}": "{wrong}"'


DTYPES = ("bf16", "fp32")
TENSORS = ("h", "r", "a", "h + a", "s", "logits", "loss")
IN_BACKWARD = ("gradient of a", "gradient of linear.weight", "exp_avg of linear.weight")


def tensors_of_the_step() -> Iterator[Case]:
    """Yield the tensors whose dtypes are asked for."""
    for name in TENSORS + IN_BACKWARD:
        yield Case(name)


autocast_dtypes = Exercise(
    NOTEBOOK,
    "autocast_dtypes",
    tensors_of_the_step,
    observe=one_word(DTYPES),
    answers=("answer",),
    is_quiz=True,
    smaller="An operation is on the bf16 list, on the fp32 list, or on neither. On which are a "
    "lookup in a table, a linear layer and a sum of two tensors?",
    says=says_of(DTYPES),
    wrong={
        "h: an embedding is a lookup and not a matmul. It's on neither list, so it has the dtype "
        "of its table, and autocast leaves the weights in fp32.": flipped("h", "fp32", "bf16"),
        "r: nothing in this line is a matmul, so it runs in the dtype of its input, which is "
        "h.": flipped("r", "fp32", "bf16"),
        "a: autocast casts both the input and the weight of a linear layer to bf16, whatever "
        "dtype they have.": flipped("a", "bf16", "fp32"),
        "h + a: where fp32 and bf16 meet, the wider one wins. That is why the residual stream "
        "stays in fp32.": flipped("h + a", "fp32", "bf16"),
        "s: on a CPU, pow and mean are on neither list, so they run in the dtype of a. Each square "
        "is rounded to bf16, unless you write a.float().": flipped("s", "bf16", "fp32"),
        "logits: the head is a linear layer like the other one.": flipped("logits", "bf16", "fp32"),
        "loss: losses are on the fp32 list, since they sum exponentials over the whole "
        "vocabulary.": flipped("loss", "fp32", "bf16"),
        "gradient of a: a gradient has the dtype of its tensor.": flipped(
            "gradient of a", "bf16", "fp32"
        ),
        "gradient of linear.weight: a gradient has the dtype of its tensor, and the parameter "
        "itself is fp32. Only the copy for the matmul is bf16.": flipped(
            "gradient of linear.weight", "fp32", "bf16"
        ),
        "exp_avg of linear.weight: the optimizer keeps its state in the dtype of the parameter, "
        "and it runs outside autocast.": flipped("exp_avg of linear.weight", "fp32", "bf16"),
    },
    refused=[
        ('"bf16"', '"fp32"'),
        ('"fp32"', '"bf16"'),
        ('"a": "bf16"', '"a": 16'),
        ('"a": "bf16"', '"a": ...'),
        "answer = 'bf16'",
    ],
    right=[('"a": "bf16"', '"a": " BF16"')],
)

FATES = ("lives", "dies")
CHANGES = (
    "the text instead of the page",
    "clip at 1",
    "a tenth of the rate",
    "half the loss scale",
    "a quarter of the loss scale",
    "four windows a step",
    "bf16 instead of fp16",
    "skip steps with an infinite gradient",
)


def changes() -> Iterator[Case]:
    """Yield the changes of the run that are to be judged."""
    for name in CHANGES:
        yield Case(name)


verdict = Exercise(
    NOTEBOOK,
    "verdict",
    changes,
    observe=one_word(FATES),
    answers=("answer",),
    is_quiz=True,
    smaller="What is the page's largest gradient times the loss scale, and what is fp16's largest "
    "number?",
    says=says_of(FATES),
    wrong={
        "the text instead of the page: the 9,000 steps before had ordinary text and the same "
        "scale. What was the largest scaled gradient of step 8,999?": flipped(
            CHANGES[0], "lives", "dies"
        ),
        "clip at 1: which norm does the log have for step 9,000, and what does clipping make of "
        "it?": flipped(CHANGES[1], "dies", "lives"),
        "a tenth of the rate: what is a tenth of infinity?": flipped(CHANGES[2], "dies", "lives"),
        "half the loss scale: multiply the page's largest gradient by 32,768.": flipped(
            CHANGES[3], "dies", "lives"
        ),
        "a quarter of the loss scale: multiply the page's largest gradient by 16,384.": flipped(
            CHANGES[4], "lives", "dies"
        ),
        "four windows a step: the loss of each window is divided by 4 before backward. By how much "
        "is the page's gradient smaller?": flipped(CHANGES[5], "lives", "dies"),
        "bf16 instead of fp16: what is bf16's largest number?": flipped(
            CHANGES[6], "lives", "dies"
        ),
        "skip steps with an infinite gradient: if step 9,000 isn't taken, which weights does step "
        "9,001 find?": flipped(CHANGES[7], "lives", "dies"),
    },
    refused=[
        ('"lives"', '"dies"'),
        ('"dies"', '"lives"'),
        ('"clip at 1": "dies"', '"clip at 1": False'),
        ('"clip at 1": "dies"', '"clip at 1": ...'),
        "answer = {}",
    ],
    right=[('"clip at 1": "dies"', '"clip at 1": "Dies "')],
)


# finish_step


def finishing_cases() -> Iterator[Case]:
    """Yield loss scales, clipping limits, and the true gradient norms of steps in a row."""
    yield Case(optimizer="sgd", scale=1024.0, limit=1.0, norms=[5.0, 0.5, 3.0])
    overflow = "a step whose last gradient is infinite"
    yield Case(overflow, optimizer="sgd", scale=1024.0, limit=1.0, norms=[0.5, "inf", 0.5])
    yield Case("a nan", optimizer="sgd", scale=64.0, limit=2.0, norms=[3.0, "nan", 3.0])
    yield Case(
        "AdamW, and two overflows",
        optimizer="adamw",
        scale=64.0,
        limit=0.5,
        norms=["inf"] * 2 + [2.0],
    )
    yield Case("a scale of 1", optimizer="sgd", scale=1.0, limit=1.0, norms=["inf", 2.0])
    groups = "two parameter groups, and a parameter without a gradient"
    yield Case(groups, optimizer="groups", scale=8.0, limit=1.0, norms=[4.0, "inf", 0.25])


def made_optimizer(kind: str) -> torch.optim.Optimizer:
    """Return an optimizer of three small parameters, the same in every run."""
    ps = [nn.Parameter(normal(*shape, seed=n)) for n, shape in enumerate([(3, 2), (4,), (2,)])]
    if kind == "adamw":
        return torch.optim.AdamW(ps, lr=0.1, weight_decay=0.1)
    if kind == "groups":
        groups = [{"params": ps[:1], "lr": 0.2}, {"params": [*ps[1:], nn.Parameter(torch.ones(2))]}]
        return torch.optim.SGD(groups, lr=0.1, momentum=0.9, weight_decay=0.1)
    return torch.optim.SGD(ps, lr=0.1, momentum=0.9, weight_decay=0.1)


def give_gradients(parameters: list[nn.Parameter], norm: float | str, scale: float) -> None:
    """Set the scaled gradients of the first three parameters, with a true norm."""
    gradients = [normal(*p.shape, seed=20 + n) for n, p in enumerate(parameters[:3])]
    length = torch.cat([g.flatten() for g in gradients]).norm()
    size = norm if isinstance(norm, float) else 1.0
    for p, gradient in zip(parameters, gradients, strict=False):
        p.grad = gradient * (size * scale / length)
    if isinstance(norm, str):
        gradients[2][0] = float(norm)
        parameters[2].grad = gradients[2]


def see_finish(answer: Any, case: Case) -> Record:
    """Observe the weights, the optimizer's state and the scale after each step."""
    kind, scale, limit, norms = case.inputs.values()
    optimizer = made_optimizer(kind)
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    record: Record = {}
    for number, norm in enumerate(norms, start=1):
        give_gradients(parameters, norm, scale)
        returned = answer(optimizer, scale, limit)
        is_number = isinstance(returned, int | float | Tensor | np.number)
        record[f"weights after step {number}"] = torch.cat(
            [p.detach().flatten() for p in parameters]
        ).clone()
        state = optimizer.state_dict()["state"]
        record[f"state after step {number}"] = plain(
            {f"{n} {key}": x for n, at in state.items() for key, x in at.items() if x is not None}
        )
        record[f"scale after step {number}"] = float(returned) if is_number else plain(returned)
        record[f"gradients after step {number}"] = [p.grad is not None for p in parameters]
        scale = float(returned) if is_number else scale
    return record


UNSCALE = "        if p.grad is not None:\n            p.grad /= scale\n"
LOOP = f"    for p in parameters:\n{UNSCALE}"
CLIP = "    norm = nn.utils.clip_grad_norm_(parameters, limit)\n"
NORM_ONLY = CLIP.replace("limit", "float('inf')")
IF_FINITE = "    if norm.isfinite():\n"
SKIP = "    else:\n        scale = scale / 2\n"
CLEAR = "    optimizer.zero_grad()\n"
NO_SCALE = "return the scale of the next step, also when no step was skipped."
finish_step = Exercise(
    NOTEBOOK,
    "finish_step",
    finishing_cases,
    observe=see_finish,
    answers=("finish",),
    library=finish_and_adapt,
    smaller="A scaled gradient is (3072, 4096), the scale is 1024 and the limit is 1. Which "
    "gradient does an fp32 run take its step with?",
    says={
        f"{what} after step {number}": said
        for number in (1, 2, 3)
        for what, said in {
            "weights": "the weights aren't those of an fp32 run that is clipped at the limit.",
            "state": "the weights are right, but the optimizer's state isn't.",
            "scale": "the weights are right, but the scale that you return isn't.",
            "gradients": "every .grad must be None at the end.",
        }.items()
    },
    wrong={
        "you clip the scaled gradient. Its norm is `scale` times too large, so nearly every step "
        "is clipped, and after unscaling it is `scale` times too short.": edits(
            (LOOP, ""), (CLIP, CLIP + LOOP)
        ),
        "the gradients are still multiplied by the scale. Clipping hides it in some steps, but "
        "every step has the length of the limit.": [(LOOP, ""), ("/= scale", "*= scale")],
        "you unscale twice, so the steps are `scale` times too short.": (LOOP, LOOP + LOOP),
        "the step is taken with a gradient that isn't clipped. Do you step before you clip, or is "
        "the scale still in the limit?": [
            edits(
                (CLIP, NORM_ONLY),
                (CLEAR, "    nn.utils.clip_grad_norm_(parameters, limit)\n" + CLEAR),
            ),
            (CLIP, NORM_ONLY),
            (CLIP, CLIP.replace("limit)", "limit * scale)")),
        ],
        "you clip each number by itself, which turns the gradient; clip its norm.": (
            CLIP,
            f"{NORM_ONLY}    nn.utils.clip_grad_value_(parameters, limit)\n",
        ),
        "you clip each parameter by itself; the limit is for the norm over all of them.": (
            CLIP,
            "    norm = sum(nn.utils.clip_grad_norm_([p], limit) for p in parameters)\n",
        ),
        "a step with an infinite gradient is taken, so the weights become nan. Clipping doesn't "
        "help, because 0 times infinity is nan.": [
            (IF_FINITE, "    if True:\n"),
            edits(
                (IF_FINITE, ""),
                ("        optimizer.step()\n", "    optimizer.step()\n"),
                (SKIP, "    if not norm.isfinite():\n        scale = scale / 2\n"),
            ),
        ],
        "a nan passes your check, because nan isn't infinite; use isfinite.": (
            "norm.isfinite()",
            "not norm.isinf()",
        ),
        "you replace infinities by numbers and take the step. What stands there is not a "
        "gradient; skip the step.": (
            UNSCALE,
            "        if p.grad is not None:\n            p.grad /= scale\n"
            "            p.grad.nan_to_num_(0.0, 0.0, 0.0)\n",
        ),
        "you step with gradients of zero instead of skipping. Momentum and weight decay still move "
        "the weights.": edits(
            (
                SKIP,
                SKIP + "        for p in parameters:\n            if p.grad is not None:\n"
                "                p.grad.zero_()\n        optimizer.step()\n",
            ),
        ),
        "you leave the gradients of a skipped step. The next backward would add to them, and "
        "infinity never goes away.": edits(
            (
                "        optimizer.step()\n",
                "        optimizer.step()\n        optimizer.zero_grad()\n",
            ),
            (f"{SKIP}{CLEAR}", SKIP),
        ),
        "every .grad must be None at the end, or the next backward adds to it.": [
            (CLEAR, ""),
            (CLEAR, "    optimizer.zero_grad(set_to_none=False)\n"),
        ],
        "after a skipped step, the scale must be halved, or the next step overflows again.": (
            SKIP,
            "",
        ),
        "you halve the scale after good steps, too.": (
            "    return scale",
            "    return scale / 2 if norm.isfinite() else scale",
        ),
        "you double the scale after an overflow; halve it.": ("scale / 2", "scale * 2"),
        NO_SCALE: [("    return scale", "    return None"), ("    return scale", "    pass")],
        "your function fails where a parameter has no gradient; leave it out.": (
            UNSCALE,
            "        p.grad /= scale\n",
        ),
        "you handle only the first parameter group.": (
            "for group in optimizer.param_groups for p",
            "for group in optimizer.param_groups[:1] for p",
        ),
    },
    refused=[
        (CLIP, "    norm = torch.stack([p.grad.norm() for p in parameters[:1]]).norm()\n"),
        ("scale / 2", "scale / 4"),
        ("optimizer.step()", "optimizer.state.clear()"),
        "def finish(optimizer, scale, limit):\n    return scale",
    ],
    right=[
        """
def finish(optimizer, scale, limit):
    gradients = [p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    norm = torch.stack([g.norm() for g in gradients]).norm() / scale
    good = all(g.isfinite().all() for g in gradients)
    if good:
        for g in gradients:
            g.mul_(min(1.0, limit / (norm.item() + 1e-6)) / scale)
        optimizer.step()
    optimizer.zero_grad()
    return scale if good else 0.5 * scale
""",
        (CLIP, CLIP.replace("limit)", "limit, foreach=False)")),
        "finish = finish_and_adapt",
    ],
)
