"""Exercises of notebook 07a: published weights, and sampling."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from einops import rearrange
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.modules import fill
from cs336_course.engine.observe import runs_elsewhere
from cs336_course.engine.records import Record, plain
from cs336_lib import model as library
from cs336_lib.config import GPTConfig
from cs336_lib.hugging_face import hugging_face_tensors
from cs336_lib.sampling import filter_logits

NOTEBOOK = "08_gpt2_speaks"


def is_linear(name: str) -> bool:
    """Return whether a tensor is a linear layer's weight, which OpenAI stores as (in, out)."""
    return name.endswith(("c_attn.weight", "c_proj.weight", "c_fc.weight"))


def shape(n_head: int, n_embd: int, n_layer: int = 2, **others: int) -> GPTConfig:
    """Return a small config with a padded vocabulary."""
    bounds: Any = {"block_size": 11, "vocab_size": 50} | others
    return GPTConfig(n_layer=n_layer, n_head=n_head, n_embd=n_embd, **bounds)


def ids(*shape: int, below: int, seed: int = 0) -> Tensor:
    """Return random token ids."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


# Exercise 1


def published(config: GPTConfig, prefix: str = "", extras: str = "") -> dict[str, Tensor]:
    """Return random tensors as files have them.

    Args:
        config: Shape of the model.
        prefix: Text in front of each name.
        extras: What else the file has, of "masks", "head first" and "head last".
    """
    source = library.GPT(config)
    fill(source, 0.2)
    theirs = {
        prefix + name.removeprefix("transformer."): tensor.detach().clone().contiguous()
        for name, tensor in hugging_face_tensors(source).items()
    }
    for layer in range(config.n_layer if "masks" in extras else 0):
        theirs[f"{prefix}h.{layer}.attn.bias"] = torch.ones(11, 11).tril()[None, None]
        theirs[f"{prefix}h.{layer}.attn.masked_bias"] = torch.tensor(-1e4)
    table = f"{prefix}wte.weight"
    head = {"lm_head.weight": theirs[table].clone()}
    theirs = head | theirs if "head first" in extras else theirs
    return theirs | head if "head last" in extras else theirs


def files() -> Iterator[Case]:
    """Yield files, the shape of the model into which they are loaded, and a tensor that's wrong."""
    small, tiny = shape(2, 24, n_layer=3), shape(2, 8)
    short = shape(2, 24, n_layer=3, block_size=6)
    deep = shape(2, 4, n_layer=11, block_size=5)
    square = shape(2, 16, block_size=16, vocab_size=16)  # its wpe and wte are square
    full = shape(2, 8, vocab_size=64)  # nothing to pad
    both = "masks, head last"
    for what, theirs, own in (
        ("a file without a prefix", published(tiny), tiny),
        ("a file with causal masks", published(small, "", "masks"), small),
        ("a file with a prefix and lm_head", published(tiny, "transformer.", "head first"), tiny),
        ("another order of names", published(small, "transformer.", both), small),
        ("fewer positions in the model", published(small, "", "masks"), short),
        ("a table without padding", published(full, "transformer.", both), full),
        ("11 layers", published(deep, "", "masks"), deep),
        ("square tables", published(square, "transformer.", both), square),
    ):
        yield Case(what, theirs=theirs, own=own, wrong="")
    for what, edit, wrong in misfits():
        yield Case(what, theirs=edit(published(tiny, "", "masks")), own=tiny, wrong=wrong)
    theirs = published(shape(2, 8, block_size=6), "transformer.", both)
    yield Case("fewer positions in the file", theirs=theirs, own=tiny, wrong="wpe.weight")
    for rows in (49, 114):
        theirs = published(shape(2, 8, vocab_size=rows), "transformer.")
        yield Case("another vocabulary in the file", theirs=theirs, own=tiny, wrong="wte.weight")
    yield Case("an empty file", theirs={}, own=tiny, wrong="")


def misfits() -> Iterator[tuple[str, Any, str]]:
    """Yield edits of a file that make it one of another model, and the name that they concern."""

    def without(name: str) -> Any:
        return lambda file: {key: tensor for key, tensor in file.items() if key != name}

    def replaced(name: str, change: Any) -> Any:
        return lambda file: file | {name: change(file[name])}

    for name in ("h.1.mlp.c_fc.bias", "ln_f.weight", "wte.weight", "h.0.attn.c_proj.weight"):
        yield "a file that lacks a tensor", without(name), name
    deeper = {"h.2.ln_1.weight": torch.ones(8)}
    yield "a file of a deeper model", lambda file: file | deeper, "h.2.ln_1.weight"
    score = {"score.weight": torch.ones(2, 8)}
    yield "a file with another head", lambda file: score | file, "score.weight"
    untied = {"lm_head.weight": torch.ones(50, 8)}
    yield "an lm_head that isn't wte", lambda file: file | untied, "lm_head"
    for name in ("h.0.mlp.c_fc.weight", "h.1.attn.c_attn.weight"):
        yield "a file in nn.Linear's layout", replaced(name, lambda t: t.T), name
    for name in ("h.1.ln_2.bias", "h.0.mlp.c_proj.bias"):
        yield "a bias that's too long", replaced(name, lambda t: torch.cat((t, t[:1]))), name
        yield "a bias that's too short", replaced(name, lambda t: t[:-1]), name
    yield "a bias of one number", replaced("ln_f.bias", lambda t: t[:1]), "ln_f.bias"
    yield "positions that are too narrow", replaced("wpe.weight", lambda t: t[:, :1]), "wpe.weight"


def loaded(answer: Any, case: Case) -> Record:
    """Observe a model after loading, whether the file is as before, or how it was refused."""
    model, wrong = library.GPT(case.inputs["own"]), case.inputs["wrong"]
    fill(model, 0.1)
    theirs = {name: tensor.clone() for name, tensor in case.inputs["theirs"].items()}
    before = [parameter.detach().clone() for parameter in model.parameters()]
    try:
        answer(model, theirs)
    except ValueError as error:
        lines, named = str(error).strip().splitlines(), wrong in str(error)
        same = all(map(torch.equal, model.parameters(), before))
        return {"verdict": "refused", "one line": len(lines) == 1, "named": named, "same": same}
    record: Record = {"verdict": "loaded"}
    if case.what.startswith("an empty") or wrong:
        return record
    for name, parameter in model.named_parameters():  # nothing reads the padded rows
        rows = model.config.vocab_size if name == "transformer.wte.weight" else len(parameter)
        record[name] = plain(parameter[:rows])
    record["file"] = list(theirs) == list(case.inputs["theirs"]) and all(
        torch.equal(theirs[name], tensor) for name, tensor in case.inputs["theirs"].items()
    )
    record["tied"] = model.lm_head.weight is model.transformer.wte.weight
    record["trains"] = all(parameter.requires_grad for parameter in model.parameters())
    record["modes"] = sorted({module.training for module in model.modules()})
    for tensor in theirs.values():
        tensor.zero_()
    record["own memory"] = all(bool(parameter.any()) for parameter in model.parameters())
    return record


