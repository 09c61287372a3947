"""Exercises of 08_gpt2_speaks: the nucleus, and a sampler."""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits, function, normal, sizes
from cs336_course.engine.observe import runs_elsewhere
from cs336_course.engine.records import Record, plain
from cs336_lib.config import GPTConfig
from cs336_lib.sampling import filter_logits

NOTEBOOK = "08_gpt2_speaks"


def ids(*shape: int, below: int, seed: int = 0) -> Tensor:
    """Return random token ids."""
    return torch.randint(below, shape, generator=torch.Generator().manual_seed(seed))


# nucleus

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


def nucleus_of_rows(probabilities: Tensor, p: float) -> Tensor:
    """Return the probabilities of top-p sampling, (batch, vocab)."""
    ordered, order = probabilities.sort(descending=True)
    before = ordered.cumsum(-1) - ordered
    kept = torch.zeros_like(probabilities).scatter(-1, order, ordered.where(before < p, 0.0))
    return kept / kept.sum(-1, keepdim=True)


def rescaled(code: str) -> tuple[str, str]:
    """Return an edit that makes the result from the kept probabilities, in their places."""
    placed = "kept = torch.zeros_like(kept).scatter(-1, order, kept)"
    return RESCALED, f"{placed}\n    return {code}"


BEFORE = "ordered.cumsum(-1) - ordered < p"
RESCALED = "return torch.zeros_like(kept).scatter(-1, order, kept / kept.sum(-1, keepdim=True))"

nucleus = Exercise(
    NOTEBOOK,
    "nucleus",
    letters,
    observe=truncated,
    is_part=True,
    smaller="The probabilities are 0.2, 0.5 and 0.3, and p is 0.6. Which tokens stay, and with "
    "which probabilities?",
    axes="batch vocab",
    says={"in place": "the right probabilities, but not in their tokens' places."},
    wrong={
        "the right tokens, but they don't add up to 1; divide by their sum.": rescaled("kept"),
        "you return the probabilities sorted; each must go back to its own token.": (
            RESCALED,
            "return kept / kept.sum(-1, keepdim=True)",
        ),
        "gathering with `order` sorts once more; to undo the sorting, scatter with it.": (
            RESCALED,
            "return (kept / kept.sum(-1, keepdim=True)).gather(-1, order)",
        ),
        "the token that crosses p is missing. 0.5 alone does not reach 0.7, so 0.3 is kept too.": [
            (BEFORE, "(ordered.cumsum(-1) < p) | (ordered.cumsum(-1) == ordered)"),
            (BEFORE, "(ordered.cumsum(-1) <= p) | (ordered.cumsum(-1) == ordered)"),
            (BEFORE, "ordered.cumsum(-1) < p"),
            (BEFORE, "ordered.cumsum(-1) <= p"),
        ],
        "one token too many, since 0.5 + 0.3 reaches 0.7. Compare the sum BEFORE each token.": (
            BEFORE,
            "(ordered.cumsum(-1) - ordered).roll(1, -1).index_fill(-1, torch.tensor(0), 0) < p",
        ),
        "a token that reaches p exactly is the last one; you keep one more.": (
            BEFORE,
            BEFORE.replace("<", "<="),
        ),
        "you keep the unlikely ones; begin with the likeliest.": (
            "sort(descending=True)",
            "sort()",
        ),
        "add up the likeliest tokens first; you go through them in their own order.": (
            "probabilities.sort(descending=True)",
            "probabilities, torch.arange(probabilities.size(-1)).expand(probabilities.shape)",
        ),
        "a softmax isn't rescaling; divide the kept probabilities by their sum.": [
            rescaled("kept.masked_fill(kept == 0, -torch.inf).softmax(-1)"),
            rescaled("kept.softmax(-1)"),
        ],
        "nothing is dropped.": lambda probabilities, p: probabilities,
        "keep all tokens in the result, the dropped ones with 0.": rescaled(
            "(kept / kept.sum(-1, keepdim=True))[:, kept.any(0)]"
        ),
        "several tokens may be equal; go by the place in the sorted list, not by a threshold.": (
            RESCALED,
            "kept = probabilities * (probabilities >= ordered.where(kept > 0, 2).amin(-1, True))\n"
            "    return kept / kept.sum(-1, keepdim=True)",
        ),
        "0.698 is below p = 0.7, so the next token stays, too; compare exactly.": (
            BEFORE,
            "(ordered.cumsum(-1) - ordered).round(decimals=2) < p",
        ),
        "rounding may leave the sum of all tokens just below p = 1. Keep all of them then.": (
            BEFORE,
            "torch.arange(ordered.size(-1)) <= (ordered.cumsum(-1) >= p).int().argmax(-1, True)",
        ),
        "each text has its own nucleus; sum along the last axis.": [
            rescaled("kept / kept.sum()"),
            ("cumsum(-1)", "cumsum(0)"),
        ],
    },
)


# generate

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
        "append one token to each text, as a column of shape (batch, 1).": (
            "Tensors must have same number of dimensions",
            (DRAW, f"{DRAW}[:, 0]"),
        ),
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
        "again": "two calls draw the same tokens; draw anew in each.",
        "prompt": "the result must begin with the prompt.",
        "longest": "give the model the last block_size tokens, no more and no fewer.",
        "reads": "the model doesn't get the last block_size tokens of each text, in their order.",
        "without gradients": "keep @torch.no_grad(); drawing needs no gradient.",
        "eval mode": "your function changes the model's mode; leave that to the caller.",
    },
    wrong={
        "cut only what the model reads to block_size, and append to the whole idx.": (
            "    for _ in range(new_tokens):\n",
            f"    for _ in range(new_tokens):\n        idx = {CROP}\n",
        ),
        "give the model the last block_size tokens, not the first.": (
            CROP,
            "idx[:, : model.config.block_size]",
        ),
        "use the logits of the last position only, [:, -1].": [
            (f"model({CROP})[:, -1]", f"model({CROP})[:, 0]"),
            (f"model({CROP})[:, -1]", f"model({CROP}).mean(1)"),
        ],
        "the model is called once; each new token needs the logits of a new call.": edits(
            (LOOP, f"    logits = {LAST} / temperature\n{LOOP}"),
            (f"        logits = {LAST} / temperature\n", ""),
        ),
        "those are places among the likeliest tokens; return the ids of the tokens.": (
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
        "each text has its own k-th logit; you use one threshold for the whole batch.": [
            ("[:, :1]", "[0, 0]"),
            (KTH, f"{KTH}.min()"),
            (KTH, f"{KTH}.max()"),
        ],
        "append the new token behind the text, not in front of it.": (
            f"torch.cat((idx, {DRAW})",
            f"torch.cat(({DRAW}, idx)",
        ),
    },
)
