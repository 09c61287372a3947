"""Notebook 07's checks: untouched stubs, typical slips by their diagnosis, right answers.

A slip is the notebook's printed solution with a few words replaced.
"""

import math
import re
from pathlib import Path

import nbformat
import torch
import torch.nn.functional as F
from einops import einsum, rearrange
from torch import Tensor, nn
from verdicts import assert_untouched, assert_verdicts, verdict

from cs336_lib import model as library
from cs336_lib.classroom.checks import gpt2_model as checks

FUNCTIONS = ("embed", "attention", "nucleus")
NAMES = {"causal_self_attention": "CausalSelfAttention", "mlp": "MLP", "block": "Block"} | {
    "gpt": "GPT"
}
NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "07_gpt2_model.ipynb"
CELLS = nbformat.read(NOTEBOOK, as_version=4).cells
SOLUTIONS = {
    stub.metadata.cs336.exercise: re.findall(r"```python\n(.*?)```", later.source, flags=re.S)[0]
    for i, stub in enumerate(CELLS)
    if "exercise" in stub.metadata.get("tags", [])
    for later in CELLS[i + 1 : i + 3]
    if "solution" in later.metadata.get("tags", [])
}
EARLIER = {
    **{"math": math, "torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "rearrange": rearrange},
    **{"embed": checks.library_embed, "attention": checks.library_attention},
    **{"CausalSelfAttention": library.CausalSelfAttention, "MLP": library.MLP},
    **{"Block": library.Block, "init_weights": checks.library_init_weights},
}


def edited(exercise, *edits):
    """Return the printed solution's answer, after replacing text that must occur in it."""
    code = SOLUTIONS[exercise]
    for old, new in edits:
        assert old in code, f"{old!r} is not in the solution of {exercise}"
        code = code.replace(old, new)
    namespace = dict(EARLIER)
    exec(code, namespace)
    return namespace[NAMES.get(exercise, exercise)]


def assert_slips(exercise, slips, *others):
    """Check the solution itself, other right answers, and slips as {diagnosis: edits}."""
    cases = [(edited(exercise), "passed"), *((other, "passed") for other in others)]
    for diagnosis, edits in slips.items():
        pairs = [edits] if isinstance(edits[0], str) else edits
        cases.append((edited(exercise, *pairs), diagnosis))
    assert_verdicts(getattr(checks, exercise), cases)


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


def test_a_forgotten_return_is_told():
    said = {name: verdict(getattr(checks, name), lambda *args: None) for name in FUNCTIONS}
    assert {name for name in said if "is the `return` missing" not in said[name]} == set()


def test_a_right_part_is_kept_and_another_replaced():
    class MLP(library.MLP):
        pass

    assert checks.mlp(MLP) is MLP
    assert checks.mlp(nn.Identity) is library.MLP


# embed


def one_hot_embed(idx, wte, wpe):
    rows = F.one_hot(idx, len(wte.weight)).to(wte.weight.dtype)
    return rows @ wte.weight + wpe.weight[: idx.size(1)]


def test_embed():
    slips = {
        "the positions are missing": (" + wpe(positions)", ""),
        "the tokens are missing": (
            "wte(idx) + wpe(positions)",
            "wpe(positions).expand(*idx.shape, -1)",
        ),
        "not by the token": ("wpe(positions)", "wpe(idx)"),
        "begin at 0, not at 1": ("wpe(positions)", "wpe((positions + 1) % 13)"),
        "from the front": ("wpe(positions)", "wpe(positions.flip(0))"),
        "don't multiply": ("+ wpe", "* wpe"),
        "not along the batch": (
            ("idx.size(1)", "idx.size(0)"),
            ("wpe(positions)", "wpe(positions)[:, None]"),
        ),
        "take its first rows": ("wpe(positions)", "wpe.weight"),
        "gradient of wpe": ("wpe(positions)", "wpe(positions).detach()"),
        "it would fail on a GPU": (", device=idx.device", ""),
        "wrong for a batch": ("+ wpe(positions)", "+ 2 * wpe(positions)"),
        "expected": ("wte(idx) + wpe(positions)", "(wte(idx) + wpe(positions))[0]"),
    }
    by_rows = edited("embed", ("wpe(positions)", "wpe.weight[: idx.size(1)]"))
    assert_slips("embed", slips, by_rows, one_hot_embed)


# attention


def looped(q, k, v):
    """Attention position by position."""
    rows = []
    for i in range(q.size(2)):
        scores = (q[:, :, i : i + 1] * k[:, :, : i + 1]).sum(-1) * q.size(-1) ** -0.5
        rows.append((scores.softmax(-1)[..., None] * v[:, :, : i + 1]).sum(2))
    return torch.stack(rows, dim=2)


def by_einsum(q, k, v):
    scores = einsum(q, k, "b h i d, b h j d -> b h i j") / q.shape[-1] ** 0.5
    mask = torch.full_like(scores, -1e30).triu(1)
    weights = F.softmax(scores.tril() + mask, dim=3)
    return einsum(weights, v, "b h i j, b h j d -> b h i d")


def stable_exp(q, k, v):
    allowed = torch.ones(q.size(2), q.size(2), device=q.device).tril()
    scores = (q @ k.transpose(-2, -1) / math.sqrt(q.size(-1))).masked_fill(allowed == 0, -math.inf)
    weights = (scores - scores.amax(-1, keepdim=True)).exp()
    return weights / weights.sum(-1, keepdim=True) @ v


def test_attention():
    plain = "q @ k.mT / math.sqrt(q.size(-1))"
    masked = "scores.masked_fill(future, -math.inf)"
    slips = {
        "divide the scores by the square root": (plain, "q @ k.mT"),
        "not by head_dim itself": (plain, "q @ k.mT / q.size(-1)"),
        "you multiply": (plain, "q @ k.mT * math.sqrt(q.size(-1))"),
        "another axis (seq)": ("q.size(-1)", "q.size(2)"),
        "another axis (head)": ("q.size(-1)", "q.size(1)"),
        "not by the width of all heads": ("q.size(-1)", "q.size(1) * q.size(-1)"),
        "there is no mask": (masked, "scores"),
        "mask before the softmax": (
            "scores.masked_fill(future, -math.inf).softmax(-1)",
            "scores.softmax(-1).masked_fill(future, 0)",
        ),
        "a score of 0 isn't a weight of 0": (masked, "scores.tril()"),
        "that is inverted": (".triu(1)", ".tril(-1)"),
        "also sees the next one": (".triu(1)", ".triu(2)"),
        "softmax runs over the keys": (".softmax(-1)", ".softmax(-2)"),
        "columns keys: q @ k.mT": ("q @ k.mT", "k @ q.mT"),
        "multiply them with v": (" @ v", ""),
        "somewhere a softmax sees only -inf": (".triu(1)", ".triu()"),
        "write it by hand": (
            f"{masked}.softmax(-1) @ v",
            "F.scaled_dot_product_attention(q, k, v)",
        ),
        "gradient of k": ("k.mT", "k.detach().mT"),
        "it would fail on a GPU": (
            "torch.ones_like(scores[0, 0], dtype=torch.bool)",
            "torch.ones(scores.shape[-2:], dtype=torch.bool)",
        ),
        "exp overflows": (
            f"return {masked}.softmax(-1) @ v",
            f"e = {masked}.exp()\n    return e / e.sum(-1, keepdim=True) @ v",
        ),
        "must match the size": (
            "torch.ones_like(scores[0, 0], dtype=torch.bool)",
            "torch.ones(5, 5).bool()",
        ),
    }
    assert_slips("attention", slips, looped, by_einsum, stable_exp)


# causal_self_attention


class Chunked(nn.Module):
    """Attention by chunk, view and transpose, with a buffer and other attribute names."""

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


def test_causal_self_attention():
    split = "batch seq (three head head_dim) ->"
    call = "attention(q, k, v)"
    slips = {
        "c_proj is never used": ("return self.c_proj(rearrange(", "return (rearrange("),
        "use `attention`, which is causal": (call, "F.scaled_dot_product_attention(q, k, v)"),
        "you mixed them up": ("q, k, v = rearrange", "k, q, v = rearrange"),
        "then the values: q, k, v": ("q, k, v = rearrange", "v, k, q = rearrange"),
        "all queries come first": (split, "batch seq (head three head_dim) ->"),
        "not (head_dim head)": (split, "batch seq (three head_dim head) ->"),
        "when you merge": ('batch seq (head head_dim)")', 'batch seq (head_dim head)")'),
        "which mixes positions and heads": (
            "q, k, v = rearrange(self.c_attn(x), pattern, three=3, head=self.n_head)",
            "q, k, v = (p.reshape(len(x), self.n_head, x.size(1), -1) "
            "for p in self.c_attn(x).chunk(3, -1))",
        ),
        "without moving them back": (
            'rearrange(y, "batch head seq head_dim -> batch seq (head head_dim)")',
            "y.reshape(x.shape)",
        ),
        "attends over its own heads": (
            ("three batch head seq head_dim", "three batch seq head head_dim"),
            ('"batch head seq head_dim -> batch', '"batch seq head head_dim -> batch'),
        ),
        "a single head": ("self.n_head = config.n_head", "self.n_head = 1"),
        "not by n_embd": (
            call,
            "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=x.size(-1) ** -0.5)",
        ),
        "aren't scaled": (
            call,
            "F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=1.0)",
        ),
        "you add x": ("return self", "return x + self"),
        "c_attn.bias is missing": ("3 * config.n_embd)", "3 * config.n_embd, bias=False)"),
        "there is no parameter c_attn.weight": ("c_attn", "qkv"),
        "c_attn.weight has the shape (24, 24)": ("3 * config.n_embd", "config.n_embd"),
        "is its `return` missing": ("return ", ""),
        "leave it out": ("return ", "return F.dropout(x, 0.5) + "),
        "gradient of x": ("self.c_attn(x)", "self.c_attn(x.detach())"),
        "cannot assign module before": ("super().__init__()", "pass"),
    }
    assert_slips("causal_self_attention", slips, Chunked)


# mlp


class Sequenced(nn.Module):
    """The MLP with the formula written out, and its layers in the other order."""

    def __init__(self, config):
        super().__init__()
        self.c_proj = nn.Linear(4 * config.n_embd, config.n_embd)
        self.c_fc = nn.Linear(config.n_embd, 4 * config.n_embd)

    def forward(self, x):
        x = self.c_fc(x)
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
        return self.c_proj(0.5 * x * (1 + torch.tanh(inner)))


class WithModule(Sequenced):
    """The MLP with nn.GELU."""

    def __init__(self, config):
        super().__init__(config)
        self.gelu = nn.GELU(approximate="tanh")

    def forward(self, x):
        return self.c_proj(self.gelu(self.c_fc(x)))


def test_mlp():
    gelu = 'F.gelu(self.c_fc(x), approximate="tanh")'
    slips = {
        "GELU's tanh formula": (', approximate="tanh"', ""),
        "GPT-2 has GELU": (gelu, "self.c_fc(x).relu()"),
        "that is SiLU": (gelu, "F.silu(self.c_fc(x))"),
        "there is no nonlinearity": (gelu, "self.c_fc(x)"),
        "not after them": (
            f"self.c_proj({gelu})",
            'F.gelu(self.c_proj(self.c_fc(x)), approximate="tanh")',
        ),
        "you have a second one": (
            f"self.c_proj({gelu})",
            f'F.gelu(self.c_proj({gelu}), approximate="tanh")',
        ),
        "you add x": ("return self", "return x + self"),
        "c_fc.weight has the shape (48, 24); (96, 24)": ("4 * config.n_embd", "2 * config.n_embd"),
        "c_proj.bias is missing": (
            "4 * config.n_embd, config.n_embd)",
            "4 * config.n_embd, config.n_embd, bias=False)",
        ),
        "there is no parameter c_fc.weight": ("c_fc", "fc"),
        "a parameter that GPT-2 doesn't have": (
            "self.c_proj =",
            "self.norm = nn.LayerNorm(8)\n        self.c_proj =",
        ),
        "is its `return` missing": ("return ", ""),
        "two calls differ": (gelu, f"F.dropout({gelu}, 0.1)"),
    }
    assert_slips("mlp", slips, Sequenced, WithModule)


# block


class Written(nn.Module):
    """The block with its modules in another order."""

    def __init__(self, config):
        super().__init__()
        self.attn, self.mlp = library.CausalSelfAttention(config), library.MLP(config)
        self.ln_2, self.ln_1 = nn.LayerNorm(config.n_embd), nn.LayerNorm(config.n_embd)

    def forward(self, x):
        middle = self.attn(self.ln_1(x)) + x
        return sum((middle, self.mlp(self.ln_2(middle))))


def test_block():
    first, second = "x = x + self.attn(self.ln_1(x))", "x + self.mlp(self.ln_2(x))"
    slips = {
        "(post-norm)": (
            (first, "x = self.ln_1(x + self.attn(x))"),
            (second, "self.ln_2(x + self.mlp(x))"),
        ),
        "nothing is added": (
            (first, "x = self.attn(self.ln_1(x))"),
            (second, "self.mlp(self.ln_2(x))"),
        ),
        "attention's output replaces x": (first, "x = self.attn(self.ln_1(x))"),
        "the MLP's output replaces x": (second, "self.mlp(self.ln_2(x))"),
        "the MLP reads x from before": (
            (first, "a = self.attn(self.ln_1(x))"),
            (second, "a + x + self.mlp(self.ln_2(x))"),
        ),
        "so attention's is lost": (
            (first, "a = x + self.attn(self.ln_1(x))"),
            (second, "x + self.mlp(self.ln_2(a))"),
        ),
        "add to x itself": (
            (first, "x = self.ln_1(x)\n        x = x + self.attn(x)\n        x = self.ln_2(x)"),
            (second, "x + self.mlp(x)"),
        ),
        "ln_1 is used twice": (second, "x + self.mlp(self.ln_1(x))"),
        "the norms are never used": ((first, "x = x + self.attn(x)"), (second, "x + self.mlp(x)")),
        "ln_1 is never used": (first, "x = x + self.attn(x)"),
        "ln_2 is never used": (second, "x + self.mlp(x)"),
        "attention comes first": (
            (first, "x = x + self.MLP(self.ln_2(x))"),
            (second, "x + self.attn(self.ln_1(x))"),
            ("self.MLP", "self.mlp"),
        ),
        "the norms are swapped": (
            ("self.attn(self.ln_1(x))", "self.attn(self.ln_X(x))"),
            ("self.mlp(self.ln_2(x))", "self.mlp(self.ln_1(x))"),
            ("ln_X", "ln_2"),
        ),
        "write x = x + ...": (first, "x += self.attn(self.ln_1(x))"),
        "there is no parameter ln_1.weight": ("ln_1", "norm_1"),
        "ln_2.bias is missing": (
            "self.ln_2 = nn.LayerNorm(config.n_embd)",
            "self.ln_2 = nn.RMSNorm(config.n_embd)",
        ),
        "is its `return` missing": ("return ", ""),
    }
    assert_slips("block", slips, Written)


# init_weights


@torch.no_grad()
def by_module(model):
    """Initialize module by module, as nanoGPT does."""
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
        elif isinstance(module, nn.Linear | nn.Embedding):
            std = 0.02 * ((2 * model.config.n_layer) ** -0.5 if name.endswith("c_proj") else 1)
            nn.init.normal_(module.weight, mean=0.0, std=std)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)


