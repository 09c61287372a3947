"""The order that notebook 10d answers: a budget, a cluster, and the model that is wanted."""

from cs336_lib.bill.memory import Recompute
from cs336_lib.bill.models import model
from cs336_lib.bill.simulate import Cluster, Workload
from cs336_lib.bill.traffic import Layout
from cs336_lib.system.datasheets import DATASHEET, LINKS

MODEL, TOKENS = "llama3-70b", 1e12
BATCH, SEQ = 512, 8192  # sequences in a step, and tokens in a sequence
GPUS, PRICE = 512, 2.0  # dollars for a GPU and hour
BUDGET = 900_000  # dollars
SAVE, RESTART = 120, 1800  # seconds of a checkpoint, and from a failure to the next step
USABLE = 0.9  # of a GPU's memory; fragments and the driver take the rest
FASTER = 8  # times as many GPUs, for a customer in a hurry
CLUSTER = Cluster(DATASHEET["h100"], LINKS["nvlink4"], LINKS["infiniband-ndr"])


def workload(layout: Layout, recompute: Recompute) -> Workload:
    """Return a step of the model that is wanted."""
    return Workload(model(MODEL).architecture, layout, seq=SEQ, recompute=recompute)
