"""Make scenes in HellaSwag's form from the plays, and let the shipped GPT judge them."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cs336_lib.data.corpus import shakespeare
from cs336_lib.training.checkpoint import load_shipped

CONTEXT, ENDING, BATCH = 64, 16, 50  # letters, letters, scenes


class Scene(NamedTuple):
    """A context, four endings of which one is real, and which one that is."""

    context: str
    endings: list[str]
    label: int


def make(count: int) -> list[Scene]:
    """Draw scenes from the last tenth of the plays. The other three endings are from elsewhere."""
    text = shakespeare()
    held_out = text[len(text) * 9 // 10 :]
    generator = torch.Generator().manual_seed(0)
    limit = len(held_out) - CONTEXT - ENDING
    places = torch.randint(limit, (count, 4), generator=generator).tolist()
    labels = torch.randint(4, (count,), generator=generator).tolist()
    scenes = []
    for (place, *others), label in zip(places, labels, strict=True):
        starts = [other + CONTEXT for other in others]
        starts.insert(label, place + CONTEXT)
        endings = [held_out[start : start + ENDING] for start in starts]
        scenes.append(Scene(held_out[place : place + CONTEXT], endings, label))
    return scenes


@torch.no_grad()
def right(
    scenes: list[Scene],
    ending_losses: Callable[[nn.Module, list[list[int]], list[list[int]]], Tensor],
    letters: int = CONTEXT,
) -> Tensor:
    """Return for each scene whether the shipped model prefers the real ending.

    Args:
        scenes: Scenes in letters.
        ending_losses: Function of notebook 10.
        letters: Length of the context's end that the model may read.

    Returns:
        Tensor (scene), of bools.
    """
    model, tokenizer = load_shipped()
    model.eval()
    found = []
    for first in range(0, len(scenes), BATCH):
        pairs = [
            (tokenizer.encode(scene.context[-letters:]), tokenizer.encode(ending))
            for scene in scenes[first : first + BATCH]
            for ending in scene.endings
        ]
        contexts, endings = ([ids.tolist() for ids in side] for side in zip(*pairs, strict=True))
        found.append(ending_losses(model, contexts, endings).view(-1, 4).argmin(1))
    return torch.cat(found) == torch.tensor([scene.label for scene in scenes])
