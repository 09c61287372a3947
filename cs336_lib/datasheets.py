"""Peak speed, bandwidth and memory of devices, which `cs336 estimate` reads without PyTorch."""

from dataclasses import dataclass, field

from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json


@dataclass(frozen=True)
class Device:
    """Datasheet of a device.

    `peak_flops` maps a precision to the peak FLOP/s without sparsity. `bandwidth` is in bytes per
    second, and `memory` is in bytes.
    """

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    bandwidth: float
    memory: float
    source: str


DATASHEET = {key: Device(**sheet) for key, sheet in read_json(DATA / "devices.json").items()}
