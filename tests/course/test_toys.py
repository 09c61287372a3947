"""The toys of the page on AdaGrad, by hand: words, quadratics, and a small GPT with a spike."""

import math

import pytest
import torch

from cs336_course.pages.adagrad import story
from cs336_course.shared import letter_gpt


def test_steps_on_a_quadratic_by_hand():
    # kappa = 9: at a rate of 1/5 both coordinates shrink by 0.8, and 0.8^21 is below 0.01.
    assert story.steps_on_quadratic((1, 9), lr=0.2) == 21
    # At a rate of 1/4 and a momentum of 1/4 the flat one is (1 + n/2) / 2^n.
    assert story.steps_on_quadratic((1,), lr=0.25, momentum=0.25) == 10


def test_lines_of_rare_words():
    text = "To be, or not to BE that\nToo short\nto be or not to sleep no more\n" * 2
    lines = story.read(lines=3, vocab=5, text=text)
    assert lines.words == ["", "to", "be", "or", "not"]  # in the order of their counts: 6, 5, 3, 3
    assert lines.length.tolist() == [0, 2, 2, 2, 3]
    assert lines.ids.tolist() == [[1, 2, 3, 4, 1, 2], [1, 2, 3, 4, 1, 0], [1, 2, 3, 4, 1, 2]]
    assert lines.letters.tolist() == [13, 11, 13]
    assert lines.seen.tolist() == [1, 6, 5, 3, 3]


def test_the_best_rate_is_one_that_converged():
    swept = {1: [0.5, 0.7], 2: [0.2, 0.3], 4: [math.nan, 0.1], 8: [9.0, 0.0]}
    assert story.best(swept) == (2, [0.2, 0.3])


def test_small_gpt_learns_and_a_spike_sets_it_back():
    def adamw(model):
        return [torch.optim.AdamW(model.parameters(), lr=0.004)]

    _, smooth = letter_gpt.train(adamw, seed=0, steps=25, decays=False)
    model, spiked = letter_gpt.train(adamw, seed=0, steps=25, decays=False, spike_at=20)
    assert smooth[:21] == spiked[:21]
    assert smooth[0] == pytest.approx(math.log(letter_gpt.letters()[1]), abs=0.3)
    assert smooth[-1] < smooth[0] - 0.5
    assert spiked[-1] > smooth[-1]
    assert letter_gpt.validation_loss(model) == letter_gpt.validation_loss(model)
