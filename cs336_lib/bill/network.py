"""Model the links of a cluster: those between devices, and those between machines."""

import math
from dataclasses import dataclass, field, replace

from cs336_lib.accounting import require_choice
from cs336_lib.config import UserError
from cs336_lib.system.datasheets import LINKS, Device, Link

UNUSED = Link("unused", math.inf, "a cluster this small has no such link")


@dataclass(frozen=True)
class Efficiency:
    """Fractions of a datasheet's speeds that a well-written program reaches.

    `tools.fit_simulator` fits the defaults to the published steps of data/layouts.json, but for
    `hopper_attention`, `outer` and `async_tensor`. docs/published_runs.md has their errors.

    Attributes:
        matmul: Fraction of the peak FLOP/s in large matmuls.
        hopper: Further fraction on an H100, H200 or H800, whose clock falls under full load.
        attention: Fraction of the peak FLOP/s in fused attention.
        hopper_attention: Further fraction of it on these. FlashAttention-2 reaches 35% of an H100's
            peak, and 70% of an A100's (Shah et al. 2024, FlashAttention-3, section 1).
        memory: Fraction of the memory bandwidth in elementwise operations.
        inner: Fraction of the bandwidth between the devices of a machine.
        outer: Fraction of the bandwidth between machines, as measured for large messages.
        overlap: Fraction of the passes during which gradients and weights travel for free.
        async_tensor: Fraction of the sums of tensor parallelism that async TP hides (torchtitan,
            benchmarks/asyncTP_llama3_h100_2025-06_torchtitan.md).
        hop: Seconds for each machine that a layer's weights or gradients pass through.
    """

    matmul: float = 0.67
    hopper: float = 0.9
    attention: float = 0.4
    hopper_attention: float = 0.5
    memory: float = 0.8
    inner: float = 0.4
    outer: float = 0.9
    overlap: float = 0.8
    async_tensor: float = 0.3
    hop: float = 1.2e-4


@dataclass(frozen=True)
class Cluster:
    """Devices and the links between them.

    Neighbors in numbering are near each other: tensor parallelism has consecutive devices, then
    come context, data and pipeline parallelism, as in Megatron-LM.

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
        return replace(self, efficiency=Efficiency(1, 1, 1, 1, 1, 1, 1, 1, 1, hop=0))

    @property
    def is_hopper(self) -> bool:
        """Whether the devices are Hoppers."""
        return any(name in self.device.name for name in ("H100", "H200", "H800"))

    @property
    def peak(self) -> float:
        """Peak FLOP/s in bf16, or in fp16 on a device that has no bf16."""
        return self.device.peak_flops.get("bf16") or self.device.peak_flops["fp16"]

    @property
    def matmul_speed(self) -> float:
        """FLOP/s that a device reaches in large matmuls."""
        further = self.efficiency.hopper if self.is_hopper else self.device.sustained
        return self.peak * self.efficiency.matmul * further

    @property
    def attention_speed(self) -> float:
        """FLOP/s that a device reaches in fused attention."""
        further = self.efficiency.hopper_attention if self.is_hopper else self.device.sustained
        return self.peak * self.efficiency.attention * further

    @property
    def memory_speed(self) -> float:
        """Bytes per second that elementwise operators read and write."""
        return self.device.bandwidth * self.efficiency.memory

    def bandwidth(self, size: int, stride: int = 1, *, to_all: bool = False) -> float:
        """Return the bytes per second that a device sends in a collective over a group.

        All other groups of the same kind send at the same time, as they do in training. A ring
        enters and leaves each machine once, however many of its devices it has. So a machine's
        cards are shared by as many rings as pass through it, which is `stride` and at most one for
        each device. In an all-to-all, every device sends a share of its bytes out of its machine.
        The slower link sets the speed, because both are busy at the same time.

        A group of 8 with stride 8 has one device in each of 8 machines. With 8 cards of 50 GB/s, a
        ring over all devices (stride 1) has 400 GB/s, and one of 8 rings with stride 8 has 50 GB/s.
        """
        inner = self.inner.bandwidth * self.efficiency.inner
        up = self.cards * self.outer.bandwidth * self.efficiency.outer
        near = self.near(size, stride)
        speeds = [inner * (size - 1) / (near - 1) if to_all else inner] if near > 1 else []
        if to_all and size > near:
            speeds.append(up / self.machine * (size - 1) / (size - near))
        elif size > near:
            speeds.append(up / min(self.machine, stride))
        return min(speeds, default=inner)

    def near(self, size: int, stride: int) -> int:
        """Return how many devices of a group are in one machine."""
        return min(size, max(1, self.machine // stride))

    def latency(self, size: int, stride: int) -> float:
        """Return the seconds for which a collective of one layer waits, however few its bytes."""
        near = self.near(size, stride)
        return self.efficiency.hop * math.ceil(size / near) if size > near else 0.0


def cluster_of(device: Device, inner: str | None, outer: str | None, devices: int) -> Cluster:
    """Return the cluster of a device with these links of data/links.json, or its usual ones.

    Raises:
        UserError: If a name is unknown, or so many devices need a link without one.
    """
    usual = device.links
    links = []
    for flag, name, fewest in (
        ("inner", usual.inner if inner is None else inner, 2),
        ("outer", usual.outer if outer is None else outer, usual.machine + 1),
    ):
        if name is not None:
            require_choice(flag, name, LINKS)
        elif devices >= fewest:
            known = f"no {flag} link of the {device.name} is known"
            raise UserError(f"{known}; name one of {', '.join(LINKS)} with --{flag}")
        links.append(LINKS[name] if name else UNUSED)
    near, far = links
    return Cluster(device, near, far, machine=usual.machine, cards=usual.machine)
