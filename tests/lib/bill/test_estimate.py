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
        "2.505e11 FLOPs per token x 1.48e13 tokens = 3.707e24 FLOPs",
        "2,672,276 GPU hours x $2 = $5,344,5",
        "10,736 GB, 5.24 GB on each GPU\n",
        "peak     with ZeRO-3, 4,096 tokens on each GPU and full recomputation:",
    ):
        assert line in said
    assert "at 8,192 tokens" in text.estimate(model="llama3-405b")
    said = text.estimate(model="deepseek-v3", gpus=2048, seq=4096)
    assert "+ 6.14e10 of attention at 4,096 tokens" in said
    assert "it fits" not in said  # its state would, and a step doesn't
    assert "too much; `cs336 simulate` lists layouts that fit" in said


BAD_OPTIONS = [
    ({"model": "gpt-9"}, "model 'gpt-9' is unknown; one of gpt2, gpt2-medium"),
    ({"model": "gpt2", "params": 1e9}, "give one of the two"),
    ({"model": "gpt2", "seq": 1025}, "seq is 1025; 1 to 1024 expected, the context of this mod"),
    ({"convention": "causal", "params": 1e9}, "seq and convention need a model; name one"),
    ({"hardware": "k80"}, "hardware 'k80' is unknown; one of a100, h100"),
    ({"hardware": "v100"}, "dtype 'bf16' has no peak for the NVIDIA V100 32GB SXM2; one of fp16"),
    ({"n_layer": 24, "n_embd": 2048}, "vocab_size is missing, and it matters: 1.439B with 50,257"),
    ({"mfu": 50}, "mfu is 50"),
    ({"price": 2, "params": 1e9}, "price is 2 and tokens is missing; give --tokens"),
    ({"tokens": 1e9}, "params is missing"),
    ({"dtype": "fp8", "hardware": "a100"}, "dtype 'fp8' has no peak for the NVIDIA A100"),
    ({"n_layer": 32}, "shape: hidden_size or n_embd or n_embed or d_model or dim is missing; a w"),
    ({"n_layer": 32, "n_embd": 1000}, "shape: n_head 7 doesn't divide n_embd 1000"),
    ({"n_layer": 32, "n_embd": 4096, "model": "gpt2"}, "give a model or its shape"),
]


def test_bad_values_get_one_line():
    for options, message in BAD_OPTIONS:
        with pytest.raises(ValueError, match=re.escape(message)) as caught:
            text.estimate(**options)
        assert "\n" not in str(caught.value)


MACHINES = "simulate --gpus 16 --tp 2 --pp 1 --batch 32 --recompute full --tokens 1T --price 2"
# What people ask, and a line of the answer
QUESTIONS = [
    ("estimate --gpus 8 --memory 80B --optimizer adamw", "40B parameters"),
    ("estimate --params 70B --tokens 15T --gpus 1024 --mfu 50%", "= 143.9 days"),
    ("estimate --params 1.3B --tokens 26B --gpus 8 --hardware rtx-4090", "5.9 days to 16.1 days"),
    ("estimate --params 70B --tokens 15T --gpus 1024", "MFU 0.29 to 0.54, as programs reach"),
    ("estimate --n-layer 24 --n-embd 2048 --vocab-size 50257", "1,439,078,400 parameters"),
    ("estimate --hardware rtx-3090 --params 1B --tokens 1B", "7.1e13 FLOP/s (dense bf16)"),
    ("estimate --hardware l40s --params 1B --tokens 1B", "3.62e14 FLOP/s (dense bf16)"),
    ("estimate --hardware v100 --dtype fp16 --params 1B --tokens 1B", "1.25e14 FLOP/s"),
    ("estimate --hardware tpu-v5e --gpus 4", "4 x 16 GB = 64 GB"),
    ("estimate --peak 100T --memory 12B --params 1B --tokens 1B", "1e14 FLOP/s (dense bf16)"),
    ("estimate --model llama3.1-8b --seq 32768", "at 32,768 tokens"),
    ("estimate --model Llama-3.1-70B", "70,553,706,496 parameters"),
    ("estimate --model llama3-8b --seq 16384 --extend", "at 16,384 tokens"),
    (MACHINES, "1T tokens, with these failures"),
    (MACHINES, "GPU hours x $2 = $"),
    ("simulate --hardware rtx-4090 --tp 1 --pp 1 --model gpt2", "they reach 0.11 to 0.3 MFU"),
    ("simulate --hardware mi300x --tp 1 --pp 1 --zero 1", "AMD Instinct MI300X"),
]


@pytest.mark.parametrize(("command", "line"), QUESTIONS)
def test_questions_that_people_bring(command: str, line: str, capsys: pytest.CaptureFixture[str]):
    cli.main(command.split())
    assert line in capsys.readouterr().out


def test_what_it_cannot_do_is_said(capsys: pytest.CaptureFixture[str]):
    with pytest.raises(SystemExit):
        cli.main(["estimate", "--help"])
    said = capsys.readouterr().out
    for word in ("LoRA", "Fine-tuning", "Inference", "spot price"):
        assert word in said
