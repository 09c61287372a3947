"""Find where the communication of data parallelism stops hiding behind arithmetic."""

import math

from cs336_lib.bill.network import Cluster
from cs336_lib.bill.simulate import (
    Workload,
    data_seconds,
    hiding_seconds,
)


def data_limit(work: Workload, cluster: Cluster) -> float:
    """Return the fewest tokens of a device in a micro-batch at which data parallelism hides.

    DDP all-reduces 8 bytes per parameter, and computes 4 FLOPs per parameter and token backward.
    It hides if 8 / B <= 4 tokens / F, so from 2 F / B tokens on. ZeRO-1 sends 4 bytes backward, and
    2 bytes in a forward pass of 2 FLOPs, so F / B tokens are enough. FSDP sends 2 + 4 bytes in each
    backward pass, so each micro-batch needs 1.5 F / B tokens.

    F is the FLOP/s of a device, and B the bytes per second of its collective. The passes are those
    of `simulate`, which also have attention and elementwise operators.

    Returns:
        Tokens, or infinity without `work.overlap`.
    """
    tokens = work.layout.micro_batch * work.seq / work.layout.cp
    pairs = zip(data_seconds(work, cluster), hiding_seconds(work, cluster), strict=True)
    return tokens * max(sent / free if free else math.inf * bool(sent) for sent, free in pairs)
