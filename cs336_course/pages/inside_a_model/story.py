"""SmolLM2 as a model of named parts, what its heads look at, and a small GPT read halfway."""

from typing import Any

import gguf
import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_course.shared.model_of_today import ModelFile, grouped_attention, llama_name, rotate
from cs336_lib.accounting import Architecture
from cs336_lib.data.corpus import shakespeare
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint

HEADS = "batch seq (head dim) -> batch head seq dim"


class Attention(nn.Module):
    """Grouped-query attention with rotated queries and keys."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.head_dim = config.head_dim
        queries, keys = config.n_head * config.head_dim, config.n_kv_head * config.head_dim
        self.q_proj = nn.Linear(config.n_embd, queries, bias=False)
        self.k_proj = nn.Linear(config.n_embd, keys, bias=False)
        self.v_proj = nn.Linear(config.n_embd, keys, bias=False)
        self.o_proj = nn.Linear(queries, config.n_embd, bias=False)

    def turned(self, x: Tensor) -> list[Tensor]:
        """Return the queries and keys of all heads, turned by their positions."""
        positions = torch.arange(x.size(1), device=x.device)
        parts = (self.q_proj(x), self.k_proj(x))
        return [rotate(rearrange(part, HEADS, dim=self.head_dim), positions) for part in parts]

    def forward(self, x: Tensor) -> Tensor:
        q, k = self.turned(x)
        y = grouped_attention(q, k, rearrange(self.v_proj(x), HEADS, dim=self.head_dim))
        return self.o_proj(rearrange(y, "batch head seq dim -> batch seq (head dim)"))


class MLP(nn.Module):
    """A gated MLP."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.n_embd, config.mlp_width, bias=False)
        self.up_proj = nn.Linear(config.n_embd, config.mlp_width, bias=False)
        self.down_proj = nn.Linear(config.mlp_width, config.n_embd, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Block(nn.Module):
    """Attention and an MLP, which normalize their input and add to the stream."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.n_embd, eps=1e-5)
        self.mlp = MLP(config)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x))
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    """A model of the Llama family, whose output is tied to its embedding."""

    def __init__(self, config: Architecture) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.n_embd)
        self.layers = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.norm = nn.RMSNorm(config.n_embd, eps=1e-5)

    def forward(self, idx: Tensor) -> Tensor:
        """Return logits (batch, seq, vocab_size)."""
        x = self.embed_tokens(idx)
        for layer in self.layers:
            x = layer(x)
        return F.linear(self.norm(x), self.embed_tokens.weight)


def load(file: ModelFile) -> Llama:
    """Return the model of a file, in fp32. What the file holds is told in model_of_today."""
    weights, heads = {}, {"attn_q": file.config.n_head, "attn_k": file.config.n_kv_head}
    for name, raw in file.tensors.items():
        kind = gguf.GGMLQuantizationType[file.formats[name]]
        weight = torch.from_numpy(gguf.quants.dequantize(raw.numpy(), kind).copy())
        if n_head := heads.get(name.removesuffix(".weight").rpartition(".")[2]):
            pattern = "(head i two) column -> (head two i) column"  # ggml turns neighbors
            weight = rearrange(weight, pattern, head=n_head, two=2)
        weights[llama_name(name)] = weight
    with torch.device("meta"):
        model = Llama(file.config)
    model.load_state_dict(weights, assign=True)
    return model.requires_grad_(False)


@torch.no_grad()
def attention_weights(
    model: Llama | GPT, idx: Int[Tensor, "1 seq"]
) -> Float[Tensor, "layer head seq seq"]:
    """Return the attention weights of all heads for a text."""
    if isinstance(model, Llama):
        attentions = [layer.self_attn for layer in model.layers]
    else:
        attentions = [block.attn for block in model.transformer.h]
    found = []

    def look(attention: Any, inputs: tuple[Any, ...]) -> None:
        if isinstance(attention, Attention):
            q, k = attention.turned(inputs[0])
        else:
            q, k, _ = (
                rearrange(part, HEADS, head=attention.n_head)
                for part in attention.c_attn(inputs[0]).chunk(3, dim=-1)
            )
        unit = torch.eye(q.size(2)).expand(1, k.size(1), -1, -1)
        found.append(grouped_attention(q, k, unit)[0])

    hooks = [attention.register_forward_pre_hook(look) for attention in attentions]
    try:
        model(idx)
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack(found)


@torch.random.fork_rng(devices=[])
@torch.no_grad()
def halfway(text: str) -> list[tuple[str, list[float]]]:
    """Return the letters that the shipped model would say before and after each block, and how
    surely, at each place of a line that it hasn't read.
    """
    model, letters = checkpoint.load_shipped()
    plays = shakespeare()
    start = plays.index(text, len(plays) * 9 // 10)
    ids = torch.from_numpy(letters.encode(plays[start - 100 : start + len(text)])).long()[None]
    tree = model.transformer
    x = tree.wte(ids) + tree.wpe.weight[: ids.size(1)]
    stream = [x, *(x := block(x) for block in tree.h)]
    chances = model.lm_head(tree.ln_f(torch.cat(stream)))[:, 100:, : letters.vocab_size].softmax(-1)
    sure, likeliest = chances.max(-1)
    said = (letters.decode(row) for row in likeliest.tolist())
    return list(zip(said, sure.tolist(), strict=True))
