"""Open SmolLM2's file, and look into the model that a learner loads from it."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import tiktoken
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from cs336_lib.accounting import Architecture

# SmolLM2 splits text as GPT-2 does, but each digit is a word (`tokenizer.ggml.pre` is "smollm").
SPLIT = r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

# What a GGUF file calls a part, and what a checkpoint of the Llama family calls it
NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class ModelFile:
    """A model in a GGUF file.

    Attributes:
        config: Shape of the model.
        metadata: Numbers and short texts that describe it, by their names in the file.
        tensors: Bytes of shape (rows, bytes) of a quantized tensor, and fp32 numbers of a norm.
        formats: Format of each tensor, as "Q4_1".
        shapes: Shape of each tensor in PyTorch's order.
        tokenizer: Tokenizer of the model.
    """

    config: Architecture
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]
    formats: Mapping[str, str]
    shapes: Mapping[str, tuple[int, ...]]
    tokenizer: tiktoken.Encoding


def open_file(path: Path) -> ModelFile:
    """Read a GGUF file of the Llama family. Its tensors stay on the disk until they are used."""
    reader = gguf.GGUFReader(path, "c")
    short = {name: f for name, f in reader.fields.items() if not name.startswith("tokenizer.")}
    metadata = {name: field.contents() for name, field in short.items()}
    return ModelFile(
        shape(metadata),
        metadata,
        {t.name: torch.from_numpy(t.data) for t in reader.tensors},
        {t.name: t.tensor_type.name for t in reader.tensors},
        {t.name: tuple(int(n) for n in reversed(t.shape)) for t in reader.tensors},
        tokenizer(
            reader.fields["tokenizer.ggml.tokens"].contents(),
            reader.fields["tokenizer.ggml.token_type"].contents(),
        ),
    )


SMOLLM2 = Architecture(
    n_layer=30,
    n_embd=576,
    n_head=9,
    n_kv_head=3,
    head_dim=64,
    vocab_size=49152,
    block_size=8192,
    mlp_width=1536,
    tied=True,
)
"""The shape of SmolLM2-135M, which `shape` returns for its file."""


def shape(metadata: Mapping[str, Any]) -> Architecture:
    """Return the shape that a file's metadata describe."""
    width, heads = (
        metadata[f"llama.{name}"] for name in ("embedding_length", "attention.head_count")
    )
    return Architecture(
        n_layer=metadata["llama.block_count"],
        n_embd=width,
        n_head=heads,
        n_kv_head=metadata["llama.attention.head_count_kv"],
        head_dim=width // heads,
        vocab_size=metadata["llama.vocab_size"],
        block_size=metadata["llama.context_length"],
        mlp_width=metadata["llama.feed_forward_length"],
        tied=True,
    )


def byte_names() -> dict[str, int]:
    """Return the bytes by the visible characters that stand for them in a vocabulary of GPT-2."""
    visible = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in visible]
    names = {chr(byte): byte for byte in visible}
    return names | {chr(256 + number): byte for number, byte in enumerate(hidden)}


def tokenizer(tokens: list[str], types: list[int]) -> tiktoken.Encoding:
    """Build the tokenizer from a file's tokens and their types, of which 1 is a normal one.

    Merges have the order of the tokens that they make, so a token's id is its rank. 21 bytes have
    no token. They are rare control characters, or don't occur in UTF-8.
    """
    names = byte_names()
    ranks = {
        bytes(names[character] for character in token): number
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind == 1
    }
    special = {t: n for n, (t, kind) in enumerate(zip(tokens, types, strict=True)) if kind != 1}
    return tiktoken.Encoding(
        "smollm2", pat_str=SPLIT, mergeable_ranks=ranks, special_tokens=special
    )


def llama_name(name: str) -> str:
    """Return a tensor's name in the Llama family.

    Example:
        >>> llama_name("blk.0.attn_q.weight")
        'layers.0.self_attn.q_proj.weight'
    """
    parts = name.removesuffix(".weight").split(".")
    return ".".join(["layers", *parts[1:2]] * (len(parts) > 1) + [NAMES[parts[-1]], "weight"])


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


def rotate(
    x: Float[Tensor, "batch head seq dim"], positions: Int[Tensor, " seq"], base: float = 100_000.0
) -> Float[Tensor, "batch head seq dim"]:
    """Turn the pairs (i, i + dim / 2) by their positions, as complex numbers (Su et al. 2021)."""
    real, imaginary = x.chunk(2, dim=-1)
    half = real.size(-1)
    speeds = base ** (-torch.arange(half, device=x.device) / half)
    turned = torch.complex(real, imaginary) * torch.exp(1j * (positions[:, None] * speeds))
    return torch.cat((turned.real, turned.imag), dim=-1)


def grouped_attention(
    q: Float[Tensor, "batch head query dim"],
    k: Float[Tensor, "batch kv_head key dim"],
    v: Float[Tensor, "batch kv_head key value"],
) -> Float[Tensor, "batch head query value"]:
    """Compute causal attention, whose queries belong to the last of the keys."""
    allowed = torch.ones(q.size(2), k.size(2), dtype=torch.bool, device=q.device)
    allowed = allowed.tril(k.size(2) - q.size(2))
    return F.scaled_dot_product_attention(q, k, v, allowed, enable_gqa=True)


@torch.no_grad()
def attention_weights(model: Any, idx: Int[Tensor, "1 seq"]) -> Float[Tensor, "layer head seq seq"]:
    """Return the attention weights of all heads for a text."""
    found = []

    def look(attention: Any, inputs: tuple[Tensor, ...]) -> None:
        heads = "batch seq (head dim) -> batch head seq dim"
        q, k = (
            rearrange(part(inputs[0]), heads, dim=attention.head_dim)
            for part in (attention.q_proj, attention.k_proj)
        )
        seq = q.size(2)
        positions = torch.arange(seq, device=q.device)
        unit = torch.eye(seq, device=q.device).expand(1, k.size(1), seq, seq)
        found.append(grouped_attention(rotate(q, positions), rotate(k, positions), unit)[0].cpu())

    hooks = [layer.self_attn.register_forward_pre_hook(look) for layer in model.layers]
    try:
        model(idx)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


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


def transformers_ids(file: Path) -> Callable[[str], list[int]]:
    """Return the encoder of Hugging Face's own library, built from a file's tokens and merges."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    fields = gguf.GGUFReader(file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"].contents()]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    theirs = Tokenizer(models.BPE(vocabulary, merges))
    theirs.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
        ]
    )
    return lambda text: theirs.encode(text).ids
