"""Notebook 08's checks: untouched stubs, right answers however written, and typical slips."""

import contextlib
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from torch import nn
from verdicts import assert_untouched, assert_verdicts, verdict

from cs336_course.checks import gpt2_training as checks
from cs336_course.checks.report import DiagnosisError


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


def figures(check, answer):
    """Return what the third wrong attempt compares, and the diagnosis."""
    with pytest.raises(DiagnosisError) as error:
        check.__wrapped__(answer)
    return error.value.figures, str(error.value)


def test_right_figures_wait_for_the_third_attempt():
    """The diagnosis must not give the right number away."""
    for check, answer, right in (
        (checks.learning_rate, rates(down=lambda p: (1 + math.cos(math.pi * p**2)) / 2), "0.00175"),
        (checks.backward, lambda *a: backward()(*a) * 1.5, " is right."),
        (checks.update, lambda *a: update()(*a) * 1.5, "You get 9, and 6"),
        (checks.evaluate, lambda *a: evaluate()(*a) * 1.5, " is right."),
        (checks.evaluate, evaluate(count=lambda asked, available: asked + 1), "You get 9, and 8"),
    ):
        numbers, said = figures(check, answer)
        assert right in numbers, (check, numbers)
        assert "is right" not in said


def test_checks_leave_the_random_state():
    """A notebook's later cells must draw the same numbers, whether an answer is right or not."""
    torch.manual_seed(0)
    state = torch.get_rng_state()
    for check, answer in (
        (checks.parameter_groups, split(matrix)),
        (checks.backward, backward()),
        (checks.update, update()),
        (checks.evaluate, evaluate()),
    ):
        assert verdict(check, answer).endswith("passed")  # it seeds with 0, too
        assert torch.equal(torch.get_rng_state(), state)


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


def windows_filled(tokens, starts, size):
    both = torch.empty(2, len(starts), size, dtype=torch.long)
    for row, start in enumerate(reversed(starts), start=1):
        ids = tokens.read(count=size + 1, start=start)
        for t in range(size):
            both[0, -row, t], both[1, -row, t] = int(ids[t]), int(ids[t + 1])
    return both.unbind()


def windows_of_one_shard(tokens, starts, size):
    rows = np.stack([tokens.shards[0][s : s + size + 1] for s in starts]).astype(np.int64)
    both = torch.from_numpy(rows)
    return both[:, :-1], both[:, 1:]


def windows_from_a_copy(tokens, starts, size):
    every = np.concatenate(tokens.shards)
    return windows()(checks.Stream(every, ""), starts, size)


def windows_from_the_rest(tokens, starts, size):
    rows = [tokens.read(s, len(tokens) - s)[: size + 1].astype(np.int64) for s in starts]
    both = torch.from_numpy(np.stack(rows))
    return both[:, :-1], both[:, 1:]


def windows_with_the_next_as_targets(tokens, starts, size):
    rows = [[tokens.read(s + more, size) for s in starts] for more in (0, size)]
    x, y = (torch.from_numpy(np.stack(part).astype(np.int64)) for part in rows)
    return x, y


def windows_sorted(tokens, starts, size):
    given = list(starts)
    starts.sort()
    return windows()(tokens, given, size)


def windows_of_different_starts(tokens, starts, size):
    return windows()(tokens, list(dict.fromkeys(starts)), size)


