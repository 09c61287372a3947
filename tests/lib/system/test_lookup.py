import pytest
import torch

from cs336_lib.model import GPT
from cs336_lib.sampling import generate, store_weights


@pytest.fixture
def widths(monkeypatch):
    """How many tokens each pass of a model reads."""
    found, forward = [], GPT.forward
    monkeypatch.setattr(
        GPT, "forward", lambda self, idx, **k: found.append(idx.size(1)) or forward(self, idx, **k)
    )
    return found


HOW = [
    {"temperature": 0.0},
    {"seed": 5, "temperature": 0.3},
    {"seed": 5, "temperature": 0.4, "top_k": 2},
]


def test_guessed_tokens_are_those_of_the_model(model, widths):
    """In 16 bits, rounding can exchange tokens of nearly equal probability."""
    for packed in (False, True):
        if packed:
            store_weights(model)
        for sampling in HOW:
            check_guesses(model, widths, sampling)


def check_guesses(model, widths, sampling):
    """Compare eight texts with and without guesses."""
    passes = 0
    for number in range(8):
        piece = torch.randint(50, (1, 1 + number % 7))
        prompt = piece.repeat(1, 1 + number % 5)  # repetitive, or all new
        plain = generate(model, prompt, 30, use_lookup=False, **sampling)
        assert len(widths) == 30
        widths.clear()
        assert torch.equal(generate(model, prompt, 30, **sampling), plain), sampling
        passes += len(widths)
        assert widths.count(1) < len(widths)
        widths.clear()
    assert passes < 8 * 30


def test_guesses_end_with_the_text_and_its_stop_token(model):
    prompt = torch.tensor([[3, 1, 4] * 3])
    free = generate(model, prompt, 40, temperature=0.0)[0, 9:].tolist()
    for stop in set(free):
        rows = generate(model, prompt, 40, temperature=0.0, stop_token=stop)
        assert rows[0, 9:].tolist() == free[: free.index(stop) + 1]
    for count in (0, 1, 7, 19):
        assert generate(model, prompt, count, temperature=0.0)[0, 9:].tolist() == free[:count]
