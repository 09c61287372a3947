"""The log of a full run, and scenes in HellaSwag's form that the shipped GPT judges."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from cs336_lib.data.corpus import shakespeare
from cs336_lib.training.checkpoint import load_shipped

CONTEXT, ENDING, BATCH = 64, 16, 50  # letters, letters, scenes

# csabapalfi's run of build-nanogpt (log/train-2x-h100-epoch-1.log): 17 of its 78 evaluations, each
# with the step, the learning rate, the validation loss and the right answers of 10,042
LOG = [
    (0, 8.3916e-7, 10.9512, 2492),
    (250, 2.1063e-4, 6.1760, 2449),
    (500, 4.2042e-4, 5.2980, 2419),
    (1000, 5.9968e-4, 4.1544, 2585),
    (1500, 5.9757e-4, 3.8140, 2593),
    (2000, 5.9350e-4, 3.6690, 2604),
    (3000, 5.7962e-4, 3.5023, 2727),
    (5000, 5.3060e-4, 3.3528, 2770),
    (6500, 4.7815e-4, 3.2840, 2874),
    (7500, 4.3755e-4, 3.2532, 2918),
    (10000, 3.2510e-4, 3.1896, 2951),
    (10750, 2.9059e-4, 3.1755, 2959),
    (11750, 2.4568e-4, 3.1558, 2983),
    (12500, 2.1354e-4, 3.1410, 2977),
    (15000, 1.2297e-4, 3.1072, 3008),
    (17500, 6.9723e-5, 3.0864, 3045),
    (19072, 6.0000e-5, 3.0717, 3087),
]


class Scene(NamedTuple):
    """A context, four endings of which one is real, and which one that is."""

    context: str
    endings: list[str]
    label: int


def make_scenes(count: int) -> list[Scene]:
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
        ending_losses: Function of the notebook.
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
