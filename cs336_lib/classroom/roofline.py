"""The roofline model (Williams et al. 2009) for compute-bound and memory-bound kernels."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Work:
    """Floating-point operations of a kernel, and bytes moved to and from memory."""

    flops: float
    bytes: float

    @property
    def intensity(self) -> float:
        """FLOPs per byte moved."""
        return self.flops / self.bytes


def matmul_work(m: int, k: int, n: int, value_bytes: int = 2) -> Work:
    """Return the work of (m, k) @ (k, n), moving each of the three matrices once."""
    return Work(2 * m * k * n, value_bytes * (m * k + k * n + m * n))


def elementwise_work(values: int, flops_per_value: int = 1, value_bytes: int = 2) -> Work:
    """Return the work of reading one tensor and writing one of equal size, such as ReLU."""
    return Work(flops_per_value * values, 2 * value_bytes * values)


def ridge(peak: float, bandwidth: float) -> float:
    """Return the intensity in FLOP/B above which kernels are compute-bound on this device."""
    return peak / bandwidth


def roofline(intensity: float, peak: float, bandwidth: float) -> float:
    """Return the most FLOP/s that a kernel of this intensity can reach."""
    return min(peak, intensity * bandwidth)
