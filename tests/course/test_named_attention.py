"""The slips of notebook 03 in a trained model, its small runs and its times."""

import pytest
import torch
from einops import rearrange

from cs336_course.pages.einops import named_attention as demo
from cs336_course.pages.einops import named_cost
from cs336_lib.training.checkpoint import load_shipped

WHOLE = demo.without_heads([], 6)


@pytest.fixture(scope="module")
def trained():
    return load_shipped()


def test_the_replaced_attention_is_the_models_own_and_goes_back(trained):
    model, letters = trained
    windows = demo.held_out(letters, windows=2, seq=32)
    assert windows.shape == (2, 33)
    with torch.no_grad():
        loss = model(windows[:, :-1], windows[:, 1:]).item()
    assert demo.loss_with(model, windows, WHOLE) == pytest.approx(loss, rel=1e-4)
    assert demo.loss_with(model, windows, demo.without_heads([1], 6)) > loss + 0.5
    assert all("forward" not in vars(block.attn) for block in model.transformer.h)


def test_rows_move_after_the_changed_one(trained):
    model, letters = trained
    x = demo.first_input(model, letters, "O Romeo!")
    layer = model.transformer.h[0].attn
    assert demo.rows_moved(layer, WHOLE, x, changed=3) == [3, 4, 5, 6, 7]
    assert demo.rows_moved(layer, lambda qkv: demo.by_position(qkv, 6), x, changed=0) == [0]


def test_queries_and_keys_are_the_layers(trained):
    model, letters = trained
    q, k = demo.queries_and_keys(model, letters, "ROMEO:")
    qkv = model.transformer.h[0].attn.c_attn(demo.first_input(model, letters, "ROMEO:"))
    joined = torch.cat([rearrange(y, "b s h d -> b s (h d)") for y in (q, k)], -1)
    torch.testing.assert_close(joined, qkv[..., : 2 * 192])


def test_a_table_knows_what_follows():
    regular = torch.tensor([0, 1] * 500)
    assert demo.table_loss(regular) < 0.01
    noise = torch.randint(4, (4000,), generator=torch.Generator().manual_seed(0))
    assert demo.table_loss(noise) == pytest.approx(1.386, abs=0.03)
    twice = torch.tensor([0, 0, 1, 1] * 500)  # only two letters tell which one follows
    assert demo.table_loss(twice) == pytest.approx(0.693, abs=0.01)
    assert demo.table_loss(twice, (0, 1)) < 0.01


def test_rows_are_spelled_as_a_range():
    assert [demo.spelled(rows) for rows in ([], [3], [0, 1, 2])] == ["none", "3", "0 to 2"]


def test_errors_are_returned_and_expected():
    assert "invalid literal" in str(demo.error_of(int, "x"))
    with pytest.raises(AssertionError, match="expected to fail"):
        demo.error_of(int, "1")


def test_names_and_positions_agree():
    qkv = demo.normal(2, 5, 3 * 6 * 4)
    torch.testing.assert_close(named_cost.named(qkv), named_cost.by_hand(qkv))
    x = demo.normal(2, 5, 8)
    assert torch.equal(named_cost.split(x), named_cost.split_by_hand(x))


def test_copies_are_timed():
    small, large = named_cost.copies([2**10, 2**20], rounds=2)
    assert (small.mib, large.mib) == (2**-8, 4)
    assert 0 < small.clone < large.clone
    assert small.pages >= 0
