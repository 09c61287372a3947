"""The box in which a GPT writes: its weights, and its first text."""

import itertools

import pytest
import torch

from cs336_course.widgets import writing
from cs336_lib.model import GPT
from cs336_lib.sampling import complete
from cs336_lib.training.checkpoint import load_shipped


@pytest.fixture(scope="module")
def shipped():
    """Return the GPT that ships and its tokenizer."""
    return load_shipped()


def test_weights_are_the_models_in_sixteen_bits(shipped):
    model: GPT = shipped[0]
    packed, scales = writing.packed(model)
    assert len(packed) == 2 * sum(p.numel() for p in model.parameters())
    codes = torch.frombuffer(bytearray(packed), dtype=torch.int16)
    sizes = [p.numel() for p in model.parameters()]
    for parameter, part, scale in zip(model.parameters(), codes.split(sizes), scales, strict=True):
        assert part.abs().max() == writing.LARGEST
        error = (part * scale - parameter.detach().flatten()).abs().max()
        assert error <= 0.51 * scale


def test_a_draw_chooses_the_letter_at_its_place(shipped):
    cold, _ = writing.continued(*shipped, "What is", 0.01, [0.5] * 20)
    assert "What is" + cold == complete(*shipped, "What is", 20, temperature=0)
    _, likeliest = writing.continued(*shipped, "What is", 1, [])
    chances = dict(likeliest)
    assert sum(chances.values()) == pytest.approx(1)
    assert list(chances.values()) == sorted(chances.values(), reverse=True)
    edges = itertools.accumulate(chances[letter] for letter in shipped[1].alphabet)
    for letter, edge in zip(shipped[1].alphabet, edges, strict=True):
        if chances[letter] > 1e-3:
            written, _ = writing.continued(*shipped, "What is", 1, [edge - chances[letter] / 2])
            assert written == letter
