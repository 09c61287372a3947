"""Open SmolLM2's file, and attention with rotated positions and shared keys."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import tiktoken
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from cs336_lib.accounting import Architecture

# SmolLM2 splits text as GPT-2 does, but each digit is a word (`tokenizer.ggml.pre` is "smollm").
SPLIT = r"\p{N}|'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?[^\s\p{L}\p{N}]+|\s+(?=\p{N})|\s+(?!\S)|\s+"

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
