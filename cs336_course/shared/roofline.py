"""Roofline model (Williams et al. 2009) of compute-bound and memory-bound kernels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Roof:
    """Name, peak FLOP/s and memory bandwidth (in B/s) of a device.

    `vector` is the lower peak of units that can do more than matmuls, if the device has two kinds.
    """

    name: str
    peak: float
    bandwidth: float
    vector: float | None = None


@dataclass(frozen=True)
class Work:
    """FLOPs of a kernel, and the bytes that it reads and writes."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved."""
        return self.flops / self.bytes


def matmul_work(m: int, k: int, n: int, value_bytes: int = 2) -> Work:
    """Return the work of an (m, k) @ (k, n) matmul that moves each matrix once."""
    return Work(2 * m * k * n, value_bytes * (m * k + k * n + m * n))


def elementwise_work(values: int, flops_per_value: int = 1, value_bytes: int = 2) -> Work:
    """Return the work of an elementwise operator such as ReLU.

    The operator reads one tensor and writes one tensor of the same size.
    """
    return Work(flops_per_value * values, 2 * value_bytes * values)


def ridge(peak: float, bandwidth: float) -> float:
    """Return the arithmetic intensity of the ridge in FLOP/B.

    Kernels with a higher intensity are compute-bound, and all others are memory-bound."""
    return peak / bandwidth


def roofline(intensity: float, peak: float, bandwidth: float) -> float:
    """Return the maximum FLOP/s of a kernel with a given arithmetic intensity."""
    return min(peak, intensity * bandwidth)


def least_seconds(work: Work, peak: float, bandwidth: float) -> float:
    """Return the shortest time of a kernel that computes and moves data at the same time."""
    return max(work.flops / peak, work.bytes / bandwidth)
