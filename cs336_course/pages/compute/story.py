"""Measure a roof and operators below it, and hold what others published about their runs."""

from collections.abc import Callable
from dataclasses import dataclass

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

    If no datasheet knows the device, the peak is that of the fastest matmul, and the bandwidth that
    of a sum, which only reads. All are measured in turns, so that others disturb them alike.
    """
    works, runs = operators(device)
    seconds = best_seconds({**runs, **roof_runs(device)}, device, rounds=ROUNDS)
    points = {name: (w.intensity, w.flops / seconds[name]) for name, w in works.items()}
    if sheet := hardware.datasheet(device):
        return Roof(f"{sheet.name}, fp32", sheet.peak_flops["fp32"], sheet.bandwidth), points
    matmuls = [2 * n**3 / seconds[str(n)] for n in PEAK_SIZES]
    peak = max(points["matmul, n = 512"][1], *matmuls)
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
    """Return the work of four operators, and functions that run them, by name.

    Each writes into memory that exists, so no time goes to allocation.
    """
    big, other, out = (torch.ones(SIZE, device=device) for _ in range(3))
    square, vector = torch.ones(8192, 8192, device=device), torch.ones(8192, device=device)
    a, b, product = (torch.randn(512, 512, device=device) for _ in range(3))
    scalar, column = torch.empty((), device=device), torch.empty(8192, device=device)
    works = {
        "ReLU": elementwise_work(SIZE, 1, 4),
        "dot": matmul_work(1, SIZE, 1, 4),
        "matvec": matmul_work(8192, 8192, 1, 4),
        "matmul, n = 512": matmul_work(512, 512, 512, 4),
    }
    runs: dict[str, Callable[[], object]] = {
        "ReLU": lambda: torch.clamp_min(big, 0, out=out),
        "dot": lambda: torch.dot(big, other, out=scalar),
        "matvec": lambda: torch.mv(square, vector, out=column),
        "matmul, n = 512": lambda: torch.mm(a, b, out=product),
    }
    return works, runs


# GPU hours of an H100-80GB, from Meta's model cards of Llama 3 (April 2024) and, for 405B, of 3.1.
LLAMA3_HOURS = {"llama3-8b": 1.3e6, "llama3-70b": 6.4e6, "llama3-405b": 30.84e6}

# Tokens a second at which Llama 2 7B writes one text on an A100 80 GB of 330 W, and that times the
# gigabytes of its weights, by their format. From the README of github.com/pytorch-labs/gpt-fast.
GPT_FAST = {"bf16": (104.9, 1397.31), "int8": (155.58, 1069.20), "int4": (196.80, 862.69)}


@dataclass(frozen=True)
class Kernel:
    """All calls of a kernel in a step: FLOPs, bytes that must move, FLOP/s of its units, time."""

    name: str
    flops: float
    bytes: float
    peak: float
    seconds: float


# A training step of GPT-2 124M in llm.c, with 24 sequences of 1,024 tokens in bf16 on an A100 SXM4
# 40 GB, as A. Demeure profiled it on 7 May 2024 (github.com/karpathy/llm.c/pull/378): milliseconds,
# FLOPs and numbers of 2 bytes a token, both from the kernels' shapes, with rough FLOPs where they
# wait for bytes. AdamW moves 28 bytes a parameter. Four kernels are left out (0.4 % of the time).
# The profiler holds the clock at 1,095 MHz of 1,410, and the memory at its full speed.
A100 = Roof("A100 40 GB, bf16", 312e12, 1.555e12, 19.5e12)
TENSOR, VECTOR = 242.3e12, 15.1e12
PROFILED = Roof("the same in the profiler", TENSOR, 1.555e12, VECTOR)
TOKENS, WIDTH, VOCABULARY, PARAMETERS = 24 * 1024, 768, 50_304, 124_475_904
ALL = 12 * WIDTH  # numbers of a token in the residual stream of all layers
PROFILE = {
    "matmul": (88.62, 6 * (ALL * 12 + VOCABULARY) * WIDTH, 3 * (16 * ALL + WIDTH + VOCABULARY)),
    "attention": (18.31 + 1.73 + 0.77, 6 * 1024 * ALL, 12 * ALL),
    "layernorm backward": (7.47, 10 * 25 * WIDTH, 4 * 25 * WIDTH),
    "classifier": (4.91, 10 * VOCABULARY, 2 * VOCABULARY),
    "bias gradient": (4.67, 9 * ALL, 9 * ALL),
    "GELU backward": (4.48, 40 * 4 * ALL, 3 * 4 * ALL),
    "GELU": (2.75, 20 * 4 * ALL, 2 * 4 * ALL),
    "AdamW": (2.57, 14 * PARAMETERS / TOKENS, 14 * PARAMETERS / TOKENS),
    "residual": (1.73, 2 * ALL, 3 * 2 * ALL),
    "layernorm": (1.70, 8 * 25 * WIDTH, 2 * 25 * WIDTH),
}
# The two kernels of an MLP's first half in the forward pass of all layers, from the same lists.
MLP_MS = {"c_fc": 7.25, "GELU": PROFILE["GELU"][0]}
LLMC_STEP = [
    Kernel(
        name,
        flops * TOKENS,
        2 * numbers * TOKENS,
        TENSOR if name in ("matmul", "attention") else VECTOR,  # of NVIDIA's libraries
        ms / 1e3,
    )
    for name, (ms, flops, numbers) in PROFILE.items()
]
