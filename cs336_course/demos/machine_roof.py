"""Measure the roof of a machine, and the speed of five operators below it, in fp32."""

import torch

from cs336_course.demos.roofline import Roof, elementwise_work, matmul_work
from cs336_course.demos.stopwatch import best_seconds
from cs336_lib.system import hardware

SIZE = 2**25  # numbers of a vector, 134 MB, more than most caches hold


def measured_roof(device: torch.device) -> Roof:
    """Return the peak in fp32 and the memory bandwidth, by datasheet or as measured.

    The peak is that of the fastest of several matmuls, and the bandwidth that of a sum over 268 MB,
    which only reads. Neither is an operator of `measured_points`.
    """
    if sheet := hardware.datasheet(device):
        return Roof(f"{sheet.name}, fp32", sheet.peak_flops["fp32"], sheet.bandwidth)
    peak = max(
        hardware.measured_matmul_flops(device, torch.float32, n) for n in hardware.PEAK_SIZES[:4]
    )
    return Roof("This machine, fp32", peak, hardware.read_bandwidth(device))


def measured_points(device: torch.device) -> dict[str, tuple[float, float]]:
    """Return the arithmetic intensity and the FLOP/s of operators, by name.

    Each writes into memory that exists, so no time goes to allocation.
    """
    big, other, out = (torch.ones(SIZE, device=device) for _ in range(3))
    square, vector = torch.ones(8192, 8192, device=device), torch.ones(8192, device=device)
    a, b, product = (torch.randn(512, 512, device=device) for _ in range(3))
    scalar, column = torch.empty((), device=device), torch.empty(8192, device=device)
    runs = {
        "ReLU": (elementwise_work(SIZE, 1, 4), lambda: torch.clamp_min(big, 0, out=out)),
        "GELU": (
            elementwise_work(SIZE, 20, 4),
            lambda: torch.ops.aten.gelu.out(big, approximate="tanh", out=out),
        ),
        "dot": (matmul_work(1, SIZE, 1, 4), lambda: torch.dot(big, other, out=scalar)),
        "matvec": (matmul_work(8192, 8192, 1, 4), lambda: torch.mv(square, vector, out=column)),
        "matmul, n = 512": (matmul_work(512, 512, 512, 4), lambda: torch.mm(a, b, out=product)),
    }
    seconds = best_seconds({name: run for name, (_, run) in runs.items()}, device, rounds=8)
    return {name: (w.intensity, w.flops / seconds[name]) for name, (w, _) in runs.items()}
