"""Notebook 06's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import functools
import itertools
import math
import pickle
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from verdicts import assert_untouched, assert_verdicts, stub, verdict

from cs336_lib.classroom.checks import training as checks
from cs336_lib.classroom.checks.training import AUTOCAST
from cs336_lib.classroom.loading import TokenWindows
from cs336_lib.classroom.plots import training as plots

matplotlib.use("Agg")


def test_untouched_stubs():
    pieces, dtypes = dict.fromkeys("ABCDEF", ...), dict.fromkeys(AUTOCAST, ...)
    names = set(checks.__all__) - {"resume"}
    assert_untouched(checks, names, missing_pieces=pieces, autocast_dtypes=dtypes)
    assert verdict(checks.resume, stub, stub) == "resume: not attempted yet"


# epoch_order


def global_torch(seed, epoch, n):
    torch.manual_seed(seed)
    return torch.randperm(n)


ORDERS = {
    "passed": lambda seed, epoch, n: np.random.default_rng([seed, epoch]).permutation(n),
    "is the `return` missing": lambda seed, epoch, n: None,
    "each of 0..49 exactly once": lambda s, e, n: np.random.default_rng([s, e]).integers(n, size=n),
    "nothing was shuffled": lambda seed, epoch, n: range(n),
    "two orders: you draw from a global": lambda seed, epoch, n: torch.randperm(n),
    "re-seeded or advanced a global": global_torch,
    "epoch 1 has the order of epoch 0": lambda s, e, n: np.random.default_rng(s).permutation(n),
    "the seed makes no difference": lambda s, e, n: np.random.default_rng(e).permutation(n),
    "(0, 1) and (1, 0) give the same": lambda s, e, n: np.random.default_rng(s + e).permutation(n),
    "(1, 11) and (11, 1) give the same": lambda s, e, n: np.random.default_rng(
        int(f"{s}{e}")
    ).permutation(n),
}


def test_epoch_order():
    assert_verdicts(checks.epoch_order, ORDERS)


# read_shard


def mapped(dtype, offset, mode="r"):
    return lambda path: np.memmap(path, dtype=dtype, mode=mode, offset=offset)


SHARDS = {
    "passed": mapped(np.uint16, 1024),
    "is the `return` missing": lambda path: None,
    "512 numbers too many": mapped(np.uint16, 0),
    "offset counts bytes": mapped(np.uint16, 512),
    "part of the header": mapped(np.uint16, 256),
    "only the header is int32": mapped(np.int32, 1024),
    "some ids are negative": mapped(np.int16, 1024),
    "twice as many numbers": mapped(np.uint8, 1024),
    "the ids are right, but as int64": lambda path: mapped(np.uint16, 1024)(path).astype(np.int64),
    "the whole file was loaded": lambda path: np.fromfile(path, dtype=np.uint16, offset=1024),
    "the map is writable": mapped(np.uint16, 1024, mode="r+"),
    "numbers, but the file holds": mapped(np.uint16, 1026),
}


def test_read_shard():
    assert_verdicts(checks.read_shard, SHARDS)


# epoch_batch


def cut(
    windows=lambda n, block: (n - 1) // block,
    stride=lambda block: block,
    shift=1,
    start=0,
    dtype=np.int64,
    number_counts=True,
    full_only=False,
):
    """A batch function with one thing done otherwise."""

    def batch(tokens, number, batch_size, block_size):
        count = windows(len(tokens), block_size)
        first = number * batch_size if number_counts else 0
        if full_only:
            count -= count % batch_size
        chosen = range(first, min(first + batch_size, count))
        starts = [w * stride(block_size) + start for w in chosen]
        x = [tokens[s : s + block_size] for s in starts]
        y = [np.roll(tokens, -shift)[s : s + block_size] for s in starts]
        if any(s + block_size + 1 > len(tokens) for s in starts):
            raise ValueError("a window runs past the end")
        if not starts:
            return torch.empty(0, block_size).long(), torch.empty(0, block_size).long()
        return torch.from_numpy(np.stack(x).astype(dtype)), torch.from_numpy(
            np.stack(y).astype(dtype)
        )

    return batch


def targets_only(tokens, number, batch_size, block_size):
    return cut()(tokens, number, batch_size, block_size)[1]


def always_full(tokens, number, batch_size, block_size):
    """Never shorter, even where the file ends."""
    starts = [(number * batch_size + i) * block_size for i in range(batch_size)]
    both = torch.from_numpy(np.stack([tokens[s : s + block_size + 1] for s in starts])).long()
    return both[:, :-1], both[:, 1:]


BATCHES = {
    "passed": cut(),
    "yours raises ValueError": always_full,
    "return two tensors": targets_only,
    "want int64": cut(dtype=np.int32),
    "the targets equal the inputs": cut(shift=0),
    "shifted the wrong way": cut(shift=-1),
    "right after its input": cut(shift=2),
    "one token is never an input": cut(stride=lambda block: block + 1),
    "not 4": cut(stride=lambda block: 1),
    "must begin with the file's first token": cut(start=1),
    "batch 1 repeats batch 0": cut(number_counts=False),
    "a last batch that is not full": cut(full_only=True),
    "len(tokens) - 1) // block_size windows": cut(windows=lambda n, block: (n - 1) // block - 1),
    "only 9 windows are full": cut(windows=lambda n, block: n // block),
}


def test_epoch_batch():
    assert_verdicts(checks.epoch_batch, BATCHES)


# clip_by_hand


def norm_of(parameters):
    return math.sqrt(sum(p.grad.square().sum().item() for p in parameters if p.grad is not None))


def clip_with(scale, returned=norm_of):
    """Clip each gradient by `scale(gradient, all parameters, limit)`; return `returned(...)`."""

    def clip(parameters, limit):
        before = norm_of(parameters)
        factors = [scale(p.grad, parameters, limit) for p in parameters if p.grad is not None]
        parts = [p for p in parameters if p.grad is not None]
        for p, factor in zip(parts, factors, strict=True):
            p.grad.mul_(factor)
        return before if returned is norm_of else returned(parameters)

    return clip


def clamp_each(parameters, limit):
    norm = norm_of(parameters)
    for p in parameters:
        p.grad.clamp_(-limit, limit)
    return norm


def torch_clip_without_none(parameters, limit):
    norm = math.sqrt(sum(p.grad.square().sum().item() for p in parameters))
    for p in parameters:
        p.grad *= min(1, limit / norm)
    return norm


CLIPS = {
    "passed": clip_with(lambda g, ps, limit: min(1, limit / norm_of(ps))),
    "must return the norm": clip_with(lambda g, ps, limit: 0.5, returned=lambda ps: None),
    "the gradients did not change": lambda ps, limit: norm_of(ps),
    "you clip each number": clamp_each,
    "each parameter by its own norm": clip_with(lambda g, ps, limit: min(1, limit / g.norm())),
    "you add the norms": clip_with(
        lambda g, ps, limit: min(1, limit / sum(p.grad.norm() for p in ps))
    ),
    "the root is missing": clip_with(lambda g, ps, limit: min(1, limit / norm_of(ps) ** 2)),
    "must be halved": clip_with(lambda g, ps, limit: 0.1),
    "the norm after clipping": clip_with(
        lambda g, ps, limit: min(1, limit / norm_of(ps)), returned=lambda ps: norm_of(ps)
    ),
    "clipping only makes it smaller": clip_with(lambda g, ps, limit: limit / norm_of(ps)),
    "an unused parameter has .grad None": torch_clip_without_none,
    "the norm of the weights": lambda ps, limit: sum(p.norm() ** 2 for p in ps) ** 0.5,
    "nn.utils.clip_grad_norm_ does all": lambda ps, limit: nn.utils.clip_grad_norm_(ps, limit),
}


def test_clip_by_hand():
    assert_verdicts(checks.clip_by_hand, CLIPS)
    assert_verdicts(checks.clip_by_hand, {"passed": nn.utils.clip_grad_norm_})


# accumulate


def accumulating(weight, zero=False, returned=lambda mean: mean):
    """Accumulate with `weight(count, pieces, total)`, perhaps zeroing in between."""

    def run(model, pieces, loss_function):
        total, mean = sum(len(x) for x, _ in pieces), 0.0
        for x, y in pieces:
            if zero:
                model.zero_grad()
            loss = loss_function(model(x), y)
            (loss * weight(len(x), len(pieces), total)).backward()
            mean = mean + loss * len(x) / total
        return returned(mean)

    return run


def all_at_once(model, pieces, loss_function):
    """One backward, when every piece has gone forward."""
    total = sum(len(x) for x, _ in pieces)
    loss = sum(loss_function(model(x), y) * (len(x) / total) for x, y in pieces)
    loss.backward()
    return loss.item()


def stepping(model, pieces, loss_function):
    """Accumulates, and goes on to take the step."""
    loss = ACCUMULATIONS["passed"](model, pieces, loss_function)
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    return loss


def mean_of_means(model, pieces, loss_function):
    """The right gradient, and the wrong loss."""
    ACCUMULATIONS["passed"](model, pieces, loss_function)
    with torch.no_grad():
        return sum(loss_function(model(x), y).item() for x, y in pieces) / len(pieces)


ACCUMULATIONS = {
    "all pieces were in memory at once": all_at_once,
    "take no optimizer step": stepping,
    "passed": accumulating(
        lambda count, pieces, total: count / total, returned=lambda mean: mean.item()
    ),
    "sum of the pieces' mean gradients": accumulating(lambda *a: 1.0),
    "by the number of micro-batches": accumulating(lambda count, pieces, total: 1 / pieces),
    "multiplied by count as well": accumulating(lambda count, pieces, total: 1 / total),
    "not divided by the total": accumulating(lambda count, pieces, total: count),
    "only the last micro-batch is left:": accumulating(lambda *a: 1.0, zero=True),
    "only the last micro-batch is left (weighed": accumulating(
        lambda count, pieces, total: count / total, zero=True
    ),
    "return the batch's mean loss": accumulating(lambda c, p, t: c / t, returned=lambda m: None),
    "the mean of the pieces' means": mean_of_means,
    "still holds the graph": accumulating(lambda count, pieces, total: count / total),
    "you return 0.0000": accumulating(lambda c, p, t: c / t, returned=lambda mean: 0.0),
    "call backward": lambda model, pieces, loss_function: 0.0,
}


def test_accumulate():
    assert_verdicts(checks.accumulate, ACCUMULATIONS)


# missing_pieces

RIGHT = {
    "A": "weights",
    "B": "optimizer",
    "C": "torch rng",
    "D": "data position",
    "E": "schedule",
    "F": "step",
}


def test_missing_pieces():
    cases = [
        ({}, "passed"),
        ({"B": "schedule"}, "only the first learning rate is off in B"),
        ({"C": "data position"}, "the batch is the same in C"),
        ({"D": "torch rng"}, "dropout doesn't change the batch"),
        ({"E": "step"}, "the run ended where it should in E"),
        ({"F": "weights"}, "look at the first thing that differs"),
        ({"A": "gradients"}, "is not one of weights"),
        ({"D": ...}, "D has no answer yet"),
    ]
    assert_verdicts(checks.missing_pieces, [(RIGHT | changes, text) for changes, text in cases])


# resume


def snapshot_without(*left_out):
    def snapshot(model, optimizer, scheduler, step, data):
        state = {
            "model": model.state_dict(),
            "optimizer": optimizer.state_dict(),
            "scheduler": scheduler.state_dict(),
            "step": step,
            "data": data.get_state(),
            "rng": torch.get_rng_state(),
        }
        return {name: value for name, value in state.items() if name not in left_out}

    return snapshot


def restore(state, model, optimizer, scheduler, data):
    for name, target in (("model", model), ("optimizer", optimizer), ("scheduler", scheduler)):
        if name in state:
            target.load_state_dict(state[name])
    if "data" in state:
        data.set_state(state["data"])
    if "rng" in state:
        torch.set_rng_state(state["rng"])
    return state.get("step", 0)


def whole_objects(model, optimizer, scheduler, step, data):
    return {"model": model, "step": step}


RESUMES = {
    "passed": (snapshot_without(), restore),
    "loading a file doesn't change the model": (snapshot_without("model"), restore),
    "the optimizer's running means": (snapshot_without("optimizer"), restore),
    "the schedule is at step 0": (snapshot_without("scheduler"), restore),
    "the data starts again": (snapshot_without("data"), restore),
    "dropout will draw other numbers": (snapshot_without("rng"), restore),
    "restore must return the step, 6; yours returns 0": (snapshot_without("step"), restore),
    "it holds an object": (whole_objects, restore),
    "torch.save cannot write": (lambda m, o, scheduler, *a: {"s": scheduler}, restore),
    "snapshot must return a dict": (lambda *a: [1], restore),
    "restore returns None": (snapshot_without(), lambda *a: restore(*a) and None),
}


@functools.wraps(checks.resume)
def resume(snapshot_and_restore):
    """Run the check, which must leave the learner's own randomness alone."""
    before = torch.get_rng_state()
    checks.resume(*snapshot_and_restore)
    assert torch.equal(torch.get_rng_state(), before)


