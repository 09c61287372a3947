"""A loader that makes the classic mistake, and texts that are judged by their words."""

import re
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.model import GPT
from cs336_lib.sampling import generate, stream
from cs336_lib.training import checkpoint

TRAINED_ON = 0.9  # the share of the plays that the shipped model has read
WORD = re.compile(r"[A-Za-z']+")

# What GPT-2 (124M) wrote in Patrick von Platen's "How to generate text" of 18 March 2020
# (github.com/huggingface/blog, commit 03f0d3b, how-to-generate.md), 50 tokens with the prompt each.
DOG = "I enjoy walking with my cute dog"
UNSURE = " I'm not sure if I'll ever be able to walk with my dog."
GPT2_2020 = {
    "greedy": f"{DOG}, but{UNSURE}{UNSURE}\n\nI'm not sure if I'll",
    "top-p 0.92": f"{DOG}. He will never be the same. I watch him play.\n\n\nGuys, my dog needs a "
    "name. Especially if he is found with wings.\n\n\nWhat was that? I had a lot o",
}


def plays() -> tuple[str, str]:
    """Return the part of the plays that the shipped model has read, and the rest."""
    text = shakespeare()
    end = round(TRAINED_ON * len(text))
    return text[:end], text[end:]


@torch.no_grad()
def careless_load(tensors: Mapping[str, Tensor], config: GPTConfig) -> GPT:
    """Return a GPT with published weights, transposed only where a shape doesn't fit.

    Hugging Face stores the weights of linear layers as (in, out). This loader leaves square ones as
    they are, so every name and shape fits, and the model computes nonsense.

    Args:
        tensors: Weights in Hugging Face's layout, by name.
        config: The shape of the model.
    """
    model = GPT(config).eval()
    for name, parameter in model.named_parameters():
        tensor = tensors[name]
        tensor = tensor if tensor.shape[1:] == parameter.shape[1:] else tensor.T
        parameter[: len(tensor)] = tensor  # wte may be padded
    return model


@torch.random.fork_rng(devices=[])
def before_and_after(prompt: str, new: int) -> list[tuple[str, list[float]]]:
    """Return what the shipped model writes, and how surely, before and after a careless reload."""
    model, letters = checkpoint.load_shipped()
    reloaded = careless_load(hugging_face.hugging_face_tensors(model), model.config)
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


def whole_words(text: str, start: int = 0) -> list[re.Match[str]]:
    """Return the words behind position `start`, but the one at the end, which may be cut off."""
    return [m for m in WORD.finditer(text) if start < m.start() and m.end() < len(text)]


def judged(texts: Iterable[str], known: Set[str], start: int = 0) -> tuple[float, float]:
    """Return which percentage of the words is made up, and which percentage is distinct."""
    words = [m.group().lower() for text in texts for m in whole_words(text, start)]
    made_up = sum(word not in known for word in words)
    return 100 * made_up / len(words), 100 * len(set(words)) / len(words)


def marked(texts: Sequence[str], marks: Tensor, start: int) -> list[tuple[str, bool]]:
    """Return each word and whether one of its letters is marked, with marks from the second on."""
    return [
        (m.group(), bool(row[m.start() - 1 : m.end() - 1].any()))
        for text, row in zip(texts, marks, strict=True)
        for m in whole_words(text, start)
    ]


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
