"""Model the links of a cluster: those between devices, and those between machines."""

import math
from dataclasses import dataclass, field, fields, replace
from typing import Literal

from cs336_lib.accounting import require_choice
from cs336_lib.config import UserError
from cs336_lib.system.datasheets import LINKS, Device, Link

Collective = Literal["ring", "all-to-all"]
UNUSED = Link("unused", math.inf, "a cluster this small has no such link")


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a datasheet's speeds that a well-written program reaches.

    `tools.fit_simulator` fits the defaults to the published steps of data/layouts.json that aren't
    held out. docs/published_runs.md has their errors.

    Attributes:
        matmul: Fraction of the peak FLOP/s in large matmuls.
        hopper: Further fraction on an H100, H200 or H800, whose clock falls under full load.
        attention: Fraction of the peak FLOP/s in fused attention, relative to `matmul`.
        memory: Fraction of the memory bandwidth in elementwise operations.
        inner: Fraction of the bandwidth between the devices of a machine.
        outer: Fraction of the bandwidth between machines.
        overlap: Fraction of the passes during which gradients and weights travel for free.
        async_tensor: Fraction of the sums of tensor parallelism that async TP hides. It isn't
            fitted: torchtitan's benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md has 9% and
            10% more tokens/s with it, and without it a third of a simulated step are sums.
    """

    matmul: float = 0.72
    hopper: float = 0.84
    attention: float = 0.35
    memory: float = 1.0
    inner: float = 0.4
    outer: float = 0.95
    overlap: float = 0.65
    async_tensor: float = 0.3


@dataclass(frozen=True)
class Cluster:
    """Devices and the links between them.

    Neighbors in numbering are near each other: tensor parallelism has consecutive devices, then
    come context, data and pipeline parallelism, as in Megatron-LM. Only bandwidths count here, and
    no latencies.

    Attributes:
        device: Datasheet of a device.
        inner: Link between the devices of a machine.
        outer: Link of a network card to other machines.
        machine: Number of devices in a machine.
        cards: Number of network cards that the devices of a machine share.
        efficiency: Fractions of these speeds that are reached.
    """

    device: Device
    inner: Link
    outer: Link
    machine: int = 8
    cards: int = 8
    efficiency: Efficiency = field(default_factory=Efficiency)

    @property
    def ideal(self) -> "Cluster":
        """The same cluster, whose programs reach the speeds of the datasheets."""
        return replace(self, efficiency=Efficiency(*[1.0] * len(fields(Efficiency))))

    @property
    def matmul_speed(self) -> float:
        """FLOP/s that a device reaches in large matmuls."""
        is_hopper = any(name in self.device.name for name in ("H100", "H200", "H800"))
        fraction = self.efficiency.matmul * (self.efficiency.hopper if is_hopper else 1)
        return self.device.peak_flops["bf16"] * fraction

    def bandwidth(self, size: int, stride: int = 1, collective: Collective = "ring") -> float:
        """Return the bytes per second that a device sends in a collective over a group.

        All other groups of the same kind send at the same time, as they do in training. A ring
        enters and leaves each machine once, however many of its devices it has. So a machine's
        cards are shared by as many rings as pass through it, which is `stride` and at most one for
        each device. In an all-to-all, every device sends a share of its bytes out of its machine.
        The slower link sets the speed, because both are busy at the same time.

        Args:
            size: Number of devices in a group.
            stride: Distance between them. A group of 8 with stride 8 has one device in each of 8
                machines.
            collective: "ring" for an all-reduce, all-gather, reduce-scatter or pipeline.

        Example:
            With 8 cards of 50 GB/s, a ring over all devices (stride 1) has 400 GB/s between
            machines, and one of 8 rings with stride 8 has 50 GB/s.
        """
        inner = self.inner.bandwidth * self.efficiency.inner
        up = self.cards * self.outer.bandwidth * self.efficiency.outer
        near = min(size, max(1, self.machine // stride))  # of a group, in one machine
        speeds = []
        if collective == "ring":
            if near > 1:
                speeds.append(inner)
            if size * stride > self.machine:
                speeds.append(up / min(self.machine, stride))
        else:
            if near > 1:
                speeds.append(inner * (size - 1) / (near - 1))
            if size > near:
                speeds.append(up / self.machine * (size - 1) / (size - near))
        return min(speeds, default=inner)


def cluster_of(
    device: Device, inner: str | None = None, outer: str | None = None, devices: int = 0
) -> Cluster:
    """Return the usual cluster of a device.

    Args:
        device: The datasheet.
        inner: Link between the devices of a machine, from data/links.json (None: the datasheet's).
        outer: Link of a network card to other machines (None: the datasheet's).
        devices: Number of devices. Few devices don't need a link (0: many).

    Raises:
        UserError: If a name is unknown, or a link is needed, and neither given nor known.
    """
    usual = device.links
    names = {
        "inner": usual.inner if inner is None else inner,
        "outer": usual.outer if outer is None else outer,
    }
    for flag, fewest in (("inner", 2), ("outer", usual.machine + 1)):
        if (name := names[flag]) is not None:
            require_choice(flag, name, LINKS)
        elif devices == 0 or devices >= fewest:
            known = f"no {flag} link of the {device.name} is known"
            raise UserError(f"{known}; name one of {', '.join(LINKS)} with --{flag}")
    near, far = (LINKS[name] if name else UNUSED for name in names.values())
    return Cluster(device, near, far, machine=usual.machine, cards=usual.machine)
