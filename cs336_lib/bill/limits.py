"""Find where communication stops hiding behind arithmetic, for each kind of parallelism.

The formulas have F for the FLOP/s of a device and B for the bytes per second of its collective. The
functions use the passes of `simulate`, which also have attention and elementwise operators.
"""

import math
from dataclasses import replace

from cs336_lib.bill import traffic
from cs336_lib.bill.network import Cluster
from cs336_lib.bill.simulate import (
    Workload,
    computing_pass,
    data_seconds,
    hiding_seconds,
)


def data_limit(work: Workload, cluster: Cluster) -> float:
    """Return the fewest tokens of a device in a micro-batch at which data parallelism hides.

    DDP all-reduces 8 bytes per parameter, and computes 4 FLOPs per parameter and token backward.
    It hides if 8 / B <= 4 tokens / F, so from 2 F / B tokens on. ZeRO-1 sends 4 bytes backward, and
    2 bytes in a forward pass of 2 FLOPs, so F / B tokens are enough. FSDP sends 2 + 4 bytes in each
    backward pass, so each micro-batch needs 1.5 F / B tokens.

    Returns:
        Tokens, or infinity without `work.overlap`.
    """
    tokens = work.layout.micro_batch * work.seq / work.layout.cp
    pairs = zip(data_seconds(work, cluster), hiding_seconds(work, cluster), strict=True)
    return tokens * max(sent / free if free else math.inf * bool(sent) for sent, free in pairs)


def tensor_limit(work: Workload, cluster: Cluster) -> float:
    """Return the largest number of devices that can share a matrix and hide its sums (async TP).

    A block of M parameters has 2 M / t FLOPs per token on each of t devices. Its two sums of d
    numbers in bf16 send 8 d (t - 1) / t bytes in the forward pass. They hide if 8 d (t - 1) / B <=
    2 M / F, so t is at most 1 + M B / (4 d F). Both grow with the tokens, which cancel.
    """
    one = replace(work, layout=replace(work.layout, tp=1))
    computing = computing_pass(one, cluster)
    hides = cluster.efficiency.overlap * (computing.matrices + computing.attention)
    tokens = work.layout.micro_batch * work.seq / work.layout.cp
    residual = traffic.LOW * tokens * work.architecture.n_embd
    sums = 4 * residual / cluster.bandwidth(work.layout.tp)  # times (t - 1) / t
    return 1 + hides / sums
