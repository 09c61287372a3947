"""Datasheets of devices and of the links between them. Importing them needs no PyTorch."""

from dataclasses import dataclass, field

from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json


@dataclass(frozen=True)
class UsualLinks:
    """Links that devices of a kind usually have.

    `machine` is the number of devices in a machine, or of TPUs in a pod. `inner` is the link
    between these and `outer` leads to other machines. Both are keys of `LINKS`, or `None` where no
    source names one.
    """

    machine: int
    source: str
    inner: str | None = None
    outer: str | None = None


@dataclass(frozen=True)
class Device:
    """Datasheet of a device.

    `peak_flops` maps a precision to the peak FLOP/s without sparsity. `bandwidth` is in bytes per
    second. `memory` is the datasheet's number of GB in bytes, and a GPU often has more. PyTorch
    finds 84.9 GB on an H100 of 80 GB. `sustained` is the fraction of the peak that large matmuls
    keep under load, if an A100's is 1.
    """

    name: str
    peak_flops: dict[str, float] = field(hash=False)
    bandwidth: float
    memory: float
    source: str
    links: UsualLinks
    sustained: float = 1.0


DATASHEET = {
    key: Device(**sheet | {"links": UsualLinks(**sheet["links"])})
    for key, sheet in read_json(DATA / "devices.json").items()
}


@dataclass(frozen=True)
class Link:
    """A connection between devices. `bandwidth` is in bytes per second and direction."""

    name: str
    bandwidth: float
    source: str


LINKS = {key: Link(**link) for key, link in read_json(DATA / "links.json").items()}
