"""Intensities of kernels, and the roof that bounds their speed."""

import pytest

from cs336_course.demos import roofline
from cs336_lib.bill.traffic import all_reduce_bytes
from cs336_lib.system.datasheets import LINKS
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


def test_tokens_that_hide_the_gradients():
    peak, link = DATASHEET["h100"].peak_flops["bf16"], LINKS["infiniband-ndr"].bandwidth
    tokens = roofline.least_tokens(peak, link)
    assert round(tokens) == 26387
    parameters, many = 1e9, 10**9  # ranks
    sent = all_reduce_bytes(4 * parameters, many)
    assert sent / link == pytest.approx(6 * parameters * tokens / peak, rel=1e-6)
    assert roofline.roofline(roofline.sent_intensity(tokens), peak, link) == pytest.approx(peak)
