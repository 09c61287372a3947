"""Notebook 08's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import math

from torch import nn
from verdicts import assert_untouched, assert_verdicts

from cs336_lib.classroom.checks import gpt2_training as checks


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


# bits_per_character, epochs_seen, sharpened


def normalised(values):
    return [value / sum(values) for value in values]


BITS = {
    "passed": lambda loss: loss / math.log(2),
    "you multiplied by ln 2": lambda loss: loss * math.log(2),
    "the perplexity": math.exp,
    "still nats": lambda loss: loss,
    "log2 OF the loss": math.log2,
    "wrong for 4 ln 2": lambda loss: 1.0,
}
EPOCHS = {
    "passed": lambda c, n: c.max_steps * c.batch_tokens / n,
    "as well": lambda c, n: c.max_steps * c.batch_tokens * c.block_size / n,
    "not one": lambda c, n: c.max_steps / n,
    "not one micro-batch": lambda c, n: c.max_steps * c.micro_batch_size * c.block_size / n,
    "that is inverted": lambda c, n: n / (c.max_steps * c.batch_tokens),
}
SHARPENED = {
    "passed": lambda p, t: normalised([x ** (1 / t) for x in p]),
    "p ** (1 / T), not p ** T": lambda p, t: normalised([x**t for x in p]),
    "add up to": lambda p, t: [x ** (1 / t) for x in p],
    "gives [0.667": lambda p, t: p,
    "a softmax of p / T": lambda p, t: normalised([math.exp(x / t) for x in p]),
    "wrong at T = 2": lambda p, t: normalised([x**2 for x in p]),
}


def test_bits_per_character():
    assert_verdicts(checks.bits_per_character, BITS)


def test_epochs_seen():
    assert_verdicts(checks.epochs_seen, EPOCHS)


def test_sharpened():
    assert_verdicts(checks.sharpened, SHARPENED)


# merge_pair


def merging(hop=2, last=True, whole_pair=True, first_only=False, swapped=False, in_place=False):
    """A merge with one thing done otherwise; `hop` is how far it moves on after a merge."""

    def merge(ids, pair, new):
        merged, i, done = [], 0, False
        while i < len(ids) - (0 if last else 1):
            here = tuple(ids[i : i + 2])
            found = here == pair or (swapped and here == pair[::-1])
            found |= not whole_pair and ids[i] == pair[0] and i == len(ids) - 1
            found &= not (first_only and done)
            merged.append(new if found else ids[i])
            i += hop if found else 1
            done |= found
        if in_place:
            ids[:] = merged
            return ids
        return merged

    return merge


def from_the_right(ids, pair, new):
    backwards = merging()(ids[::-1], pair[::-1], new)
    return backwards[::-1]


def by_text(ids, pair, new):
    """Joins the ids' digits: 3, 3, 3 is replaced twice, since the middle one is looked at twice."""
    hits = [i for i in range(len(ids) - 1) if (ids[i], ids[i + 1]) == pair]
    covered = {i + 1 for i in hits}
    return [
        new if i in hits else token for i, token in enumerate(ids) if i in hits or i not in covered
    ]


def past_the_end(ids, pair, new):
    return [new for i, token in enumerate(ids) if (token, ids[i + 1]) == pair]


MERGES = {
    "passed": merging(),
    "is the `return` missing": lambda ids, pair, new: None,
    "build a new one": merging(in_place=True),
    "you look past the end": past_the_end,
    "nothing was merged": lambda ids, pair, new: list(ids),
    "only the first pair": merging(first_only=True),
    "continue two places further": merging(hop=1),
    "the last id is lost": merging(last=False),
    "a 1 without a 2": merging(whole_pair=False),
    "the middle 3": by_text,
    "go from left to right": from_the_right,
    "the order counts": merging(swapped=True),
}


def test_merge_pair():
    assert_verdicts(checks.merge_pair, MERGES)


# decay_groups


def split(decayed, weight=lambda decay: decay, trained=lambda p: p.requires_grad):
    """Two groups by `decayed(name, parameter)`."""

    def groups(model, weight_decay):
        chosen = [(name, p) for name, p in model.named_parameters() if trained(p)]
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


def tied_twice(model, weight_decay):
    groups = split(matrix)(model, weight_decay)
    groups[0]["params"].append(model.lm_head.weight)
    return groups


