"""The slips of page 03 in a trained model."""

import pytest
import torch

from cs336_course.pages.einops import story as demo
from cs336_lib.training.checkpoint import load_shipped


def whole(qkv):
    return demo.by_name(qkv, 6)


def test_the_replaced_attention_is_the_models_own_and_goes_back():
    model, letters = load_shipped()
    windows = demo.held_out(letters, windows=2, seq=32)
    assert windows.shape == (2, 33)
    with torch.no_grad():
        loss = model(windows[:, :-1], windows[:, 1:]).item()
    assert demo.loss_with(model, windows, whole) == pytest.approx(loss, rel=1e-4)
    assert all("forward" not in vars(block.attn) for block in model.transformer.h)


def test_rows_move_after_the_changed_one():
    model, letters = load_shipped()
    x = demo.first_input(model, letters, "O Romeo!")
    layer = model.transformer.h[0].attn
    assert demo.rows_moved(layer, whole, x, changed=3) == [3, 4, 5, 6, 7]
    assert demo.rows_moved(layer, lambda qkv: demo.by_position(qkv, 6), x, changed=0) == [0]


def test_a_table_knows_what_follows():
    assert demo.table_loss(torch.tensor([0, 1] * 500)) < 0.01
    noise = torch.randint(4, (4000,), generator=torch.Generator().manual_seed(0))
    assert demo.table_loss(noise) == pytest.approx(1.386, abs=0.03)
