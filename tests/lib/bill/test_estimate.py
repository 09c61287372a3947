"""What `cs336 estimate` prints, and what it refuses."""

import re

import pytest

from cs336_lib import cli
from cs336_lib.bill import text


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
    ({"convention": "causal", "params": 1e9}, "convention is causal, and it needs a model"),
    ({"hardware": "v100"}, "hardware 'v100' is unknown; one of a100, h100"),
    ({"mfu": 50}, "mfu is 50"),
    ({"tokens": 1e9}, "params is missing"),
    ({"dtype": "fp8", "hardware": "a100"}, "dtype 'fp8' has no peak for the NVIDIA A100"),
    ({"n_layer": 32}, "n_embd is missing; this shape needs n_layer and n_embd"),
    ({"n_layer": 32, "n_embd": 1000}, "shape: n_head 7 doesn't divide n_embd 1000"),
    ({"n_layer": 32, "n_embd": 4096, "model": "gpt2"}, "give a model or its shape"),
]


def test_bad_values_get_one_line():
    for options, message in BAD_OPTIONS:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            text.estimate(**options)
        assert "\n" not in str(caught.value)


def test_from_the_command_line(capsys: pytest.CaptureFixture[str]):
    cli.main("estimate --gpus 8 --memory 80e9 --optimizer adamw".split())
    assert "40B parameters" in capsys.readouterr().out
