"""What `cs336 estimate` prints, and what it refuses."""

import itertools
import re

import pytest

from cs336_lib import accounting, cli
from cs336_lib.bill import text
from cs336_lib.system.hardware import DATASHEET


def test_days_with_their_arithmetic():
    said = text.estimate(params=70e9, tokens=15e12, gpus=1024, hardware="h100", mfu=0.5)
    for line in (
        "Time to train 70B parameters on 15T tokens",
        "6 x 7e10 parameters x 1.5e13 tokens = 6.3e24 FLOPs",
        "1,024 x 9.895e14 FLOP/s (dense bf16) x MFU 0.5 = 5.066e17 FLOP/s",
        "6.3e24 / 5.066e17 = 1.244e7 s",
        "/ 86,400 s per day = 143.9 days",
        "7e10 x 16 = 1,120 GB, 1.09 GB on each GPU; it fits",
    ):
        assert line in said


def test_hours_and_dollars_keep_their_size():
    small = text.estimate(params=124e6, tokens=10e9, mfu=0.4, price=2)
    assert "/ 3,600 s per hour = 5.2 hours" in small
    assert "5.22 GPU hours x $2 = $10.44" in small
    assert "  rent   1 GPU x " in small
    large = text.estimate(params=8e9, tokens=1e12, gpus=8, price=2)
    assert "26,950 GPU hours x $2 = $53,899" in large


def test_largest_model():
    said = text.estimate(gpus=8, memory=80e9, optimizer="adamw")
    assert "4 weight + 4 gradient + 0 master weight + 8 state = 16 per parameter" in said
    assert "6.4e11 / 16 = 40B parameters" in said
    assert "5B parameters, if every GPU holds the whole model (DDP)" in said
    assert "days" not in said
    assert "= 53.33B parameters" in text.estimate(gpus=8, precision="bf16")
    said = text.estimate(params=70e9)
    assert "7e10 x 16 = 1,120 GB; too much, at least 14 such GPUs are needed" in said


def test_every_device_optimizer_and_precision():
    for name, device in DATASHEET.items():
        said = text.estimate(params=1e9, tokens=1e9, hardware=name.upper().replace(" ", "-"))
        assert device.name in said
        hours = 6e18 / (device.peak_flops["bf16"] * 0.5) / 3600
        assert f"{hours:,.1f} hours" in said or f"{hours / 24:,.1f} days" in said
    for names in itertools.product(accounting.STATE_BYTES, accounting.PRECISIONS):
        said = text.estimate(optimizer=names[0], precision=names[1], memory=1e9)
        printed = re.search(r"= ([\d.]+) per parameter", said)
        total = accounting.bytes_per_parameter(*names).total
        assert float(printed[1]) == pytest.approx(total, rel=1e-3), names


def test_a_published_model():
    """DeepSeek-V3 states 2.664M GPU hours (arXiv 2412.19437) and an MFU of 0.3894 (2505.09343)."""
    options = {"tokens": 14.8e12, "gpus": 2048, "seq": 4096, "mfu": 0.3894, "price": 2}
    options |= {"model": "deepseek-v3", "convention": "causal"}  # as the paper states this MFU
    said = text.estimate(**options)
    for line in (
        "671,026,404,352 parameters, of which 37.55B process a token",
        "6 x 3.662e10 in matmuls + 3.071e10 of attention at 4,096 tokens = 2.505e11 per token",
        "70.3 kB per token in bf16, 12 GB for 163,840 tokens",
        "Time to train DeepSeek-V3 on 14.8T tokens",
        "2.505e11 FLOPs per token x 1.48e13 tokens = 3.707e24 FLOPs",
        "2,672,276 GPU hours x $2 = $5.345M",
        "10,736 GB, 5.24 GB on each GPU\n",
        "peak     with ZeRO-3, 4,096 tokens on each GPU and full recomputation:",
    ):
        assert line in said
    hours = float(re.search(r"= ([\d,]+) GPU hours", said)[1].replace(",", ""))
    assert hours == pytest.approx(2.664e6, rel=0.05)
    assert "at 8,192 tokens" in text.estimate(model="llama3-405b")
    said = text.estimate(model="deepseek-v3", gpus=2048, seq=4096)
    assert "+ 6.14e10 of attention at 4,096 tokens" in said
    assert "attention to all keys, as MFU counts in PaLM" in said
    assert "it fits" not in said  # its state would, and a step doesn't
    assert "too much; `cs336 simulate` lists layouts that fit" in said


BAD_OPTIONS = [
    ({"model": "gpt-9"}, "model 'gpt-9' is unknown; one of gpt2, gpt2-medium"),
    ({"model": "gpt2", "params": 1e9}, "give one of the two"),
    ({"model": "gpt2", "seq": 1025}, "seq is 1025; 1 to 1024 expected"),
    ({"convention": "half", "model": "gpt2"}, "convention 'half' is unknown; one of palm, causal"),
    ({"convention": "causal", "params": 1e9}, "convention is causal, and it needs a model"),
    ({"price": 0.0}, "price is 0.0; a number above 0"),
    ({"hardware": "v100"}, "hardware 'v100' is unknown; one of a100, h100"),
    ({"gpus": 0}, "gpus is 0"),
    ({"mfu": 50}, "mfu is 50"),
    ({"params": float("inf")}, "params is inf"),
    ({"tokens": 1e9}, "params is missing"),
    ({"dtype": "fp8", "hardware": "a100"}, "dtype 'fp8' has no peak for the NVIDIA A100"),
    ({"optimizer": "adamx"}, "optimizer 'adamx' is unknown"),
    ({"precision": "fp64"}, "precision 'fp64' is unknown"),
]


def test_bad_values_get_one_line():
    for options, message in BAD_OPTIONS:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            text.estimate(**options)
        assert "\n" not in str(caught.value)


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]):
    cli.main("estimate --gpus 8 --memory 80e9 --optimizer adamw".split())
    assert "40B parameters" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        cli.main(["estimate", "--mfu", "2"])
    assert ended.value.code == 2
    assert capsys.readouterr().err == "cs336: mfu is 2.0; 1e-06 to 1 expected\n"