def test_init_weights():
    small, other = (
        "parameter.normal_(0.0, 0.02 / math.sqrt(2 * model.config.n_layer))",
        "parameter.normal_(0.0, 0.02)",
    )
    slips = {
        "writes to the stream, so its 0.02": (small, other),
        "a block writes to the stream twice": ("2 * model", "model"),
        "divide by the square root of 2 n_layer, not": (
            small,
            "parameter.normal_(0.0, 0.02 / model.config.n_layer)",
        ),
        "variances add": (small, "parameter.normal_(0.0, 0.02 / (2 * model.config.n_layer))"),
        "you multiply": ("0.02 / math", "0.02 * math"),
        "only the c_proj weights are smaller": ('"c_proj" in name', '"c_" in name'),
        "not the variance": (other, "parameter.normal_(0.0, 0.02**2)"),
        "has the std 0.0100": (other, "parameter.normal_(0.0, 0.01)"),
        "normal distribution": (other, "parameter.uniform_(-0.02 * 3**0.5, 0.02 * 3**0.5)"),
        "the mean should be 0": (other, "parameter.normal_(0.02, 0.02)"),
        "every bias begins at 0": (
            'name.endswith("bias")',
            'name.endswith("bias") and ".ln_" in name',
        ),
        "should be 0": ("parameter.zero_()", "parameter.fill_(1.0)"),
        "is a norm's gain": ("parameter.fill_(1.0)", "parameter.fill_(0.0)"),
        "is left as it was": ("parameter.zero_()", "pass"),
        "draw it": (other, "parameter.fill_(0.0)"),
        "don't seed": (other, "torch.manual_seed(0)\n            parameter.normal_(0.0, 0.02)"),
        "leave the seed": ("    for name", "    torch.manual_seed(0)\n    for name"),
        "keep @torch.no_grad()": ("@torch.no_grad()\n", ""),
        "are no longer one tensor": (
            "    for name",
            "    model.lm_head.weight = nn.Parameter(model.lm_head.weight.clone())\n    for name",
        ),
        "3, 12": ("model.config.n_layer", "12"),
    }
    del slips["3, 12"]
    depth = edited("init_weights", ("model.config.n_layer", "3"))
    assert_slips("init_weights", slips, by_module)
    assert_verdicts(checks.init_weights, [(depth, "c_proj")])


