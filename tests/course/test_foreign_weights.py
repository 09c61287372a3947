"""The loader with the classic mistake, and notebook 07's section on OpenAI's weights."""

import contextlib
import io
import json
from pathlib import Path

import matplotlib
import nbformat
import pytest
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.demos.foreign_weights import load
from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.model import GPT

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_gpt2_model.ipynb"
HELLASWAG = {"ctx": "A man sits", "endings": ["down.", "up.", "in.", "on."], "label": 0}


def test_only_square_weights_are_wrong():
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=8, vocab_size=50, n_layer=2, n_head=2, n_embd=16))
    loaded = dict(load(hugging_face.hugging_face_tensors(model), model.config).named_parameters())
    wrong = [name for name, p in model.named_parameters() if not torch.equal(p, loaded[name])]
    assert wrong == [f"transformer.h.{layer}.attn.c_proj.weight" for layer in (0, 1)]


def run_section(title: str) -> str:
    """Run the imports, what the section uses, and its cells; return what they print."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    sources, title_seen = [], False
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            title_seen = cell.source.startswith(title)
        tags = cell.metadata.get("tags", [])
        used = "imports" in tags or "part" in cell.metadata.get("cs336", {}) or title_seen
        used = used or "ids = torch.from_numpy" in cell.source
        if cell.cell_type == "code" and used:
            sources.append((title_seen, cell.source))
    assert any(seen for seen, _ in sources), f"no section {title!r}"
    namespace = {"__name__": "__main__"}
    printed = io.StringIO()
    for seen, source in sources:
        with contextlib.redirect_stdout(printed if seen else io.StringIO()):
            exec(source, namespace)
    plt.close("all")
    return printed.getvalue()


def test_the_section_says_what_to_do_without_weights(monkeypatch):
    monkeypatch.delenv("CS336_GPT2", raising=False)
    (line,) = run_section("## 11").splitlines()
    assert "set CS336_GPT2 to a folder" in line


def test_the_section_shows_a_model_in_a_folder(monkeypatch, tmp_path):
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=32, n_layer=2, n_head=2, n_embd=8))
    hugging_face.export(model, tmp_path / "gpt2", GPT2Tokenizer())
    (tmp_path / "hellaswag.jsonl").write_text(json.dumps(HELLASWAG) + "\n")
    monkeypatch.setenv("CS336_GPT2", str(tmp_path / "gpt2"))
    monkeypatch.setenv("CS336_HELLASWAG", str(tmp_path / "hellaswag.jsonl"))
    *continuations, loss, score = run_section("## 11").splitlines()
    assert len([text for text in continuations if text.startswith("> Hello, I'm a lang")]) == 5
    assert float(loss.split()[-4]) == pytest.approx(10.8, abs=0.1)  # ln 50257, untrained
    assert "(1 examples" in score
