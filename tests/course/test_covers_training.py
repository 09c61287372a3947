"""The pictures that open the notebooks on training, and the numbers that they draw."""

import importlib

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import numpy as np
import pytest
import torch

from cs336_course.drawing import alt
from cs336_course.pages.gpt2_model import guesses
from cs336_course.pages.gpt2_speaks import gpt2_speaks
from cs336_course.shared.model_of_today import SMOLLM2
from cs336_lib.accounting import count_parameters

COVERS = {
    "gpt2_model.cover": "The darker a letter",
    "gpt2_speaks.cover": "2 panels. A model writes",
    "model_of_today.cover": "Two models to scale",
    "gpt2_training.cover": "2 panels. One hour of training",
}


@pytest.mark.parametrize("name", COVERS)
def test_a_cover_is_small_and_has_an_alternative_text(name):
    module, function = name.split(".")
    before = torch.get_rng_state()
    getattr(importlib.import_module(f"cs336_course.drawing.{module}"), function)()
    (number,) = plt.get_fignums()
    assert np.all(plt.figure(number).get_size_inches() <= (10, 3.2))
    assert COVERS[name] in alt.describe(plt.figure(number))
    assert torch.equal(torch.get_rng_state(), before)


def test_each_letter_is_as_likely_as_the_models_say():
    table, gpt = guesses.letter_by_letter("And suddenly; where injury of chance").values()
    losses = [-chances.log().mean().item() for chances in (table, gpt)]
    assert losses == pytest.approx([2.47, 1.45], abs=0.01)


def test_the_reloaded_model_babbles():
    (before, _), (after, chances) = gpt2_speaks.before_and_after("My lord, ", 10)
    assert before == "My lord, I will not"
    assert after == "My lord, inininigen"
    assert len(chances) == 10


def test_smollm2_has_its_size():
    assert count_parameters(SMOLLM2) == 134_515_008