# gpt


class Rewritten(nn.Module):
    """GPT with other code: a loop over indices, log-softmax, positions by rows."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        tree = nn.Module()
        tree.ln_f = nn.LayerNorm(config.n_embd)
        tree.h = nn.ModuleList([library.Block(config) for _ in range(config.n_layer)])
        tree.wpe = nn.Embedding(config.block_size, config.n_embd)
        tree.wte = nn.Embedding(config.padded_vocab_size, config.n_embd)
        self.transformer = tree
        self.lm_head = nn.Linear(config.n_embd, config.padded_vocab_size, bias=False)
        self.transformer.wte.weight = self.lm_head.weight
        checks.library_init_weights(self)

    def forward(self, idx, targets=None):
        x = self.transformer.wte(idx) + self.transformer.wpe.weight[: idx.size(1)]
        for i in range(self.config.n_layer):
            x = self.transformer.h[i](x)
        x = self.transformer.ln_f(x)
        logits = x @ self.lm_head.weight[: self.config.vocab_size].T
        if targets is not None:
            return -logits.log_softmax(-1).gather(-1, targets[..., None]).mean()
        return logits


def test_gpt():
    loss = "F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())"
    head = "logits = self.lm_head(self.transformer.ln_f(x))[..., : self.config.vocab_size]"
    slips = {
        "must be one matrix": ("        self.lm_head.weight = wte.weight\n", ""),
        "cut them to config.vocab_size": ("[..., : self.config.vocab_size]", ""),
        "the logits' padding": (loss, "None"),
        "ln_f, the norm after the last block": ("self.transformer.ln_f(x)", "x"),
        "the blocks' outputs are not used": ("x = block(x)", "block(x)"),
        "only the last block counts": ("x = block(x)", "y = block(x)"),
        "reverse order": ("in self.transformer.h:", "in list(self.transformer.h)[::-1]:"),
        "use `embed`": (
            "embed(idx, self.transformer.wte, self.transformer.wpe)",
            "self.transformer.wte(idx)",
        ),
        "return the logits.": (
            "            return logits\n",
            "            return logits.softmax(-1)\n",
        ),
        "not the sum": ("targets.flatten())", "targets.flatten(), reduction='sum')"),
        "shifted already": (
            loss,
            "F.cross_entropy(logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten())",
        ),
        "not probabilities": ("logits.float()", "logits.softmax(-1)"),
        "the sign is wrong": (f"return {loss}", f"return -{loss}"),
        "use flatten, not view": ("targets.flatten()", "targets.view(-1)"),
        "without targets return the logits alone": (
            "            return logits\n",
            "            return logits, None\n",
        ),
        "with targets return the loss alone": (f"return {loss}", f"return logits, {loss}"),
        "with targets `forward` returns None": (f"return {loss}", loss),
        "lm_head has no bias": (", bias=False", ""),
        "all blocks are one object": (
            "Block(config) for _ in range(config.n_layer)",
            "[Block(config)] * config.n_layer",
        ),
        "the config's n_layer is 2": ("range(config.n_layer)", "range(12)"),
        "blocks belong into an nn.ModuleList": (', "h": h', ""),
        "call init_weights": ("        init_weights(self)\n", ""),
        "keep the config": ("        self.config = config\n        wte", "        wte"),
        "padded_vocab_size is 64": (
            "nn.Embedding(config.padded_vocab_size",
            "nn.Embedding(config.vocab_size",
        ),
        "self.lm_head is missing": ("self.lm_head", "self.head"),
        "self.transformer is missing": ("self.transformer", "self.tree"),
        "gradient of transformer.wte.weight": (
            "x = embed(",
            "with torch.no_grad():\n            x = embed(",
        ),
    }
    del slips["the logits' padding"], slips["only the last block counts"], slips["keep the config"]
    last = ("x = block(x)", "y = block(x)"), (head, f"x = y\n        {head}")
    first = edited("gpt", ("        self.config = config\n        wte", "        wte"))
    padded = (
        ("[..., : self.config.vocab_size]", ""),
        (
            "            return logits\n",
            "            return logits[..., : self.config.vocab_size]\n",
        ),
    )
    before = (
        (
            "        self.transformer = nn",
            "        self.lm_head = nn.Linear(config.n_embd, "
            "config.padded_vocab_size, bias=False)\n        self.transformer = nn",
        ),
    )
    assert_slips(
        "gpt",
        slips | {"only the last block counts": last, "counts the padded rows": padded},
        Rewritten,
    )
    cases = [(first, "no attribute 'config'"), (edited("gpt", *before), "before self.lm_head")]
    assert_verdicts(checks.gpt, cases)


# load_weights


@torch.no_grad()
def by_state_dict(model, theirs):
    """Load by a converted dictionary, as hf does."""
    ours = model.state_dict()
    found = {}
    for name, tensor in theirs.items():
        name = name.removeprefix("transformer.")
        if f"transformer.{name}" not in ours:
            continue
        if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and tensor.ndim == 2:
            tensor = rearrange(tensor, "i o -> o i")
        like = ours[f"transformer.{name}"].clone()
        rows = min(len(like), len(tensor))
        like[:rows] = tensor[:rows]
        found[f"transformer.{name}"] = like
    model.load_state_dict(found, strict=False)


def test_load_weights():
    turned = "tensor.t() if is_linear else tensor"
    copied = "ours[name][: len(tensor)] = tensor[: len(ours[name])]"
    slips = {
        "Transpose those, and no others": (turned, "tensor"),
        "It is square": (
            turned,
            "tensor.t() if tensor.shape[1:] != ours[name].shape[1:] else tensor",
        ),
        "don't transpose them": (turned, "tensor.t() if tensor.ndim == 2 else tensor"),
        "a reshape isn't a transpose": (
            turned,
            "tensor.reshape(tensor.shape[::-1]) if is_linear else tensor",
        ),
        "is a causal mask": (
            "if name in ours:  # there are also causal masks",
            "if 'lm_head' not in name:",
        ),
        "wte once more": (
            "if name in ours:  # there are also causal masks",
            "if '.attn.bias' not in name and 'masked' not in name:",
        ),
        "with or without 'transformer.'": (
            ('name = "transformer." + name.removeprefix("transformer.")', "pass"),
            ("if name in ours:  # there are also causal masks", "if '.attn.' not in name:"),
        ),
        "wte isn't copied": (
            '"transformer." + name.removeprefix("transformer.")',
            '"transformer." + name',
        ),
        "isn't copied. Names may come": (
            'name = "transformer." + name.removeprefix("transformer.")',
            "pass",
        ),
        "doesn't hold the published numbers": (
            "if name in ours:",
            "if name in ours and 'ln_' not in name:",
        ),
        "copy the rows that both have": (copied, "ours[name].copy_(tensor)"),
        "shares memory": (copied, "ours[name].data = tensor"),
        "keep @torch.no_grad()": (
            ("@torch.no_grad()\n", ""),
            (copied, "ours[name][: len(tensor)].copy_(tensor)"),
        ),
        "no longer one tensor": (copied, "model.transformer.wte.weight = nn.Parameter(tensor)"),
        "you changed the dictionary": (
            "theirs.items():",
            "list(theirs.items()):\n        del theirs[name]",
        ),
        "c_proj.weight isn't transposed": (
            '"c_attn.weight", "c_proj.weight", "c_fc.weight"',
            '"c_attn.weight", "c_fc.weight", "mlp.c_proj.weight"',
        ),
    }
    assert_slips("load_weights", slips, by_state_dict)


# generate


@torch.no_grad()
def from_indices(model, idx, new_tokens, top_k=50):
    """Draw among topk's values, with another way to draw, and map back."""
    text = idx.clone()
    while text.size(1) < idx.size(1) + new_tokens:
        logits = model(text[:, -model.config.block_size :])[:, -1, :]
        values, places = torch.topk(logits, top_k, dim=-1)
        noise = -torch.log(-torch.log(torch.rand_like(values)))
        choice = (values + noise).argmax(-1, keepdim=True)
        text = torch.hstack((text, places.gather(-1, choice)))
    return text


