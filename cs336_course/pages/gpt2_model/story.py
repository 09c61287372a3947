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
    chances = F.normalize(pairs.view(letters.vocab_size, -1) + SPARE, p=1)
    windows = text[start - SEEN : start + len(line) - 1].unfold(0, SEEN, 1)
    with torch.no_grad():
        guessed = model(windows)[:, -1].softmax(-1)
    return {
        "a table of letter pairs": chances[text[start - 1 : start + len(line) - 1], coming],
        f"a small GPT that sees {SEEN} letters": guessed[places, coming],
    }


def back_off(
    ids: Int[np.ndarray, " letters"], test: int, longest: int, counted: int
) -> list[tuple[float, int]]:
    """Count what follows each past of up to `longest` letters, and predict the last letters.

    A part of each count is left to the row of the past that is one letter shorter. A shorter row
    counts after how many different letters its past has occurred, and not how often (interpolated
    modified Kneser-Ney, Chen and Goodman 1999).

    Args:
        ids: A text as ids below 100.
        test: Number of letters at the end to predict.
        longest: The longest past.
        counted: Number of letters at the start to count.

    Returns:
        A tuple for pasts of 1, 2, ... letters: the loss in nats per letter, and the number of rows.
    """
    places = np.arange(len(ids) - test, len(ids))
    shorter = np.full(test, 1 / len(np.unique(ids)))
    found = []
    for seen in range(longest + 1):
        keys = np.zeros(len(ids), dtype=np.int64)  # a place's letter and `seen` before it
        for back in range(seen, -1, -1):
            keys[seen + 1 :] = 100 * keys[seen + 1 :] + ids[seen + 1 - back : len(ids) - back]
        before = np.concatenate((np.zeros(seen + 1), ids[: -seen - 1])).astype(np.int64)
        here = slice(seen + 1, counted)
        once = np.unique(100 * keys[here] + before[here]) // 100
        often, rows = share(keys[here], keys[places], shorter)
        shorter, _ = share(once, keys[places], shorter)
        found.append((float(-np.log(often).mean()), rows))
    return found[1:]


def share(
    keys: Int[np.ndarray, " counted"],
    wanted: Int[np.ndarray, " test"],
    shorter: Float[np.ndarray, " test"],
) -> tuple[Float[np.ndarray, " test"], int]:
    """Return the chances of some letters after their pasts, and the number of pasts.

    Args:
        keys: What is counted, a past and a letter as one number, of which the letter is the last
            two digits.
        wanted: The pasts and letters whose chance is asked for.
        shorter: Their chances after the past that is one letter shorter.
    """
    pairs, both = np.unique(keys, return_counts=True)
    pasts, first = np.unique(pairs // 100, return_index=True)
    n, low = np.bincount(both, minlength=5)[1:5].clip(min=1), np.arange(1, 4)
    taken = low - (low + 1) * n[0] / (n[0] + 2 * n[1]) * n[1:] / n[:-1]  # from counts 1, 2, 3+
    less = taken[both.clip(max=3) - 1]
    row = np.searchsorted(pasts, wanted // 100).clip(max=len(pasts) - 1)
    cell = np.searchsorted(pairs, wanted).clip(max=len(pairs) - 1)
    hits = np.where(pairs[cell] == wanted, (both - less)[cell], 0)
    left = np.add.reduceat(less, first)[row] * shorter
    mixed = (hits + left) / np.add.reduceat(both, first)[row]
    return np.where(pasts[row] == wanted // 100, mixed, shorter), len(pasts)


def train(
    streams: Streams,
    n_layer: int,
    steps: int = 100,
    lr: float = 1e-3,
    seed: int = 0,
    prepare: Callable[[GPT], None] = lambda model: None,
) -> list[float]:
    """Train a stack of blocks on letters, and return each step's loss in nats per letter.

    Args:
        streams: Function from a model and ids (batch, seq) to the stream before block 1 and after
            each block. Gets the model's blocks as they are initialized for GPT-2.
        n_layer: Number of blocks.
        steps: Number of steps of AdamW, each on 8 texts of 32 letters.
        lr: Learning rate, which is constant.
        seed: Number that decides the first weights and the batches.
        prepare: Function that changes the first weights.
    """
    _, letters = checkpoint.load_shipped()
    text = torch.from_numpy(letters.encode(shakespeare()).astype("int64"))
    random = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    model = GPT(GPTConfig(SEQ, letters.vocab_size, n_layer, n_head=2, n_embd=WIDTH))
    prepare(model)
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
    """Return recorded runs by how blocks write and by rate: means of 20 steps for each seed."""
    recorded = json.loads(STACKS.read_text(encoding="utf-8"))["runs"]
    return {
        way: {float(lr): runs for lr, runs in by_rate.items()} for way, by_rate in recorded.items()
    }


def without_parts() -> dict[str, list[float]]:
    """Return losses of letter GPTs that lack a part, by what they lack, one for each seed."""
    return json.loads(STACKS.read_text(encoding="utf-8"))["without"]
