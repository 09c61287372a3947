"""`cs336 eval` scores runs and any GPT-2 in Hugging Face's layout."""

import json
import re
import subprocess
import sys

import pytest
import torch

from cs336_lib import GPT, GPTConfig, cli, hugging_face
from cs336_lib.data.prepare import prepare
from cs336_lib.data.tokenizer import make_tokenizer

EXAMPLE = {"ctx": "To be, or not to", "endings": ["be", "sky", "1", "x"], "label": 0}


@pytest.fixture
def folder(tmp_path):
    """A GPT-2 of two layers, as `save_pretrained` writes it, and data."""
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=32, n_layer=2, n_head=2, n_embd=16))
    hugging_face.export(model, tmp_path / "model", make_tokenizer("gpt2", ""))
    (tmp_path / "text.txt").write_text("To be, or not to be, that is the question. " * 100)
    prepare(tmp_path / "text.txt", tmp_path / "data", "gpt2")
    (tmp_path / "hellaswag.jsonl").write_text("\n".join([json.dumps(EXAMPLE)] * 3))
    return tmp_path


def arguments(folder) -> list[str]:
    options = {"model": "model", "val_data": "data", "hellaswag": "hellaswag.jsonl"}
    paths = [f"--{name.replace('_', '-')}={folder / value}" for name, value in options.items()]
    return ["eval", *paths, "--eval-tokens=128", "--device=cpu"]


def test_two_processes_print_the_same_scores_once(folder, capsys):
    cli.main(arguments(folder))
    alone = capsys.readouterr().out
    assert "3 examples" in alone
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2"]
    command = [*torchrun, "-m", "cs336_lib", *arguments(folder)]
    both = subprocess.run(command, check=False, capture_output=True, text=True)
    assert both.returncode == 0, both.stderr
    ours, theirs = (
        [float(number.replace(",", "")) for number in re.findall(r"\d[\d.,]*\d", text)]
        for text in (both.stdout, alone)
    )
    assert ours == pytest.approx(theirs, rel=1e-5)
