"""Notebook 06's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import copy
import itertools
import pickle
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch
from verdicts import assert_untouched, assert_verdicts

from cs336_course.checks import training as checks
from cs336_course.demos import run_with_nan
from cs336_course.demos.worker_loading import TokenWindows, read_and_compute
from cs336_course.figures import logs
from cs336_course.figures import training as plots

matplotlib.use("Agg")


def test_untouched_stubs():
    assert_untouched(checks, ("accumulate", "epoch_batch"))


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
        y = [np.take(tokens, range(s + shift, s + shift + block_size), mode="wrap") for s in starts]
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


def from_one_span(tokens, number, batch_size, block_size):
    """Read the batch as one span of tokens."""
    start = number * batch_size * block_size
    windows = min(batch_size, (len(tokens) - 1 - start) // block_size)
    span = torch.from_numpy(tokens[start : start + windows * block_size + 1].astype(np.int64))
    return span[:-1].view(windows, block_size), span[1:].view(windows, block_size)


def from_lists(tokens, number, batch_size, block_size):
    x, y = [], []
    start = number * batch_size * block_size
    while start + block_size < len(tokens) and len(x) < batch_size:
        x.append(tokens[start : start + block_size].tolist())
        y.append([int(token) for token in tokens[start + 1 : start + 1 + block_size]])
        start += block_size
    return [torch.tensor(x), torch.tensor(y)]


def from_view(tokens, number, batch_size, block_size):
    rows = np.lib.stride_tricks.sliding_window_view(tokens, block_size + 1)[::block_size]
    rows = torch.tensor(rows[number * batch_size :][:batch_size].astype("int64"))
    return rows[:, :-1].contiguous(), rows[:, 1:].contiguous()


def from_unfolded(tokens, number, batch_size, block_size):
    rows = torch.from_numpy(tokens).unfold(0, block_size + 1, block_size)
    rows = rows[number * batch_size : (number + 1) * batch_size].long()
    return rows[:, :-1], rows[:, 1:]


def from_positions(tokens, number, batch_size, block_size):
    starts = np.arange(0, len(tokens) - block_size, block_size)
    positions = starts[number * batch_size :][:batch_size, None] + np.arange(block_size)
    return tuple(torch.LongTensor(tokens[positions + i].astype(np.int64)) for i in (0, 1))


def from_reshaped(tokens, number, batch_size, block_size):
    count = (len(tokens) - 1) // block_size
    here = slice(number * batch_size, (number + 1) * batch_size)
    x = tokens[: count * block_size].reshape(count, block_size)[here]
    y = tokens[1 : count * block_size + 1].reshape(count, block_size)[here]
    return torch.as_tensor(x, dtype=torch.int64), torch.as_tensor(y, dtype=torch.int64)


def changed(get_batch, change):
    """A batch function whose tokens or results are changed."""

    def batch(tokens, *sizes):
        return get_batch(change(tokens), *sizes)

    return batch


def from_the_start(tokens, number, batch_size, block_size):
    """Convert all tokens up to the batch's last one."""
    end = (number + 1) * batch_size * block_size + 1
    return from_one_span(tokens[:end].astype(np.int64), number, batch_size, block_size)


def rolled(tokens, number, batch_size, block_size):
    x, _ = from_one_span(tokens, number, batch_size, block_size)
    return x, x.roll(-1, dims=1)


def in_lanes(tokens, number, batch_size, block_size):
    """Each row reads its own part of the file."""
    rows = from_unfolded(tokens, 0, len(tokens), block_size)
    lanes = len(rows[0]) // batch_size
    return tuple(side[number::lanes][:batch_size] for side in rows)


def clearing(tokens, *sizes):
    result = from_one_span(tokens, *sizes)
    tokens[:] = 0
    return result


def right_once(tokens, number, batch_size, block_size):
    """Right for block_size=4 only, past the checks on the epoch's end."""
    return from_one_span(tokens, number, batch_size, 4)


RIGHT_BATCHES = [
    cut(),
    from_one_span,
    from_lists,
    from_view,
    from_unfolded,
    from_positions,
    from_reshaped,
]


def none_at_the_end(tokens, number, rows, block):
    full = (number + 1) * rows * block < len(tokens)
    return cut()(tokens, number, rows, block) if full else None


