"""Checks of notebook 08 on tokens, the metrics of a run, and the training of a GPT-2."""

import math
from collections.abc import Callable, Sequence

from torch import nn

from cs336_lib.classroom.checks.report import exercise, expect
from cs336_lib.config import GPTConfig, TrainConfig
from cs336_lib.model import GPT

__all__ = [
    "bits_per_character",
    "decay_groups",
    "epochs_seen",
    "merge_pair",
    "micro_steps",
    "sharpened",
    "trapezoid",
]


@exercise
def merge_pair(answer: Callable[[list[int], tuple[int, int], int], list[int]]) -> None:
    """Check that every (a, b), from left to right and without overlap, becomes the new id."""
    ids = [5, 1, 2, 9, 1, 2, 1]
    given = list(ids)
    try:
        got = answer(given, (1, 2), 7)
    except IndexError:
        expect(False, "you look past the end; the last id has no ids[i + 1], so check that first.")
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(given == ids, "your function changed the list that it was given; build a new one.")
    got = [int(i) for i in got]
    expect(
        got != ids,
        "nothing was merged. A slice of a list is never equal to a tuple: tuple(ids[i : i + 2]).",
    )
    expect(
        got != [5, 7, 9, 1, 2, 1],
        "only the first pair was merged; merge every one.",
    )
    expect(
        got not in ([5, 7, 2, 9, 7, 2, 1], [5, 7, 7, 9, 7, 7, 1]),
        "the pair's second id is still there; after a merge, continue two places further.",
    )
    expect(
        got != [5, 7, 9, 7],
        "the last id is lost; it has no right neighbour to pair with, but it stays.",
    )
    expect(
        got != [5, 7, 9, 7, 7],
        "a 1 without a 2 after it was replaced as well; the whole pair must match.",
    )
    expect(got == [5, 7, 9, 7, 1], f"{ids} with (1, 2) -> 7 should be [5, 7, 9, 7, 1], not {got}.")
    triple = [int(i) for i in answer([3, 3, 3], (3, 3), 4)]
    expect(
        triple not in ([4, 4], [4, 3, 3]),
        "[3, 3, 3] with (3, 3) -> 4 is [4, 3]: the middle 3 can be part of one pair only.",
    )
    expect(
        triple != [3, 4],
        "[3, 3, 3] with (3, 3) -> 4 is [4, 3]: go from left to right.",
    )
    expect(triple == [4, 3], f"[3, 3, 3] with (3, 3) -> 4 should be [4, 3], not {triple}.")
    reverse = [int(i) for i in answer([2, 1, 1], (1, 2), 7)]
    expect(reverse == [2, 1, 1], "(2, 1) is not the pair (1, 2): the order counts.")
    pair = [int(i) for i in answer([8, 1, 2], (1, 2), 7)]
    expect(pair == [8, 7], f"[8, 1, 2] with (1, 2) -> 7 should be [8, 7], not {pair}.")
    expect(list(answer([], (1, 2), 7)) == [], "an empty list stays empty.")


@exercise
def bits_per_character(answer: Callable[[float], float]) -> None:
    """Check the conversion of a loss in nats to bits per character, which divides by ln 2."""
    got = answer(math.log(2))
    expect(
        not math.isclose(got, math.log(2) ** 2),
        "you multiplied by ln 2; a nat is more than a bit, so there are more bits than nats",
    )
    expect(
        not math.isclose(got, 2.0),
        "2 is exp(loss), the perplexity: how many equally likely characters, not how many bits",
    )
    expect(not math.isclose(got, math.log(2)), "that is still nats; how many bits are in a nat?")
    expect(
        not math.isclose(got, math.log2(math.log(2))),
        "that is log2 OF the loss; the loss is already a logarithm, so change only its base",
    )
    expect(
        math.isclose(got, 1.0, rel_tol=1e-3), f"a loss of ln 2 is exactly one bit, not {got:.4f}"
    )
    expect(
        math.isclose(answer(4 * math.log(2)), 4.0, rel_tol=1e-3),
        "right for ln 2, but wrong for 4 ln 2",
    )


