"""Surgery on norms, Q8_0 and chats of SmolLM2, and the same model by transformers."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from cs336_lib.accounting import Architecture

SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


@contextmanager
def norms_that(rule: Callable[..., Tensor], model: nn.Module) -> Iterator[None]:
    """Replace what a model's LayerNorms compute before their gains and biases.

    Args:
        rule: Takes the input, and whatever `F.layer_norm` takes.
        model: A model of notebook 07.
    """

    def normalized(norm: Any, inputs: tuple[Tensor], _: Tensor) -> Tensor:
        return rule(inputs[0], inputs[0].shape[-1:]) * norm.weight + norm.bias

    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    hooks = [norm.register_forward_hook(normalized) for norm in norms]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def shares_of_the_mean(model: nn.Module, *inputs: Tensor) -> list[float]:
    """Return which share of each LayerNorm's input, in squares, is its mean."""
    found = []

    def look(_: nn.Module, given: tuple[Tensor]) -> None:
        found.append((given[0].mean(-1).pow(2).mean() / given[0].pow(2).mean()).item())

    norms = [part for part in model.modules() if isinstance(part, nn.LayerNorm)]
    hooks = [norm.register_forward_pre_hook(look) for norm in norms]
    try:
        model(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found


def dequantize_q8_0(raw: UInt8[Tensor, "row bytes"]) -> Float[Tensor, "row weight"]:
    """Decode Q8_0, whose block is an fp16 scale and 32 signed bytes."""
    blocks = raw.view(len(raw), -1, 34)
    scale = blocks[..., :2].contiguous().view(torch.float16).float()
    return (blocks[..., 2:].contiguous().view(torch.int8) * scale).flatten(1)


def chat(question: str, system: str = SYSTEM) -> str:
    """Return a question in the format of the chats that the model was trained on."""
    turns = {"system": system, "user": question}
    said = "".join(f"<|im_start|>{who}\n{text}<|im_end|>\n" for who, text in turns.items())
    return said + "<|im_start|>assistant\n"


def transformers_logits(
    model: nn.Module, config: Architecture, idx: Int[Tensor, "batch seq"]
) -> Float[Tensor, "batch seq vocab"]:
    """Return the logits of transformers' Llama with a model's own weights, which it shares."""
    from transformers import LlamaConfig, LlamaForCausalLM
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    theirs = LlamaConfig(
        vocab_size=config.vocab_size,
        hidden_size=config.n_embd,
        intermediate_size=config.mlp_width,
        num_hidden_layers=config.n_layer,
        num_attention_heads=config.n_head,
        num_key_value_heads=config.n_kv_head,
        max_position_embeddings=config.block_size,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 100_000.0},
        tie_word_embeddings=True,
    )
    with torch.device("meta"):
        reference = LlamaForCausalLM(theirs)
    reference.model.load_state_dict(model.state_dict(), assign=True)
    reference.tie_weights()
    reference.model.rotary_emb = LlamaRotaryEmbedding(theirs)
    with torch.no_grad():
        return reference.eval()(idx).logits
