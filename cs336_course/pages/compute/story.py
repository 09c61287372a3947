"""Measure the roof of a machine, and the speed of five operators below it, in fp32."""

from collections.abc import Callable

import torch

from cs336_course.shared.roofline import Roof, Work, elementwise_work, matmul_work
from cs336_course.shared.stopwatch import best_seconds
from cs336_lib.system import hardware

SIZE = 2**25  # numbers of a vector, 134 MB, more than most caches hold
PEAK_SIZES = (256, 512, 768, 1024)
ROUNDS = 12

Points = dict[str, tuple[float, float]]


def measured(device: torch.device) -> tuple[Roof, Points]:
    """Return the roof in fp32, and the intensity and FLOP/s of operators, by name.

    The roof comes from the datasheet if we know the device. Otherwise the peak is that of the
    fastest matmul of several sizes, and the bandwidth that of a sum over 134 MB, which only reads.
    Roof and operators are measured in turns, and the best of many rounds counts, so that other
    programs disturb both alike.
    """
    works, runs = operators(device)
    seconds = best_seconds({**runs, **roof_runs(device)}, device, rounds=ROUNDS)
    points = {name: (w.intensity, w.flops / seconds[name]) for name, w in works.items()}
    if sheet := hardware.datasheet(device):
        return Roof(f"{sheet.name}, fp32", sheet.peak_flops["fp32"], sheet.bandwidth), points
    peak = max(2 * n**3 / seconds[str(n)] for n in PEAK_SIZES)
    return Roof("This machine, fp32", peak, 4 * SIZE / seconds["sum"]), points


def roof_runs(device: torch.device) -> dict[str, Callable[[], object]]:
    """Return what measures the roof, a sum and a matmul of each size."""
    big = torch.ones(SIZE, device=device)
    runs: dict[str, Callable[[], object]] = {"sum": big.sum}
    for n in PEAK_SIZES:
        a, b, out = (torch.randn(n, n, device=device) for _ in range(3))
        runs[str(n)] = lambda a=a, b=b, out=out: torch.mm(a, b, out=out)
    return runs


def operators(
    device: torch.device,
) -> tuple[dict[str, Work], dict[str, Callable[[], object]]]:
    """Return the work of five operators, and functions that run them, by name.

    Each writes into memory that exists, so no time goes to allocation.
    """
    big, other, out = (torch.ones(SIZE, device=device) for _ in range(3))
    square, vector = torch.ones(8192, 8192, device=device), torch.ones(8192, device=device)
    a, b, product = (torch.randn(512, 512, device=device) for _ in range(3))
    scalar, column = torch.empty((), device=device), torch.empty(8192, device=device)
    works = {
        "ReLU": elementwise_work(SIZE, 1, 4),
        "GELU": elementwise_work(SIZE, 20, 4),
        "dot": matmul_work(1, SIZE, 1, 4),
        "matvec": matmul_work(8192, 8192, 1, 4),
        "matmul, n = 512": matmul_work(512, 512, 512, 4),
    }
    runs: dict[str, Callable[[], object]] = {
        "ReLU": lambda: torch.clamp_min(big, 0, out=out),
        "GELU": lambda: torch.ops.aten.gelu.out(big, approximate="tanh", out=out),
        "dot": lambda: torch.dot(big, other, out=scalar),
        "matvec": lambda: torch.mv(square, vector, out=column),
        "matmul, n = 512": lambda: torch.mm(a, b, out=product),
    }
    return works, runs


# FLOP/s of an (n, n) @ (n, n) matmul in bf16 on a Hopper GPU (sm_90), by n. From OpenXLA's table of
# matmul speeds (2025), xla/service/gpu/model/matmul_interpolator_data.h in github.com/openxla/xla.
HOPPER_MATMULS = {256: 6.45e12, 512: 40.7e12, 1024: 236.3e12, 2048: 632.0e12, 4096: 783.3e12}

# Shares of the FLOPs and of the time of operators in training an encoder layer of BERT-large with
# PyTorch on a V100, from table 1 of "Data Movement Is All You Need" (Ivanov et al. 2021,
# arXiv 2007.00072).
BERT_ON_V100 = {
    "matmuls": (0.9980, 0.610),
    "norms, softmax": (0.0017, 0.255),
    "element-wise": (0.0003, 0.135),
}

# GPU hours of an H100-80GB for pretraining, from Meta's model card of Llama 3 (April 2024).
LLAMA3_HOURS = {"llama3-8b": 1.3e6, "llama3-70b": 6.4e6}
