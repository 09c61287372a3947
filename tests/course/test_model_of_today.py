"""SmolLM2's file, without the file itself."""

import gguf
import numpy as np
import pytest
import torch

from cs336_course.pages.inside_a_model import story as inside
from cs336_course.pages.model_of_today import story
from cs336_course.shared import model_of_today

TOKENS = ["<|im_end|>", "Ġ", "a", "b", "ab", "Ġab", "1", "2"]

SHAPES = {
    "output_norm": (64,),
    "blk.0.attn_norm": (64,),
    "blk.0.attn_q": (64, 64),
    "blk.0.attn_k": (32, 64),
    "blk.0.attn_v": (32, 64),
    "blk.0.attn_output": (64, 64),
    "blk.0.ffn_norm": (64,),
    "blk.0.ffn_gate": (96, 64),
    "blk.0.ffn_up": (96, 64),
    "blk.0.ffn_down": (64, 96),
}


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
    random = np.random.default_rng(1)
    for name, shape in SHAPES.items():
        drawn = random.normal(size=shape).astype(np.float32) / 8
        writer.add_tensor(f"{name}.weight", drawn + len(shape) % 2)  # gains are near 1
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
    assert file.formats["token_embd.weight"] == "Q8_0"
    assert file.formats["blk.0.attn_norm.weight"] == "F32"
    assert file.shapes["token_embd.weight"] == (8, 64)
    assert file.metadata["llama.block_count"] == 1
    ids = file.tokenizer.encode("ab ab12<|im_end|>", allowed_special="all")
    assert ids == [4, 5, 6, 7, 0]  # each digit is a token


def test_eight_bits_are_decoded_as_by_gguf(path):
    raw = model_of_today.open_file(path).tensors["token_embd.weight"]
    theirs = gguf.quants.dequantize(raw.numpy(), gguf.GGMLQuantizationType.Q8_0)
    assert torch.equal(story.dequantize_q8_0(raw), torch.from_numpy(theirs))


def test_a_loaded_model_computes_what_transformers_computes(path):
    pytest.importorskip("transformers")
    file = model_of_today.open_file(path)
    model, idx = inside.load(file), torch.tensor([[3, 1, 4, 1, 5, 0, 2, 6]])
    theirs = story.transformers_logits(model, file.config, idx)
    assert torch.allclose(model(idx), theirs, atol=1e-4)
    assert theirs.std() > 0.5
    query = file.tensors["blk.0.attn_q.weight"]
    own = model.layers[0].self_attn.q_proj.weight
    assert torch.equal(own[:16], query[:16][[*range(0, 16, 2), *range(1, 16, 2)]])
    weights = inside.attention_weights(model, idx)
    assert weights.shape == (1, 4, 8, 8)
    assert torch.allclose(weights.sum(-1), torch.ones(1, 4, 8))
    assert not weights.triu(1).any()
