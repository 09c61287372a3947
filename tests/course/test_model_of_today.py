"""SmolLM2's file, what looks into the model, and the figures of notebook 07b."""

import gguf
import matplotlib
import numpy as np
import pytest
import torch
from torch import nn

matplotlib.use("Agg")


from cs336_course.pages.model_of_today import pictures as plots
from cs336_course.shared import model_of_today
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT

TOKENS = ["<|im_end|>", "Ġ", "a", "b", "ab", "Ġab", "1", "2"]


@pytest.fixture
def path(tmp_path):
    """A file of one tiny block."""
    path = tmp_path / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_context_length(128)
    writer.add_feed_forward_length(96)
    writer.add_vocab_size(len(TOKENS))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(TOKENS)
    writer.add_token_types([3] + [1] * 7)
    rows = np.random.default_rng(0).normal(size=(8, 64)).astype(np.float32)
    packed = gguf.quants.quantize(rows, gguf.GGMLQuantizationType.Q8_0)
    kind = gguf.GGMLQuantizationType.Q8_0
    writer.add_tensor("token_embd.weight", packed, raw_dtype=kind)
    writer.add_tensor("blk.0.attn_norm.weight", np.ones(64, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_file_has_a_shape_tensors_and_a_tokenizer(path):
    file = model_of_today.open_file(path)
    found = file.config
    assert (found.n_layer, found.n_head, found.n_kv_head, found.head_dim) == (1, 4, 2, 16)
    assert (found.mlp_width, found.block_size, found.vocab_size) == (96, 128, 8)
    assert file.formats == {"token_embd.weight": "Q8_0", "blk.0.attn_norm.weight": "F32"}
    assert file.shapes["token_embd.weight"] == (8, 64)
    assert file.metadata["llama.block_count"] == 1
    ids = file.tokenizer.encode("ab ab12<|im_end|>", allowed_special="all")
    assert ids == [4, 5, 6, 7, 0]  # each digit is a token


def test_eight_bits_are_decoded_as_by_gguf(path):
    raw = model_of_today.open_file(path).tensors["token_embd.weight"]
    theirs = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(model_of_today.dequantize_q8_0(raw), torch.from_numpy(theirs))


def test_names_are_those_of_the_llama_family():
    names = ("token_embd.weight", "output_norm.weight", "blk.12.ffn_down.weight")
    assert [model_of_today.llama_name(name) for name in names] == [
        "embed_tokens.weight",
        "norm.weight",
        "layers.12.mlp.down_proj.weight",
    ]


def test_a_chat_ends_with_the_assistants_turn():
    said = model_of_today.chat("Who?", system="Be brief.")
    assert said == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_every_byte_has_a_visible_name():
    names = model_of_today.byte_names()
    assert sorted(names.values()) == list(range(256))
    assert (names["Ġ"], names["Ċ"], names["a"]) == (32, 10, 97)


def test_norms_are_replaced_and_come_back():
    torch.manual_seed(0)
    model = GPT(GPTConfig(8, 64, n_layer=1, n_head=2, n_embd=16)).requires_grad_(False).eval()
    idx = torch.arange(8)[None]
    before = model(idx)
    with model_of_today.norms_that(nn.functional.layer_norm, model):
        assert torch.allclose(model(idx), before, atol=1e-6)
    with model_of_today.norms_that(lambda x, *_: 0 * x, model):
        assert not model(idx).any()
    assert torch.equal(model(idx), before)
    shares = model_of_today.shares_of_the_mean(model, idx)
    assert len(shares) == 3
    assert all(0 < share < 1 for share in shares)


def test_hands_point_at_their_angles():
    axes = plots.hands({"fast": [0.0, np.pi / 2], "slow": [0.0, 0.1]}, "title").axes[0]
    tips = [note.xy for note in axes.texts]
    assert tips[1] == pytest.approx((1, 0.36))
    assert tips[2] == pytest.approx((0.36, -1))
    assert [text.get_text() for text in axes.get_yticklabels()] == ["fast", "slow"]


def test_scores_leave_the_future_out():
    axes = plots.scores({"one": np.ones((3, 3)), "two": -np.ones((3, 3))}, "title").axes
    shown = axes[0].images[0].get_array()
    assert np.ma.count(np.ma.masked_invalid(shown)) == 6
    assert axes[1].images[0].get_clim() == (-1, 1)


def test_the_best_rank_is_at_the_top():
    axes = plots.readout({"text": [100, 10, 1]}, "title").axes[0]
    low, high = axes.get_ylim()
    assert low > 100
    assert high < 1


def test_a_map_for_each_head_and_a_loss_for_each_token():
    axes = plots.heads_on_text({"a": np.eye(2), "b": np.eye(2)}, ["x", " y"], "title").axes
    assert [text.get_text() for text in axes[0].get_xticklabels()] == ["x", "·y"]
    left, right = plots.induction(np.zeros((3, 2)), [9.0, 8.0, 1.0], 5.0, "title").axes[:2]
    assert left.images[0].get_array().shape == (3, 2)
    assert list(right.lines[0].get_xdata()) == [1, 2, 3]
