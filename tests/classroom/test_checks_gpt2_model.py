"""Notebook 07's checks: untouched stubs, typical mistakes by their diagnosis, right answers."""

import math

import torch
from verdicts import assert_untouched, assert_verdicts, verdict

from cs336_lib.accounting import count_parameters, parameter_counts
from cs336_lib.classroom.checks import gpt2_model as checks
from cs336_lib.config import GPTConfig


def test_untouched_stubs():
    assert_untouched(checks, checks.__all__)


def test_a_forgotten_return_is_told():
    said = {name: verdict(getattr(checks, name), lambda *args: None) for name in checks.__all__}
    assert {name for name in said if "is the `return` missing" not in said[name]} == set()


# parameter_count


def less(what):
    """The right count less `what(config)`."""
    return lambda config: count_parameters(config) - what(config)


def norms(config):
    return parameter_counts(config)["layer norms"]


COUNTS = {
    "passed": count_parameters,
    "count it once": less(lambda c: -c.vocab_size * c.n_embd),
    "padded vocabulary": less(lambda c: (c.vocab_size - c.padded_vocab_size) * c.n_embd),
    "wpe is missing": less(lambda c: c.block_size * c.n_embd),
    "wte is missing": less(lambda c: c.vocab_size * c.n_embd),
    "ln_f is missing": less(lambda c: 2 * c.n_embd),
    "one of the MLP's two matrices": less(lambda c: c.n_layer * 4 * c.n_embd**2),
    "queries, keys AND values": less(lambda c: c.n_layer * 2 * c.n_embd**2),
    "c_proj of the attention": less(lambda c: c.n_layer * c.n_embd**2),
    "four linear layers of a block": less(lambda c: c.n_layer * 9 * c.n_embd),
    "all biases": less(lambda c: c.n_layer * 9 * c.n_embd + norms(c) // 2),
    "a weight and a bias": less(lambda c: norms(c) // 2),
    "the layer norms are missing": less(norms),
    "its two layer norms, or attention's": less(lambda c: norms(c) - 2 * c.n_embd),
    "attention's biases (3 C and C)": less(lambda c: c.n_layer * 4 * c.n_embd),
    "the MLP's two biases": less(lambda c: c.n_layer * 5 * c.n_embd),
    "two thirds of c_attn's bias": less(lambda c: c.n_layer * 2 * c.n_embd),
    "wrong for another shape": lambda config: 124_439_808,
    "has 124,439,808 parameters": lambda config: 1,
}


def test_parameter_count():
    assert_verdicts(checks.parameter_count, COUNTS)


# gelu_slope


def below(x):
    return 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def bell(x):
    return torch.exp(-x.square() / 2) / math.sqrt(2 * math.pi)


SLOPES = {
    "passed": lambda x: below(x) + x * bell(x),
    "GELU itself": lambda x: x * below(x),
    "x Φ', and Φ' is the bell curve": below,
    "Φ(x) is missing": lambda x: x * bell(x),
    "the second term": lambda x: below(x) + bell(x),
    "1 / sqrt(2 π)": lambda x: below(x) + x * torch.exp(-x.square() / 2),
    "the sqrt(2) is missing": lambda x: 0.5 * (1 + torch.erf(x)) + x * bell(x),
    "ReLU's slope": lambda x: (x > 0).float(),
    "slope of the tanh formula": torch.vmap(
        torch.func.grad(lambda x: torch.nn.functional.gelu(x, approximate="tanh"))
    ),
    "take a single number": lambda x: 0.5 * (1 + math.erf(x / math.sqrt(2))),
    "it is 1.0833": lambda x: torch.zeros_like(x),
    "it should be that of x": lambda x: torch.zeros(3),
    "a tensor expected": lambda x: 1.0,
}


def test_gelu_slope():
    assert_verdicts(checks.gelu_slope, SLOPES)


# window_mask


def ones(seq):
    return torch.ones(seq, seq, dtype=torch.bool)


MASKS = {
    "passed": lambda n, w: ones(n).tril().triu(1 - w),
    "that is inverted": lambda n, w: ~ones(n).tril().triu(1 - w),
    "looks at the future": lambda n, w: ones(n).triu().tril(w - 1),
    "the window is ignored": lambda n, w: ones(n).tril(),
    "one key too many": lambda n, w: ones(n).tril().triu(-w),
    "a token must see itself": lambda n, w: ones(n).tril(-1).triu(-w),
    "reaches into the future": lambda n, w: ones(n).tril(w - 1).triu(1 - w),
    "it should be torch.bool": lambda n, w: torch.ones(n, n),
    "(seq, seq)": lambda n, w: ones(w),
    "all of it is False": lambda n, w: ones(n).tril().triu(w - 1),
    "row 1 is [0, 1, 0, 0, 0, 0]": lambda n, w: torch.eye(n, dtype=torch.bool),
    "the whole past": lambda n, w: ones(n).tril().triu(-2),
    "a tensor expected": lambda n, w: [[True]],
    "only the diagonal": lambda n, w: ones(n).tril().triu(1 - max(2, w)),
}


def test_window_mask():
    assert_verdicts(checks.window_mask, MASKS)


# init_std


def std(shrink, writes=("c_proj",), constants=("bias", ".ln_")):
    def answer(name, n_layer):
        if name.endswith("bias") and "bias" in constants:
            return 0.0
        if ".ln_" in name and ".ln_" in constants:
            return 0.0
        return 0.02 / shrink(n_layer) if any(w in name for w in writes) else 0.02

    return answer


def root(n_layer):
    return math.sqrt(2 * n_layer)


STDS = {
    "passed": std(root),
    "c_fc does not write": std(root, writes=("mlp",)),
    "must be divided by sqrt(2 n_layer)": std(lambda n: 1),
    "adds to the stream twice": std(math.sqrt),
    "the root is missing": std(lambda n: 2 * n),
    "as well as the MLP's": std(root, writes=("mlp.c_proj",)),
    "use n_layer": std(lambda n: math.sqrt(24)),
    "biases begin at 0": std(root, constants=(".ln_",)),
    "a norm begins as all ones": std(root, constants=("bias",)),
    "reads from the stream": lambda name, n: 0.01 if "c_attn.w" in name else std(root)(name, n),
    "lm_head.weight has 0.02, like": lambda name, n: 0 if "lm_head" in name else std(root)(name, n),
    "transformer.wte.weight has 0.02, like": lambda name, n: (
        1.0 if "wte" in name else std(root)(name, n)
    ),
    "c_fc.weight has 0.02, not": lambda name, n: 1.0,
}


def test_init_std():
    assert_verdicts(checks.init_std, STDS)


# convert


def converted(
    keep=lambda name: not name.endswith(".attn.bias"),
    transpose=lambda name, tensor: ".c_" in name and name.endswith("weight"),
    prefix="transformer.",
    turn=lambda tensor: tensor.T,
):
    """A converter with one thing done otherwise."""

    def convert(theirs):
        return {
            prefix + name: turn(tensor) if transpose(name, tensor) else tensor
            for name, tensor in theirs.items()
            if keep(name)
        }

    return convert


def pops(theirs):
    theirs.pop("h.0.attn.bias")
    return converted()(theirs)


def turned_in_place(theirs):
    """The right result, from tensors that were not ours to turn."""
    return {
        f"transformer.{name}": t.t_() if ".c_" in name and t.ndim == 2 else t
        for name, t in theirs.items()
        if not name.endswith(".attn.bias")
    }


def rectangular(name, tensor):
    return ".c_" in name and tensor.ndim == 2 and tensor.size(0) != tensor.size(1)


CONVERTERS = {
    "passed": converted(),
    "a stored causal mask": converted(keep=lambda name: True),
    "h.1.attn.bias is still there": converted(keep=lambda name: name != "h.0.attn.bias"),
    'begin with "transformer."': converted(prefix=""),
    "c_attn.bias is gone": converted(keep=lambda name: not name.endswith("attn.bias")),
    "ln_f.bias is missing": converted(
        keep=lambda name: name != "ln_f.bias" and not name.endswith(".attn.bias")
    ),
    "is not a name in our model": lambda theirs: converted()(theirs) | {"more": torch.ones(1)},
    "was transposed: only the Conv1D": converted(transpose=lambda name, t: t.ndim == 2),
    "nn.Linear wants (out, in)": converted(transpose=lambda name, t: False),
    "It is square": converted(transpose=rectangular),
    "a reshape is not a transpose": converted(turn=lambda t: t.reshape(t.shape[::-1])),
    "has the wrong numbers": converted(turn=lambda t: -t.T),
    "you changed the dictionary": pops,
    "dictionary that was given": turned_in_place,
    "h.2.attn.bias is still there": converted(
        keep=lambda name: name not in ("h.0.attn.bias", "h.1.attn.bias")
    ),
}


def test_convert():
    assert_verdicts(checks.convert, CONVERTERS)


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


# cache_bytes


def size(config, batch, tokens, each):
    return 2 * batch * config.n_layer * tokens * config.n_embd * each


SIZES = {
    "passed": size,
    "keys AND values": lambda c, b, t, e: size(c, b, t, e) // 2,
    "n_layer is missing": lambda c, b, t, e: size(c, b, t, e) // c.n_layer,
    "do not multiply by n_head": lambda c, b, t, e: size(c, b, t, e) * c.n_head,
    "do not divide by n_head": lambda c, b, t, e: size(c, b, t, e) // c.n_head,
    "not bits": lambda c, b, t, e: size(c, b, t, 8 * e),
    "that counts numbers": lambda c, b, t, e: size(c, b, t, 1),
    "queries are not kept": lambda c, b, t, e: size(c, b, t, e) * 3 // 2,
    "one token's share": lambda c, b, t, e: size(c, b, 1, e),
    "not with its square": lambda c, b, t, e: b * c.n_layer * c.n_head * t * t * e,
    "wrong for a batch": lambda c, b, t, e: size(c, 1, t, e),
    "wrong for GPT-2 XL": lambda c, b, t, e: size(
        GPTConfig(n_layer=24, n_head=16, n_embd=1024), b, t, e
    ),
    "takes 196,608,000 bytes, not 1": lambda c, b, t, e: 1,
}


def test_cache_bytes():
    assert_verdicts(checks.cache_bytes, SIZES)
