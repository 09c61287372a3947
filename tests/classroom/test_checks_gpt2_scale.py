"""Notebook 10's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import math

import pytest
from verdicts import assert_untouched, assert_verdicts

from cs336_lib import accounting
from cs336_lib.classroom.checks import gpt2_scale as checks
from cs336_lib.config import GPTConfig
from cs336_lib.distributed import World


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


# share


def rounded_down(rank, size, count):
    return range(rank * (count // size), (rank + 1) * (count // size))


def rounded_up(rank, size, count):
    each = math.ceil(count / size)
    return range(rank * each, (rank + 1) * each)


def rest_to_the_last(rank, size, count):
    return range(
        rank * (count // size), count if rank == size - 1 else (rank + 1) * (count // size)
    )


def backwards(rank, size, count):
    return World(rank=size - 1 - rank, size=size).share(count)


SHARES = {
    "passed": lambda rank, size, count: World(rank=rank, size=size).share(count),
    "is the `return` missing": lambda rank, size, count: None,
    "return a range": lambda rank, size, count: list(World(rank=rank, size=size).share(count)),
    "like cards": lambda rank, size, count: range(rank, count, size),
    "divide with //": lambda rank, size, count: range(rank * count / size, count),
    "the last 1 are never read": rounded_down,
    "a range excludes its end": lambda rank, size, count: range(
        rank * count // size, (rank + 1) * count // size + 1
    ),
    "leaves the last rank too little": lambda rank, size, count: range(
        min(count, rank * -(-count // size)), min(count, (rank + 1) * -(-count // size))
    ),
    "which doesn't exist": rounded_up,
    "is read twice": lambda rank, size, count: range(count),
    "not every window is read": lambda rank, size, count: range(0),
    "differ by at most one": rest_to_the_last,
    "in the order of the ranks": backwards,
}


def test_share():
    assert_verdicts(checks.share, SHARES)


# loss_scale

SCALES = {
    "passed": lambda size, total, world: size / total * world,
    "is the `return` missing": lambda size, total, world: None,
    "a number is expected, not str": lambda size, total, world: "0.5",
    "`world` times too small": lambda size, total, world: size / total,
    "DDP does that already": lambda size, total, world: size / total / world,
    "weighs all micro-batches alike": lambda size, total, world: 1.0,
    "inverted": lambda size, total, world: total / size,
    "must count `size` times": lambda size, total, world: world / total,
    "neither size nor world": lambda size, total, world: 1 / total,
    "divides by the number of processes": lambda size, total, world: size / world,
    "not that of the whole batch": lambda size, total, world: size * world,
    "for scale(3, 12, 2) it is 0.5": lambda size, total, world: 7.0,
    "times the batch's": lambda size, total, world: 0.5,  # right for one call only
}


def test_loss_scale():
    assert_verdicts(checks.loss_scale, SCALES)


def test_a_gradient_is_measured_in_units_of_the_batchs():
    assert checks.averaged_gradient(lambda size, total, world: size / total, [[3, 3], [6]]) == (
        pytest.approx(0.5)
    )


# fewest_gpus


def needing(per, rounding=math.ceil, reserve=lambda memory, reserved: memory - reserved):
    return lambda n, memory, reserved: rounding(per * n / reserve(memory, reserved))


GPUS = {
    "passed": needing(16),
    "is the `return` missing": lambda *a: None,
    "forgot what is reserved": needing(16, reserve=lambda memory, reserved: memory),
    "you round down": needing(16, rounding=math.floor),
    "the number of GPUs must be whole": needing(16, rounding=float),
    "the weights alone": needing(4),
    "leave out the two moments": needing(8),
    "leave something out": needing(12),
    "reserve that much only once": lambda n, memory, reserved: math.ceil(
        (16 * n + reserved) / memory
    ),
    "16e9 bytes exactly; that is 1 GPU": lambda n, memory, reserved: (
        2 if reserved == 0.0 and n == 1e9 else needing(16)(n, memory, reserved)
    ),
    "for 1.9e+10 parameters, 4e+10 bytes of which 1e+10 are reserved: you round down": needing(
        16, rounding=round
    ),
    "it fits exactly": needing(16, rounding=lambda gpus: int(gpus) + 1),
    "it is 23, and you get 99": lambda *a: 99,
}


def test_fewest_gpus():
    assert_verdicts(checks.fewest_gpus, GPUS)


# bill


def billed(hours=lambda h, **_: h, dollars=lambda h, gpus, price, **_: h * gpus * price):
    def price(flops, gpus, peak, mfu, rate):
        right = accounting.training_seconds(flops, gpus, peak, mfu) / 3600
        facts = {"gpus": gpus, "mfu": mfu, "price": rate}
        return hours(right, **facts), dollars(right, **facts)

    return price


BILLS = {
    "passed": billed(),
    "return two numbers": lambda *a: 3.0,
    "your hours are seconds": billed(hours=lambda h, **_: h * 3600),
    "those are days": billed(hours=lambda h, **_: h / 24),
    "your hours are minutes": billed(hours=lambda h, **_: h * 60),
    "leave out the MFU": billed(hours=lambda h, mfu, **_: h * mfu),
    "you multiply by the MFU": billed(hours=lambda h, mfu, **_: h * mfu**2),
    "how many GPUs share": billed(hours=lambda h, gpus, **_: h * gpus),
    "you pay for one GPU": billed(dollars=lambda h, price, **_: h * price),
    "multiply by seconds": billed(dollars=lambda h, gpus, price, **_: h * 3600 * gpus * price),
    "those of one GPU alone": billed(dollars=lambda h, gpus, price, **_: h * gpus**2 * price),
    "whatever the run takes": billed(dollars=lambda h, gpus, price, **_: gpus * price),
    "the price it is": billed(dollars=lambda h, **_: 0.0),
}


def test_bill():
    assert_verdicts(checks.bill, BILLS)


# mfu_of_log


def used(change=lambda share, **_: share):
    def utilisation(config, step_ms, batch_tokens, gpus, peak):
        speed = batch_tokens / (step_ms / 1000) * accounting.train_flops_per_token(config)
        return change(speed / (gpus * peak), gpus=gpus, tokens=batch_tokens, config=config)

    return utilisation


def by_napkin(share, config, **_):
    napkin = 6 * accounting.count_parameters(config)
    return share * napkin / accounting.train_flops_per_token(config)


LOGS = {
    "passed": used(),
    "is the `return` missing": lambda *a: None,
    "took milliseconds for seconds": used(lambda share, **_: share / 1000),
    "leave out the number of GPUs": used(lambda share, gpus, **_: share * gpus),
    "GPUs twice": used(lambda share, gpus, **_: share / gpus),
    "the forward pass's FLOPs": used(lambda share, **_: share / 3),
    "a percentage": used(lambda share, **_: share * 100),
    "inverted": used(lambda share, **_: 1 / share),
    "those are tokens per second": used(
        lambda share, config, **_: share / accounting.train_flops_per_token(config)
    ),
    "leaves out attention": used(by_napkin),
    "those are the matmuls' FLOPs": used(
        lambda share, config, **_: (
            share
            * 6
            * accounting.matmul_parameters(config)
            / accounting.train_flops_per_token(config)
        )
    ),
    "the FLOPs of GPT-2 124M": used(
        lambda share, config, **_: (
            share
            * accounting.train_flops_per_token(GPTConfig())
            / accounting.train_flops_per_token(config)
        )
    ),
    "the tokens of the batch": used(lambda share, tokens, **_: share / tokens),
    "792.56 ms a step on 2 GPUs it is": used(lambda share, **_: 0.9),
}


def test_mfu_of_log():
    assert_verdicts(checks.mfu_of_log, LOGS)
