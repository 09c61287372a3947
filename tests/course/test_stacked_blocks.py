"""The small stacks of 07_gpt2_model differ only in what they are asked to."""

import math

import torch

from cs336_course.pages.gpt2_model import stacked_blocks
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT, CausalSelfAttention


def streams(model: GPT, idx: torch.Tensor) -> list[torch.Tensor]:
    """The embeddings, and the stream after each block."""
    found = [model.transformer.wte(idx)]
    for block in model.transformer.h:
        found.append(block(found[-1]))
    return found


def test_a_token_alone_keeps_its_own_value():
    torch.manual_seed(0)
    attention = CausalSelfAttention(GPTConfig(8, 64, n_layer=1, n_head=2, n_embd=16))
    x = torch.randn(3, 5, 16)
    one_by_one = attention(x.flatten(0, 1)[:, None]).view_as(x)
    assert torch.allclose(stacked_blocks.alone(attention, x), one_by_one, atol=1e-6)
    assert not torch.allclose(stacked_blocks.alone(attention, x), attention(x), atol=1e-3)


def test_a_stack_learns_and_is_the_same_in_each_call():
    first, again = (stacked_blocks.train(streams, n_layer=1, steps=25) for _ in range(2))
    assert first == again
    assert stacked_blocks.train(streams, n_layer=1, steps=60).loss < first.loss < math.log(62)
    assert 0 < first.alike < 1
    assert 0 < first.direction <= 1


def test_frequencies_are_worth_a_nat():
    assert 3.2 < stacked_blocks.letter_entropy() < 3.22


def test_random_blocks_keep_the_scale():
    for parameter in stacked_blocks.random_blocks(2, width=64).parameters():
        if parameter.ndim == 2:
            assert math.isclose(parameter.std().item() * parameter.size(1) ** 0.5, 1, rel_tol=0.05)
