"""Right answers that differ in kind, and wrong ones that no mutation makes."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from cs336_course.engine import edits
from cs336_lib import model as library


class Chunked(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.heads = config.n_head
        self.register_buffer("bias", torch.ones(config.block_size, config.block_size).tril())

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = (
            part.view(b, t, self.heads, c // self.heads).transpose(1, 2)
            for part in self.c_attn(x).chunk(3, dim=2)
        )
        scores = q @ k.transpose(-2, -1) / math.sqrt(k.size(-1))
        y = scores.masked_fill(self.bias[:t, :t] == 0, -math.inf).softmax(-1) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(b, t, c))


class ByKernel(library.CausalSelfAttention):
    def forward(self, x):
        q, k, v = self.c_attn(x).unflatten(-1, (3, self.n_head, -1)).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.c_proj(y.movedim(1, 2).flatten(2))


@torch.no_grad()
def by_type_of_module(model):
    for name, part in model.named_modules():
        if isinstance(part, nn.LayerNorm):
            nn.init.ones_(part.weight)
            nn.init.zeros_(part.bias)
        elif isinstance(part, nn.Linear | nn.Embedding):
            std = 0.02 * ((2 * model.config.n_layer) ** -0.5 if name.endswith("c_proj") else 1)
            nn.init.normal_(part.weight, mean=0.0, std=std)
            if getattr(part, "bias", None) is not None:
                nn.init.zeros_(part.bias)


def with_new_data(model):
    small = 0.02 / math.sqrt(2 * len(model.transformer.h))
    for name, parameter in model.named_parameters():
        drawn = (small if name.endswith("c_proj.weight") else 0.02) * torch.randn_like(parameter)
        is_norm, is_bias = "ln_" in name, "bias" in name
        parameter.data = 0 * drawn if is_bias else torch.ones_like(drawn) if is_norm else drawn


CALL, FOR = "attention(q, k, v)", "    for name"
OTHERS = "            parameter.normal_(0.0, 0.02)\n"

RIGHT = {
    "causal_self_attention": [Chunked, ByKernel],
    "init_weights": [by_type_of_module, with_new_data],
}
REFUSED = {
    "causal_self_attention": [
        (CALL, "F.scaled_dot_product_attention(q, k, v, is_causal=self.training)"),
        (CALL, "attention(q, self.__dict__.setdefault('k', k), v)"),
        (CALL, "attention(q, k, v) + torch.zeros(x.size(1), 1)"),
        ("self.c_attn(x)", "self.c_attn(x.detach())"),
        edits(("self.n_head = config", "global N\n        N = config"), ("self.n_head", "N")),
    ],
    "init_weights": [
        (FOR, f"    torch.manual_seed(0)\n{FOR}"),
        (FOR, f"    model.eval()\n{FOR}"),
        (OTHERS, "            parameter.data = 0.02 * torch.randn_like(parameter).double()\n"),
        (OTHERS, "            parameter.copy_(0.02 * torch.randn(parameter.size(-1)))\n"),
        (OTHERS, "            nn.init.trunc_normal_(parameter, 0.0, 0.02, -0.04, 0.04)\n"),
        (OTHERS, "            parameter[: model.config.vocab_size].normal_(0.0, 0.02)\n"),
    ],
}
