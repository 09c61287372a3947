"""Notebook 08's checks: untouched stubs, right answers however written, and typical slips."""

import math

import numpy as np
import torch
from torch import nn
from verdicts import assert_untouched, assert_verdicts

from cs336_lib.classroom.checks import gpt2_training as checks


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


# windows


def windows(x=lambda row: row[:-1], y=lambda row: row[1:], start=lambda s, size: s, kind=np.int64):
    """Cuts inputs and targets from each row; one thing may be done otherwise."""

    def cut(tokens, starts, size):
        rows = np.stack([tokens.read(start(s, size), size + 1) for s in starts]).astype(kind)
        rows = torch.from_numpy(rows)
        return torch.stack([x(row) for row in rows]), torch.stack([y(row) for row in rows])

    return cut


def windows_by_torch(tokens, starts, block_size):
    x, y = [], []
    for start in starts:
        row = tokens.read(start, block_size + 1).tolist()
        x.append(torch.tensor(row[:block_size]))
        y.append(torch.tensor(row[1:]))
    return [torch.stack(x), torch.stack(y)]


def windows_read_twice(tokens, starts, size):
    def read(shift):
        return torch.tensor(np.array([tokens.read(s + shift, size) for s in starts]).astype(int))

    return read(0), read(1)


def windows_unfold(tokens, starts, size):
    every = torch.from_numpy(tokens.read(0, len(tokens)).astype("int64")).unfold(0, size + 1, 1)
    return every[starts, :-1], every[starts].roll(-1, 1)[:, :-1]


def windows_of_one_shard(tokens, starts, size):
    rows = np.stack([tokens.shards[0][s : s + size + 1] for s in starts]).astype(np.int64)
    both = torch.from_numpy(rows)
    return both[:, :-1], both[:, 1:]


WINDOWS = [
    (windows(), "passed"),
    (windows_by_torch, "passed"),
    (windows_read_twice, "passed"),
    (windows_unfold, "passed"),
    (lambda tokens, starts, size: None, "is the `return` missing"),
    (lambda tokens, starts, size: windows()(tokens, starts, size)[0], "return two tensors"),
    (lambda t, s, n: tuple(w.numpy() for w in windows()(t, s, n)), "must be tensors"),
    (windows(kind=np.int32), "need int64"),
    (windows(kind=np.int16), "need int64"),
    (
        lambda t, s, n: tuple(w.long() for w in windows(kind=np.int16)(t, s, n)),
        "became negative",
    ),
    (windows(y=lambda row: row[:-1]), "the targets are the inputs"),
    (windows(x=lambda row: row[1:], y=lambda row: row[:-1]), "are swapped"),
    (windows(x=lambda row: row, y=lambda row: row), "shapes"),
    (windows(x=lambda row: row[:-2], y=lambda row: row[1:-1]), "shapes"),
    (windows(start=lambda s, size: s * size), "positions, not window numbers"),
    (windows(start=lambda s, size: max(s - 1, 0)), "its position in `starts`"),
    (lambda t, s, n: windows()(t, sorted(s, reverse=True), n), "its position in `starts`"),
    (windows(y=lambda row: row[1:].roll(-1)), "the token right after"),
    (windows_of_one_shard, "call tokens.read"),
]


def test_windows():
    assert_verdicts(checks.windows, WINDOWS)


# learning_rate


def rates(
    up=lambda step, warmup: (step + 1) / warmup,
    first=lambda warmup: max(warmup - 1, 0),
    last=lambda steps: steps - 1,
    down=lambda progress: (1 + math.cos(math.pi * progress)) / 2,
    low=lambda config: config.min_learning_rate,
    most=1.0,
):
    """A schedule with one thing done otherwise."""

    def rate(step, config):
        peak, lowest, warmup = config.learning_rate, low(config), config.warmup_steps
        if step < warmup:
            return peak * up(step, warmup)
        begin = first(warmup)
        progress = (step - begin) / max(last(config.max_steps) - begin, 1)
        return lowest + (peak - lowest) * down(min(progress, most))

    return rate