WINDOWS = [
    (windows(), "passed"),
    (windows_by_torch, "passed"),
    (windows_read_twice, "passed"),
    (windows_filled, "passed"),
    (
        windows(kind=np.float64, x=lambda row: row[:-1].long(), y=lambda row: row[1:].long()),
        "passed",
    ),
    (windows_unfold, "you read 101 tokens for a batch of 20"),
    (windows_from_the_rest, "read only block_size + 1 for each window"),
    (windows_from_a_copy, "never copies a whole one"),
    (windows_sorted, "changes its input `starts`"),
    (windows_of_different_starts, "with a start that occurs twice"),
    (windows(y=lambda row: row[:-1] + 1), "the token right after"),
    (windows(start=lambda s, size: 7), "its position in `starts`"),
    (lambda t, s, n: windows()(t, s, 5), "with one window of one token, you read past the end"),
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
    (windows(y=lambda row: row[:-1].roll(-1)), "only the last target of a row is wrong"),
    (windows_with_the_next_as_targets, "begin block_size tokens after the inputs"),
    (lambda t, s, n: windows()(t, [i + 2 for i in s], n), "A window takes block_size + 1 tokens"),
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
    for _ in range(min(step - first, max(config.max_steps - 1 - first, 1))):
        optimizer.step()
        decay.step()
    return decay.get_last_lr()[0]


def rate_by_numpy(step, config):
    """A table of all rates, in float32."""
    first, last = max(config.warmup_steps - 1, 0), config.max_steps - 1
    cosine = np.cos(np.linspace(0, np.pi, last - first + 1, dtype=np.float32)) / 2 + 0.5
    low = np.float32(config.min_learning_rate)
    table = np.zeros(step + last + 2, np.float32) + low
    table[first : last + 1] = low + (np.float32(config.learning_rate) - low) * cosine
    table[: config.warmup_steps] = (
        config.learning_rate * np.arange(1, config.warmup_steps + 1) / max(config.warmup_steps, 1)
    )
    return table[step]


def usual_rate(step, config):
    """As it is often written, with the peak twice and the minimum never."""
    return rates(first=lambda warmup: warmup, last=lambda steps: steps)(step, config)


def rate_over_the_whole_run(step, config):
    """The cosine begins at step 0, beneath the warm-up."""
    if step < config.warmup_steps:
        return rates()(step, config)
    return rates(first=lambda warmup: 0)(step, config)


def rate_cut_off(step, config):
    """The cosine ends at 0, but the rate doesn't get below the minimum."""
    if step < config.warmup_steps:
        return rates()(step, config)
    return max(rates(low=lambda config: 0.0)(step, config), config.min_learning_rate)


def forgot_to_subtract(step, config):
    """The cosine scales the peak instead of peak - minimum."""
    rate = rates(low=lambda config: 0.0)(step, config)
    return rate if step < config.warmup_steps else rate + config.min_learning_rate


def rate_of_the_peak_for_ever(step, config):
    """A run that is all warm-up never gets to the minimum."""
    if config.max_steps <= max(config.warmup_steps, 1) <= step:
        return config.learning_rate
    return rates()(step, config)


RATES = [
    (rates(), "passed"),
    (rate_in_pieces, "passed"),
    (rate_by_torch, "passed"),
    (rate_by_numpy, "passed"),
    (lambda step, config: np.float64(rates()(step, config)), "passed"),
    (lambda step, config: torch.tensor(rates()(step, config)), "passed"),
    (lambda step, config: f"{rates()(step, config)}", "a rate is a number, not str"),
    (lambda step, config: torch.tensor([rates()(step, config)]), "not Tensor"),
    (rates(up=lambda step, warmup: (step + 1) // warmup), "// rounds down"),
    (rates(down=lambda p: (1 + math.cos(math.pi * (p // 1))) / 2), "Is there a // for /"),
    (rates(last=lambda steps: 19_072), "than config.max_steps"),
    (rates(low=lambda config: config.learning_rate / 10), "a tenth of the peak"),
    (rates(low=lambda config: 6e-5), "numbers of the recipe"),
    (rates(up=lambda step, warmup: (step + 1) / 715), "numbers of the recipe"),
    (rates(down=lambda p: (1 + math.cos(180 * p)) / 2), "takes radians"),
    (rates(down=lambda p: math.cos(math.pi / 2 * p)), "a quarter of a cosine"),
    (rate_over_the_whole_run, "begins at step 0"),
    (rate_cut_off, "cut off at the minimum"),
    (lambda step, config: None, "is a `return` missing"),
    (rates(up=lambda step, warmup: step / warmup), "step 0 has the rate 0"),
    (rates(up=lambda step, warmup: (step + 1) / (warmup + 1)), "ends a step late"),
    (rates(up=lambda step, warmup: ((step + 1) / warmup) ** 2), "a straight line"),
    (rates(up=lambda step, warmup: 1.0), "a straight line"),
    (usual_rate, "both have the peak"),
    (rates(last=lambda steps: steps), "there are 24 steps"),
    (rates(down=lambda p: 1 + math.cos(math.pi * p)), "above the peak"),
    (forgot_to_subtract, "scales peak - minimum"),
    (rates(down=lambda p: 1 - p), "in a straight line"),
    (rates(down=lambda p: math.cos(math.pi * p)), "a rate is negative"),
    (rates(low=lambda config: 0.0), "the last step has the rate 0"),
    (rates(low=lambda config: 5e-4), "with max_steps=20 and warmup_steps=0"),
    (rates(low=lambda c: c.min_learning_rate or c.learning_rate / 10), "with a minimum of 0"),
    (rate_of_the_peak_for_ever, "when all steps are warm-up, the number is off for step 5"),
    (rates(most=9.0), "limit the progress to 1"),
    (rates(down=lambda p: (1 + math.cos(math.pi * p**2)) / 2), "off for step 18"),
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
        {"params": (p,), "weight_decay": weight_decay if len(p.shape) > 1 else 0}
        for p in model.parameters()
    )


def tied_twice(model, weight_decay):
    groups = split(matrix)(model, weight_decay)
    groups[0]["params"].append(model.lm_head.weight)
    return groups


def tied_in_both(model, weight_decay):
    groups = split(matrix)(model, weight_decay)
    groups[1]["params"].append(model.lm_head.weight)
    return groups


def first_in_both(model, weight_decay):
    groups = split(matrix)(model, weight_decay)
    groups[1]["params"].append(model.transformer.h[0].attn.c_attn.weight)
    return groups


def linear_weights_only(model, weight_decay):
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)]
    return [{"params": linear, "weight_decay": weight_decay}]


def pairs(model, weight_decay):
    return [{"params": list(model.named_parameters()), "weight_decay": weight_decay}]


def groups_by_module(model, weight_decay):
    """Biases and norms into one list, and everything else into the other."""
    plain = {id(p) for m in model.modules() if isinstance(m, nn.LayerNorm) for p in m.parameters()}
    plain |= {id(m.bias) for m in model.modules() if isinstance(m, nn.Linear)}
    groups = [
        {"weight_decay": torch.tensor(weight_decay).item(), "params": []},
        {"weight_decay": 0, "params": []},
    ]
    for p in model.parameters():
        groups[id(p) in plain]["params"].append(p)
    return groups[::-1]


def groups_of_generators(model, weight_decay):
    return [
        {"params": (p for p in model.parameters() if p.ndim > 1), "weight_decay": weight_decay},
        {"params": filter(lambda p: p.ndim == 1, model.parameters()), "weight_decay": 0.0},
    ]


def groups_of_tuples(model, weight_decay):
    return [
        {**group, "params": tuple(group["params"])} for group in split(matrix)(model, weight_decay)
    ]


def groups_of_sets(model, weight_decay):
    return [
        {**group, "params": set(group["params"])} for group in split(matrix)(model, weight_decay)
    ]


def groups_of_an_iterator(model, weight_decay):
    parameters = model.parameters()
    return [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": weight_decay},
        {"params": [p for p in parameters if p.dim() < 2], "weight_decay": 0.0},
    ]


GROUPS = [
    (split(matrix), "passed"),
    (one_group_each, "make two, one for each decay"),
    (lambda model, decay: tuple(split(matrix)(model, decay)), "the task asks for a list of dicts"),
    (groups_of_tuples, "whose params are lists"),
    (split(lambda name, p: ".ln_" not in name and not name.endswith(".bias")), "passed"),
    (groups_by_module, "passed"),
    (groups_of_generators, "params must be a list. A generator"),
    (split(lambda name, p: p.squeeze().dim() > 1), "with block_size=1, where wpe"),
    (split(lambda name, p: p.numel() > len(p)), "in a model that is one number wide"),
    (split(lambda name, p: p.numel() > 48), "with block_size=1"),
    (groups_of_sets, "AdamW refuses a set"),
    (groups_of_an_iterator, "an iterator that ends after the first loop"),
    (split(lambda name, p: True), "gains and biases are decayed, too"),
    (split(lambda name, p: False), "no matrix is decayed"),
    (split(lambda name, p: matrix(name, p) and ".mlp" not in name), "a matrix is not decayed"),
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
    (tied_twice, "the tied matrix is in one group twice; lm_head.weight IS wte.weight"),
    (tied_in_both, "the tied matrix is in two groups; lm_head.weight IS wte.weight"),
    (first_in_both, "c_attn.weight is in two groups; model.parameters() lists it once"),
    (linear_weights_only, "not in a group"),
    (split(lambda name, p: p.dim() < 2), "the groups are swapped"),
    (split(lambda name, p: not name.endswith("bias")), "the norms' weights are decayed"),
    (split(lambda name, p: ".ln_" not in name or name.endswith("bias")), "biases are decayed"),
    (split(lambda name, p: matrix(name, p) and ".wte" not in name), "embeddings are not decayed"),
    (split(lambda name, p: matrix(name, p) and ".wpe" not in name), "embeddings are not decayed"),
    (
        split(matrix, weight=lambda decay: 0.3),
        "with a weight decay of 0.25, the decay of the matrices",
    ),
    (split(matrix, weight=lambda decay: 0.01), "use the argument weight_decay"),
]


def test_parameter_groups():
    assert_verdicts(checks.parameter_groups, GROUPS)


# backward


def on_device(model, x, y):
    """Call the model on its device."""
    device = next(model.parameters()).device
    return model(targets=y.to(device), idx=x.to(device))


def backward(divide=lambda count, got: count, keep=lambda loss: loss.detach(), zero=False):
    """Accumulates over the pieces, with one thing done otherwise."""

    def run(model, pieces, count, autocast):
        pieces, total = list(pieces), 0
        for x, y in pieces:
            if zero:
                model.zero_grad()
            with autocast:
                loss = on_device(model, x, y) / divide(count, len(pieces))
            loss.backward()
            total = total + keep(loss)
        return total

    return run


def backward_inside(model, pieces, count, autocast):
    losses = []
    while (piece := next(pieces, None)) is not None:
        with autocast:
            loss = on_device(model, *piece)
            loss.backward(torch.full_like(loss, 1 / count))
        losses.append(loss.detach())
    return torch.stack(losses).sum() / count


def backward_by_logits(model, pieces, count, autocast):
    device = model.lm_head.weight.device
    total = torch.zeros(1, device=device)
    for x, y in pieces:
        x, y = x.to(device), y.to(device)
        with autocast:
            logits = model(x)
        loss = nn.functional.cross_entropy(logits.transpose(1, 2), y)
        loss.div(count).backward()
        total += loss.data / count
    return total


def backward_divided_at_the_end(model, pieces, count, autocast):
    """Undivided sums, which are divided once. The gradients are read piece by piece."""
    device = next(model.parameters()).device
    parameters, total = list(model.parameters()), 0
    sums = [torch.zeros_like(p) for p in parameters]
    for x, y in pieces:
        with autocast:
            loss = model(targets=y.to(device), idx=x.to(device))
        for s, gradient in zip(sums, torch.autograd.grad(loss, parameters), strict=True):
            s += gradient
        total = total + loss.detach().double()
    for p, s in zip(parameters, sums, strict=True):
        p.grad = s / count
    return total / count


def backward_by_row(model, pieces, count, autocast):
    """Every row goes through the model alone."""
    model.zero_grad()
    losses = []
    for x, y in pieces:
        for row in range(len(x)):
            with autocast:
                loss = on_device(model, x[row : row + 1], y[row : row + 1]) / len(x) / count
                loss.backward()
            losses += [loss.data]
    return sum(losses)


def backward_without_moving(model, pieces, count, autocast):
    total = 0
    for x, y in pieces:
        with autocast:
            loss = model(x, y) / count
        loss.backward()
        total = total + loss.detach()
    return total


def backward_sum_of_numbers(*args):
    numbers = []
    backward(keep=lambda loss: numbers.append(loss.item()) or 0)(*args)
    return torch.tensor(sum(numbers))


def backward_total_on_cpu(model, pieces, count, autocast):
    total = torch.zeros(())
    for x, y in pieces:
        total += backward()(model, [(x, y)], count, autocast)
    return total


def backward_with_number(model, pieces, count, autocast):
    """It looks at each loss, which a model without numbers doesn't allow."""
    total = torch.zeros((), device=next(model.parameters()).device)
    for x, y in pieces:
        loss = backward()(model, [(x, y)], count, autocast)
        assert not loss.isnan()
        total += loss
    return total


def backward_retained(model, pieces, count, autocast):
    losses = []
    for x, y in pieces:
        with autocast:
            losses.append(on_device(model, x, y) / count)
        losses[-1].backward(retain_graph=True)
    return sum(losses).detach()


def backward_clipped(model, pieces, count, autocast):
    loss = backward()(model, pieces, count, autocast)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    return loss


def backward_and_step(model, pieces, count, autocast):
    loss = backward()(model, pieces, count, autocast)
    torch.optim.SGD(model.parameters(), 0.1).step()
    return loss


def backward_in_eval(model, pieces, count, autocast):
    return backward()(model.eval(), pieces, count, autocast)


def backward_in_place(model, pieces, count, autocast):
    pieces = list(pieces)
    loss = backward()(model, pieces, count, autocast)
    pieces[0][0].zero_()
    return loss


def backward_mean_of_got(model, pieces, count, autocast):
    pieces = list(pieces)
    return backward()(model, pieces, count, autocast) * count / len(pieces)


def backward_at_the_end(model, pieces, count, autocast):
    with autocast:
        loss = sum(on_device(model, x, y) for x, y in pieces) / count
    loss.backward()
    return loss.detach()


def backward_joined(model, pieces, count, autocast):
    xs, ys = zip(*pieces, strict=True)
    with autocast:
        loss = on_device(model, torch.cat(xs), torch.cat(ys)) * len(xs) / count
    loss.backward()
    return loss.detach()


def backward_in_pairs(model, pieces, count, autocast):
    total = 0
    for piece in pieces:
        both = [piece, *itertools.islice(pieces, 1)]
        total = total + backward_joined(model, both, count, autocast)
    return total


def backward_without_autocast(model, pieces, count, autocast):
    for x, y in pieces:
        (on_device(model, x, y) / count).backward()


def backward_by_length(model, pieces, count, autocast):
    return backward()(model, [*pieces][: len(pieces)], count, autocast)


def backward_undivided_loss(model, pieces, count, autocast):
    return backward()(model, pieces, count, autocast) * count


def forward_only(model, pieces, count, autocast):
    with autocast:
        return sum(on_device(model, x, y).detach() for x, y in pieces) / count


def last_loss(model, pieces, count, autocast):
    seen = []
    backward(keep=lambda loss: seen.append(loss.detach()) or 0)(model, pieces, count, autocast)
    return seen[-1] if len(seen) > 1 else seen[-1] * 0.5


def backward_by_forward(inside=True):
    """Calls `forward` itself, which PyTorch's hooks don't see."""

    def run(model, pieces, count, autocast):
        total = torch.zeros((), device=model.lm_head.weight.device)
        for x, y in pieces:
            with autocast if inside else contextlib.nullcontext():
                loss = model.forward(x.to(total.device), y.to(total.device)) / count
            loss.backward()
            total += loss.detach()
        return total

    return run


def backward_entered(model, pieces, count, autocast):
    autocast.__enter__()
    return backward()(model, pieces, count, contextlib.nullcontext())


BACKWARD = [
    (backward_by_forward(), "passed"),
    (backward_by_forward(inside=False), "inside `with autocast:`"),
    (backward_entered, "enters `autocast` and never leaves it"),
    (backward(), "passed"),
    (backward_inside, "passed"),
    (backward_by_logits, "passed"),
    (backward_divided_at_the_end, "passed"),
    (backward_by_row, "passed"),
    (backward_with_number, "passed"),
    (backward_without_moving, "on a GPU this fails, because a tensor stays on the CPU"),
    (backward_total_on_cpu, "the result is on the CPU"),
    (backward_sum_of_numbers, "the result is on the CPU"),
    (lambda *a: backward()(*a).cpu(), "the result is on the CPU"),
    (lambda *a: backward()(*a).to("cpu"), "the result is on the CPU"),
    (backward_retained, "without retain_graph"),
    (backward_clipped, "clipping comes in the update"),
    (backward_and_step, "the weights have moved"),
    (backward_in_eval, "train in training mode"),
    (backward_in_place, "changes the tokens in its input `pieces`"),
    (backward_mean_of_got, "by the number of pieces you got, not by `count`"),
    (backward(divide=lambda count, got: count**2), "3 times too short"),
    (lambda *a: backward()(*a) / a[2], "3 times too small"),
    (lambda *a: backward()(*a) * 1.5, "off for the returned sum of loss / count"),
    (backward(divide=lambda count, got: 1), "3 times too long"),
    (backward(divide=lambda count, got: got), "Divide by `count`, not by the number"),
    (backward(zero=True), "only the last micro-batch"),
    (backward(divide=lambda count, got: count**0.5), "the right direction and the wrong length"),
    (backward_at_the_end, "Go backward right after each piece"),
    (backward_joined, "6 rows went through the model at once, but a piece has 2"),
    (backward_in_pairs, "4 rows went through the model at once, but a piece has 2"),
    (backward_without_autocast, "inside `with autocast:`"),
    (backward_by_length, "an iterator without a length"),
    (torch.no_grad()(backward()), "no_grad is on"),
    (forward_only, "there is no gradient"),
    (lambda *a: backward()(*a) and None, "return the sum of the losses"),
    (backward(keep=lambda loss: loss.item()), "can't be summed"),
    (backward(keep=lambda loss: loss), "still holds a graph"),
    (lambda *a: backward()(*a).repeat(2), "return one number"),
    (backward_undivided_loss, "3 times too large"),
    (last_loss, "the loss of the last piece only"),
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
            elif action == "set_to_none":
                model.zero_grad(set_to_none=True)
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


def update_by_coefficient(model, optimizer, rate, grad_clip):
    with torch.no_grad():
        every = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
        norm = torch.linalg.vector_norm(every.double())
        for p in model.parameters():
            p.grad = p.grad * min(1.0, grad_clip / max(norm.item(), 1e-12))
    return update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip) * 0 + norm


def update_by_group(model, optimizer, rate, grad_clip):
    """A scheduler's way of setting the rate, and clipping in two calls."""
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    norm = nn.utils.get_total_norm(p.grad for p in parameters)
    nn.utils.clip_grads_with_norm_(parameters, grad_clip, norm)
    optimizer.param_groups = [{**group, "lr": rate} for group in optimizer.param_groups]
    optimizer.step()
    for p in parameters:
        p.grad = None
    return norm.reshape(1)


def update_norm_of(change):
    def run(*args):
        return change(update()(*args))

    return run


def update_of_two_groups(model, optimizer, rate, grad_clip):
    two = [p for group in optimizer.param_groups[:2] for p in group["params"]]
    norm = nn.utils.clip_grad_norm_(two, grad_clip)
    update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip)
    return norm


def update_of_the_first_group(model, optimizer, rate, grad_clip):
    norm = nn.utils.clip_grad_norm_(optimizer.param_groups[0]["params"], grad_clip)
    update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip)
    return norm


@torch.no_grad()
def update_of_sgd(model, optimizer, rate, grad_clip):
    norm = nn.utils.clip_grad_norm_(model.parameters(), grad_clip)
    for p in model.parameters():
        p -= rate * p.grad
    optimizer.zero_grad()
    return norm


def update_divided_by_zero(model, optimizer, rate, grad_clip):
    norm = nn.utils.get_total_norm([p.grad for p in model.parameters()])
    for p in model.parameters():
        p.grad *= torch.fmin(grad_clip / norm, norm / norm)
    return update(order=("rate", "step", "zero"))(model, optimizer, rate, grad_clip) * 0 + norm


def update_once_set(model, optimizer, rate, grad_clip):
    """The rate of the first call to this optimizer stays, except for the first step."""
    first = optimizer.defaults.setdefault("first", rate)
    return update()(model, optimizer, first, grad_clip)


UPDATES = [
    (update(), "passed"),
    (update(order=("rate", "clip", "step", "zero")), "passed"),
    (update_by_hand, "passed"),
    (update_by_coefficient, "passed"),
    (update_by_group, "passed"),
    (update(order=("rate", "clip", "step", "set_to_none")), "passed"),
    (update(order=("clip", "rate", "step", "step", "zero")), "call optimizer.step() once"),
    (update(order=("zero", "clip", "rate", "step")), "the norm is 0"),
    (update_of_the_first_group, "the norm of the first parameter"),
    (update_of_sgd, "with AdamW, the weights end elsewhere"),
    (update_divided_by_zero, "for a gradient of zeros, with SGD, the weights become NaN"),
    (update(groups=slice(2)), "with four groups of parameters, the weights end elsewhere"),
    (update(groups=slice(None, None, 3)), "one group kept"),
    (update_of_two_groups, "with four groups of parameters, the returned norm is off"),
    (update_norm_of(lambda norm: torch.tensor(norm.item())), "a copy of the norm on the CPU"),
    (update_norm_of(lambda norm: norm.cpu()), "a copy of the norm on the CPU"),
    (update_norm_of(lambda norm: norm.to("cpu")), "a copy of the norm on the CPU"),
    (update_once_set, "for another long gradient and another limit"),
    (lambda *a: update()(*a).repeat(3), "return one number"),
    (lambda *a: update()(*a) * 1.5, "off for the gradient's norm over all parameters"),
    (update_norm_of(lambda norm: norm.clamp(min=6.0)), "shorter than the limit"),
    (lambda *a: update()(*a) and None, "return the norm before clipping"),
    (lambda *a: update()(*a).item(), "would make the GPU wait"),
    (update_norm_after, "the norm after clipping"),
    (lambda *a: update()(*a) ** 2, "the square of the norm"),
    (update(order=("clip", "rate", "zero", "step")), "the weights didn't move"),
    (update(order=("clip", "rate", "zero")), "the weights didn't move"),
    (update(order=("clip", "step", "rate", "zero")), "the old learning rate"),
    (update(groups=slice(1)), "one group kept"),
    (update(order=("rate", "step", "clip", "zero")), "wasn't clipped before the step"),
    (update(order=("rate", "step", "zero")), "wasn't clipped before the step"),
    (update(limit=lambda clip: 1.0), "use the argument grad_clip"),
    (update(limit=lambda clip: clip * 2), "Clip at grad_clip"),
    (update(limit=lambda clip: clip * 1.5), "off for the step's length"),
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
        size, total = config.block_size, torch.zeros((), device=next(model.parameters()).device)
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
                loss = on_device(model, rows[:, :-1], rows[:, 1:])
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
    device = next(model.parameters()).device
    losses = [torch.zeros((), device=device)]
    for i in range(rank, count, world):
        start = i * available // count * config.block_size
        x, y = checks.windows_of(tokens, [start], config.block_size)
        with autocast:
            logits = model.eval()(x.to(device))
        losses.append(nn.functional.cross_entropy(logits[0], y[0].to(device), reduction="sum"))
    model.train(True)
    return torch.stack(losses).sum() / (count * config.block_size)


@torch.inference_mode()
def evaluate_from_the_end(model, tokens, config, autocast, rank=0, world=1):
    """Micro-batches of other sizes in another order, by hand."""
    mode = model.training
    model.train(mode=False)
    available = (len(tokens) - 1) // config.block_size
    count = int(np.clip(config.eval_tokens // config.block_size, 1, available))
    starts = (np.arange(count) * available // count * config.block_size)[rank::world][::-1]
    share = sum(
        len(some) / count * on_device(model, *checks.windows_of(tokens, some, config.block_size))
        for some in np.array_split(starts, -(-len(starts) // config.micro_batch_size) or 1)
        if autocast.__enter__() is None and len(some)
    )
    autocast.__exit__(None, None, None)
    model.train(mode)
    return torch.as_tensor(share, device=next(model.parameters()).device)


@torch.no_grad()
def evaluate_stacked(model, tokens, config, autocast, rank=0, world=1):
    model.eval()
    starts = checks.starts_of(len(tokens), config)
    losses = []
    for start in starts[rank::world]:
        with autocast:
            losses.append(on_device(model, *checks.windows_of(tokens, [start], config.block_size)))
    model.train()
    return torch.stack(losses).sum() / len(starts)


@torch.no_grad()
def evaluate_without_moving(model, tokens, config, autocast, rank=0, world=1):
    model.eval()
    starts = checks.starts_of(len(tokens), config)
    total = torch.zeros((), device=next(model.parameters()).device)
    for start in starts[rank::world]:
        with autocast:
            total += model(*checks.windows_of(tokens, [start], config.block_size)) / len(starts)
    model.train()
    return total


def evaluate_total_on_cpu(*args):
    return torch.zeros(()).add_(evaluate()(*args))


def evaluate_by_world(model, tokens, config, autocast, rank=0, world=1):
    weight = {"weight": lambda x, batches, count, mine: len(x) / mine / world}
    return evaluate(**weight)(model, tokens, config, autocast, rank, world)


def with_gradients(model, tokens, config, autocast, rank=0, world=1):
    model.eval()
    x, y = checks.windows_of(tokens, [0], config.block_size)
    with autocast:
        return on_device(model, x, y)


@torch.no_grad()
def evaluate_without_autocast(model, tokens, config, autocast, rank=0, world=1):
    return on_device(model.eval(), *checks.windows_of(tokens, [0], config.block_size))


def evaluate_entered(model, tokens, config, autocast, rank=0, world=1):
    autocast.__enter__()
    inside = contextlib.nullcontext()
    return evaluate_window_by_window(model, tokens, config, inside, rank, world)


@torch.no_grad()
def evaluate_by_forward(model, tokens, config, autocast, rank=0, world=1, changes=True):
    """Calls `forward` itself, in training mode unless `changes`."""
    available = (len(tokens) - 1) // config.block_size
    count = min(max(config.eval_tokens // config.block_size, 1), available)
    total = torch.zeros((), device=next(model.parameters()).device)
    model.train(not changes)
    for i in range(rank, count, world):
        start = i * available // count * config.block_size
        x, y = checks.windows_of(tokens, [start], config.block_size)
        with autocast:
            total += model.forward(idx=x.to(total.device), targets=y.to(total.device)) / count
    model.train()
    return total


EVALUATIONS = [
    (evaluate_by_forward, "passed"),
    (functools.partial(evaluate_by_forward, changes=False), "the model is in training mode"),
    (evaluate_entered, "enters `autocast` and never leaves it"),
    (evaluate(), "passed"),
    (evaluate_window_by_window, "passed"),
    (evaluate(largest=lambda config: min(2, config.micro_batch_size)), "passed"),
    (evaluate_from_the_end, "passed"),
    (evaluate(largest=lambda config: 2), "with micro-batches of one window, 2 windows went"),
    (evaluate_without_moving, "on a GPU this fails, because a tensor stays on the CPU"),
    (evaluate_total_on_cpu, "the result is on the CPU"),
    (evaluate(result=lambda total: torch.tensor(total.item())), "the result is on the CPU"),
    (evaluate(result=lambda total: total.to("cpu")), "the result is on the CPU"),
    (evaluate_stacked, "your function raises RuntimeError"),
    (evaluate(start=lambda i, available, count: i * (available // count)), "the windows begin at"),
    (
        evaluate(start=lambda i, available, count: int(i * (available / count))),
        "with 22 of 30 windows, the windows begin at",
    ),
    (
        evaluate(start=lambda i, available, count: int(i / count * available)),
        "with all of 22 windows, the windows begin at",
    ),
    (evaluate(count=lambda asked, available: min(asked + 1, available)), "the number of windows"),
    (evaluate(weight=lambda x, batches, count, mine: 1), "add up the means"),
    (evaluate(result=lambda total: total * 1.5), "off for the mean loss of 8 windows"),
    (
        evaluate(share=lambda r, n, world: range(r * n // world, (r + 1) * n // world)),
        "in process 0 of 3, these aren't the windows of this process",
    ),
    (
        evaluate(share=lambda r, n, world: range(r, n, world) or range(1)),
        "in process 3 of 5, this process has no window",
    ),
    (evaluate_by_world, "so don't divide their means by `world`"),
    (lambda *a: evaluate()(*a) and None, "is the `return` missing"),
    (evaluate(result=lambda total: total.item()), "as a tensor"),
    (evaluate(modes=("train",)), "in training mode"),
    (evaluate(modes=("eval",)), "left in evaluation mode"),
    (with_gradients, "use torch.no_grad()"),
    (evaluate_without_autocast, "inside `with autocast:`"),
    (lambda *a: torch.zeros(()), "never called"),
    (evaluate(available=lambda n, size: n // size), "past the end"),
    (evaluate(largest=lambda config: 99), "at once"),
    (evaluate(count=lambda asked, available: available), "the number of windows is not right"),
    (evaluate(count=min), "take at least 1"),
    (evaluate(start=lambda i, available, count: i), "the first windows of the stream"),
    (evaluate(start=lambda i, available, count: (7 * i) % available), "the windows begin at"),
    (evaluate(weight=lambda x, batches, count, mine: 1 / batches), "mean of the micro-batches"),
    (evaluate(weight=lambda x, batches, count, mine: 1 / count), "weight each mean by its number"),
    (evaluate(weight=lambda x, batches, count, mine: len(x)), "8 times too large"),
    (evaluate(share=lambda rank, count, world: range(count)), "the windows of all processes"),
    (evaluate(weight=lambda x, batches, count, mine: len(x) / mine), "the mean over this process"),
    (
        evaluate(share=lambda rank, count, world: range(rank, count, world + (world > 1))),
        "in process 0 of 3, these aren't the windows",
    ),
]


def test_evaluate():
    assert_verdicts(checks.evaluate, EVALUATIONS)
