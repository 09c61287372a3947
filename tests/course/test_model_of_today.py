"""SmolLM2's file, without the file itself."""

import gguf
import numpy as np
import pytest
import torch

from cs336_course.pages.model_of_today import story
from cs336_course.shared import model_of_today

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
    assert torch.equal(story.dequantize_q8_0(raw), torch.from_numpy(theirs))


def test_a_chat_ends_with_the_assistants_turn():
    said = story.chat("Who?", system="Be brief.")
    assert said == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )
