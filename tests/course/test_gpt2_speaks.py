"""Notebook 07a: its figures, its word counts, and its section on GPT-2 with and without weights."""

import contextlib
import io
from pathlib import Path

import matplotlib
import nbformat
import pytest
import torch

matplotlib.use("Agg")

from matplotlib import pyplot as plt

from cs336_course.pages.gpt2_speaks import gpt2_speaks
from cs336_course.pages.gpt2_speaks import pictures as plots
from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.tokenizer import CharTokenizer, GPT2Tokenizer
from cs336_lib.model import GPT

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "08_gpt2_speaks.ipynb"


def test_words_that_may_be_cut_off_are_left_out():
    found = [word for word, _ in gpt2_speaks.whole_words("begin, My lord; in the e", start=6)]
    assert found == ["my", "lord", "in", "the"]
    assert [word for word, _ in gpt2_speaks.whole_words("x is done.")] == ["is", "done"]
    assert list(gpt2_speaks.whole_words("")) == []


def test_a_text_is_judged_by_its_words():
    known = gpt2_speaks.vocabulary("The state, the STATE of")
    made_up, distinct = gpt2_speaks.judged([". the state of the stote."], known)
    assert (made_up, distinct) == (20, 80)


def test_words_are_counted_by_their_rarest_letter():
    letters = CharTokenizer(sorted(" abcd."))
    rows = torch.from_numpy(letters.encode(" ab cd ab.").astype("int64"))[None]
    chances = torch.ones(1, rows.size(1) - 1)
    chances[0, 4] = 0.001  # the d
    found = gpt2_speaks.by_rarest_letter(rows, chances, 0.01, letters, {"ab"}, start=0)
    assert found == {False: (2, 0), True: (1, 1)}


def test_chances_are_those_of_the_next_token():
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=8, vocab_size=5, n_layer=1, n_head=1, n_embd=4))
    rows = torch.tensor([[1, 4, 2], [0, 3, 3]])
    found = gpt2_speaks.chances_of(model, rows)
    assert found.shape == (2, 2)
    assert found[0, 1] == model(rows)[0, 1].softmax(-1)[2]


def test_the_model_has_not_read_the_rest_of_the_plays():
    seen, unseen = gpt2_speaks.plays()
    assert len(seen) == pytest.approx(9 * len(unseen), abs=20)


def test_reading_early_starts_at_the_embedding():
    axes = plots.read_early({"next": [3.0, 1.0], "current": [0.0, 2.0]}, 2.5, "title").axes[0]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["embedding", "h.0"]
    assert [line.get_ydata()[0] for line in axes.lines[:2]] == [3, 0]


def test_samplers_are_points_beside_real_text():
    points = {"temperature": [("0", 5, 0), ("1", 50, 11)], "top-p": [("0.8", 42, 2)]}
    axes = plots.samplers(points, (44, 2)).axes[0]
    assert [text.get_text() for text in axes.texts] == ["0", "1", "0.8"]
    assert axes.collections[0].get_offsets().tolist() == [[44, 2]]


def run_section(title: str) -> str:
    """Run the imports, what the section uses, and its cells; return what they print."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    namespace, printed = {"__name__": "__main__"}, io.StringIO()
    is_inside = False
    for cell in cells:
        if cell.cell_type == "markdown" and cell.source.startswith("## "):
            is_inside = cell.source.startswith(title)
        if cell.cell_type != "code":
            continue
        is_used = "imports" in cell.metadata.get("tags", []) or "part" in cell.metadata.get(
            "cs336", {}
        )
        source = cell.source
        if source.startswith("mine = assemble"):
            is_used, source = True, source.splitlines()[0]
        if source.startswith("def read_early"):
            is_used, source = True, source.partition("\n\n\n")[0]
        if "def as_ids" in source:
            is_used, source = True, "seen, unseen = gpt2_speaks.plays()"
        if is_inside or is_used:
            with contextlib.redirect_stdout(printed if is_inside else io.StringIO()):
                exec(source, namespace)
    return printed.getvalue()


def test_the_section_says_what_to_do_without_weights(monkeypatch, tmp_path):
    monkeypatch.delenv("CS336_GPT2", raising=False)
    monkeypatch.setenv("CS336_CACHE", str(tmp_path))
    (line,) = run_section("## 7").splitlines()
    assert "cs336 fetch gpt2" in line


def test_the_section_shows_a_model_in_a_folder(monkeypatch, tmp_path):
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=32, n_layer=2, n_head=2, n_embd=8))
    hugging_face.export(model, tmp_path / "gpt2", GPT2Tokenizer())
    monkeypatch.setenv("CS336_GPT2", str(tmp_path / "gpt2"))
    lines = run_section("## 7").splitlines()
    assert len([text for text in lines if text.startswith("> Hello, I'm a lang")]) == 5
    (loss,) = [line for line in lines if line.startswith("loss on Shakespeare")]
    assert float(loss.split()[-4]) == pytest.approx(10.8, abs=0.1)  # ln 50257, untrained
    early = [line for line in lines if line.startswith(("embedding", "after h."))]
    assert len(early) == 3
    assert plt.get_fignums()
