"""The pictures that open the pages on GPT-2, and the numbers that they draw."""

import importlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from cs336_course.pages.gpt2_model import story
from cs336_course.pages.gpt2_speaks import story as speaks


@pytest.mark.parametrize(
    "room", ["gpt2_model", "gpt2_speaks", "model_of_today", "inside_a_model", "gpt2_training"]
)
def test_a_cover_is_small_and_leaves_the_seeds_alone(room):
    before = torch.get_rng_state()
    importlib.import_module(f"cs336_course.pages.{room}.pictures").cover()
    (number,) = plt.get_fignums()
    assert np.all(plt.figure(number).get_size_inches() <= (10, 3.2))
    assert torch.equal(torch.get_rng_state(), before)


def test_each_letter_is_as_likely_as_the_models_say():
    table, gpt = story.letter_by_letter("And suddenly; where injury of chance").values()
    losses = [-chances.log().mean().item() for chances in (table, gpt)]
    assert losses == pytest.approx([2.47, 1.45], abs=0.01)


def test_the_reloaded_model_babbles():
    (before, _), (after, _) = speaks.before_and_after("My lord, ", 10)
    assert (before, after) == ("My lord, I will not", "My lord, inininigen")