def test_generate():
    draw = "torch.multinomial(probabilities, 1)"
    crop = "idx[:, -model.config.block_size :]"
    keep = "logits.masked_fill(logits < kth, -math.inf)"
    slips = {
        "Give it the last block_size tokens only": (crop, "idx"),
        "the last position only": (f"model({crop})[:, -1]", f"model({crop})[:, 0]"),
        "the last token only": (crop, "idx[:, -1:]"),
        "not fewer": (crop, "idx[:, 1 - model.config.block_size :]"),
        "(batch, seq) expected": (f"model({crop})", "model(idx[0])"),
        "doesn't grow": (crop, "idx[:, :3]"),
        "draw with torch.multinomial": (draw, "probabilities.argmax(-1, keepdim=True)"),
        "use the ids in .indices": (
            f"probabilities = {keep}.softmax(-1)",
            "probabilities = logits.topk(top_k).values.softmax(-1)",
        ),
        "compared with its own text": (
            "logits.topk(top_k).values[:, -1:]",
            "logits.topk(top_k).values[:, -1]",
        ),
        "you keep four": ("logits < kth", "logits <= kth"),
        "more than five": (keep, "logits"),
        "leave the seed": ("    for _ in", "    torch.manual_seed(0)\n    for _ in"),
        "apply softmax": (".softmax(-1)", ""),
        "those that the model wants": (".softmax(-1)", ".softmax(-1).softmax(-1)"),
        "draw by its probabilities": (".softmax(-1)", ".div(2).softmax(-1)"),
        "draw at random": (".softmax(-1)", ".mul(3).softmax(-1)"),
        "return the prompt as well": ("return idx", "return idx[:, -new_tokens:]"),
        "repeat it `new_tokens` times": ("range(new_tokens)", "range(1)"),
        "begin with the prompt": ("return idx", "return idx.flip(1)"),
        "is the `return` missing": ("return idx", "idx"),
    }
    assert_slips("generate", slips, from_indices)


