"""What counting knows about letters, and small stacks of blocks that add or replace."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint

SEEN, SPARE = 16, 0.1  # letters that the GPT sees; what is added to each count
SEQ, WIDTH = 32, 64  # of the small stacks
STACKS = Path(__file__).parents[3] / "data" / "stack_runs.json"  # data/make_stack_runs.py wrote it
Streams = Callable[[GPT, Tensor], list[Tensor]]  # the stream before block 1 and after each block


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


def back_off(ids: Int[np.ndarray, " letters"], test: int, longest: int) -> list[tuple[float, int]]:
    """Count what follows each past of up to `longest` letters, and predict the last letters.

    A row that was seen n times with d different letters after it is trusted as n to d, and the rest
    is left to the row of the past that is one letter shorter (Witten and Bell 1991).

    Args:
        ids: A text as ids below 100.
        test: Number of letters at the end to predict; nine tenths of the text are counted.
        longest: The longest past.

    Returns:
        A tuple for pasts of 1, 2, ... letters: the loss in nats per letter, and the number of rows.
    """
    places = np.arange(len(ids) - test, len(ids))
    chances = np.full(test, 1 / len(np.unique(ids)))
    found = []
    for seen in range(longest + 1):
        keys = np.zeros(len(ids), dtype=np.int64)  # the letters before each place, as one number
        for back in range(1, seen + 1):
            keys[seen:] = 100 * keys[seen:] + ids[seen - back : len(ids) - back]
        counted = slice(seen, len(ids) * 9 // 10)
        pasts, times = np.unique(keys[counted], return_counts=True)
        pairs, both = np.unique(100 * keys[counted] + ids[counted], return_counts=True)
        kinds = np.unique(pairs // 100, return_counts=True)[1]
        row = np.searchsorted(pasts, keys[places]).clip(max=len(pasts) - 1)
        known = pasts[row] == keys[places]
        pair = 100 * keys[places] + ids[places]
        cell = np.searchsorted(pairs, pair).clip(max=len(pairs) - 1)
        hits = np.where(pairs[cell] == pair, both[cell], 0)
        mixed = (hits + kinds[row] * chances) / (times[row] + kinds[row])
        chances = np.where(known, mixed, chances)
        found.append((float(-np.log(chances).mean()), len(pasts)))
    return found[1:]


def train(
    streams: Streams, n_layer: int, steps: int = 100, lr: float = 1e-3, seed: int = 0
) -> list[float]:
    """Train a stack of blocks on letters, and return each step's loss in nats per letter.

    Args:
        streams: Function from a model and ids (batch, seq) to the stream before block 1 and after
            each block. Gets the model's blocks as they are initialized for GPT-2.
        n_layer: Number of blocks.
        steps: Number of steps of AdamW, each on 8 texts of 32 letters.
        lr: Learning rate, which is constant.
        seed: Number that decides the first weights and the batches.
    """
    _, letters = checkpoint.load_shipped()
    text = torch.from_numpy(letters.encode(shakespeare()).astype("int64"))
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = GPT(GPTConfig(SEQ, letters.vocab_size, n_layer, n_head=2, n_embd=WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr, fused=True)
    losses: list[float] = []
    for _ in range(steps):
        starts = torch.randint(len(text) - SEQ - 1, (8, 1), generator=random)
        windows = text[starts + torch.arange(SEQ + 1)]
        last = streams(model, windows[:, :-1])[-1]
        logits = model.lm_head(model.transformer.ln_f(last))[..., : letters.vocab_size]
        loss = F.cross_entropy(logits.flatten(0, 1), windows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def stack_runs() -> dict[str, dict[float, list[list[float]]]]:
    """Return recorded runs of twelve blocks: by how they write and by rate, a curve for each seed.

    A curve holds the means of 20 steps at a time.
    """
    recorded = json.loads(STACKS.read_text(encoding="utf-8"))["runs"]
    return {
        way: {float(lr): runs for lr, runs in by_rate.items()} for way, by_rate in recorded.items()
    }
