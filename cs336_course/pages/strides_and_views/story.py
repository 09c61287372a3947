"""Train a small character model with a replaceable line that merges attention heads."""

import math
import re
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_course.shared.strided_storage import one_thread
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer
from cs336_lib.muon import Muon

SEQ, N_LAYER, N_HEAD, HEAD_DIM = 32, 2, 4, 16
N_EMBD = N_HEAD * HEAD_DIM
STEPS, BATCH, EVERY = 350, 32, 25

Merge = Callable[[Tensor], Tensor]  # (batch, head, seq, head_dim) to (batch, seq, n_embd)


class Attention(nn.Module):
    """Causal attention with heads that `merge` joins."""

    def __init__(self, merge: Merge):
        super().__init__()
        self.qkv, self.out = nn.Linear(N_EMBD, 3 * N_EMBD), nn.Linear(N_EMBD, N_EMBD)
        self.merge = merge

    def forward(self, x: Float[Tensor, "batch seq n_embd"]) -> Float[Tensor, "batch seq n_embd"]:
        """Split into heads, attend, and merge the heads."""
        q, k, v = (part.unflatten(-1, (N_HEAD, HEAD_DIM)) for part in self.qkv(x).chunk(3, dim=-1))
        y = by_hand(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.out(self.merge(y))


def by_hand(q: Tensor, k: Tensor, v: Tensor) -> Float[Tensor, "batch head seq head_dim"]:
    """Compute causal attention from matmuls, a mask and a softmax."""
    scores = q @ k.mT / math.sqrt(q.size(-1))
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(future, -math.inf).softmax(dim=-1) @ v


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, merge: Merge):
        super().__init__()
        self.norm, self.attention = nn.LayerNorm(N_EMBD), Attention(merge)
        self.mlp = nn.Sequential(
            nn.LayerNorm(N_EMBD),
            nn.Linear(N_EMBD, 4 * N_EMBD),
            nn.GELU(),
            nn.Linear(4 * N_EMBD, N_EMBD),
        )

    def forward(self, x: Float[Tensor, "batch seq n_embd"]) -> Float[Tensor, "batch seq n_embd"]:
        """Add attention and the MLP to the residual stream."""
        x = x + self.attention(self.norm(x))
        return x + self.mlp(x)


class CharModel(nn.Module):
    """A character model whose attention heads `merge` joins."""

    def __init__(self, merge: Merge):
        super().__init__()
        vocabulary = corpus().tokenizer.vocab_size
        self.token, self.position = nn.Embedding(vocabulary, N_EMBD), nn.Embedding(SEQ, N_EMBD)
        for table in (self.token, self.position):
            nn.init.normal_(table.weight, std=0.1)
        self.blocks = nn.Sequential(*(Block(merge) for _ in range(N_LAYER)))
        self.norm, self.head = nn.LayerNorm(N_EMBD), nn.Linear(N_EMBD, vocabulary)

    def forward(self, tokens: Int[Tensor, "batch seq"]) -> Float[Tensor, "batch seq vocabulary"]:
        """Return the logits of the next character at every position."""
        x = self.token(tokens) + self.position.weight[: tokens.size(1)]
        return self.head(self.norm(self.blocks(x)))


class Corpus(NamedTuple):
    """Shakespeare's plays as characters. The last tenth is for validation."""

    tokenizer: CharTokenizer
    train: Int[Tensor, " train"]
    validation: Int[Tensor, " validation"]


class Run(NamedTuple):
    """A trained model, and its validation losses in nats per character by step."""

    model: CharModel
    losses: dict[int, float]


@cache
def corpus() -> Corpus:
    """Read the plays."""
    text = shakespeare()
    tokenizer = CharTokenizer(text)
    ids = torch.from_numpy(tokenizer.encode(text).astype("int64"))
    cut = len(ids) * 9 // 10
    return Corpus(tokenizer, ids[:cut], ids[cut:])


