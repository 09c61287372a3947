"""Merged heads that leak: the test of behaviour against the arithmetic, and the cover."""

from pathlib import Path

import torch

from cs336_course.pages.strides_and_views import exercises, pictures
from cs336_course.pages.strides_and_views import story as leaky_heads

rows_that_leak = exercises.rows_that_leak.build(exercises.rows_that_leak.solution)


def leaks(model):
    texts, vocab_size = leaky_heads.validation()[:2, :-1], leaky_heads.corpus().tokenizer.vocab_size
    return rows_that_leak(model, texts, vocab_size)


def test_one_layer_leaks_in_the_rows_that_the_arithmetic_predicts():
    torch.manual_seed(0)
    model = leaky_heads.CharModel(lambda y: y.view(len(y), y.size(2), -1))
    of_two_layers = leaks(model)
    model.blocks = model.blocks[:1]
    predicted = [row for row in range(32) if (4 * row + 3) % 32 > row]  # as the page derives
    assert leaks(model) == predicted
    assert set(predicted) < set(of_two_layers)
    assert leaks(leaky_heads.CharModel(lambda y: y.transpose(1, 2).flatten(2))) == []


def test_known_words_ignores_the_prompt():
    assert leaky_heads.known_words("xqz:\nthe king xqz") == 2 / 3


def test_the_cover_shows_the_losses_that_the_page_prints():
    printed = Path("notebooks/02_strides_and_views.ipynb").read_text()
    for name, loss in zip(("transpose first", "view alone     "), pictures.LOSSES, strict=True):
        assert f"{name} validation loss {loss}" in printed