@torch.no_grad()
def by_state_dict(model, theirs):
    ours, found = model.state_dict(), {}
    for name, tensor in theirs.items():
        name = name.removeprefix("transformer.")
        if name.split(".")[-2:] in (["attn", "bias"], ["attn", "masked_bias"]):
            continue
        if name == "lm_head.weight":
            wte = theirs.get("wte.weight", theirs.get("transformer.wte.weight"))
            if wte is None or (tensor != wte).any():
                raise ValueError("lm_head.weight differs from wte.weight")
            continue
        if f"transformer.{name}" not in ours:
            raise ValueError(f"unknown: {name}")
        like = ours[f"transformer.{name}"].clone()
        if name.split(".")[-2] in ("c_attn", "c_proj", "c_fc") and tensor.ndim == 2:
            tensor = rearrange(tensor, "i o -> o i")
        if name == "wpe.weight":
            tensor = tensor[: len(like)]
        if name == "wte.weight":
            size = model.config.vocab_size
            if not size <= len(tensor) <= size + 63:
                raise ValueError("wte.weight: another vocabulary")
            tensor = torch.cat((tensor[:size], like[size:]))
        if tensor.shape != like.shape:
            raise ValueError(f"{name}: {tuple(tensor.shape)}")
        found[f"transformer.{name}"] = tensor
    for name in ours:
        if name not in found and name != "lm_head.weight":
            raise ValueError(f"{name} is missing")
    model.load_state_dict(found, strict=False)


@torch.no_grad()
def by_own_names(model, theirs):
    left = {name.removeprefix("transformer."): tensor for name, tensor in theirs.items()}
    head, pairs = left.pop("lm_head.weight", None), []
    if head is not None and not head.equal(left["wte.weight"]):
        raise ValueError("lm_head isn't wte")
    for name, parameter in model.named_parameters():
        short = name.removeprefix("transformer.")
        if short not in left:
            raise ValueError(f"no {short}")
        found = left.pop(short)
        if short.endswith("weight") and short.split(".")[-2].startswith("c_"):
            found = found.mT
        if short == "wpe.weight" and len(found) > len(parameter):
            found = found.narrow(0, 0, len(parameter))
        fits = found.shape == parameter.shape
        if short == "wte.weight":
            spare = len(found) - model.config.vocab_size
            fits = 0 <= spare < 64 and found.shape[1:] == parameter.shape[1:]
        if not fits:
            raise ValueError(f"{short} doesn't fit")
        rows = min(found.size(0), parameter.size(0))
        pairs.append((parameter.narrow(0, 0, rows), found.narrow(0, 0, rows)))
    for name in left:
        if not name.endswith((".attn.bias", ".masked_bias")):
            raise ValueError(f"unknown {name}")
    for mine, found in pairs:
        mine.copy_(found)


def anything_goes(model, theirs):
    ours = dict(model.named_parameters())
    for name, tensor in theirs.items():
        name = "transformer." + name.removeprefix("transformer.")
        if name in ours:
            tensor = tensor.t() if is_linear(name) else tensor
            with torch.no_grad():
                ours[name][: len(tensor)] = tensor[: len(ours[name])]


TURNED = "t.t() if is_linear(n) else t"
COPIED = "tensor.copy_(theirs[name])"
SKIPPED = '(".attn.bias", ".attn.masked_bias", "lm_head.weight")'
NAME = 'name.removeprefix("transformer."): tensor'
START = "    theirs = {"
CHECKED = "    for name in ours | theirs:"
RAISED = 'raise ValueError(f"{name}: the model has {was}, the file {now}")'
SHAPES = "tuple(w[name].shape)"
TOKENS = "[: model.config.vocab_size]"
PLACES = "[: model.config.block_size]"
COPYING = f"    for name, tensor in ours.items():\n        {COPIED}"
HEAD = (
    'if not torch.equal(theirs.get("lm_head.weight", theirs["wte.weight"]), theirs["wte.weight"]):'
)
TABLE = 'theirs.get("wte.weight", torch.empty(0))'
PREFIX = "Names may come with or without 'transformer.' in front; look at each, not only at the "
PREFIX += "first."

