"""Checks of notebook 10 on sharing a batch, scaling a loss, counting GPUs, costs, and MFU."""

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn

from cs336_lib import accounting
from cs336_lib.classroom.checks.report import DiagnosisError, exercise, expect
from cs336_lib.config import GPTConfig

NO_END = "a range excludes its end, so drop the + 1."

__all__ = ["bill", "fewest_gpus", "loss_scale", "mfu_of_log", "share"]


def close(got: float, want: float) -> bool:
    """Return whether two numbers are equal up to rounding."""
    return math.isclose(got, want, rel_tol=1e-6)


def expect_number(got: object, want: float, case: str, mistakes: Mapping[str, float]) -> None:
    """Fail unless `got` is `want`, with the diagnosis of a known mistake if one fits."""
    expect(got is not None, "your function returns None; is the `return` missing?")
    expect(
        isinstance(got, int | float) and not isinstance(got, bool),
        f"a number is expected, not {type(got).__name__}.",
    )
    if close(got, want):
        return
    for diagnosis, wrong in mistakes.items():
        if close(got, wrong):
            raise DiagnosisError(diagnosis)
    raise DiagnosisError(f"for {case} it is {want:,.6g}, and you get {got:,.6g}.")


@exercise
def share(mine: Callable[[int, int, int], range]) -> None:
    """Check `mine(rank, size, count)`, the range of windows of this rank."""
    for size, count in ((1, 5), (2, 12), (2, 7), (3, 8), (8, 512), (5, 13)):
        try:
            parts = [mine(rank, size, count) for rank in range(size)]
        except TypeError as error:
            expect("float" not in str(error), "a range takes whole numbers: divide with //, not /.")
            raise
        expect(parts[0] is not None, "your function returns None; is the `return` missing?")
        expect(
            all(isinstance(part, range) for part in parts),
            f"return a range, as in range(3, 6), not {type(parts[0]).__name__}.",
        )
        case = f"{count} windows over {size} processes"
        read = [window for part in parts for window in part]
        every = count // size
        expect(
            all(part.step == 1 for part in parts if len(part) > 1),
            f"with {case} you deal the windows out like cards; each rank needs consecutive "
            "ones, so "
            "that its part is one range.",
        )
        expect(
            not (count % size and len(read) == size * every and len(set(read)) == len(read)),
            f"with {case} the last {count % size} are never read, because count // size "
            "rounds down.",
        )
        expect(
            max(read, default=0) < count,
            f"with {case} a rank reads window {max(read, default=0)}, which doesn't exist; "
            + ("rounding up gives the last rank too much." if count % size else NO_END),
        )
        expect(
            len(read) == len(set(read)),
            f"with {case} a window is read twice, so it counts twice in the gradient.",
        )
        expect(sorted(read) == list(range(count)), f"with {case} not every window is read.")
        sizes = [len(part) for part in parts]
        rest = "do not leave the whole rest to one rank"
        if sizes[-1] < max(sizes):
            rest = "rounding up each part leaves the last rank too little"
        expect(
            max(sizes) - min(sizes) <= 1,
            f"with {case} the parts have {sizes} windows. All ranks wait for the slowest, so the "
            f"parts may differ by at most one; {rest}.",
        )
        expect(read == list(range(count)), "the parts must come in the order of the ranks.")


def averaged_gradient(scale: Callable[[int, int, int], float], sizes: list[list[int]]) -> float:
    """Return the gradient after DDP's average, in units of the whole batch's gradient.

    `sizes` holds each rank's micro-batches. Every example has a gradient of 1, and so does the
    batch.
    """
    weight = nn.Parameter(torch.zeros(()))
    total, world = sum(map(sum, sizes)), len(sizes)
    per_rank = []
    for pieces in sizes:
        weight.grad = None
        for size in pieces:
            loss = (weight * torch.ones(size)).mean()
            (loss * scale(size, total, world)).backward()
        per_rank.append(weight.grad.item())
    return sum(per_rank) / world  # what DDP does


@exercise
def loss_scale(scale: Callable[[int, int, int], float]) -> None:
    """Check `scale(size, total, world)`, the factor of a micro-batch's mean loss on a rank."""
    got = scale(3, 12, 2)
    expect_number(
        got,
        3 / 12 * 2,
        "scale(3, 12, 2)",
        {
            "size / total is right on one process. DDP then divides the sum over the ranks by "
            "their number, so the gradient comes out `world` times too small: undo that.": 3 / 12,
            "you divide by the number of processes; DDP does that already, so undo it instead: "
            "multiply.": 3 / 12 / 2,
            "that weighs all micro-batches alike, which is right only if their sizes "
            "are equal.": 1.0,
            "that is total / size, which is inverted; a small micro-batch must count little.": 12
            / 3,
            "that has the size of the micro-batch, but not that of the whole batch.": 3 * 2,
            "that has the whole batch, but not the micro-batch: its loss is a mean, so one of "
            "`size` windows must count `size` times.": 2 / 12,
            "neither size nor world: the micro-batch's loss is a mean already (of `size` windows), "
            "and DDP divides once more.": 1 / 12,
            "that divides by the number of processes; the micro-batch is a part of `total`.": (
                3 / 2
            ),
        },
    )
    for sizes in ([[3, 3], [3, 3]], [[4, 2], [3, 3]], [[2], [2], [1]], [[5, 5, 2]]):
        length = averaged_gradient(scale, sizes)
        expect(
            close(length, 1.0),
            f"with micro-batches of {sizes} the gradient is {length:.3g} times the batch's.",
        )