@exercise
def epochs_seen(answer: Callable[[TrainConfig, int], float]) -> None:
    """Check the number of epochs, max_steps * batch_tokens / tokens."""
    config = TrainConfig(max_steps=300, batch_tokens=1536, block_size=64, warmup_steps=0)
    got = answer(config, 1_000_000)
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(
        not math.isclose(got, 300 * 1536 * 64 / 1_000_000),
        "batch_tokens are tokens already; you multiplied by block_size as well",
    )
    expect(
        not math.isclose(got, 300 / 1_000_000),
        "a step reads batch_tokens tokens, not one",
    )
    expect(
        not math.isclose(got, 300 * config.micro_batch_size * 64 / 1_000_000),
        "a step is a whole batch, batch_tokens, not one micro-batch",
    )
    expect(
        not math.isclose(got, 1_000_000 / (300 * 1536)),
        "that is inverted; divide the tokens read by the tokens there are",
    )
    expect(
        math.isclose(got, 0.4608),
        f"300 steps of 1,536 tokens out of 1,000,000 are 0.4608 epochs, not {got}",
    )
    long = TrainConfig(max_steps=1000, batch_tokens=512, block_size=64, warmup_steps=0)
    expect(
        math.isclose(answer(long, 256_000), 2.0),
        "right for one run but wrong for another; use the fields of the config, and `tokens`",
    )


@exercise
def sharpened(answer: Callable[[list[float], float], list[float]]) -> None:
    """Check softmax(log p / T), which is p^(1/T), normalized."""
    p = [0.5, 0.25, 0.25]
    half = answer(list(p), 0.5)
    expect(half is not None, "your function returns None; is the `return` missing?")
    half = [float(x) for x in half]
    flat = [math.sqrt(x) / sum(map(math.sqrt, p)) for x in p]
    expect(
        not all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(half, flat, strict=True)),
        "a temperature of 0.5 should make the likeliest likelier: p ** (1 / T), not p ** T",
    )
    powers = [math.exp(x / 0.5) for x in p]
    expect(
        not all(
            math.isclose(a, b / sum(powers), abs_tol=1e-6)
            for a, b in zip(half, powers, strict=True)
        ),
        "that is a softmax of p / T: p are probabilities, the logits are their logarithms",
    )
    expect(math.isclose(sum(half), 1.0, abs_tol=1e-6), f"they add up to {sum(half):.3f}, not to 1")
    wanted = [x**2 / sum(y**2 for y in p) for x in p]
    expect(
        all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(half, wanted, strict=True)),
        f"T = 0.5 gives {[round(x, 3) for x in wanted]}, not {[round(x, 3) for x in half]}",
    )
    expect(
        all(math.isclose(a, b, abs_tol=1e-6) for a, b in zip(answer(p, 2.0), flat, strict=True)),
        "right at T = 0.5 but wrong at T = 2, which is the square root of each, normalized",
    )


def names_of(parameters: Sequence[nn.Parameter], model: nn.Module) -> list[str]:
    """Return the names of these parameters in the model, repeated if a parameter is."""
    names = {id(p): name for name, p in model.named_parameters()}
    return [names.get(id(p), "?") for p in parameters]


@exercise
def decay_groups(answer: Callable[[nn.Module, float], list[dict]]) -> None:
    """Check the two groups, where matrices and larger are decayed but biases and norms are not."""
    model = GPT(GPTConfig(block_size=4, vocab_size=8, n_layer=1, n_head=1, n_embd=8))
    everything = dict(model.named_parameters())
    frozen = {"transformer.h.0.mlp.c_fc.bias", "transformer.h.0.mlp.c_fc.weight"}  # get no group
    for name in frozen:
        everything[name].requires_grad_(False)
    groups = answer(model, 0.1)
    expect(groups is not None, "your function returns None; is the `return` missing?")
    expect(
        isinstance(groups, list) and all(isinstance(group, dict) for group in groups),
        'return a list of dicts, such as {"params": [...], "weight_decay": 0.1}.',
    )
    expect(
        all("params" in group and "weight_decay" in group for group in groups),
        'each group needs the keys "params" and "weight_decay".',
    )
    groups = [{**group, "params": list(group["params"])} for group in groups]
    listed = [name for group in groups for name in names_of(group["params"], model)]
    expect("?" not in listed, "a group contains something that is not a parameter of the model.")
    expect(
        len(listed) == len(set(listed)),
        "a parameter is in two groups; the tied lm_head.weight IS wte.weight. "
        "model.parameters() lists it once.",
    )
    expect(
        frozen.isdisjoint(listed),
        "a frozen parameter (requires_grad is False) was given to the optimizer.",
    )
    decay = {
        name: group["weight_decay"] for group in groups for name in names_of(group["params"], model)
    }
    missing = [n for n, p in everything.items() if p.requires_grad and n not in decay]
    expect(not missing, f"these are not in a group, so they never train: {', '.join(missing[:3])}.")
    matrices = [name for name in decay if everything[name].dim() >= 2]
    vectors = [name for name in decay if everything[name].dim() < 2]
    expect(
        not (all(decay[n] == 0 for n in matrices) and all(decay[n] > 0 for n in vectors)),
        "the groups are swapped: decay the matrices, leave the vectors.",
    )
    norms = [name for name in vectors if ".ln_" in name and name.endswith("weight")]
    expect(
        any(decay[n] == 0 for n in norms),
        "the norms' weights are decayed. They are called weight but are vectors, so go by dim(), "
        "not by the name.",
    )
    biases = [name for name in vectors if name.endswith("bias")]
    expect(all(decay[n] == 0 for n in biases), "biases are decayed; they only shift.")
    embeddings = [name for name in matrices if ".wte." in name or ".wpe." in name]
    expect(
        all(decay[n] > 0 for n in embeddings),
        "the embeddings are not decayed; GPT-2's recipe decays every matrix, these two as well.",
    )
    expect(
        all(decay[n] == 0.1 for n in matrices) and all(decay[n] == 0 for n in vectors),
        "every matrix should have the weight decay 0.1 that was passed, every vector 0.0.",
    )
    expect(
        {group["weight_decay"] for group in answer(model, 0.25)} == {0.25, 0.0},
        "the decay is always 0.1; use the argument weight_decay.",
    )


