"""Datasheets of devices and of the links between them. Importing them needs no PyTorch."""

from dataclasses import dataclass, field

from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json


@dataclass(frozen=True)
class Device:
    """Datasheet of a device.

    `peak_flops` maps a precision to the peak FLOP/s without sparsity. `bandwidth` is in bytes per
    second. `memory` is the datasheet's number of GB in bytes, and a GPU often has more. PyTorch
    finds 84.9 GB on an H100 of 80 GB. `inner` and `outer` are keys of the links that its machines
    usually have, or `None` where no link is known.
    """

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    bandwidth: float
    memory: float
    source: str
    inner: str | None = None
    outer: str | None = None


DATASHEET = {key: Device(**sheet) for key, sheet in read_json(DATA / "devices.json").items()}


@dataclass(frozen=True)
class Link:
    """A connection between devices. `bandwidth` is in bytes per second and direction."""

    name: str
    bandwidth: float
    source: str


LINKS = {key: Link(**link) for key, link in read_json(DATA / "links.json").items()}
