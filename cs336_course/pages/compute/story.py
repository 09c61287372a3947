"""Measure the roof of a machine, and the speed of five operators below it, in fp32."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from cs336_course.shared.roofline import Roof, Work, elementwise_work, least_seconds, matmul_work
from cs336_course.shared.stopwatch import best_seconds, seconds_in_turns
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


KINDS = {
    "matmul": ("mm", "addmm"),
    "attention": ("bmm", "_softmax", "_softmax_backward_data"),
    "loss": ("_log_softmax", "_log_softmax_backward_data", "nll_loss_forward"),
}


@dataclass(frozen=True)
class Operation:
    """Kind, FLOPs, bytes and time (in seconds) of an operator call."""

    name: str
    kind: str
    work: Work
    seconds: float


def tensors(tree: Any) -> list[Tensor]:
    """Return all tensors in a nested structure of arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


class OperatorTimes(TorchDispatchMode):
    """Record an `Operation` for every operator call within this block, except views.

    We assume that an operator reads each input and writes each result once. The FLOPs of a matmul
    come from PyTorch's FLOP counter. Other operators count as one FLOP per result value. The device
    is synchronized before and after each call, so on a GPU the time includes the kernel launch.

    Args:
        device: Device to synchronize.
        kind: Kind of operators that aren't in KINDS. You can assign a new kind between phases.
    """

    def __init__(self, device: torch.device, kind: str = "element-wise, norms"):
        super().__init__()
        self.device, self.kind = device, kind
        self.operations: list[Operation] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operator and record it."""
        kwargs = kwargs or {}
        hardware.synchronize(self.device)
        start = time.perf_counter()
        result = func(*args, **kwargs)
        hardware.synchronize(self.device)
        seconds = time.perf_counter() - start
        aliases = [returned.alias_info for returned in func._schema.returns]
        if any(alias is not None and not alias.is_write for alias in aliases):
            return result  # a view moves no data
        written = tensors(result)
        moved = tensors((args, kwargs)) + written
        # An expanded tensor has more values than its memory holds.
        size = sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in moved)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            flops = formula(*args, **kwargs, out_val=result)
        else:
            flops = sum(math.prod(t.shape) for t in written)
        name = func._overloadpacket.__name__
        kind = next((kind for kind, names in KINDS.items() if name in names), self.kind)
        self.operations.append(Operation(name, kind, Work(flops, size), seconds))
        return result


def time_operators(
    forward: Callable[[], Tensor], optimizer: torch.optim.Optimizer, device: torch.device
) -> list[Operation]:
    """Return all operator calls of one training step. Attention runs as separate matmuls.

    Args:
        forward: Function that computes the loss.
        optimizer: Optimizer for the update. Its operators have the kind "AdamW".
        device: Device of the model.
    """
    with sdpa_kernel(SDPBackend.MATH), OperatorTimes(device) as watch:
        forward().backward()
        watch.kind = "AdamW"
        optimizer.step()
        optimizer.zero_grad()
    return watch.operations


def step_and_operators(
    forward: Callable[[], Tensor],
    optimizer: torch.optim.Optimizer,
    device: torch.device,
    rounds: int = 25,
) -> tuple[float, list[Operation]]:
    """Return the shortest time of a step in seconds, and the operator calls of the fastest step.

    Plain steps and steps with a clock around each operator take turns, so that other programs
    disturb both alike. All operators are of one step. See `time_operators` for the arguments.
    """

    def step() -> None:
        with sdpa_kernel(SDPBackend.MATH):
            forward().backward()
            optimizer.step()
            optimizer.zero_grad()

    steps, plain = [], []
    for _ in range(2 + rounds):  # two warm up
        plain += seconds_in_turns({"step": step}, device, rounds=1, warmup=0)["step"]
        steps.append(time_operators(forward, optimizer, device))
    return min(plain), min(steps, key=lambda calls: sum(call.seconds for call in calls))


def cost_table(operations: Sequence[Operation], roof: Roof | None = None) -> str:
    """Format the calls, the work and the time of each kind of operators.

    With a roof, a row also has the shortest time below it.
    """
    bound = f"{'roofline ms':>13}" if roof else ""
    rows = [f"{'kind':20}{'calls':>6}{'MFLOP':>8}{'MB':>6}{'ms':>8}{bound}"]
    for kind in dict.fromkeys(op.kind for op in operations):
        ops = [op for op in operations if op.kind == kind]
        mflop, mb = (sum(getattr(op.work, of) for op in ops) / 1e6 for of in ("flops", "bytes"))
        took = 1e3 * sum(op.seconds for op in ops)
        row = f"{kind:20}{len(ops):6}{mflop:8,.0f}{mb:6.0f}{took:8.2f}"
        if roof:
            least = sum(least_seconds(op.work, roof.peak, roof.bandwidth) for op in ops)
            row += f"{1e3 * least:13.2f}"
        rows.append(row)
    return "\n".join(rows)


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