BATCHES = {
    "batch 3 of 41 tokens comes back as None": none_at_the_end,
    "yours raises ValueError": always_full,
    "return two tensors": targets_only,
    "want int64": cut(dtype=np.int32),
    "the targets equal the inputs": cut(shift=0),
    "shifted the wrong way": cut(shift=-1),
    "right after its input": cut(shift=2),
    "one token is never an input": cut(stride=lambda block: block + 1),
    "the windows overlap": cut(stride=lambda block: 1),
    "Windows follow each other": in_lanes,
    "the window's own first token": rolled,
    "changes its input tokens": clearing,
    "has shapes": right_once,
    "large ids come out negative": changed(from_one_span, lambda tokens: tokens.view(np.int16)),
    "the inputs are wrong in batch": changed(from_one_span, lambda tokens: tokens % 2**15),
    "the targets are wrong in batch": lambda tokens, *sizes: (
        from_one_span(tokens, *sizes)[0],
        from_one_span(tokens % 2**15, *sizes)[1],
    ),
    "must begin with the file's first token": cut(start=2),
    "inputs and the targets are swapped": lambda *inputs: from_one_span(*inputs)[::-1],
    "by way of uint8": changed(from_one_span, np.uint8),
    "both must be (1, 4)": lambda *inputs: [side.squeeze() for side in from_one_span(*inputs)],
    "batch 1 repeats batch 0": cut(number_counts=False),
    "batch 1 has shape (0, 4)": lambda tokens, number, *sizes: tuple(
        side[: 10 * (number != 1)] for side in from_one_span(tokens, number, *sizes)
    ),
    "the last batch may have fewer rows": cut(full_only=True),
    "so batch 3 has one window": cut(windows=lambda n, block: (n - 1) // block - 1),
    "only 8 windows are full": cut(windows=lambda n, block: n // block),
}
COPIES = {
    "np.array": np.array,
    "astype": lambda tokens: tokens.astype(np.int64),
    "torch.tensor": lambda tokens: torch.tensor(tokens, dtype=torch.int64).numpy(),
    "long": lambda tokens: torch.from_numpy(tokens).long().numpy(),
    "tolist": lambda tokens: np.asarray(tokens.tolist()),
    "roll": lambda tokens: np.roll(tokens, 0),
}


def test_epoch_batch():
    assert_verdicts(checks.epoch_batch, [(batch, "passed") for batch in RIGHT_BATCHES])
    assert_verdicts(checks.epoch_batch, BATCHES)
    whole = [changed(from_one_span, copy) for copy in COPIES.values()]
    assert_verdicts(checks.epoch_batch, [(batch, "you copy the whole file") for batch in whole])
    assert_verdicts(checks.epoch_batch, {"you copy everything before it": from_the_start})


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


def whole_batch(model, pieces, loss_function):
    """Join the pieces again."""
    x, y = (torch.cat(parts) for parts in zip(*pieces, strict=True))
    loss = loss_function(model(x), y)
    loss.backward()
    return loss.item()


def by_gradient_argument(model, pieces, loss_function):
    """Give `backward` the factor."""
    total = sum(y.shape[0] for _, y in pieces)
    mean = torch.zeros(())
    for x, y in pieces:
        loss = loss_function(model(x), y)
        loss.backward(torch.tensor(len(x) / total))
        mean += loss.detach() * len(x) / total
    return mean


def scaled_at_the_end(model, pieces, loss_function):
    """Accumulate sums, and divide the gradients once."""
    sizes, losses = [], []
    for x, y in pieces:
        loss = loss_function(model(x), y)
        (loss * len(x)).backward()
        sizes.append(len(x))
        losses.append(loss.item())
    for p in model.parameters():
        if p.grad is not None:
            p.grad /= sum(sizes)
    return np.average(losses, weights=sizes)


def by_autograd(model, pieces, loss_function):
    """Add up the gradients by hand."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    mean, seen = 0.0, 0
    for x, y in pieces:
        loss = loss_function(model(x), y)
        seen += len(x)
        mean += (loss.item() - mean) * len(x) / seen
        grads = torch.autograd.grad(loss, parameters, allow_unused=True)
        for p, grad in zip(parameters, grads, strict=True):
            if grad is not None:
                old = torch.zeros_like(p) if p.grad is None else p.grad
                p.grad = old + (grad - old) * len(x) / seen
    return np.float32(mean)


def popping(model, pieces, loss_function):
    """Takes the pieces out of the list."""
    rest = list(pieces)
    pieces.clear()
    return by_gradient_argument(model, rest, loss_function)


def mean_squares(model, pieces, loss_function):
    """Takes another loss than the one it is given."""
    return by_gradient_argument(model, pieces, torch.nn.functional.mse_loss)


def zeroing(model, pieces, loss_function):
    """Accumulates, and zeroes the gradient."""
    loss = by_gradient_argument(model, pieces, loss_function)
    model.zero_grad(set_to_none=False)
    return loss


def first_parameter(model, pieces, loss_function):
    """Scales the gradient of one parameter, as if there were no other."""
    loss = scaled_at_the_end(model, pieces, loss_function)
    for p in list(model.parameters())[1:]:
        p.grad *= sum(len(x) for x, _ in pieces)
    return loss


def returning(value):
    """The right gradient, and this value of the losses and sizes."""

    def run(model, pieces, loss_function):
        by_gradient_argument(model, pieces, loss_function)
        with torch.no_grad():
            losses = [loss_function(model(x), y).item() for x, y in pieces]
        return value(losses, [len(x) for x, _ in pieces])

    return run


def without_last(model, pieces, loss_function):
    total = sum(len(x) for x, _ in pieces)
    for x, y in pieces[:-1]:
        (loss_function(model(x), y) * len(x) / total).backward()
    return 0.0


def with_names(model, pieces, loss_function):
    """Name everything, and keep the losses, whose graphs backward frees."""
    total, losses = sum(len(x) for x, _ in pieces), []
    for x, y in pieces:
        inputs = x.clone()
        weight = torch.tensor(len(x) / total)
        output = model(inputs)
        loss = loss_function(output, y) * weight
        loss.backward()
        losses.append(loss)
    return torch.stack(losses).sum().item()


def keeping(retain=False, outputs=False):
    """Keep graphs or outputs of the pieces."""

    def run(model, pieces, loss_function):
        total, kept = sum(len(x) for x, _ in pieces), []
        for x, y in pieces:
            output = model(x)
            loss = loss_function(output, y) * len(x) / total
            loss.backward(retain_graph=retain)
            kept.append((loss, output if outputs else None))
        return sum(loss.item() for loss, _ in kept)

    return run


def in_mode(training):
    """Change the model's mode."""
    return lambda model, *rest: by_gradient_argument(model.train(training), *rest)


def zeros_everywhere(model, pieces, loss_function):
    """Give every parameter a gradient, also those that need none."""
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    return by_gradient_argument(model, pieces, loss_function)


def thawed(model, pieces, loss_function):
    """Let every parameter require a gradient."""
    model.requires_grad_(True)
    return by_gradient_argument(model, pieces, loss_function)


def thawed_at_the_end(model, pieces, loss_function):
    loss = by_gradient_argument(model, pieces, loss_function)
    model.requires_grad_(True)
    return loss


def without_asking(model, pieces, loss_function):
    """Divide the gradient of every parameter, whether it has one or not."""
    total = sum(len(x) for x, _ in pieces)
    mean = 0.0
    for x, y in pieces:
        loss = loss_function(model(x), y) * len(x)
        loss.backward()
        mean += loss.item() / total
    for p in model.parameters():
        p.grad /= total
    return mean


def inputs_with_gradient(model, pieces, loss_function):
    for x, _ in pieces:
        x.requires_grad_()
    return by_gradient_argument(model, pieces, loss_function)


def loss_of_a_second_pass(model, pieces, loss_function):
    by_gradient_argument(model, pieces, loss_function)
    total = sum(len(x) for x, _ in pieces)
    with torch.no_grad():
        return sum(loss_function(model(x), y).item() * len(x) / total for x, y in pieces)


def by_forward(model, pieces, loss_function):
    """Call `model.forward`, which skips hooks."""
    return by_gradient_argument(model.forward, pieces, loss_function)


RIGHT_ACCUMULATIONS = [
    by_forward,
    accumulating(lambda count, pieces, total: count / total, returned=lambda mean: mean.item()),
    accumulating(lambda count, pieces, total: count / total, returned=lambda mean: mean.detach()),
    by_gradient_argument,
    scaled_at_the_end,
    by_autograd,
    with_names,
]
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
    "only the last micro-batch is left;": accumulating(lambda *a: 1.0, zero=True),
    "only the last micro-batch is left (weighed": accumulating(
        lambda count, pieces, total: count / total, zero=True
    ),
    "return the batch's mean loss": accumulating(lambda c, p, t: c / t, returned=lambda m: None),
    "the mean of the pieces' means": mean_of_means,
    "the sum of the pieces' means": returning(lambda losses, sizes: sum(losses)),
    "the sum over all examples; divide": returning(np.dot),
    "by the number of examples twice": returning(
        lambda losses, sizes: np.dot(losses, sizes) / sum(sizes) ** 2
    ),
    "that of the last piece": returning(lambda losses, sizes: losses[-1]),
    "the last piece's share": returning(lambda losses, sizes: losses[-1] * sizes[-1] / sum(sizes)),
    "by its own piece's count": accumulating(lambda count, pieces, total: 1 / count),
    "divide by the number of pieces, too": accumulating(
        lambda count, pieces, total: count / total / pieces
    ),
    "as if it were as long as the first": accumulating(lambda count, pieces, total: 4 / total),
    "the last micro-batch is missing": without_last,
    "off for this batch": accumulating(lambda count, pieces, total: count**2 / total),
    "off for a single piece and an L1 loss": mean_squares,
    "the gradients are all 0": zeroing,
    "the right direction for this batch": accumulating(lambda count, pieces, total: count / 12),
    "off for two layers": first_parameter,
    "changes its input micro_batches": popping,
    "a number is expected": returning(lambda losses, sizes: losses),
    "still holds the graph": accumulating(lambda count, pieces, total: count / total),
    "off for the loss of this batch": accumulating(
        lambda c, p, t: c / t, returned=lambda mean: 0.0
    ),
    "call backward": lambda model, pieces, loss_function: 0.0,
}


def test_accumulate():
    assert_verdicts(checks.accumulate, [(run, "passed") for run in RIGHT_ACCUMULATIONS])
    assert_verdicts(checks.accumulate, ACCUMULATIONS)
    cases = [
        (whole_batch, "all pieces were in memory at once"),
        (keeping(retain=True), "activations of earlier pieces stay in memory"),
        (keeping(outputs=True), "activations of earlier pieces stay in memory"),
        (in_mode(training=False), "you change the model's mode"),
        (in_mode(training=True), "you change the model's mode"),
        (without_asking, "your code raises TypeError for a model with a frozen and an unused"),
        (lambda model, *rest: by_gradient_argument(copy.deepcopy(model), *rest), "call backward"),
        (zeros_everywhere, "a frozen or unused parameter gets a .grad of zeros"),
        (thawed, "a frozen parameter gets a gradient"),
        (thawed_at_the_end, "requires_grad"),
        (
            accumulating(lambda c, p, t: c // t, returned=lambda mean: mean.item()),
            "or is a factor rounded down to 0 by //?",
        ),
        (inputs_with_gradient, "lets the inputs require a gradient"),
        (loss_of_a_second_pass, "Go forward once per piece"),
    ]
    assert_verdicts(checks.accumulate, cases)


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


def test_reading_ahead_overlaps_and_taking_turns_does_not():
    turns = read_and_compute(iter, batches=2, seconds=0.01)
    assert [len(spans) for spans in turns.values()] == [2, 2]
    assert turns["read"][1][0] >= turns["compute"][0][1]  # read when the first was computed on
    ahead = read_and_compute(lambda batches: iter(list(batches)), batches=2, seconds=0.01)
    assert ahead["read"][1][1] <= ahead["compute"][0][0]  # both were read first


# the run that dies


def test_only_step_9000_has_a_page_that_is_no_language():
    pages = run_with_nan.Pages(
        "One page of a play, with some more characters than it needs!\n" * 40_000
    )
    repeated = [
        step for step in range(len(pages.starts)) if len(pages.batch(step)[0].unique()) == 1
    ]
    assert repeated == [run_with_nan.BAD_STEP]
    x, y = pages.batch(17)
    assert torch.equal(x[1:], y[:-1])


def test_the_run_logs_a_number_per_step_and_repeats_itself():
    pages = run_with_nan.Pages("To be, or not to be, that is the question!\n" * 400)
    first, again = (run_with_nan.train(pages, steps=5) for _ in range(2))
    assert len(first.losses) == len(first.grad_norms) == 5
    assert np.isfinite(first.losses).all()
    assert (first.losses == again.losses).all()


# plots


def drawn(axes) -> list[list[float]]:
    """The y values of an axes' lines."""
    return [list(line.get_ydata()) for line in axes.get_lines()]


def test_every_figure_draws_what_it_is_given():
    curves = plots.loss_curves({"a": [3.0, 2.0], "b": [3.0, 1.0]}, "title", {"level": 2.5})
    assert [3.0, 1.0] in drawn(curves.axes[0])
    assert [2.5, 2.5] in drawn(curves.axes[0])
    assert curves.axes[0].get_yscale() == "linear"
    assert plots.loss_curves({"a": [1.0]}, "title", y_scale="log").axes[0].get_yscale() == "log"
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


def test_a_death_is_marked_at_its_step():
    losses, norms = np.full(30, 2.0), np.full(30, 0.5)
    losses[25:], norms[24:] = np.nan, np.inf
    drawing = logs.death(losses, norms, last=10, title="title")
    marks = [axes.get_lines()[-1].get_xdata()[0] for axes in drawing.axes]
    assert marks == [25, 25, 24]
    assert [text.get_text() for axes in drawing.axes for text in axes.texts] == ["nan", "inf"]
    plt.close("all")
