"""Name what whole families of training programs do, so that a simulation can do the same."""

from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from cs336_lib.accounting import require_choice
from cs336_lib.bill.memory import Recompute
from cs336_lib.config import SimulateConfig


@dataclass(frozen=True)
class Stack:
    """Settings of a training program.

    Attributes:
        source: Where they come from.
        attention: Whether it stores its scores, which is called eager.
        sequence: Whether tensor parallelism also splits norms and residuals.
        recompute: What the backward pass computes again.
        overlap: Whether gradients and weights travel during the passes.
        zero: ZeRO stage.
    """

    source: str
    attention: Literal["fused", "eager"]
    sequence: bool
    recompute: Recompute
    overlap: bool
    zero: int


STACKS = {
    "megatron-2021": Stack(
        "Megatron-LM, examples/academic_paper_scripts/sc21 (full recomputation) and "
        "megatron/training.py of 2021 (gradients are all-reduced after the last backward "
        "pass)",
        attention="eager",
        sequence=False,
        recompute="full",
        overlap=False,
        zero=0,
    ),
    "megatron-2024": Stack(
        "Megatron-LM, docs/user-guide/parallelism-guide.md (overlap of gradients and "
        "weights) and NeMo-Framework-Launcher, nemotron_340b.yaml (sequence parallelism, no "
        "recomputation, distributed optimizer)",
        attention="fused",
        sequence=True,
        recompute="none",
        overlap=True,
        zero=1,
    ),
    "torchtitan": Stack(
        "torchtitan, distributed/fsdp.py (weights are freed after each forward pass) and "
        "benchmarks/llama3_h100_202412_torchtitan.md (selective recomputation)",
        attention="fused",
        sequence=True,
        recompute="selective",
        overlap=True,
        zero=3,
    ),
    "fsdp2": Stack(
        "torchtitan, docs/fsdp.md (resharding is ZeRO-3) and "
        "docs.pytorch.org/docs/stable/notes/fsdp.html (weights are prefetched during the "
        "passes)",
        attention="fused",
        sequence=True,
        recompute="none",
        overlap=True,
        zero=3,
    ),
    "ddp": Stack(
        "github.com/pytorch/pytorch, issue 118421: gradients are all-reduced in buckets of "
        "25 MB during the backward pass",
        attention="fused",
        sequence=False,
        recompute="none",
        overlap=True,
        zero=0,
    ),
}


def filled(wanted: SimulateConfig) -> SimulateConfig:
    """Return the flags of a simulation, with the settings of its stack where no flag is given.

    Raises:
        UserError: If the stack or the kind of attention is unknown.
    """
    require_choice("attention", wanted.attention or "fused", ("fused", "eager"))
    if wanted.stack is None:
        return wanted
    require_choice("stack", wanted.stack, STACKS)
    usual = asdict(STACKS[wanted.stack])
    del usual["source"]
    missing = {name: value for name, value in usual.items() if getattr(wanted, name) is None}
    return replace(wanted, **missing, stack=None)


def settings(wanted: SimulateConfig) -> dict[str, Any]:
    """Return the fields of a `simulate.Workload` that the flags of a simulation set."""
    return {
        "fused_attention": wanted.attention != "eager",
        "sequence": wanted.sequence is not False,
        "overlap": wanted.overlap is not False,
        "async_tensor": bool(wanted.async_tp),
    }