def rate_in_pieces(step, c):
    """Three cases, and the half-angle formula."""
    peak_step = c.warmup_steps - 1 if c.warmup_steps else 0
    if step <= peak_step:
        return (step + 1) * c.learning_rate / max(c.warmup_steps, 1)
    if step >= c.max_steps - 1:
        return c.min_learning_rate
    angle = math.pi / 2 * (step - peak_step) / (c.max_steps - 1 - peak_step)
    return c.min_learning_rate + (c.learning_rate - c.min_learning_rate) * math.cos(angle) ** 2


def rate_by_torch(step, config):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=config.learning_rate)
    first = max(config.warmup_steps - 1, 0)
    if step <= first:
        return torch.tensor(rates()(step, config), dtype=torch.float64)
    decay = torch.optim.lr_scheduler.CosineAnnealingLR(
        optimizer, max(config.max_steps - 1 - first, 1), config.min_learning_rate
    )
    for _ in range(min(step, config.max_steps - 1) - first):
        optimizer.step()
        decay.step()
    return decay.get_last_lr()[0]


def usual_rate(step, config):
    """As it is often written, with the peak twice and the minimum never."""
    return rates(first=lambda warmup: warmup, last=lambda steps: steps)(step, config)


def forgot_to_subtract(step, config):
    """The cosine scales the peak instead of peak - minimum."""
    rate = rates(low=lambda config: 0.0)(step, config)
    return rate if step < config.warmup_steps else rate + config.min_learning_rate


RATES = [
    (rates(), "passed"),
    (rate_in_pieces, "passed"),
    (rate_by_torch, "passed"),
    (lambda step, config: None, "is a `return` missing"),
    (rates(up=lambda step, warmup: step / warmup), "step 0 has the rate 0"),
    (rates(up=lambda step, warmup: (step + 1) / (warmup + 1)), "ends a step late"),
    (rates(up=lambda step, warmup: ((step + 1) / warmup) ** 2), "a straight line"),
    (rates(up=lambda step, warmup: 1.0), "a straight line"),
    (usual_rate, "both have the peak"),
    (rates(last=lambda steps: steps), "not the minimum"),
    (rates(down=lambda p: 1 + math.cos(math.pi * p)), "above the peak"),
    (forgot_to_subtract, "scales peak - minimum"),
    (rates(down=lambda p: 1 - p), "in a straight line"),
    (rates(down=lambda p: math.cos(math.pi * p)), "the last step has the rate 0"),
    (rates(low=lambda config: 0.0), "the last step has the rate 0"),
    (rates(low=lambda config: 5e-4), "with max_steps=20"),
    (rates(most=9.0), "limit the progress to 1"),
    (rates(down=lambda p: (1 + math.cos(math.pi * p**2)) / 2), "should have"),
    (rates(first=lambda warmup: warmup - 1), "with max_steps=20 and warmup_steps=0"),
    (lambda step, c: rates(last=lambda steps: 30)(step, c), "with max_steps=20"),
    (
        lambda step, c: rates()(step, c) if step else c.learning_rate / c.warmup_steps,
        "divides by zero",
    ),
]


def test_learning_rate():
    assert_verdicts(checks.learning_rate, RATES)


# parameter_groups


def split(decayed, weight=lambda decay: decay):
    """Two groups by `decayed(name, parameter)`."""

    def groups(model, weight_decay):
        chosen = list(model.named_parameters())
        return [
            {
                "params": [p for name, p in chosen if decayed(name, p)],
                "weight_decay": weight(weight_decay),
            },
            {"params": [p for name, p in chosen if not decayed(name, p)], "weight_decay": 0.0},
        ]

    return groups


def matrix(name, p):
    return p.dim() >= 2


def one_group_each(model, weight_decay):
    return tuple(
        {"params": iter([p]), "weight_decay": weight_decay if len(p.shape) > 1 else 0}
        for p in model.parameters()
    )