# nucleus


def kept_if(rule, normalise=True, sort_back=True, descending=True):
    """Top-p, keeping where rule(sum before, sum up to and with, p)."""

    def nucleus(probabilities, p):
        ordered, order = probabilities.sort(descending=descending)
        total = ordered.cumsum(0)
        chosen = ordered.where(rule(total - ordered, total, p), 0.0)
        kept = torch.zeros_like(chosen).scatter(0, order, chosen) if sort_back else chosen
        return kept / kept.sum() if normalise else kept

    return nucleus


def first_stays(before, total, p):
    return (total < p) | (before == 0)


def before_p(before, total, p):
    return before < p


def one_more(before, total, p):
    """Also the token after the one that crosses p."""
    shifted = torch.cat((before[:1], before[:-1]))
    return shifted < p


def in_place(probabilities, p):
    kept = kept_if(before_p)(probabilities, p)
    return probabilities.copy_(kept)


NUCLEI = {
    "passed": kept_if(before_p),
    "divide by their sum": kept_if(before_p, normalise=False),
    "probabilities sorted": kept_if(before_p, sort_back=False),
    "the token that crosses p is missing": kept_if(first_stays),
    "one token too many": kept_if(one_more),
    "< p, not <= p": kept_if(lambda before, total, p: before <= p),
    "descending=True": kept_if(
        lambda b, t, p: torch.tensor([True, True, True, False, False]), descending=False
    ),
    "you changed the tensor": in_place,
    "keep all 5 tokens": lambda probabilities, p: probabilities[probabilities > 0.2],
    "it must always stay": lambda probabilities, p: (
        kept_if(before_p)(probabilities, p) if p > 0.5 else torch.zeros_like(probabilities)
    ),
    "p = 1 keeps every token": lambda probabilities, p: kept_if(before_p)(
        probabilities, min(p, 0.7)
    ),
    "p = 0.7 you return": lambda probabilities, p: probabilities,
    "a tensor expected": lambda probabilities, p: 1,
}


def test_nucleus():
    assert_verdicts(checks.nucleus, NUCLEI)