load_weights = Exercise(
    NOTEBOOK,
    "load_weights",
    files,
    observe=loaded,
    is_part=True,
    given={"rearrange": rearrange},
    smaller="A file stores h.0.attn.c_proj.weight as (768, 768) and h.0.mlp.c_fc.weight as "
    "(768, 3072). Which of them do you transpose?",
    says={
        "verdict": "raise a ValueError for a file that doesn't fit, and only for such a file.",
        "one line": "the message of your ValueError should be one line.",
        "named": "name the tensor that's missing, unknown or of another shape in your message.",
        "same": "a refused file has already changed the model; check all tensors before you copy.",
        "file": "you changed the dictionary `theirs` or its tensors; leave them alone.",
        "tied": "lm_head and wte are no longer one tensor; copy into the parameters in place.",
        "trains": "a parameter no longer requires a gradient; copy into the parameters in place.",
        "modes": "your function calls model.eval() or model.train(); leave that to the caller.",
        "own memory": "the model shares memory with `theirs`, so training would change both; copy.",
    },
    wrong={
        "nothing is copied, not even wte. Write into the model's own tensors, as in "
        "tensor.copy_(...); an assignment to a name or to an entry of a dict doesn't.": (
            COPIED,
            "ours[name] = theirs[name]",
        ),
        "a square matrix isn't transposed. Comparing shapes doesn't show that it is a linear "
        "layer; go by the name.": [
            (
                TURNED,
                "t.t() if t.ndim == 2 and not n.endswith(('wte.weight', 'wpe.weight'))"
                " and t.size(0) != t.size(1) else t",
            ),
            (TURNED, "t.t() if is_linear(n) and 'attn.c_proj' not in n else t"),
        ],
        "a square table is no linear layer; go by the name.": (
            TURNED,
            "t.t() if t.ndim == 2 and (is_linear(n) or len(t) == t.size(1)) else t",
        ),
        "a reshape isn't a transpose.": (TURNED, "t.view(t.shape[::-1]) if is_linear(n) else t"),
        "attn.bias and attn.masked_bias are causal masks, which old files have; leave them out.": [
            (SKIPPED, '("lm_head.weight",)'),
            ('".attn.bias", ', ""),
            ('".attn.masked_bias", ', ""),
        ],
        "lm_head.weight is wte once more; leave it out.": (', "lm_head.weight")', ")"),
        "an lm_head that isn't wte is ignored without a word. Your model has no second table, so "
        "raise a ValueError.": (HEAD, "if False:"),
        "a refused file has already changed the model; check all tensors before you copy.": [
            edits(
                (COPYING, "    pass"),
                (
                    RAISED,
                    f"{RAISED}\n        if name in ours:\n"
                    "            ours[name].copy_(theirs[name])",
                ),
            ),
            edits(
                (COPYING, "    pass"),
                (f"    {HEAD}", f"{COPYING}\n    {HEAD}"),
            ),
        ],
        "files that don't fit are loaded without a word, so half of the model may stay at random. "
        "Raise a ValueError if a tensor is missing, unknown or of another shape.": [
            anything_goes,
        ],
        "a tensor that the file lacks stays as it was, without a word; raise a ValueError.": [
            edits(
                (
                    CHECKED,
                    "    theirs.setdefault('wte.weight', ours['wte.weight'])\n"
                    "    for name in theirs:",
                ),
                (COPIED, "tensor.copy_(theirs.get(name, tensor))"),
            ),
        ],
        "a tensor that the model doesn't have, such as one of a deeper model's, is ignored; raise "
        "a ValueError.": ("ours | theirs", "ours"),
        "a file without 'transformer.' in front of its names is refused.": (
            NAME,
            'name[len("transformer.") :]: tensor',
        ),
        "a file with 'transformer.' in front of its names is refused.": (NAME, "name: tensor"),
        PREFIX: (
            NAME,
            "name.removeprefix('transformer.' * next(iter(theirs)).startswith('transformer.')): "
            "tensor",
        ),
        "the norms aren't copied.": (
            COPIED,
            "tensor.copy_(tensor if 'ln_' in name else theirs[name])",
        ),
        "your table of tokens may be padded, but the file's isn't. Compare and copy the "
        "vocab_size rows that are in use.": (TOKENS, ""),
        "a file may have more positions than the model; take the first block_size of them.": (
            PLACES,
            "",
        ),
        "a file with another vocabulary is loaded; it must have vocab_size rows.": (
            CHECKED,
            f"    theirs['wte.weight'] = {TABLE}{TOKENS}\n{CHECKED}",
        ),
        "a file with fewer tokens than vocab_size is loaded, so some rows stay at random.": (
            TOKENS,
            f"[: min(model.config.vocab_size, len({TABLE}))]",
        ),
        "a file with fewer positions than block_size is loaded, so some rows stay at random.": (
            CHECKED,
            f"    ours['wpe.weight'] = ours['wpe.weight'][: len(theirs['wpe.weight'])]\n{CHECKED}",
        ),
        "compare whole shapes before you copy; a number of rows that differs, or a broadcast, "
        "goes unseen.": [
            edits(
                (SHAPES, f"{SHAPES}[1:]"),
                (COPIED, "tensor[: len(theirs[name])].copy_(theirs[name][: len(tensor)])"),
            ),
        ],
        "c_attn.bias isn't copied. It ends with attn.bias, too, but it isn't a mask.": [
            (COPIED, "tensor.copy_(tensor if name.endswith('attn.bias') else theirs[name])"),
        ],
    },
    refused=[
        (TURNED, "t"),
        (TURNED, "t.t() if t.ndim == 2 else t"),
        (COPIED, "tensor.data = theirs[name]"),
        (
            COPIED,
            "model.transformer.get_parameter(name).data = "
            "theirs[name].t() if is_linear(name) else theirs[name]",
        ),
        (COPIED, f"{COPIED}\n        theirs[name].zero_()"),
        (START, f"    theirs.pop('wte.weight', None)\n{START}"),
        (START, f"    model.eval()\n{START}"),
        (START, f"    model.requires_grad_(False)\n{START}"),
        (RAISED, 'raise ValueError("a tensor has another shape")'),
        (RAISED, "raise KeyError(name)"),
        ("the model has", "the model\\nhas"),
        lambda model, theirs: None,
    ],
    right=[by_state_dict, by_own_names],
)


# Exercise 2


def models() -> Iterator[Case]:
    """Yield shapes of models, with and without a padded vocabulary."""
    for own in (shape(2, 8), shape(1, 6, n_layer=1, vocab_size=64), shape(2, 4, n_layer=11)):
        yield Case("", own=own)
    yield Case("square tables", own=shape(2, 16, block_size=16, vocab_size=16))
    yield Case("a padded row or two", own=shape(2, 8, vocab_size=63))


def exported(answer: Any, case: Case) -> Record:
    """Observe the tensors, and whether the model is as before."""
    model = library.GPT(case.inputs["own"])
    fill(model, 0.1)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = answer(model)
    if not isinstance(found, dict):
        return {"names": plain(found)}
    tensors = {str(name): tensor for name, tensor in found.items()}
    record: Record = {"names": sorted(tensors)}
    record |= {name: plain(tensors[name]) for name in sorted(tensors)}
    record["contiguous"] = all(
        isinstance(tensor, Tensor) and tensor.is_contiguous() for tensor in tensors.values()
    )
    after = model.state_dict()
    record["model"] = list(after) == list(before) and all(
        torch.equal(after[name], tensor) for name, tensor in before.items()
    )
    record["tied"] = model.lm_head.weight is model.transformer.wte.weight
    record["trains"] = all(parameter.requires_grad for parameter in model.parameters())
    return record


