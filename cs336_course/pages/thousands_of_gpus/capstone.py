"""The order that the side trip answers: a budget, a cluster, and the model that is wanted."""

from dataclasses import replace
from itertools import accumulate, pairwise

from cs336_lib.bill.models import model
from cs336_lib.bill.simulate import Cluster, Workload, simulate
from cs336_lib.bill.traffic import Layout, Recompute
from cs336_lib.system.datasheets import DATASHEET, LINKS

MODEL, TOKENS = "llama3-70b", 1e12
BATCH, SEQ = 512, 8192  # sequences in a step, and tokens in a sequence
GPUS, PRICE = 512, 2.0  # dollars for a GPU and hour
BUDGET = 900_000  # dollars
SAVE, RESTART = 120, 1800  # seconds of a checkpoint, and from a failure to the next step
USABLE = 0.9  # of a GPU's memory; fragments and the driver take the rest
CLUSTER = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])


def workload(layout: Layout, recompute: Recompute) -> Workload:
    """Return a step of the model that is wanted."""
    return Workload(model(MODEL).architecture, layout, seq=SEQ, recompute=recompute)


def squares(work: Workload) -> dict[str, int]:
    """Divide the GPUs of the cluster as a step divides its time, into whole GPUs.

    Those that do work at full speed come first. The matmuls take longer than this at the speed that
    programs reach, and what is computed again has its own part.
    """
    step, rented = simulate(work, CLUSTER), work.layout.devices
    once = simulate(replace(work, recompute="none"), CLUSTER).parts
    parts, matmuls = step.parts, once["matmuls"] / step.seconds
    computing = (parts["matmuls"] + parts["elementwise"]) / step.seconds
    elementwise = once["elementwise"] / step.seconds
    shares = {
        "work, at full speed": step.mfu,
        "matmuls below full speed": matmuls - step.mfu,
        "elementwise operators": elementwise,
        "computing again": computing - matmuls - elementwise,
        "waiting for sums": parts["tensor"] / step.seconds,
        "waiting for weights": parts["data"] / step.seconds,
    }
    ends = [round(rented * end) for end in accumulate(shares.values(), initial=0.0)]
    return {part: end - start for part, (start, end) in zip(shares, pairwise(ends), strict=True)}