def tied_twice(model, weight_decay):
    groups = split(matrix)(model, weight_decay)
    groups[0]["params"].append(model.lm_head.weight)
    return groups


def linear_weights_only(model, weight_decay):
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    return [{"params": linear, "weight_decay": weight_decay}]


def pairs(model, weight_decay):
    return [{"params": list(model.named_parameters()), "weight_decay": weight_decay}]


GROUPS = [
    (split(matrix), "passed"),
    (split(lambda name, p: p.squeeze().dim() > 1), "passed"),
    (one_group_each, "passed"),
    (lambda model, weight_decay: None, "is the `return` missing"),
    (lambda model, weight_decay: tuple(model.parameters()), "return a list of dicts"),
    (lambda model, decay: [{"params": list(model.parameters())}], 'needs the keys "params"'),
    (pairs, "yields pairs"),
    (
        lambda model, decay: [
            {
                "params": [nn.Parameter(p.detach()) for p in model.parameters()],
                "weight_decay": decay,
            }
        ],
        "not a parameter of the model",
    ),
    (tied_twice, "is in two groups"),
    (linear_weights_only, "not in a group"),
    (split(lambda name, p: p.dim() < 2), "the groups are swapped"),
    (split(lambda name, p: not name.endswith("bias")), "the norms' weights are decayed"),
    (split(lambda name, p: ".ln_" not in name or name.endswith("bias")), "biases are decayed"),
    (split(lambda name, p: matrix(name, p) and ".w" not in name), "embeddings are not decayed"),
    (split(lambda name, p: matrix(name, p) and ".wpe" not in name), "embeddings are not decayed"),
    (split(matrix, weight=lambda decay: 0.3), "use the argument"),
    (split(matrix, weight=lambda decay: 0.01), "the weight decay 0.3 that was passed"),
]


def test_parameter_groups():
    assert_verdicts(checks.parameter_groups, GROUPS)


# backward


def backward(divide=lambda count, got: count, keep=lambda loss: loss.detach(), zero=False):
    """Accumulates over the pieces, with one thing done otherwise."""

    def run(model, pieces, count, autocast):
        pieces, total = list(pieces), 0
        for x, y in pieces:
            if zero:
                model.zero_grad()
            with autocast:
                loss = model(x, y) / divide(count, len(pieces))
            loss.backward()
            total = total + keep(loss)
        return total

    return run


def backward_inside(model, pieces, count, autocast):
    losses = []
    while (piece := next(pieces, None)) is not None:
        with autocast:
            loss = model(piece[0], piece[1])
            loss.backward(torch.tensor(1 / count))
        losses.append(loss.detach())
    return torch.stack(losses).sum() / count


def backward_by_logits(model, pieces, count, autocast):
    total = torch.zeros(1)
    for x, y in pieces:
        with autocast:
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), y)
        loss.div(count).backward()
        total += loss.data / count
    return total


def backward_at_the_end(model, pieces, count, autocast):
    with autocast:
        loss = sum(model(x, y) for x, y in pieces) / count
    loss.backward()
    return loss.detach()


def backward_without_autocast(model, pieces, count, autocast):
    for x, y in pieces:
        (model(x, y) / count).backward()


def backward_by_length(model, pieces, count, autocast):
    return backward()(model, [*pieces][: len(pieces)], count, autocast)


def backward_undivided_loss(model, pieces, count, autocast):
    return backward()(model, pieces, count, autocast) * count


def forward_only(model, pieces, count, autocast):
    with autocast:
        return sum(model(x, y).detach() for x, y in pieces) / count


def last_loss(model, pieces, count, autocast):
    seen = []
    backward(keep=lambda loss: seen.append(loss.detach()) or 0)(model, pieces, count, autocast)
    return seen[-1] if len(seen) > 1 else seen[-1] * 0.5