def windows(ids: Tensor, count: int, generator: torch.Generator) -> Int[Tensor, "count seq+1"]:
    """Draw windows of SEQ + 1 characters."""
    starts = torch.randint(len(ids) - SEQ, (count, 1), generator=generator)
    return ids[starts + torch.arange(SEQ + 1)]


@cache
def validation() -> Int[Tensor, "count seq+1"]:
    """Return the windows on which every model is evaluated."""
    return windows(corpus().validation, 256, torch.Generator().manual_seed(1))


@torch.no_grad()
def loss_by_position(model: CharModel) -> Float[Tensor, " seq"]:
    """Return the mean validation loss at each position of a window."""
    texts = validation()
    logits = model(texts[:, :-1])
    return F.cross_entropy(logits.mT, texts[:, 1:], reduction="none").mean(dim=0)


def train(merge: Merge, seed: int = 0) -> Run:
    """Train a model on the CPU with Muon and AdamW, and evaluate it every 25 steps."""
    with one_thread(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = CharModel(merge)
        optimizer = make_optimizer(model)
        draw, losses = torch.Generator().manual_seed(seed), {}
        for step in range(STEPS + 1):
            if step % EVERY == 0:
                losses[step] = loss_by_position(model).mean().item()
            rate = 0.02 * min((step + 1) / 25, max(0.05, 1 - step / STEPS))
            for group in optimizer.param_groups:
                group["lr"] = rate
            texts = windows(corpus().train, BATCH, draw)
            loss = F.cross_entropy(model(texts[:, :-1]).flatten(0, 1), texts[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return Run(model, losses)


def make_optimizer(model: CharModel) -> Muon:
    """Create Muon for the matrices of the blocks, and AdamW for everything else."""
    inside = [p for p in model.blocks.parameters() if p.dim() == 2]
    others = [p for p in model.parameters() if all(p is not matrix for matrix in inside)]
    groups = [{"params": inside, "muon_momentum": 0.95}, {"params": others}]
    return Muon(groups, lr=0.02, betas=(0.9, 0.95), weight_decay=0.0)


@torch.no_grad()
def sample(model: CharModel, length: int = 240, prompt: str = "ROMEO:\n", seed: int = 0) -> str:
    """Let a model continue a prompt, one character at a time."""
    tokenizer, draw = corpus().tokenizer, torch.Generator().manual_seed(seed)
    ids = tokenizer.encode(prompt).astype("int64").tolist()
    for _ in range(length):
        logits = model(torch.tensor([ids[-SEQ:]]))[0, -1]
        ids.append(int(torch.multinomial(logits.softmax(dim=-1), 1, generator=draw)))
    return tokenizer.decode_bytes(ids).decode()


def known_words(text: str) -> float:
    """Return the share of the words of a text that occur in the plays, after its first line."""
    known = set(re.findall(r"[A-Za-z]+", shakespeare()))
    written = re.findall(r"[A-Za-z]+", text.partition("\n")[2])
    return sum(word in known for word in written) / max(1, len(written))


@torch.no_grad()
def loss_as_generated(model: CharModel) -> float:
    """Return the loss at the last position, averaged over all lengths from 2 to SEQ.

    A model that generates text sees no character after the last position.
    """
    texts = validation()
    losses = [F.cross_entropy(model(texts[:, :n])[:, -1], texts[:, n]) for n in range(2, SEQ + 1)]
    return torch.stack(losses).mean().item()


@cache
def pair_loss() -> Float[Tensor, " seq"]:
    """Return the mean loss at each position of a table with the frequency of each pair."""
    ids, size = corpus().train, corpus().tokenizer.vocab_size
    counts = torch.bincount(ids[:-1] * size + ids[1:], minlength=size**2).view(size, size) + 1.0
    texts = validation()
    table = (counts / counts.sum(dim=1, keepdim=True)).log()
    return -table[texts[:, :-1], texts[:, 1:]].mean(dim=0)
