"""The words of 08_gpt2_speaks, and its cell that shows GPT-2's own weights."""

import contextlib
import io
import json
from pathlib import Path

import matplotlib

matplotlib.use("Agg")

import torch

from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT

PAGES = Path(__file__).parents[2] / "notebooks"


def run(page: str, *beginnings: str) -> str:
    """Run a page's imports and the cells that begin so; return what the last one prints."""
    cells = json.loads((PAGES / f"{page}.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    names = {"__name__": "__main__"}
    exec(sources[0], names)
    for beginning in beginnings:
        (source,) = (source for source in sources if source.startswith(beginning))
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            exec(source, names)
    return printed.getvalue()


SPEAKS = ("08_gpt2_speaks", "shipped, letters", "def is_linear", "mine =", "def load_weights")
SPEAKS = (*SPEAKS, "def nucleus", "@torch.no_grad()\ndef generate", "weights, openai")


def test_without_gpt2_the_page_says_how_to_get_it(monkeypatch, tmp_path):
    monkeypatch.delenv("CS336_GPT2", raising=False)
    monkeypatch.setenv("CS336_CACHE", str(tmp_path))
    *recorded, line = run(*SPEAKS).splitlines()
    assert "cs336 fetch gpt2" in line
    assert [text[:18] for text in recorded] == ["I enjoy walking wi"]


def test_with_gpt2_the_page_shows_it(monkeypatch, tmp_path):
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=32, n_layer=2, n_head=2, n_embd=8))
    hugging_face.export(model, tmp_path / "gpt2", GPT2Tokenizer())
    monkeypatch.setenv("CS336_GPT2", str(tmp_path / "gpt2"))
    printed = run(*SPEAKS)
    assert printed.count("> Hello, I'm a lang") == 5
    assert "the greedy text is that of 2020: False" in printed