BACKWARD = [
    (backward(), "passed"),
    (backward_inside, "passed"),
    (backward_by_logits, "passed"),
    (backward(divide=lambda count, got: 1), "3 times too long"),
    (backward(divide=lambda count, got: got), "Divide by `count`, not by the number"),
    (backward(zero=True), "only the last micro-batch"),
    (backward(divide=lambda count, got: count**0.5), "isn't the sum"),
    (backward_at_the_end, "only after the last forward pass"),
    (backward_without_autocast, "inside `with autocast:`"),
    (backward_by_length, "an iterator without a length"),
    (torch.no_grad()(backward()), "no_grad is on"),
    (forward_only, "there is no gradient"),
    (lambda *a: backward()(*a) and None, "return the sum of the losses"),
    (backward(keep=lambda loss: loss.item()), "can't be summed"),
    (backward(keep=lambda loss: loss), "still holds a graph"),
    (lambda *a: backward()(*a).repeat(2), "return one number"),
    (backward_undivided_loss, "3 times too large"),
    (last_loss, "the sum of loss / count is"),
]


def test_backward():
    assert_verdicts(checks.backward, BACKWARD)


# update


def update(order=("clip", "rate", "step", "zero"), limit=lambda clip: clip, groups=slice(None)):
    """One step, whose actions may come in another order or be left out."""

    def run(model, optimizer, rate, grad_clip):
        norm = torch.tensor(6.0)
        for action in order:
            if action == "clip":
                norm = nn.utils.clip_grad_norm_(model.parameters(), limit(grad_clip))
            elif action == "rate":
                for group in optimizer.param_groups[groups]:
                    group["lr"] = rate
            elif action == "step":
                optimizer.step()
            elif action == "zero":
                optimizer.zero_grad()
        return norm

    return run


def update_by_hand(model, optimizer, rate, grad_clip):
    gradients = [p.grad for p in model.parameters()]
    norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
    if norm > grad_clip:
        for gradient in gradients:
            gradient.mul_(grad_clip / norm)
    [group.update(lr=rate) for group in optimizer.param_groups]
    optimizer.step()
    optimizer.zero_grad(set_to_none=False)
    return norm


def update_always_scaled(model, optimizer, rate, grad_clip):
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    for p in model.parameters():
        p.grad *= grad_clip / norm
    return update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip) * 0 + norm


def update_norm_after(model, optimizer, rate, grad_clip):
    nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip)
    return norm


def update_each_number(model, optimizer, rate, grad_clip):
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    nn.utils.clip_grad_value_(model.parameters(), 0.1)
    update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip)
    return norm


def update_each_tensor(model, optimizer, rate, grad_clip):
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    for p in model.parameters():
        nn.utils.clip_grad_norm_([p], grad_clip)
    update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip)
    return norm


UPDATES = [
    (update(), "passed"),
    (update(order=("rate", "clip", "step", "zero")), "passed"),
    (update_by_hand, "passed"),
    (lambda *a: update()(*a) and None, "return the norm before clipping"),
    (lambda *a: update()(*a).item(), "would make the GPU wait"),
    (update_norm_after, "the norm after clipping"),
    (lambda *a: update()(*a) ** 2, "was 6, and you return 36"),
    (update(order=("clip", "rate", "zero", "step")), "the weights didn't move"),
    (update(order=("clip", "rate", "zero")), "the weights didn't move"),
    (update(order=("clip", "step", "rate", "zero")), "the old learning rate"),
    (update(groups=slice(1)), "one group kept"),
    (update(order=("rate", "step", "clip", "zero")), "wasn't clipped before the step"),
    (update(order=("rate", "step", "zero")), "wasn't clipped before the step"),
    (update(limit=lambda clip: 1.0), "use the argument grad_clip"),
    (update(limit=lambda clip: clip * 2), "rate x gradient x 2/6"),
    (update_each_number, "another direction"),
    (update_each_tensor, "another direction"),
    (update(order=("clip", "rate", "step")), "the gradient is still there"),
    (update_always_scaled, "shorter than the limit"),
]


def test_update():
    assert_verdicts(checks.update, UPDATES)


# evaluate


