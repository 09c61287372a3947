"""Small stacks of blocks that read Shakespeare, for the question why a block adds its output."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.model import GPT, CausalSelfAttention
from cs336_lib.training import checkpoint

SEQ, WIDTH = 32, 64
Streams = Callable[[GPT, Tensor], list[Tensor]]  # the stream before block 1 and after each block


@dataclass(frozen=True)
class Trained:
    """A small stack at initialization and after training.

    Attributes:
        alike: Mean cosine of two positions of a text after the last block, at initialization.
        direction: Cosine of the gradients before block 1 and after the last, at initialization.
        loss: Mean loss of the last 20 steps in nats per letter.
    """

    alike: float
    direction: float
    loss: float


def alone(attention: CausalSelfAttention, x: Tensor) -> Tensor:
    """Apply attention as if each token saw only itself, which leaves its own value."""
    value = attention.c_attn(x).chunk(3, -1)[2]
    return attention.c_proj(value)


def train(streams: Streams, n_layer: int, steps: int = 100, lr: float = 1e-3) -> Trained:
    """Train a stack of blocks on letters. Weights and batches are the same in each call.

    Args:
        streams: Function from a model and ids (batch, seq) to the stream before block 1 and after
            each block. Gets the model's blocks as they are initialized for GPT-2.
        n_layer: Number of blocks.
        steps: Number of steps of AdamW, each on 8 texts of 32 letters.
        lr: Learning rate, which is constant.

    Returns:
        Likeness of the positions and of the gradients at initialization, and the final loss.
    """
    _, letters = checkpoint.load_shipped()
    text = torch.from_numpy(letters.encode(shakespeare()).astype("int64"))
    random = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    model = GPT(GPTConfig(SEQ, letters.vocab_size, n_layer, n_head=2, n_embd=WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), lr, fused=True)
    losses: list[float] = []
    alike = direction = 0.0
    for step in range(steps):
        starts = torch.randint(len(text) - SEQ - 1, (8, 1), generator=random)
        windows = text[starts + torch.arange(SEQ + 1)]
        found = streams(model, windows[:, :-1])
        loss = loss_of(model, found[-1], windows[:, 1:])
        if step == 0:
            last = F.normalize(found[-1].detach(), dim=-1)
            alike = (last @ last.mT).mean().item()
            first, end = torch.autograd.grad(loss, (found[0], found[-1]), retain_graph=True)
            direction = F.cosine_similarity(first.flatten(), end.flatten(), dim=0).item()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return Trained(alike, direction, sum(losses[-20:]) / 20)


def loss_of(model: GPT, stream: Tensor, targets: Tensor) -> Tensor:
    """Return the loss of the letters that are read out of the last stream."""
    logits = model.lm_head(model.transformer.ln_f(stream))[..., : model.config.vocab_size]
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def letter_entropy() -> float:
    """Return the loss of a model that knows only how frequent each letter is, in nats."""
    _, letters = checkpoint.load_shipped()
    counts = torch.bincount(torch.from_numpy(letters.encode(shakespeare()).astype("int64")))
    return torch.distributions.Categorical(probs=counts.double()).entropy().item()


def random_blocks(n_layer: int, width: int) -> nn.ModuleList:
    """Return blocks whose matrices have std 1/sqrt(inputs), so that they keep a signal's scale."""
    torch.manual_seed(0)
    blocks = GPT(GPTConfig(SEQ, 64, n_layer, n_head=4, n_embd=width)).transformer.h
    for parameter in blocks.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, std=parameter.size(1) ** -0.5)
    return blocks