def by_modules(model):
    found = {}
    for prefix, module in model.transformer.named_modules(prefix="transformer"):
        for key, parameter in module.named_parameters(recurse=False):
            tensor = parameter.detach().clone()
            if isinstance(module, nn.Linear) and key == "weight":
                tensor = rearrange(tensor, "o i -> i o").contiguous()
            found[f"{prefix}.{key}"] = tensor
    found["transformer.wte.weight"] = found["transformer.wte.weight"][: model.config.vocab_size]
    return found


def by_comprehension(model):
    with torch.no_grad():
        theirs = dict(model.state_dict())
        del theirs["lm_head.weight"]
        theirs["transformer.wte.weight"] = model.lm_head.weight[: model.config.vocab_size]
        return {
            n: (w.mT if ".c_" in n and w.ndim == 2 else w).clone(
                memory_format=torch.contiguous_format
            )
            for n, w in theirs.items()
        }


BACK = "t.t() if is_linear(n) else t"
LISTED = 'model.transformer.state_dict(prefix="transformer.")'
UNPADDED = "[: model.config.vocab_size]"

published_weights = Exercise(
    NOTEBOOK,
    "published_weights",
    models,
    observe=exported,
    is_part=True,
    given={"rearrange": rearrange},
    smaller="A model has n_embd 8 and 50 tokens, padded to 64. Which shapes do wte, wpe and "
    "h.0.mlp.c_fc.weight have in the file?",
    says={
        "names": "the names should be those of named_parameters(), which begin with "
        "'transformer.', without lm_head.",
        "contiguous": "a transposed tensor is a view with other strides, which safetensors "
        "refuses; call .contiguous().",
        "model": "you changed the model's own weights.",
        "tied": "lm_head and wte are no longer one tensor; leave the model as it is.",
        "trains": "a parameter no longer requires a gradient; leave the model as it is.",
    },
    wrong={
        "a transposed tensor is a view with other strides, which safetensors refuses; call "
        ".contiguous().": (".contiguous()", ""),
        "the linear layers are still (out, in); OpenAI stores them as (in, out).": (
            BACK,
            "t",
        ),
        "you transpose the tables, too; only linear layers are stored the other way.": (
            BACK,
            "t.t() if t.ndim == 2 else t",
        ),
        "a square matrix is a linear layer as well; go by the name.": [
            (
                BACK,
                "t.t() if is_linear(n) and t.size(0) != t.size(1) else t",
            ),
        ],
        "a reshape isn't a transpose.": (
            BACK,
            "t.reshape(t.shape[::-1]) if is_linear(n) else t",
        ),
        "the padded rows are still there; a file has vocab_size rows.": (UNPADDED, ""),
        "lm_head is wte once more; leave it out. named_parameters() lists a shared tensor once.": [
            (LISTED, "dict(model.named_parameters(remove_duplicate=False))"),
            (LISTED, "model.state_dict()"),
        ],
        "a file for GPT2LMHeadModel has 'transformer.' in front of its names.": (
            "{n: (t.t()",
            "{n.removeprefix('transformer.'): (t.t()",
        ),
    },
    refused=[
        (".contiguous()", ".contiguous().zero_()"),
        (".contiguous()", ".contiguous().double()"),
        (".contiguous()", ".contiguous().half()"),
        (UNPADDED, "[:50]"),
        (UNPADDED, "[: model.config.padded_vocab_size]"),
        ("    theirs = ", "    model.requires_grad_(False)\n    theirs = "),
        lambda model: {},
        lambda model: None,
    ],
    right=[by_modules, by_comprehension],
)


# Exercise 3

LETTERS = 0.1, 0.5, 0.05, 0.3, 0.05  # p = 0.7 of them keeps 0.5 and 0.3


def letters() -> Iterator[Case]:
    """Yield rows of probabilities whose sums up to p have no rounding, except in the last cases."""
    dyadic = torch.tensor([[0.125, 0.5, 0.125, 0.25]])
    for p in (0.7, 0.3, 1.0):
        yield Case("", probabilities=torch.tensor([LETTERS]), p=p)
    yield Case("", probabilities=dyadic, p=0.5)
    yield Case("", probabilities=dyadic.double(), p=0.75)
    both = torch.tensor([[0.5, 0.25, 0.125, 0.125], [0.0625, 0.125, 0.0625, 0.75]])
    yield Case("two texts", probabilities=both, p=0.75)
    yield Case("two texts", probabilities=both.flip(0, 1), p=0.25)
    yield Case("one token", probabilities=torch.ones(3, 1), p=0.25)
    yield Case("equal tokens", probabilities=torch.tensor(0.125).expand(2, 8), p=0.5)
    bounds: Any = {"tokens": (2, 70), "eighths": (1, 8), "most": (1, 40), "rows": (1, 4)}
    for seed, size in enumerate(sizes(6, **bounds)):
        drawn = ids(size.rows, 256, below=size.most, seed=seed) % size.tokens
        counts = [torch.bincount(row, minlength=size.tokens) for row in drawn]
        yield Case("", probabilities=torch.stack(counts) / 256, p=size.eighths / 8)
    yield Case("a sum just below p", probabilities=torch.tensor([[0.698, 0.202, 0.1]]), p=0.7)
    rounded = normal(2, 50).softmax(1) * (1 - 2**-20)
    yield Case("probabilities whose sum is rounded below 1", probabilities=rounded, p=1.0)


def truncated(answer: Any, case: Case) -> Record:
    """Observe the result. Which of equal tokens stay is free, so then it is compared sorted."""
    record = function()(answer, case)
    given, p = case.inputs.values()
    ordered = given.sort(descending=True).values
    counts = (ordered.cumsum(-1) - ordered < p).sum(-1)
    last = [(row[n - 1], row[n]) for row, n in zip(ordered, counts, strict=True) if n < len(row)]
    got = record["result"]
    is_free = any(kept == dropped for kept, dropped in last)
    if is_free and isinstance(got, Tensor) and got.shape == given.shape:
        own = given.where(got > 0, 0.0).double()
        rescaled = own / own.sum(-1, keepdim=True)
        record["in place"] = torch.allclose(got.double(), rescaled, 1e-4, 1e-6)
        record["result"] = got.sort(descending=True).values
    return record


def in_plain_python(probabilities, p):
    rows = []
    for row in probabilities.tolist():
        kept, total = [0.0] * len(row), 0.0
        for i in sorted(range(len(row)), key=lambda i: -row[i]):
            if total < p:
                kept[i] = row[i]
                total += kept[i]
        rows.append([value / total for value in kept])
    return torch.tensor(rows, dtype=probabilities.dtype)


