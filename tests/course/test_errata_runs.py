"""The recorded losses that open the errata are those that its code makes."""

import math

import torch

from cs336_course.pages.errata import story
from cs336_course.shared import letter_gpt


def test_the_recorded_losses_are_those_of_the_readers():
    letters, _ = letter_gpt.letters()
    letters = letters[:200_000]
    misread = torch.stack([letters, *[torch.zeros_like(letters)] * 3], 1).flatten()
    for name, ids in (("letters", letters), ("misread letters", misread)):
        _, losses = story.train_reader(ids, steps=40)
        means = torch.tensor(losses).view(2, 20).mean(1).tolist()
        for mean, recorded in zip(means, story.READERS[name], strict=False):
            assert math.isclose(mean, recorded, abs_tol=0.03), name
