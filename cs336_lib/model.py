"""GPT-2 (Radford et al. 2019), with Hugging Face's parameter names."""

import hashlib
import math

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from cs336_lib.config import GPTConfig


class KVCache:
    """Cache of the keys and values of earlier tokens, so that they are computed only once.

    Args:
        config: Shape of the model.
        batch: Number of sequences. All sequences must have the same length.
        device: Device of the model.
        dtype: Data type of keys and values.
    """

    def __init__(self, config: GPTConfig, batch: int, device: torch.device, dtype: torch.dtype):
        head_dim = config.n_embd // config.n_head
        shape = (config.n_layer, 2, batch, config.n_head, config.block_size, head_dim)
        self.store = torch.empty(shape, device=device, dtype=dtype)
        self.length = 0
        self.mask: Bool[Tensor, "t all"] | None = None

    def grow(self, seq: int) -> Int[Tensor, " t"]:
        """Reserve space for `seq` new tokens per sequence, and return their positions.

        This also updates the causal mask for the new tokens. `mask` is `None` if the tokens need no
        explicit mask.
        """
        past, self.length = self.length, self.length + seq
        positions = torch.arange(self.length, device=self.store.device)
        # From position 0 on, `is_causal` does it, and a single token may attend to all.
        self.mask = positions[past:, None] >= positions if past > 0 and seq > 1 else None
        return positions[past:]

    def extend(
        self, layer: int, k: Float[Tensor, "b h t d"], v: Float[Tensor, "b h t d"]
    ) -> tuple[Float[Tensor, "b h all d"], Float[Tensor, "b h all d"]]:
        """Append keys and values to the cache of a layer, and return the full keys and values."""
        keys, values = self.store[layer, :, :, :, : self.length].unbind(0)
        keys[:, :, -k.size(2) :] = k
        values[:, :, -v.size(2) :] = v
        return keys, values


class CausalSelfAttention(nn.Module):
    """Multi-head attention with a causal mask."""

    def __init__(self, config: GPTConfig, layer: int = 0):
        super().__init__()
        self.layer = layer
        self.n_head = config.n_head
        self.dropout = config.dropout
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd, bias=config.bias)

    def forward(
        self, x: Float[Tensor, "batch seq n_embd"], cache: KVCache | None = None
    ) -> Float[Tensor, "batch seq n_embd"]:
        """Apply attention. If a cache is given, `x` must contain only the new tokens."""
        pattern = "batch seq (three head head_dim) -> three batch head seq head_dim"
        q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head).unbind(0)
        mask = cache.mask if cache else None
        if cache:
            k, v = cache.extend(self.layer, k, v)
        causal = mask is None and q.size(2) == k.size(2)
        dropout = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, is_causal=causal, dropout_p=dropout
        )
        y = self.c_proj(rearrange(y, "batch head seq head_dim -> batch seq (head head_dim)"))
        return F.dropout(y, self.dropout, self.training)


class MLP(nn.Module):
    """Two linear layers with a GELU between them. The hidden width is 4 n_embd."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.dropout = config.dropout
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd, bias=config.bias)
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd, bias=config.bias)

    def forward(self, x: Float[Tensor, "batch seq n_embd"]) -> Float[Tensor, "batch seq n_embd"]:
        """Transform each position separately."""
        # GPT-2 was trained with the tanh approximation of GELU.
        y = self.c_proj(F.gelu(self.c_fc(x), approximate="tanh"))
        return F.dropout(y, self.dropout, self.training)


class Block(nn.Module):
    """Pre-norm transformer block.

    Attention and the MLP each normalize their input and add their output to the residual stream.
    """

    def __init__(self, config: GPTConfig, layer: int = 0):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.attn = CausalSelfAttention(config, layer)
        self.ln_2 = nn.LayerNorm(config.n_embd, bias=config.bias)
        self.mlp = MLP(config)

    def forward(
        self, x: Float[Tensor, "batch seq n_embd"], cache: KVCache | None = None
    ) -> Float[Tensor, "batch seq n_embd"]:
        """Apply attention, then the MLP."""
        x = x + self.attn(self.ln_1(x), cache)
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Container for the embeddings, blocks and final norm, which `GPT.forward` applies."""

    def __init__(self, config: GPTConfig):
        super().__init__()
        self.wte = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.wpe = nn.Embedding(config.block_size, config.n_embd)
        self.h = nn.ModuleList(Block(config, layer) for layer in range(config.n_layer))
        self.ln_f = nn.LayerNorm(config.n_embd, bias=config.bias)


