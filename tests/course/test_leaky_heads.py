"""Merged heads that leak: the test of behaviour, the arithmetic and the figures."""

from pathlib import Path

import matplotlib.pyplot as plt
import pytest
import torch

from cs336_course.pages.strides_and_views import leaky_heads, sdpa_layouts
from cs336_course.pages.strides_and_views import pictures as curves

TRANSPOSED = (168, 8, 24, 1)  # 2 texts, 3 heads, 7 tokens, 8 numbers, written token by token


def transpose_first(y):
    return y.transpose(1, 2).flatten(2)


def view_alone(y):
    return y.view(len(y), y.size(2), -1)


@pytest.fixture
def texts():
    return leaky_heads.validation()[:2, :-1]


def leaks(model, texts):
    vocab_size = leaky_heads.corpus().tokenizer.vocab_size
    return leaky_heads.rows_that_leak(model, texts, vocab_size)


def test_a_causal_model_passes_the_test(texts):
    torch.manual_seed(0)
    assert leaks(leaky_heads.CharModel(transpose_first), texts) == []


def test_one_layer_leaks_in_the_rows_that_the_arithmetic_predicts(texts):
    torch.manual_seed(0)
    model = leaky_heads.CharModel(view_alone)
    of_two_layers = leaks(model, texts)
    model.blocks = model.blocks[:1]
    predicted = [row for row in range(32) if (4 * row + 3) % 32 > row]  # as the notebook derives
    assert len(predicted) == 17
    assert leaks(model, texts) == predicted
    assert set(predicted) < set(of_two_layers)


def test_training_starts_from_the_seed_and_leaves_the_global_generator(monkeypatch):
    monkeypatch.setattr(leaky_heads, "STEPS", 3)
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, same = (leaky_heads.train(transpose_first) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert one.losses == same.losses
    other = leaky_heads.train(transpose_first, seed=1)
    assert one.losses != other.losses
    assert 3.5 < one.losses[0] < 5  # about ln 62


def test_a_sample_continues_the_prompt():
    torch.manual_seed(0)
    text = leaky_heads.sample(leaky_heads.CharModel(transpose_first), 5, prompt="To be")
    assert text.startswith("To be")
    assert len(text) == 10


def test_known_words_ignores_the_prompt():
    assert leaky_heads.known_words("xqz:\nthe king xqz") == pytest.approx(2 / 3)


def test_a_table_of_pairs_is_better_than_a_uniform_guess():
    assert 2.3 < leaky_heads.pair_loss() < 2.7


def test_the_cpus_kernels_differ_in_the_layout_of_their_result():
    qkv = torch.randn(2, 7, 72)
    q, k, v = (part.view(2, 7, 3, 8).transpose(1, 2) for part in qkv.chunk(3, -1))
    found = sdpa_layouts.result_strides(q, k, v)
    assert found.pop("CPU, math") == (168, 56, 8, 1)
    assert len(found) == 4
    assert set(found.values()) == {TRANSPOSED}


def test_exactly_one_line_merges_heads():
    assert sdpa_layouts.merges(TRANSPOSED, 3, 7, 8) == ["transpose, view"]
    assert sdpa_layouts.merges((168, 56, 8, 1), 3, 7, 8) == ["view alone"]


def test_the_figures_say_what_they_show():
    drawn = curves.two_curves({"one": {0: 4.0, 50: 2.0}, "other": {0: 4.0, 50: 1.0}})
    assert [text.get_text() for text in drawn.axes[0].texts] == ["one\n2.00", "other\n1.00"]
    drawn = curves.by_position([0.1, 2.0, 2.5], [0], 2.49)
    assert drawn.axes[0].get_xlabel() == "row of the window"
    assert [text.get_text() for text in drawn.axes[0].texts] == ["0.10"]
    assert curves.neighbours([5, 1, 0, 4]) == [[0, 1], [4, 5]]
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()


def test_the_cover_shows_the_losses_that_the_notebook_prints():
    curves.cover()
    shown = [text.get_text() for text in plt.gca().texts]
    assert "Merge?" in shown
    printed = Path("notebooks/02_strides_and_views.ipynb").read_text()
    for name, loss in zip(("transpose first", "view alone     "), curves.LOSSES, strict=True):
        assert f"{name} validation loss {loss}" in printed