@exercise
def trapezoid(answer: Callable[[int, float, int, int, int], float]) -> None:
    """Check a schedule that rises in `warmup` steps, stays flat, and falls linearly to 0.

    The rate is 0 at the last of the `decay` steps.
    """
    rates = [answer(step, 2.0, 4, 5, 20) for step in range(20)]
    expect(None not in rates, "your function returns None; is a `return` missing?")
    right = [min(1.0, (step + 1) / 4, (19 - step) / 5) * 2.0 for step in range(20)]
    expect(
        rates[0] != 0,
        "step 0 has the rate 0, so it is wasted. Give it peak / warmup, and step warmup - 1 "
        "the peak.",
    )
    expect(
        math.isclose(rates[3], 2.0),
        f"with warmup = 4 step 3 is the fourth step and should have the peak; yours has "
        f"{rates[3]:.3g} of 2.",
    )
    expect(
        all(rate <= 2.0 + 1e-9 for rate in rates),
        "somewhere the rate is above the peak; where do warm-up and plateau meet?",
    )
    expect(
        not math.isclose(rates[19], 2.0 / 5),
        "the last step should have the rate 0; yours has peak / decay, one step short of it.",
    )
    expect(
        all(math.isclose(a, b) for a, b in zip(rates[3:15], right[3:15], strict=True)),
        "between warm-up and decay the rate should stay at the peak: with 20 steps and decay = 5, "
        f"from step 3 up to step 14; yours is {', '.join(f'{r:.2g}' for r in rates[3:15])}.",
    )
    expect(
        math.isclose(rates[19], 0.0, abs_tol=1e-9),
        f"the last step, 19, should have the rate 0, not {rates[19]:.3g}.",
    )
    for step, (rate, wanted) in enumerate(zip(rates, right, strict=True)):
        expect(
            math.isclose(rate, wanted, abs_tol=1e-9),
            f"step {step} should have {wanted:.3g}, not {rate:.3g}: the way up and the way down "
            "are straight lines.",
        )
    expect(
        math.isclose(answer(0, 1.0, 1, 1, 2), 1.0) and answer(1, 1.0, 1, 1, 2) == 0.0,
        "right for warmup = 4, but not for a warm-up and a decay of one step each.",
    )


@exercise
def micro_steps(answer: Callable[[int, int, int, int], int]) -> None:
    """Check batch_tokens / (sequences * length * devices), which must be a whole number."""
    got = answer(524_288, 16, 1024, 8)
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(got != 32, "32 would be right for one device; the eight share the work.")
    expect(
        got not in (4096, 524_288 // (16 * 8)),
        "a micro-batch is 16 sequences of 1024 TOKENS each; the block size is missing.",
    )
    expect(got != 64, "16 sequences go through a device at a time; their number is missing.")
    expect(got == 4, f"524,288 tokens in pieces of 16 x 1024 on 8 devices: 4 each, not {got}.")
    expect(isinstance(got, int), "4.0 is a float, which range() rejects; divide with //.")
    expect(answer(524_288, 64, 512, 1) == 16, "wrong for pieces of 64 x 512 on one device: 16.")
    for sequences, devices in ((12, 1), (16, 3)):
        try:
            uneven = answer(524_288, sequences, 1024, devices)
        except ValueError:
            continue
        except AssertionError:
            expect(False, "an assert raises AssertionError; use `raise ValueError(...)`.")
        expect(
            False,
            f"524,288 tokens are not a whole number of pieces of {sequences} x 1024 on {devices} "
            f"device(s); returning {uneven} would silently change the batch size. "
            "Raise ValueError.",
        )
