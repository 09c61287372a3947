"""The loader with the classic mistake."""

import torch

from cs336_course.pages.gpt2_speaks.foreign_weights import load
from cs336_lib import hugging_face
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT


def test_only_square_weights_are_wrong():
    torch.manual_seed(0)
    model = GPT(GPTConfig(block_size=8, vocab_size=50, n_layer=2, n_head=2, n_embd=16))
    loaded = dict(load(hugging_face.hugging_face_tensors(model), model.config).named_parameters())
    wrong = [name for name, p in model.named_parameters() if not torch.equal(p, loaded[name])]
    assert wrong == [f"transformer.h.{layer}.attn.c_proj.weight" for layer in (0, 1)]
