"""What a GPT knows beyond letter pairs, and small stacks of blocks that add or replace."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint

SEEN, SPARE = 16, 0.1  # letters that the GPT sees; what is added to each count
SEQ, WIDTH = 32, 64  # of the small stacks
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


def train(streams: Streams, n_layer: int, steps: int = 100, lr: float = 1e-3) -> float:
    """Train a stack of blocks on letters. Weights and batches are the same in each call.

    Args:
        streams: Function from a model and ids (batch, seq) to the stream before block 1 and after
            each block. Gets the model's blocks as they are initialized for GPT-2.
        n_layer: Number of blocks.
        steps: Number of steps of AdamW, each on 8 texts of 32 letters.
        lr: Learning rate, which is constant.

    Returns:
        Mean loss of the last 20 steps in nats per letter.
    """
    _, letters = checkpoint.load_shipped()
    text = torch.from_numpy(letters.encode(shakespeare()).astype("int64"))
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
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
    return sum(losses[-20:]) / 20


def letter_entropy() -> float:
    """Return the loss of a model that knows only how frequent each letter is, in nats."""
    _, letters = checkpoint.load_shipped()
    counts = torch.bincount(torch.from_numpy(letters.encode(shakespeare()).astype("int64")))
    return torch.distributions.Categorical(probs=counts.double()).entropy().item()
