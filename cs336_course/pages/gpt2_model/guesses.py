"""How surely a table of letter pairs and a small GPT expect each letter of a line."""

import torch
from jaxtyping import Float
from torch import Tensor

from cs336_lib.data.corpus import shakespeare
from cs336_lib.training import checkpoint

SEEN, SPARE = 16, 0.1  # letters that the GPT sees; what is added to each count


@torch.random.fork_rng(devices=[])
def letter_by_letter(line: str) -> dict[str, Float[Tensor, " letters"]]:
    """Return the probability that each model gave to each letter of a line that it hasn't read.

    The line is from the last tenth of the plays, and the letters before it are known, too.
    """
    model, letters = checkpoint.load_shipped()
    plays = shakespeare()
    text = torch.from_numpy(letters.encode(plays)).long()
    end = len(text) - len(text) // 10
    start = plays.index(line, end)
    places, coming = torch.arange(len(line)), text[start : start + len(line)]
    pairs = torch.bincount(text[: end - 1] * letters.vocab_size + text[1:end], minlength=62**2)
    chances = pairs.view(letters.vocab_size, -1) + SPARE
    chances = chances / chances.sum(1, keepdim=True)
    windows = text[start - SEEN : start + len(line) - 1].unfold(0, SEEN, 1)
    with torch.no_grad():
        guessed = model(windows)[:, -1].softmax(-1)
    return {
        "a table of letter pairs": chances[text[start - 1 : start + len(line) - 1], coming],
        f"a small GPT that sees {SEEN} letters": guessed[places, coming],
    }