def by_mask(probabilities, p):
    order = torch.argsort(probabilities, dim=-1, descending=True, stable=True)
    total = torch.cumsum(probabilities.gather(-1, order), dim=-1)
    dropped = torch.cat((torch.zeros_like(total[:, :1]), total[:, :-1]), dim=-1) >= p
    back = dropped.gather(-1, order.argsort(-1))
    return F.normalize(probabilities.masked_fill(back, 0.0), p=1, dim=-1)


def by_numpy(probabilities, p):
    rows = []
    for values in probabilities.numpy():
        order = np.argsort(-values)
        count = int(np.searchsorted(np.cumsum(values[order]), np.float32(p))) + 1
        kept = np.zeros_like(values)
        kept[order[:count]] = values[order[:count]]
        rows.append(torch.from_numpy(kept / kept.sum()))
    return torch.stack(rows)


BEFORE = "ordered.cumsum(-1) - ordered < p"
RESCALED = "return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(-1, keepdim=True))"
PLACED = "kept = torch.zeros_like(kept).scatter(-1, order, kept)\n    "
DROPPED = "kept.masked_fill(kept == 0, -math.inf)"


def nucleus_of_rows(probabilities: Tensor, p: float) -> Tensor:
    """Return the probabilities of top-p sampling, (batch, vocab)."""
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(probabilities).scatter(-1, order, ordered.where(before < p, 0.0))
    return kept / kept.sum(-1, keepdim=True)


nucleus = Exercise(
    NOTEBOOK,
    "nucleus",
    letters,
    observe=truncated,
    is_part=True,
    given={"math": math},
    smaller="The probabilities are 0.2, 0.5 and 0.3, and p is 0.6. Which tokens stay, and with "
    "which probabilities?",
    axes="batch vocab",
    says={"in place": "the right probabilities, but not in their tokens' places."},
    wrong={
        "the right tokens, but they don't add up to 1; divide by their sum.": (
            RESCALED,
            f"{PLACED}return kept",
        ),
        "you return the probabilities sorted; each must go back to its own token.": (
            RESCALED,
            "return kept / kept.sum(-1, keepdim=True)",
        ),
        "gathering with `order` sorts once more; to undo the sorting, scatter with it.": (
            RESCALED,
            "kept = kept.gather(-1, order)\n    return kept / kept.sum(-1, keepdim=True)",
        ),
        "the token that crosses p is missing. 0.5 alone does not reach 0.7, so 0.3 is kept too.": (
            BEFORE,
            "(ordered.cumsum(-1) < p) | (ordered.cumsum(-1) == ordered)",
        ),
        "one token too many, since 0.5 + 0.3 reaches 0.7. Compare the sum BEFORE each token.": (
            BEFORE,
            "(ordered.cumsum(-1) - ordered).roll(1, -1).index_fill(-1, torch.tensor(0), 0) < p",
        ),
        "a token that reaches p exactly is the last one. Write < p, not <= p.": (
            BEFORE,
            "(ordered.cumsum(-1) - ordered) <= p",
        ),
        "you kept the unlikely ones; sort with descending=True.": (
            "sort(descending=True)",
            "sort()",
        ),
        "add up the likeliest tokens first; you go through them in their own order.": (
            "probabilities.sort(descending=True)",
            "probabilities, torch.arange(probabilities.size(-1)).expand(probabilities.shape)",
        ),
        "a softmax of probabilities is no rescaling; divide them by their sum.": (
            RESCALED,
            f"{PLACED}return {DROPPED}.softmax(-1)",
        ),
        "your softmax gives dropped tokens a probability; divide the kept ones by their sum.": (
            RESCALED,
            f"{PLACED}return kept.softmax(-1)",
        ),
        "nothing is dropped.": lambda probabilities, p: probabilities,
        "keep all tokens in the result, the dropped ones with 0.": (
            RESCALED,
            f"{PLACED}return (kept / kept.sum(-1, keepdim=True))[:, kept.any(0)]",
        ),
        "several tokens may be equal; go by the place in the sorted list, not by a threshold.": (
            RESCALED,
            "kept = probabilities * (probabilities >= ordered.where(kept > 0, 2).amin(-1, True))\n"
            "    return kept / kept.sum(-1, keepdim=True)",
        ),
        "0.698 is below p = 0.7, so the next token stays, too. Don't round.": (
            BEFORE,
            "(ordered.cumsum(-1) - ordered).round(decimals=2) < p",
        ),
        "rounding may leave the sum of all tokens just below p = 1. Keep all of them then.": (
            BEFORE,
            "torch.arange(ordered.size(-1)) <= (ordered.cumsum(-1) >= p).int().argmax(-1, True)",
        ),
        "each text has its own nucleus; sum along the last axis.": [
            (RESCALED, f"{PLACED}return kept / kept.sum()"),
            (BEFORE, "((ordered.cumsum(-1) - ordered) < p)[:1]"),
            ("cumsum(-1)", "cumsum(0)"),
        ],
        "the likeliest token must always stay, even if it alone is more than p.": (
            BEFORE,
            "ordered.cumsum(-1) <= p",
        ),
    },
    refused=[
        ("torch.zeros_like(kept)", "probabilities.zero_()"),
        (
            RESCALED,
            f"{PLACED}kept /= kept.sum(-1, keepdim=True)\n    return probabilities.copy_(kept)",
        ),
        (RESCALED, f"{PLACED}return kept.double() / kept.sum(-1, keepdim=True)"),
        (RESCALED, f"{PLACED}return (kept / kept.sum(-1, keepdim=True)).float()"),
        (
            BEFORE,
            "(ordered.cumsum(-1) <= p) | (ordered.cumsum(-1) == ordered)",
        ),
        (BEFORE, "(ordered.cumsum(-1) - ordered) - ordered.max() < p"),
        (BEFORE, "((ordered.cumsum(-1) - ordered) < p) & (torch.arange(ordered.size(-1)) < 2)"),
        (BEFORE, "((ordered.cumsum(-1) - ordered) < p) | (torch.arange(ordered.size(-1)) < 2)"),
        (BEFORE, "torch.arange(ordered.size(-1)) < p * ordered.size(-1)"),
        (BEFORE, "(ordered.cumsum(-1) - ordered) < min(p, 0.7)"),
        (BEFORE, "(ordered.cumsum(-1) - ordered) < (p if ordered.size(-1) < 9 else 0.5)"),
        (BEFORE, "((ordered.cumsum(-1) - ordered) < p) & (p > 0.5)"),
        (RESCALED, "return probabilities.where(probabilities > 1 - p, 0.0)"),
        (
            RESCALED,
            "return probabilities.where(probabilities >= (1 - p) * ordered[:, :1], 0.0)",
        ),
        lambda probabilities, p: probabilities[probabilities > 0.2],
        lambda probabilities, p: probabilities**2,
        lambda probabilities, p: 1,
        lambda probabilities, p: None,
    ],
    right=[in_plain_python, by_mask, by_numpy],
)

