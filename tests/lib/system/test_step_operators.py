"""Count the operators and the bytes of a training step under bf16 autocast on a CPU.

The counts are the same on a CPU without native bf16, where only the time differs.
"""

import pytest
import torch
from torch import Tensor

from cs336_course.shared.activation_memory import LiveBytes
from cs336_lib.bill import memory
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT
from cs336_lib.system import cpu

CONFIG = GPTConfig(n_layer=2, n_head=2, n_embd=64, block_size=160, vocab_size=2000)
BATCH = 2


def tokens_of(config: GPTConfig, batch: int = BATCH) -> Tensor:
    return torch.randint(config.vocab_size, (batch, config.block_size + 1))


@pytest.mark.parametrize("seq", [1, 128, 200])
def test_gradients_are_as_exact_as_pytorchs(seq, monkeypatch):
    """Against fp32, with targets that are ignored and a part of the last tile."""
    config = GPTConfig(n_layer=1, n_head=2, n_embd=64, block_size=seq, vocab_size=300)
    model, tokens = cpu.accelerate(GPT(config)), tokens_of(config)
    x, y = tokens[:, :-1], tokens[:, 1:].clone()
    y[0, : seq // 2] = -1

    def gradients(enabled: bool) -> tuple[Tensor, list[Tensor]]:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            loss = model(x, y)
        return loss, list(torch.autograd.grad(loss * 0.3, list(model.parameters())))

    (exact, expected), (loss, ours) = gradients(False), gradients(True)
    monkeypatch.setattr(cpu, "applies", lambda x: False)  # PyTorch's attention and loss
    theirs = gradients(True)[1]
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(exact.item(), rel=1e-3)
    for want, mine, other in zip(expected, ours, theirs, strict=True):
        assert (mine - want).norm() <= 1.25 * (other - want).norm() + 1e-6


def test_only_a_target_of_minus_one_is_ignored():
    model, tokens = cpu.accelerate(GPT(CONFIG)), tokens_of(CONFIG)
    with torch.autocast("cpu", dtype=torch.bfloat16), pytest.raises(IndexError, match="-2"):
        model(tokens[:, :-1], torch.full_like(tokens[:, 1:], -2))


def test_a_step_needs_less_memory_than_the_bill_predicts():
    """The bill describes PyTorch's operators, so it is an upper bound here."""
    model, tokens = cpu.accelerate(GPT(CONFIG)), tokens_of(CONFIG).unsqueeze(0)
    x, y = tokens[0, :, :-1].contiguous(), tokens[0, :, 1:].contiguous()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(x, y).backward()
    known = [*model.parameters(), *(p.grad for p in model.parameters()), x, y]
    with LiveBytes(known) as live, torch.autocast("cpu", dtype=torch.bfloat16):
        model(x, y).backward()
    peak = sum(memory.of_gpt(CONFIG, BATCH, optimizer="sgd", autocast=True).values())
    assert live.peak < 0.95 * peak