def test_resume():
    assert_verdicts(resume, RESUMES)


# autocast_dtypes


def test_the_expected_dtypes_are_what_torch_gives():
    linear, embedding = nn.Linear(4, 4), nn.Embedding(4, 4)
    x, ids = torch.randn(4, 4), torch.arange(4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        results = {
            "linear(x)": linear(x),
            "x + x": x + x,
            "linear(x) + x": linear(x) + x,
            "gelu(linear(x))": F.gelu(linear(x)),
            "cross_entropy(linear(x), ids)": F.cross_entropy(linear(x), ids),
            "embedding(ids)": embedding(ids),
        }
    results["cross_entropy(linear(x), ids)"].backward()
    results |= {"linear.weight": linear.weight, "linear.weight.grad": linear.weight.grad}
    names = {torch.bfloat16: "bf16", torch.float32: "fp32"}
    assert {name: names[value.dtype] for name, value in results.items()} == {
        name: truth for name, (truth, _) in AUTOCAST.items()
    }


def test_autocast_dtypes():
    right = {name: truth for name, (truth, _) in AUTOCAST.items()}
    cases = [(right, "passed")]
    for name, (truth, reason) in AUTOCAST.items():
        other = {"bf16": "fp32", "fp32": "bf16"}[truth]
        cases += [
            (right | {name: other}, f"{name} is not {other}: {reason}"),
            (right | {name: "x"}, 'answer "bf16" or "fp32"'),
            (right | {name: ...}, "no answer yet"),
        ]
    assert_verdicts(checks.autocast_dtypes, cases)


# loading


def test_token_windows_are_the_files_windows(tmp_path: Path):
    np.arange(41, dtype=np.uint16).tofile(tmp_path / "tokens.bin")
    dataset = TokenWindows(tmp_path / "tokens.bin", block_size=4)
    assert len(dataset) == 10
    items = [dataset[i] for i in range(10)]
    assert torch.cat([item["x"] for item in items]).tolist() == list(range(40))
    assert torch.cat([item["y"] for item in items]).tolist() == list(range(1, 41))
    assert items[0]["x"].dtype == torch.int64
    assert dataset.reads == 10
    with pytest.raises(IndexError, match="window 10"):
        dataset[10]
    assert len(pickle.dumps(dataset)) < 1000


def test_token_windows_refuse_a_file_without_a_window(tmp_path: Path):
    np.arange(4, dtype=np.uint16).tofile(tmp_path / "short.bin")
    with pytest.raises(ValueError, match="a window needs 5"):
        TokenWindows(tmp_path / "short.bin", block_size=4)


# plots


def drawn(axes) -> list[list[float]]:
    """The y values of an axes' lines."""
    return [list(line.get_ydata()) for line in axes.get_lines()]


def test_every_figure_draws_what_it_is_given():
    curves = plots.loss_curves({"a": [3.0, 2.0], "b": [3.0, 1.0]}, "title", {"level": 2.5})
    assert [3.0, 1.0] in drawn(curves.axes[0])
    assert [2.5, 2.5] in drawn(curves.axes[0])
    sweep = plots.sweep([0.1, 1.0, 10.0], [2.0, 1.0, 3.0], 4.0, "title")
    assert [2.0, 1.0, 3.0] in drawn(sweep.axes[0])
    assert any(list(line.get_xdata()) == [1.0] for line in sweep.axes[0].get_lines())  # the best
    spike = plots.spike([0.1, 9.0], {"run": [3.0, 5.0]}, 1.0, 1, "title")
    assert [0.1, 9.0] in drawn(spike.axes[0])
    assert [3.0, 5.0] in drawn(spike.axes[1])
    schedule = plots.schedule([0.5, 1.0, 0.1], 2, "title")
    assert [0.5, 1.0, 0.1] in drawn(schedule.axes[0])
    spans = {"read": [(0.0, 1.0)], "compute": [(1.0, 2.0), (2.0, 3.0)]}
    timeline = plots.timeline({"way": spans}, "title")
    assert len(timeline.axes[0].patches) == 3
    types = plots.dtype_map({"forward": [("x", "float32"), ("y", "bfloat16")]}, "title")
    assert len(types.axes[0].patches) == 2
    plt.close("all")


def test_the_window_map_counts_what_was_never_read():
    drawing = plots.window_map({"twice": [0, 0], "both": [4, 0]}, 8, 4, "title")
    texts = [text.get_text() for axes in drawing.axes for text in axes.texts]
    assert texts == ["never read: 4 of 8", "never read: 0 of 8"]
    plt.close("all")


def test_an_exact_resume_is_drawn_on_the_floor():
    drawing = plots.divergence({"complete": [0.0, 0.0], "wrong": [0.0, 0.5]}, 20, 1e-7, "title")
    assert [drawn(axes)[0] for axes in drawing.axes] == [[1e-7, 1e-7], [1e-7, 0.5]]
    colours = {axes.get_lines()[0].get_color() for axes in drawing.axes}
    assert len(colours) == 2
    assert all(a is not b for a, b in itertools.pairwise(drawing.axes))
    plt.close("all")