# Exercise 4


VOCAB = 97  # of the scripted models


class Scripted(nn.Module):
    """A model whose last logits are those of a table, by the last token.

    At all earlier positions it prefers the last token, which a right `generate` never sees.

    Args:
        table: Logits (vocab, vocab) of the next token, by the last one.
        block_size: The longest text that it reads.
    """

    def __init__(self, table: Tensor, block_size: int):
        super().__init__()
        self.table = table
        self.config = GPTConfig(block_size, len(table), n_layer=1, n_head=1, n_embd=1)
        self.texts: list[tuple[int, ...]] = []
        self.has_gradients = False
        self.eval()

    def forward(self, idx: Tensor) -> Tensor:
        """Return the logits, and note how the model was called."""
        if idx.dim() != 2:
            raise ValueError(f"the model takes ids of shape (batch, seq), not {tuple(idx.shape)}")
        if not idx.is_meta:
            self.texts += map(tuple, idx.tolist())
        self.has_gradients |= torch.is_grad_enabled()
        logits = torch.zeros(*idx.shape, len(self.table), device=idx.device)
        logits[..., -1] = 1e6
        logits[:, -1] = self.table[idx[:, -1]]
        return logits

    def called(self, result: Tensor) -> Record:
        """Return how the model was called to write a text."""
        size = self.config.block_size
        windows = {
            tuple(row[max(0, end - size) : end])
            for row in result.tolist()
            for end in range(len(row) + 1)
        }
        return {
            "longest": max(map(len, self.texts), default=0),
            "reads": set(self.texts) <= windows,
            "without gradients": not self.has_gradients,
            "eval mode": not self.training,
        }


def following() -> Tensor:
    """Return logits after which token n + 1 follows token n."""
    return -1e4 * (1 - torch.eye(VOCAB)).roll(1, 1)


def unequal(**shares: list[float]) -> Tensor:
    """Return logits of a few tokens, from 20 on, with these shares."""
    table = torch.full((VOCAB, VOCAB), -1e4)
    table[:, 20 : 20 + len(shares["of"])] = torch.tensor(shares["of"]).log()
    return table


def by_last_token() -> Tensor:
    """Return logits whose order and height depend on the last token."""
    rise, middle = 0.001 * torch.arange(VOCAB), VOCAB // 2
    return torch.stack([rise.roll(token) + 3 * (token - middle) for token in range(VOCAB)])


def prompts() -> Iterator[Case]:
    """Yield a scripted model's table and block_size, a prompt, the new tokens and options.

    Token 0 follows some prompts, which is a token as any other.
    """
    start = torch.tensor([[5, 9, 2], [40, 1, 30]])
    known: Any = {"table": following(), "block": 6, "idx": start}
    yield Case("one token that follows", **known, new=11, options={})
    bounds: Any = {"batch": (1, 3), "seq": (1, 9), "block": (1, 7), "new": (4, 8)}
    for size in sizes(3, **bounds):
        idx = ids(size.batch, size.seq, below=VOCAB, seed=size.seq)
        idx[:, -1] = VOCAB - 2
        yield Case("", table=following(), block=size.block, idx=idx, new=size.new, options={})
    yield Case("no new tokens", **known, new=0, options={})
    options: Any
    few = unequal(of=[0.6, 0.3, 0.1])[:23, :23]  # a vocabulary that top_k needn't cut
    many = torch.full((4000, 1), 3)
    for options, shares in (
        ({}, [0.9, 0.1]),
        ({}, [0.4, *6 * [0.1]]),
        ({"temperature": 0.5}, [0.6, 0.3, 0.1]),
        ({"temperature": 2.0}, [0.81, 0.16, 0.03]),
        ({"temperature": 4.0}, [0.95, 0.05]),
        ({"top_p": 0.6}, [0.4, 0.3, 0.2, 0.1]),
        ({"temperature": 2.0, "top_p": 0.6}, [0.64, 0.2, 0.16]),
        ({"temperature": 0.5, "top_p": 0.6}, [0.55, 0.25, 0.2]),
        ({"top_k": 2, "top_p": 0.5}, [0.35, 0.25, 0.2, 0.2]),
        ({"temperature": 2.0, "top_k": 2, "top_p": 1.0}, [0.5, 0.3, 0.2]),
    ):
        table = unequal(of=shares)
        yield Case("shares", table=table, block=4, idx=many, new=1, options=options)
    yield Case("shares", table=few, block=4, idx=many, new=1, options={"top_k": 60})
    texts = (torch.arange(800) % VOCAB)[:, None]
    for options, new in (
        ({"top_k": 5}, 1),
        ({"top_k": 5}, 2),
        ({"top_k": 1}, 2),
        ({"top_k": VOCAB}, 2),
        ({}, 2),
        ({"top_k": VOCAB, "top_p": 0.2}, 2),
    ):
        known = {"table": by_last_token(), "block": 4, "idx": texts}
        yield Case("likeliest", **known, new=new, options=options)


def filtered(logits: Tensor, options: dict[str, Any]) -> Tensor:
    """Return the probabilities (batch, vocab) with which tokens are drawn."""
    return filter_logits(logits, **{"top_k": 50} | options).softmax(-1)