def linear_weights_only(model, weight_decay):
    linear = [m.weight for m in model.modules() if isinstance(m, nn.Linear)][:-1]
    linear = [weight for weight in linear if weight.requires_grad]
    return [{"params": linear, "weight_decay": weight_decay}]


def vectors_filtered_only(model, weight_decay):
    """Leaves a frozen bias out, and not a frozen matrix."""
    matrices = [p for p in model.parameters() if p.dim() >= 2]
    vectors = [p for p in model.parameters() if p.dim() < 2 and p.requires_grad]
    decay, spared = {"weight_decay": weight_decay}, {"weight_decay": 0.0}
    return [{"params": matrices} | decay, {"params": vectors} | spared]


GROUPS = {
    "passed": split(matrix),
    "is the `return` missing": lambda model, weight_decay: None,
    "return a list of dicts": lambda model, weight_decay: tuple(model.parameters()),
    'needs the keys "params"': lambda model, decay: [{"params": list(model.parameters())}],
    "not a parameter of the model": lambda model, decay: [
        {"params": [nn.Parameter(p.detach()) for p in model.parameters()], "weight_decay": decay}
    ],
    "is in two groups": tied_twice,
    "a frozen parameter": split(matrix, trained=lambda p: True),
    "was given to the optimizer": vectors_filtered_only,
    "not in a group": linear_weights_only,
    "the groups are swapped": split(lambda name, p: p.dim() < 2),
    "the norms' weights are decayed": split(lambda name, p: not name.endswith("bias")),
    "biases are decayed": split(lambda name, p: ".ln_" not in name or name.endswith("bias")),
    "the embeddings are not decayed": split(
        lambda name, p: p.dim() >= 2 and ".wte." not in name and ".wpe." not in name
    ),
    "use the argument": split(matrix, weight=lambda decay: 0.1),
    "the weight decay 0.1 that was passed": split(matrix, weight=lambda decay: 0.01),
}


def test_decay_groups():
    assert_verdicts(checks.decay_groups, GROUPS)


# trapezoid


def up_flat_down(up=lambda n, w: (n + 1) / w, down=lambda left, d: left / d, top=1.0):
    def rate(step, peak, warmup, decay, steps):
        return peak * min(up(step, warmup), top, down(steps - 1 - step, decay))

    return rate


TRAPEZOIDS = {
    "passed": up_flat_down(),
    "is a `return` missing": lambda *a: None,
    "step 0 has the rate 0": up_flat_down(up=lambda n, w: n / w),
    "should have the peak": up_flat_down(up=lambda n, w: (n + 1) / (w + 1)),
    "above the peak": up_flat_down(top=1.2),
    "one step short of it": up_flat_down(down=lambda left, d: (left + 1) / d),
    "should stay at the peak": up_flat_down(down=lambda left, d: left / (2 * d)),
    "the last step, 19": up_flat_down(down=lambda left, d: (left + 0.5) / d),
    "straight lines": up_flat_down(up=lambda n, w: ((n + 1) / w) ** 2),
    "one step each": lambda step, peak, warmup, decay, steps: (
        peak * min(min(step, 3) / 4 + 0.25, 1.0, (steps - 1 - step) / decay)
    ),
}


def test_trapezoid():
    assert_verdicts(checks.trapezoid, TRAPEZOIDS)


# micro_steps


def checked(batch, sequences, block, devices):
    if batch % (sequences * block * devices):
        raise ValueError("uneven")
    return batch // (sequences * block * devices)


def asserting(batch, sequences, block, devices):
    assert batch % (sequences * block * devices) == 0
    return batch // (sequences * block * devices)


def without_devices(batch, sequences, block, devices):
    if batch % (sequences * block):
        raise ValueError("uneven")
    return batch // (sequences * block * devices)


STEPS = {
    "passed": checked,
    "is the `return` missing": lambda *a: None,
    "the eight share the work": lambda batch, s, block, devices: batch // (s * block),
    "the block size is missing": lambda batch, s, block, devices: batch // (s * devices),
    "their number is missing": lambda batch, s, block, devices: batch // (block * devices),
    "4 each, not 1": lambda *a: 1,
    "an assert raises": asserting,
    "16 x 1024 on 3 device(s)": without_devices,
    "divide with //": lambda batch, s, block, devices: batch / (s * block * devices),
    "64 x 512": lambda *a: 4,
    "Raise ValueError": lambda batch, s, block, devices: batch // (s * block * devices),
}


def test_micro_steps():
    assert_verdicts(checks.micro_steps, STEPS)
