import math
from contextlib import nullcontext

import numpy as np
import pytest
import torch

from cs336_lib.data import Loader, TokenStream
from cs336_lib.distributed import World
from cs336_lib.evaluate import score, validation_loss
from cs336_lib.model import GPT
from cs336_lib.tokenizer import CharTokenizer

CPU = torch.device("cpu")


@pytest.fixture
def loader(tiny_config):
    ids = np.random.default_rng(0).integers(0, 50, 500).astype(np.uint16)
    return Loader(TokenStream([ids], ["val"]), 16, 50, seed=0)


def loss(model, loader, tokens=480, micro=4, world=None):
    return validation_loss(
        model,
        loader,
        tokens,
        micro_batch_size=micro,
        device=CPU,
        autocast=nullcontext(),
        world=world,
    )


def test_it_is_the_mean_over_the_same_windows(tiny_config, loader):
    model = GPT(tiny_config)
    x, y = loader.windows(loader.validation_starts(480))
    with torch.no_grad():
        expected = model.eval()(x, y).item()
    model.train()
    for micro in (1, 4, 7, 100):
        assert loss(model, loader, micro=micro) == pytest.approx(expected, abs=1e-5)
    assert model.training


def test_ranks_share_the_windows(tiny_config, loader, monkeypatch):
    model = GPT(tiny_config)
    whole = loss(model, loader)
    parts = []

    class Rank(World):
        def sum(self, *values, device):
            parts.extend(values)
            return list(values)

    for rank in range(3):
        loss(model, loader, world=Rank(rank=rank, size=3))
    assert sum(parts) / 30 == pytest.approx(whole, abs=1e-6)


def test_bits_per_byte(tiny_config, loader):
    tokenizer = CharTokenizer("".join(chr(0x100 + i) for i in range(50)))  # two bytes each
    result = score(
        GPT(tiny_config),
        loader,
        tokenizer,
        480,
        micro_batch_size=4,
        device=CPU,
        autocast=nullcontext(),
    )
    assert (result.tokens, result.bytes) == (480, 960)
    assert result.bits_per_byte == pytest.approx(result.loss / math.log(2) / 2)
    assert result.perplexity == pytest.approx(math.exp(result.loss))
