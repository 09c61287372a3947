"""Intensities of kernels, and the roof that bounds their speed."""

import pytest
import torch

from cs336_course.pages.compute import machine_roof
from cs336_course.shared import roofline
from cs336_lib.system.hardware import DATASHEET


def test_intensities():
    n = 4096
    assert roofline.elementwise_work(n).intensity == 0.25
    assert roofline.elementwise_work(n, flops_per_value=20).intensity == 5
    assert roofline.matmul_work(n, n, n).intensity == n / 3
    assert roofline.matmul_work(n, n, 1).intensity == pytest.approx(1, abs=1e-3)
    assert roofline.matmul_work(1, n, 1).intensity == pytest.approx(0.5, abs=1e-3)
    assert roofline.matmul_work(n, n, n, value_bytes=4).intensity == n / 6


def test_roofline_of_an_h100():
    peak, bandwidth = DATASHEET["h100"].peak_flops["bf16"], DATASHEET["h100"].bandwidth
    corner = roofline.ridge(peak, bandwidth)
    assert round(corner) == 295
    assert roofline.roofline(corner * 2, peak, bandwidth) == peak
    assert roofline.roofline(1, peak, bandwidth) == bandwidth


def test_the_longer_of_two_times_is_the_limit():
    work = roofline.Work(flops=100, bytes=10)
    assert roofline.least_seconds(work, peak=50, bandwidth=1) == 10
    assert roofline.least_seconds(work, peak=5, bandwidth=1) == 20
    speed = work.flops / roofline.least_seconds(work, 50, 1)
    assert speed == roofline.roofline(work.intensity, 50, 1)


def test_a_machine_is_measured():
    cpu = torch.device("cpu")
    roof, points = machine_roof.measured(cpu)
    assert roof.peak > 1e8
    assert roof.bandwidth > 1e8
    assert points["GELU"][0] == 20 * points["ReLU"][0] == 2.5
    assert all(speed > 0 for _, speed in points.values())