def generator_for(name: str, seed: int, device: torch.device) -> torch.Generator:
    """Return the random generator for the initial values of the parameter `name`.

    Each parameter has its own, so its values depend on no other parameter, nor on the order.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    generator = torch.Generator("cpu" if device.type == "meta" else device)  # meta has none
    return generator.manual_seed(int.from_bytes(digest[:8], "little") >> 1)


class GPT(nn.Module):
    """GPT-2 with token and position embeddings, `n_layer` blocks and tied output weights.

    Internally, the vocabulary is padded to a multiple of 64. Logits, loss and parameter counts use
    the true vocabulary size.

    Args:
        config: Shape of the model.
        seed: Seed of the initial weights. By default, torch's global generator draws one.
    """

    def __init__(self, config: GPTConfig, seed: int | None = None):
        super().__init__()
        self.config = config
        if seed is None:  # drawn before PyTorch's layers draw weights, which are replaced below
            seed = int(torch.randint(2**62, (), device="cpu"))
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self.lm_head.weight = self.transformer.wte.weight
        for name, parameter in self.named_parameters():
            self.init_parameter(name, parameter, seed)

    @torch.no_grad()
    def init_parameter(self, name: str, tensor: Tensor, seed: int) -> None:
        """Fill `tensor` with the initial values of the parameter `name`, as GPT-2 does.

        Weights have a standard deviation of 0.02. The two projections in each block that write to
        the residual stream are scaled down by sqrt(2 n_layer). This makes the variance of the
        residual stream independent of the number of blocks (Radford et al. 2019, section 2.3).
        """
        random = generator_for(name, seed, tensor.device)
        if name.endswith("bias"):
            tensor.zero_()
        elif ".ln_" in name:
            tensor.fill_(1.0)
        elif "c_proj" in name:
            tensor.normal_(0.0, 0.02 / math.sqrt(2 * self.config.n_layer), generator=random)
        else:
            tensor.normal_(0.0, 0.02, generator=random)
        if name == "transformer.wte.weight":
            # Padded rows get no gradient, so they stay zero even with weight decay.
            tensor[self.config.vocab_size :] = 0.0

    def forward(
        self,
        idx: Int[Tensor, "batch seq"],
        targets: Int[Tensor, "batch seq"] | None = None,
        *,
        cache: KVCache | None = None,
        last_only: bool = False,
    ) -> Float[Tensor, "batch seq vocab_size"] | Float[Tensor, ""]:
        """Return next-token logits, or the loss if `targets` is given.

        The loss is the mean cross-entropy in nats per token.

        Args:
            idx: Token ids. If a cache is given, pass only the tokens after the cached tokens.
            targets: The next token at every position. Targets of -1 are ignored.
            cache: Keys and values of earlier tokens. The keys and values of `idx` are appended.
            last_only: Whether to compute logits only for the last position.

        Raises:
            ValueError: If the sequence is longer than the block size.
        """
        seq, limit = idx.size(1), self.config.block_size
        length = seq + (cache.length if cache else 0)
        if length > limit:
            raise ValueError(f"a sequence of {length} tokens is longer than block_size {limit}")
        positions = cache.grow(seq) if cache else torch.arange(seq, device=idx.device)
        x = self.transformer.wte(idx) + self.transformer.wpe(positions)
        x = F.dropout(x, self.config.dropout, self.training)
        for block in self.transformer.h:
            x = block(x, cache)
        x = self.transformer.ln_f(x[:, -1:] if last_only else x)
        if targets is None:
            return self.lm_head(x)[..., : self.config.vocab_size]
        logits = self.lm_head(rearrange(x, "batch seq n_embd -> (batch seq) n_embd"))
        return self.loss(logits, rearrange(targets, "batch seq -> (batch seq)"))

    def loss(
        self, logits: Float[Tensor, "tokens padded_vocab_size"], targets: Int[Tensor, " tokens"]
    ) -> Float[Tensor, ""]:
        """Return the mean cross-entropy in nats per token. Targets of -1 are ignored."""
        wide = torch.promote_types(logits.dtype, torch.float32)  # fp64 stays fp64
        logits = logits[:, : self.config.vocab_size].to(wide)
        return F.cross_entropy(logits, targets, ignore_index=-1)

    @property
    def device(self) -> torch.device:
        """The device of the weights."""
        return self.transformer.wte.weight.device

    def num_parameters(self) -> int:
        """Count the parameters, without vocabulary padding and with the tied matrix once."""
        padding = (self.config.padded_vocab_size - self.config.vocab_size) * self.config.n_embd
        return sum(p.numel() for p in self.parameters()) - padding
