"""The formulas of accounting.py against PyTorch: what it counts, keeps and frees."""

import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from cs336_course.shared import short_optimizers
from cs336_course.shared.activation_memory import SavedTensors
from cs336_lib import accounting
from cs336_lib.bill import memory
from cs336_lib.bill.traffic import Layout, Workload
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT
from cs336_lib.system import cpu

SHAPES = (
    (GPTConfig(block_size=64, vocab_size=256, n_layer=2, n_head=4, n_embd=64), 2, 64),
    (GPTConfig(block_size=64, vocab_size=200, n_layer=3, n_head=2, n_embd=32), 3, 40),
    (GPTConfig(block_size=32, vocab_size=64, n_layer=1, n_head=3, n_embd=48, bias=False), 2, 32),
)


# Parameters


def test_counts_are_those_of_the_model():
    for bias in (True, False):
        config = GPTConfig(block_size=8, vocab_size=100, n_layer=3, n_head=2, n_embd=16, bias=bias)
        model = GPT(config)
        assert accounting.count_parameters(config) == model.num_parameters()
        matrices = [p for name, p in model.named_parameters() if p.dim() == 2 and "wpe" not in name]
        padding = (config.padded_vocab_size - config.vocab_size) * config.n_embd
        assert accounting.matmul_parameters(config) == sum(p.numel() for p in matrices) - padding


# FLOPs


def counted(config: GPTConfig, batch: int, seq: int) -> tuple[int, int]:
    """Forward and backward FLOPs of a step on the meta device, attention as plain matmuls."""
    with torch.device("meta"), sdpa_kernel(SDPBackend.MATH):
        model, tokens = GPT(config), torch.zeros(batch, seq, dtype=torch.long)
        with FlopCounterMode(display=False) as forward:
            loss = model(tokens, tokens)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
    return forward.get_total_flops(), backward.get_total_flops()


def test_the_124m_model_in_both_conventions():
    padded, config = GPTConfig(vocab_size=50304), GPTConfig()
    for batch, seq in ((1, 1024), (3, 40)):
        forward, backward = counted(padded, batch, seq)
        tokens = batch * seq
        assert forward == tokens * accounting.forward_flops_per_token(padded, seq)
        assert backward == 2 * forward
        assert 3 * forward == tokens * accounting.train_flops_per_token(padded, seq)
    assert accounting.train_flops_per_token(config) == 854_438_400
    assert accounting.train_flops_per_token(config, convention="causal") == 797_870_592
    # nanoGPT, estimate_mfu: 6 N + 12 L H Q T, where N excludes positions
    nano = 6 * (accounting.count_parameters(config) - 1024 * 768) + 12 * 12 * 12 * 64 * 1024
    assert accounting.train_flops_per_token(config) == pytest.approx(nano, rel=1e-3)
    with pytest.raises(ValueError, match="convention 'half' is unknown; one of palm, causal"):
        accounting.train_flops_per_token(config, convention="half")


# Bytes that stay


MAKERS = {
    "sgd": torch.optim.SGD,
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9),
    "adagrad": torch.optim.Adagrad,
    "rmsprop": torch.optim.RMSprop,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "muon": short_optimizers.Muon,
    "adafactor": torch.optim.Adafactor,
}


def test_state_is_what_the_optimizer_keeps():
    """Adafactor keeps means of rows and columns, which are negligible for a large matrix."""
    for name, make in MAKERS.items():
        parameter = nn.Parameter(torch.ones(24, 40))
        parameter.grad = torch.ones(24, 40)
        optimizer = make([parameter])
        optimizer.step()
        means = 4 * (24 + 40) if name == "adafactor" else 0
        expected = 24 * 40 * accounting.STATE_BYTES[name] + means
        assert short_optimizers.state_bytes(optimizer) == expected, name
    # Lion and 8-bit AdamW are not PyTorch's; the notebook builds them.
    assert set(accounting.STATE_BYTES) == {*MAKERS, "lion", "adamw8bit"}
    assert accounting.STATE_BYTES["adamw8bit"] == pytest.approx(2.03, abs=0.002)


# Activations


def test_activations_are_what_autograd_keeps(monkeypatch: pytest.MonkeyPatch):
    """The bill is exact on a CPU, but for the vectors that it counts among autocast's copies."""
    monkeypatch.setattr(cpu, "applies", lambda x: False)
    config, batch, seq = SHAPES[0]
    for precision, error in (("fp32", 0), ("autocast", 0.004)):
        model = GPT(config)
        tokens = torch.randint(0, config.vocab_size, (2, batch, seq))
        low = torch.autocast("cpu", dtype=torch.bfloat16, enabled=precision == "autocast")
        with low, SavedTensors(model.parameters()) as saved:
            model(tokens[0].clone(), tokens[1].clone())
        a, layout = accounting.architecture_of(config), Layout(micro_batch=batch)
        kinds = dict(memory.moments(Workload(a, layout, seq, precision=precision)))["loss"]
        copies = kinds["weights"] - 4 * accounting.count_parameters(config)
        kept = kinds["activations"] + kinds["logits and loss"] + copies
        ids = 8 * (2 * batch * seq + seq) + 4  # inputs, targets, positions, number of targets
        assert saved.bytes == pytest.approx(kept + ids, rel=error)
