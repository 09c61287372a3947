"""Judge a text by its words: how many are made up, and how many are distinct."""

import re
from collections.abc import Iterable, Iterator, Set
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs336_course.pages.gpt2_speaks import foreign_weights
from cs336_lib import hugging_face
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.model import GPT
from cs336_lib.sampling import generate, stream
from cs336_lib.training import checkpoint

TRAINED_ON = 0.9  # the share of the plays that the shipped model has read
WORD = re.compile(r"[A-Za-z']+")


def plays() -> tuple[str, str]:
    """Return the part of the plays that the shipped model has read, and the rest."""
    text = shakespeare()
    end = round(TRAINED_ON * len(text))
    return text[:end], text[end:]


@torch.random.fork_rng(devices=[])
def before_and_after(prompt: str, new: int) -> list[tuple[str, list[float]]]:
    """Return what the shipped model writes, and how surely, before and after a careless reload."""
    model, letters = checkpoint.load_shipped()
    reloaded = foreign_weights.load(hugging_face.hugging_face_tensors(model), model.config)
    ids = torch.from_numpy(letters.encode(prompt)).long()[None]
    found = []
    for speaker in (model, reloaded):
        with torch.no_grad():
            text = generate(speaker, ids, new, temperature=0)
            chances = speaker(text)[0, -new - 1 : -1].softmax(-1).amax(-1)
        found.append((letters.decode(text[0].tolist()), chances.tolist()))
    return found


def vocabulary(text: str) -> frozenset[str]:
    """Return the words of a text, in lower case."""
    return frozenset(word.lower() for word in WORD.findall(text))


def whole_words(text: str, start: int = 0) -> Iterator[tuple[str, slice]]:
    """Yield the words from position `start` on, in lower case, and their places.

    The word at `start` and the word at the end are left out, because they may be cut off.
    """
    found = [match for match in WORD.finditer(text) if match.start() > start]
    for match in found[:-1] if found and found[-1].end() == len(text) else found:
        yield match.group().lower(), slice(match.start(), match.end())


def judged(texts: Iterable[str], known: Set[str], start: int = 0) -> tuple[float, float]:
    """Return which percentage of the words is made up, and which percentage is distinct."""
    words = [word for text in texts for word, _ in whole_words(text, start)]
    made_up = sum(word not in known for word in words)
    return 100 * made_up / len(words), 100 * len(set(words)) / len(words)


def by_rarest_letter(
    rows: Int[Tensor, "text seq"],
    chances: Float[Tensor, "text seq-1"],
    below: float,
    tokenizer: Tokenizer,
    known: Set[str],
    start: int,
) -> dict[bool, tuple[int, int]]:
    """Count words, and those that are made up, by whether they have an unlikely letter.

    Args:
        rows: Texts, one letter per token.
        chances: The model's probability of each letter but the first.
        below: Probability under which a letter is unlikely.
        tokenizer: The letters.
        known: All words that aren't made up.
        start: Length of the prompts, whose words don't count.
    """
    counts = {False: (0, 0), True: (0, 0)}
    for row, chance in zip(rows, chances, strict=True):
        for word, place in whole_words(tokenizer.decode(row.tolist()), start):
            is_rare = bool((chance[place.start - 1 : place.stop - 1] < below).any())
            words, made_up = counts[is_rare]
            counts[is_rare] = words + 1, made_up + (word not in known)
    return counts


def continued(
    model: GPT, starts: Int[Tensor, "text seq"], new_tokens: int, **options: Any
) -> Int[Tensor, "text longer_seq"]:
    """Continue texts as `sampling.generate` does, without a progress bar."""
    return torch.cat((starts, torch.stack([*stream(model, starts, new_tokens, **options)], 1)), 1)


@torch.no_grad()
def chances_of(
    model: torch.nn.Module, rows: Int[Tensor, "text seq"]
) -> Float[Tensor, "text seq-1"]:
    """Return the model's probability of each token but the first."""
    return model(rows[:, :-1]).softmax(-1).gather(-1, rows[:, 1:, None])[..., 0]