@exercise
def fewest_gpus(gpus: Callable[[float, float, float], int]) -> None:
    """Check `gpus(parameters, memory, reserved)`, the fewest GPUs for FSDP with fp32 AdamW."""
    for parameters, memory, reserved in (
        (100e9, 80e9, 10e9),
        (19e9, 40e9, 10e9),  # 10.1 GPUs, so rounding to the nearest number gives too few
        (7e9, 80e9, 20e9),
        (5e9, 80e9, 0),
    ):
        per = 16 * parameters
        room = memory - reserved
        want = math.ceil(per / room)
        case = f"{parameters:g} parameters, {memory:g} bytes of which {reserved:g} are reserved"
        got = gpus(parameters, memory, reserved)
        expect_number(
            got,
            want,
            case,
            {
                f"for {case}: you forgot what is reserved on each GPU for activations.": (
                    math.ceil(per / memory) if reserved else -1
                ),
                f"for {case}: you round down, so a little does not fit; round up.": per // room,
                f"for {case}: it fits exactly; one more than the quotient is one too many. Use "
                "math.ceil.": per // room + 1,
                f"for {case}: you reserve that much only once; reserve it on every GPU.": math.ceil(
                    (per + reserved) / memory
                ),
                f"for {case}: 4 bytes a parameter are the weights alone; AdamW in fp32 has a "
                "gradient and two moments as well: 16.": math.ceil(4 * parameters / room),
                f"for {case}: 8 bytes a parameter leave out the two moments.": math.ceil(
                    8 * parameters / room
                ),
                f"for {case}: 12 bytes a parameter leave something out: weights, gradient and two "
                "moments are 16.": math.ceil(12 * parameters / room),
                f"for {case}: the number of GPUs must be whole; round up.": per / room,
            },
        )
    whole = gpus(1e9, 16e9, 0.0)
    expect(whole == 1, f"1e9 parameters fill 16e9 bytes exactly; that is 1 GPU, not {whole}.")


@exercise
def bill(price: Callable[..., tuple[float, float]]) -> None:
    """Check `price(flops, gpus, peak, mfu, dollars)`, which returns the hours and their cost."""
    for flops, gpus, peak, mfu, dollars in (
        (8.5e18, 8, 989.5e12, 0.4, 3.5),
        (8.5e18, 1, 312e12, 0.5, 1.75),
    ):
        got = price(flops, gpus, peak, mfu, dollars)
        expect(
            isinstance(got, tuple | list) and len(got) == 2,
            "return two numbers: hours, and dollars.",
        )
        hours = flops / (gpus * peak * mfu) / 3600
        case = f"{flops:g} FLOPs on {gpus} GPUs of {peak:g} FLOP/s at MFU {mfu:g}"
        expect_number(
            got[0],
            hours,
            f"{case}, the hours",
            {
                "your hours are seconds; divide by 3600.": hours * 3600,
                "you divide the seconds by 86,400: those are days.": hours / 24,
                "your hours are minutes: an hour has 3600 seconds.": hours * 60,
                "you leave out the MFU: no run reaches its peak.": hours * mfu,
                "you multiply by the MFU; a lower one must take longer.": hours * mfu**2,
                "you leave out how many GPUs share the work.": hours * gpus,
            },
        )
        expect_number(
            got[1],
            hours * gpus * dollars,
            f"{case} and ${dollars} a GPU hour, the price",
            {
                "you pay for one GPU; all of them run.": hours * dollars,
                "that is the price of an hour, whatever the run takes.": gpus * dollars,
                "the price is per hour, but you multiply by seconds.": hours
                * 3600
                * gpus
                * dollars,
                "the hours are those of one GPU alone, and you multiply by all of them.": (
                    hours * gpus * gpus * dollars
                ),
            },
        )


@exercise
def mfu_of_log(utilisation: Callable[..., float]) -> None:
    """Check `utilisation(config, step_ms, batch_tokens, gpus, peak)`, the MFU from a log."""
    small, large = GPTConfig(), GPTConfig(n_layer=48, n_head=25, n_embd=1600)
    for config, step_ms, tokens, gpus in (
        (small, 792.56, 524_288, 2),
        (small, 139.0, 524_288, 8),
        (large, 2800.0, 1_048_576, 8),
    ):
        peak, per_token = 989.5e12, accounting.train_flops_per_token(config)
        want = per_token * tokens / (step_ms / 1000) / (gpus * peak)
        expect_number(
            utilisation(config, step_ms, tokens, gpus, peak),
            want,
            f"{step_ms} ms a step on {gpus} GPUs",
            {
                "you took milliseconds for seconds.": want / 1000,
                "you leave out the number of GPUs: the peak is all of theirs.": want * gpus,
                "you divide by the number of GPUs twice; the log's step is that of all together.": (
                    want / gpus
                ),
                "those are the forward pass's FLOPs; a step goes backward as well.": want / 3,
                "that is a percentage; an MFU is a share, as in 0.4.": want * 100,
                "that is inverted; divide the run's FLOP/s by the GPUs' peak.": 1 / want,
                "those are tokens per second; multiply by the FLOPs per token, "
                "train_flops_per_token.": (want / per_token),
                "6 x parameters leaves out attention (and counts embeddings that are only looked "
                "up): use accounting.train_flops_per_token.": (
                    want * 6 * accounting.count_parameters(config) / per_token
                ),
                "those are the matmuls' FLOPs; attention's scores and sums are missing: use "
                "accounting.train_flops_per_token.": (
                    want * 6 * accounting.matmul_parameters(config) / per_token
                ),
                "those are the FLOPs of GPT-2 124M; use `config`.": (
                    math.inf
                    if config is small
                    else want * accounting.train_flops_per_token(small) / per_token
                ),
                "those are the FLOPs of one token; multiply by the tokens of the batch.": (
                    want / tokens
                ),
            },
        )