def generated(answer: Any, case: Case) -> Record:
    """Observe the text where it is certain, and statistics of it where it is drawn."""
    table, block, idx, new, options = case.inputs.values()
    model, prompt = Scripted(table, block), idx.clone()
    result = answer(model, prompt, new, **options)
    is_text = isinstance(result, Tensor) and result.shape == (len(idx), idx.size(1) + new)
    if not is_text or case.what not in ("shares", "likeliest"):
        record: Record = {"result": plain(result)}
    elif case.what == "shares":
        right = filtered(table[3:4], options)[0, 20].item()
        record = {"the share of the likeliest token": bounded(result[:, 1], right)}
        record["dropped"] = bool((filtered(table[3:4], options)[0, result[:, 1]] == 0).any())
    else:
        again = answer(Scripted(table, block), idx.clone(), new, **options)
        kept = int((filtered(table[:1], options) > 0).sum())
        record = ranks(result, again, kept)
    record["prompt"] = is_text and torch.equal(result[:, : idx.size(1)], idx)
    record |= model.called(result) if is_text else {}
    record["changed"] = [] if torch.equal(prompt, idx) else ["idx"]
    if case.what == "no new tokens":
        on_meta = Scripted(table.to("meta"), block)
        record["elsewhere"] = runs_elsewhere(lambda ids: answer(on_meta, ids, 2), Case("", ids=idx))
    return record


def bounded(drawn: Tensor, right: float) -> str:
    """Return in words how often token 20 is drawn, beside its probability."""
    share = (drawn == 20).double().mean().item()
    if share > 0.9995:
        return "always"
    return "right" if abs(share - right) < 0.04 else "too high" if share > right else "too low"


def ranks(result: Tensor, again: Tensor, k: int) -> Record:
    """Return which ranks the drawn tokens have, where 0 is the likeliest.

    Args:
        result: Prompts of one token, and new tokens.
        again: The result of a second call.
        k: How many tokens are likely enough.
    """
    one, two = ((text[:, :-1] - 1 - text[:, 1:]) % VOCAB for text in (result, again))
    seen = sorted(set(torch.cat((one, two)).flatten().tolist()))
    like_first = torch.cat(
        (one[::VOCAB, 0], two[::VOCAB, 0])
    )  # texts that are equal to the first one
    return {
        "ranks": seen if seen == list(range(len(seen))) else "of many tokens",
        "first text": bool(like_first.max() < k),
        "later": bool(one[:, -1].max() < k),
        "drawn": k == 1 or one[:, 0].unique().numel() > 1,
        "each text": k == 1 or one[::VOCAB, 0].unique().numel() > 1,
        "again": k == 1 or not torch.equal(result, again),
    }


@torch.no_grad()
def among_topk(model, idx, new_tokens, temperature=1.0, top_k=50, top_p=1.0):
    text = idx.clone()
    while text.size(1) < idx.size(1) + new_tokens:
        logits = model(text[:, -model.config.block_size :])[:, -1, :]
        values, places = torch.topk(logits, min(top_k, logits.size(-1)), dim=-1)
        chances = (values / temperature).softmax(-1)
        chances = chances.where(chances.cumsum(-1) - chances < top_p, 0.0)
        noise = -torch.log(-torch.log(torch.rand_like(values)))
        choice = (chances.log() + noise).argmax(-1, keepdim=True)
        text = torch.hstack((text, places.gather(-1, choice)))
    return text


@torch.no_grad()
def text_by_text(model, idx, new_tokens, temperature=1.0, top_k=50, top_p=1.0):
    done = []
    for row in idx:
        for _ in range(new_tokens):
            logits = model(row[None, -model.config.block_size :])[0, -1]
            weights = (logits / temperature).softmax(0)
            weights[logits < logits.topk(min(top_k, len(logits))).values.min()] = 0
            weights = nucleus_of_rows((weights / weights.sum())[None], top_p)[0]
            row = torch.cat((row, torch.multinomial(weights, 1)))
        done.append(row)
    return torch.stack(done)


@torch.no_grad()
def by_library(model, idx, new_tokens, temperature=1.0, top_k=50, top_p=1.0):
    begin, size = idx.shape[1], model.config.block_size
    text = torch.cat([idx, idx.new_zeros(idx.shape[0], new_tokens)], dim=-1)
    for end in range(begin, begin + new_tokens):
        logits = model(text[:, max(0, end - size) : end])[:, -1, :]
        kept = filter_logits(logits, temperature, top_k, top_p)
        text[:, end] = torch.multinomial(F.softmax(kept, dim=-1), num_samples=1).squeeze(1)
    return text


CHANCES = "nucleus(logits.softmax(-1), top_p)"
DRAW = f"torch.multinomial({CHANCES}, 1)"
CROP = "idx[:, -model.config.block_size :]"
KTH = "logits.sort().values[:, -top_k:][:, :1]"
KEEP = f"logits.masked_fill(logits < {KTH}, -math.inf)"
LOOP = "    for _ in"
LAST = f"model({CROP})[:, -1]"
FEW = "the vocabulary may have fewer than top_k tokens; then keep all."