def evaluate(
    available=lambda n, size: (n - 1) // size,
    count=lambda asked, available: max(1, min(available, asked)),
    start=lambda i, available, count: i * available // count,
    weight=lambda x, batches, count, mine: len(x) / count,
    share=lambda rank, count, world: range(rank, count, world),
    largest=lambda config: config.micro_batch_size,
    modes=("eval", "train"),
    result=lambda total: total,
):
    """The mean loss over windows, with one thing done otherwise."""

    def run(model, tokens, config, autocast, rank=0, world=1):
        size, total = config.block_size, torch.zeros(())
        all_windows = available(len(tokens), size)
        number = count(config.eval_tokens // size, all_windows)
        starts = [start(i, all_windows, number) * size for i in share(rank, number, world)]
        if "eval" in modes:
            model.eval()
        step = largest(config)
        batches = [starts[i : i + step] for i in range(0, len(starts), step)]
        for batch in batches:
            rows = torch.tensor([tokens.read(at, size + 1).tolist() for at in batch])
            with autocast, torch.no_grad():
                loss = model(rows[:, :-1], rows[:, 1:])
            total += loss * weight(batch, len(batches), number, len(starts))
        if "train" in modes:
            model.train()
        return result(total)

    return run


@torch.inference_mode()
def evaluate_window_by_window(model, tokens, config, autocast, rank=0, world=1):
    """The sum of the losses of all tokens, from logits, in a list."""
    available = (len(tokens) - 1) // config.block_size
    count = min(max(config.eval_tokens // config.block_size, 1), available)
    losses = [torch.zeros(())]
    for i in range(rank, count, world):
        start = i * available // count * config.block_size
        x, y = checks.windows_of(tokens, [start], config.block_size)
        with autocast:
            logits = model.eval()(x)
        losses.append(nn.functional.cross_entropy(logits[0], y[0], reduction="sum"))
    model.train(True)
    return torch.stack(losses).sum() / (count * config.block_size)


def with_gradients(model, tokens, config, autocast, rank=0, world=1):
    model.eval()
    x, y = checks.windows_of(tokens, [0], config.block_size)
    with autocast:
        return model(x, y)


@torch.no_grad()
def evaluate_without_autocast(model, tokens, config, autocast, rank=0, world=1):
    return model.eval()(*checks.windows_of(tokens, [0], config.block_size))


EVALUATIONS = [
    (evaluate(), "passed"),
    (evaluate_window_by_window, "passed"),
    (evaluate(largest=lambda config: 2), "passed"),
    (lambda *a: evaluate()(*a) and None, "is the `return` missing"),
    (evaluate(result=lambda total: total.item()), "as a tensor"),
    (evaluate(modes=("train",)), "in training mode"),
    (evaluate(modes=("eval",)), "left in evaluation mode"),
    (with_gradients, "use torch.no_grad()"),
    (evaluate_without_autocast, "inside `with autocast:`"),
    (lambda *a: torch.zeros(()), "never called"),
    (evaluate(available=lambda n, size: n // size), "past the end"),
    (evaluate(largest=lambda config: 99), "at once"),
    (evaluate(count=lambda asked, available: available), "windows were evaluated"),
    (evaluate(count=min), "take at least 1"),
    (evaluate(start=lambda i, available, count: i), "the first windows of the stream"),
    (evaluate(start=lambda i, available, count: (7 * i) % available), "the windows begin at"),
    (evaluate(weight=lambda x, batches, count, mine: 1 / batches), "mean of the micro-batches"),
    (evaluate(weight=lambda x, batches, count, mine: 1 / count), "and yours is"),
    (evaluate(weight=lambda x, batches, count, mine: len(x)), "8 times too large"),
    (evaluate(share=lambda rank, count, world: range(count)), "returns the same loss"),
    (evaluate(weight=lambda x, batches, count, mine: len(x) / mine), "about three times"),
    (
        evaluate(share=lambda rank, count, world: range(rank, count, world + (world > 1))),
        "the shares of three processes add up",
    ),
]


def test_evaluate():
    assert_verdicts(checks.evaluate, EVALUATIONS)