generate = Exercise(
    NOTEBOOK,
    "generate",
    prompts,
    observe=generated,
    is_part=True,
    errors={
        "append one token to each text, as a column of shape (batch, 1); argmax needs "
        "keepdim=True.": ("Tensors must have same number of dimensions", (DRAW, f"{DRAW}[:, 0]")),
        FEW: ("index k out of range", (KTH, "logits.topk(top_k).values[:, -1:]")),
    },
    given={"math": math, "nucleus": nucleus_of_rows},
    smaller="The text is [7, 3], and block_size is 2. The first new token is 5. What does the "
    "model read for the second one?",
    axes="batch seq",
    says={
        "the share of the likeliest token": "a token of 90 or 40 % isn't drawn that often. Apply "
        "one softmax to the logits, and draw by its probabilities with torch.multinomial.",
        "ranks": "other tokens are drawn than the top_k likeliest of each text.",
        "first text": "other tokens are drawn than the top_k likeliest of each text.",
        "later": "top_k holds for every new token, not only for the first.",
        "drawn": "every text gets the same token; draw with torch.multinomial.",
        "each text": "texts that are equal get the same token; draw one for each text.",
        "again": "two calls draw the same; leave the seed to the caller.",
        "prompt": "the result must begin with the prompt.",
        "longest": "give the model the last block_size tokens, no more and no fewer.",
        "reads": "the model doesn't get the last block_size tokens of each text, in their order.",
        "without gradients": "keep @torch.no_grad(); drawing needs no gradient.",
        "eval mode": "your function calls model.train(); leave that to the caller.",
    },
    wrong={
        "cut only what the model reads to block_size, and append to the whole idx.": (
            "    for _ in range(new_tokens):\n",
            f"    for _ in range(new_tokens):\n        idx = {CROP}\n",
        ),
        "the model gets more tokens than its block_size. Give it the last block_size tokens "
        "only.": [(CROP, "idx"), (CROP, "idx[:, -1024:]")],
        "give the model the last block_size tokens, not the first.": (
            CROP,
            "idx[:, : model.config.block_size]",
        ),
        "give the model the last block_size tokens, not fewer.": (
            CROP,
            "idx[:, 1 - model.config.block_size :]",
        ),
        "the model reads the last token only; give it the whole text.": (CROP, "idx[:, -1:]"),
        "use the logits of the last position only, [:, -1].": [
            (f"model({CROP})[:, -1]", f"model({CROP})[:, 0]"),
            (f"model({CROP})[:, -1]", f"model({CROP}).mean(1)"),
        ],
        "the model is called once; each new token needs the logits of a new call.": edits(
            (LOOP, f"    logits = {LAST} / temperature\n{LOOP}"),
            (f"        logits = {LAST} / temperature\n", ""),
        ),
        "those are places in topk's list; use the ids in .indices.": (
            f"logits = {KEEP}",
            "logits = logits.topk(min(top_k, logits.size(-1))).values",
        ),
        "all texts get the token of the first; draw one for each text.": (
            DRAW,
            f"{DRAW}[:1].expand(len(idx), 1)",
        ),
        "every text gets its likeliest token; draw with torch.multinomial.": (
            DRAW,
            "logits.argmax(-1, keepdim=True)",
        ),
        "you keep one token fewer; mask what is below the k-th logit, not the k-th.": (
            "logits < logits",
            "logits <= logits",
        ),
        "you keep one token too many; the k-th is the last one to keep.": (
            "-top_k:",
            "-top_k - 1 :",
        ),
        "you always keep 50 tokens; read top_k.": ("-top_k:", "-50:"),
        "without top_k, 50 is the default.": ("top_k=50", "top_k=40"),
        "the temperature is missing; divide the logits by it.": (" / temperature", ""),
        "divide the logits by the temperature; you multiply.": (
            "/ temperature",
            "* temperature",
        ),
        "the temperature divides the logits, not the probabilities.": edits(
            (" / temperature", ""),
            ("logits.softmax(-1)", "logits.softmax(-1) / temperature"),
        ),
        "top_p is missing; call your `nucleus`.": (CHANCES, "logits.softmax(-1)"),
        "temperature first, then the nucleus; p is a share of the probabilities that you draw "
        "from.": edits(
            (" / temperature", ""),
            (CHANCES, f"({CHANCES}.log() / temperature).softmax(-1)"),
        ),
        "cut to top_k first, then rescale, then take the nucleus of what is left.": edits(
            (f"logits = {KEEP}", f"kth = {KTH}"),
            (CHANCES, f"{CHANCES} * (logits >= kth)"),
        ),
        "nothing is masked; set all but the top_k likeliest logits to -inf.": [
            (KEEP, "logits"),
            (f"logits < {KTH}", "logits < -math.inf"),
        ],
        "each text has its own k-th logit; you use one threshold for the whole batch.": [
            ("[:, :1]", "[0, 0]"),
            (KTH, f"{KTH}.min()"),
        ],
        "each text has its own k-th logit, so with one threshold some texts keep no token.": [
            (KTH, f"{KTH}.max()"),
            ("[:, :1]", "[-1, 0]"),
        ],
        "at temperature 1 take the softmax of the logits as it is.": [
            (".softmax(-1)", ".div(0.8).softmax(-1)"),
            (".softmax(-1)", ".pow(1.0).softmax(-1) ** 2"),
        ],
        "a token of 90 % is always drawn; draw by the probabilities, without a factor.": (
            ".softmax(-1)",
            ".mul(20).softmax(-1)",
        ),
        "`new_tokens` is the number of tokens to add; the prompt isn't counted.": (
            "range(new_tokens)",
            "range(new_tokens - idx.size(1))",
        ),
        "return the prompt as well.": ("return idx", "return idx[:, idx.size(1) - new_tokens :]"),
        "one token was added; repeat it `new_tokens` times.": ("range(new_tokens)", "range(1)"),
        "append the new token behind the text, not in front of it.": (
            f"torch.cat((idx, {DRAW})",
            f"torch.cat(({DRAW}, idx)",
        ),
        "keep @torch.no_grad(); drawing needs no gradient.": ("@torch.no_grad()\n", ""),
        "your function calls model.train(); leave that to the caller.": (
            LOOP,
            f"    model.train()\n{LOOP}",
        ),
    },
    refused=[
        (f"model({CROP})", "model(idx[0])"),
        (CROP, "idx[:, :3]"),
        edits((LOOP, f"    idx = {CROP}\n{LOOP}"), (CROP, "idx")),
        ("[:, :1]", "[:, 0]"),
        (LOOP, f"    idx[:, 0] = 0\n{LOOP}"),
        edits(
            (LOOP, f"    given = idx\n{LOOP}"), ("    return", "    given[:, 0] = 0\n    return")
        ),
        ("return idx", "return idx.int()"),
        ("return idx", "return idx.float()"),
        (
            LOOP,
            f"    idx = torch.cat((torch.zeros(len(idx), 0, dtype=torch.long), idx), 1)\n{LOOP}",
        ),
        (LOOP, f"    torch.manual_seed(0)\n{LOOP}"),
        (DRAW, f"torch.multinomial({CHANCES}, 1, generator=torch.Generator().manual_seed(0))"),
        (".softmax(-1)", ""),
        (".softmax(-1)", ".softmax(-1).softmax(-1)"),
        (".softmax(-1)", ".div(2).softmax(-1)"),
        (DRAW, f"({CHANCES} * torch.empty_like(logits).exponential_()).argmax(-1, True)"),
        (
            DRAW,
            f"({CHANCES}.log() + torch.empty_like(logits).exponential_().log())"
            ".argmax(-1, keepdim=True)",
        ),
        (DRAW, f"torch.multinomial(({CHANCES} > 0).float(), 1)"),
        ("-math.inf", "0.0"),
        ("-math.inf", "-10.0"),
        ("sort()", "sort(descending=True)"),
        (
            "    return idx",
            "        if (idx[:, -1] == 0).all():\n            break\n    return idx",
        ),
        ("return idx", "return idx[:, -new_tokens:]"),
        ("return idx", "return idx.flip(1)"),
        ("return idx", "idx"),
    ],
    right=[among_topk, text_by_text, by_library],
)
