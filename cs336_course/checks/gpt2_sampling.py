"""Checks of notebook 07's `generate` and of top-p sampling."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from cs336_course.checks import draws
from cs336_course.checks.parts import expect_device, expect_like, same, seeded, unchanged
from cs336_course.checks.report import DiagnosisError, exercise, expect, part
from cs336_lib.config import GPTConfig
from cs336_lib.sampling import filter_logits


@torch.no_grad()
def library_generate(model: Any, idx: Tensor, new_tokens: int, top_k: int = 50) -> Tensor:
    """Continue token ids (batch, seq), drawing from the `top_k` likeliest tokens."""
    for _ in range(new_tokens):
        logits = model(idx[:, -model.config.block_size :])[:, -1]
        probabilities = filter_logits(logits, top_k=top_k).softmax(-1)
        idx = torch.cat((idx, torch.multinomial(probabilities, 1)), dim=1)
    return idx


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
        self.texts: list[Tensor] = []
        self.eval()

    def forward(self, idx: Tensor) -> Tensor:
        """Return the logits, and keep the texts."""
        expect(
            idx.dim() == 2,
            f"the model gets ids of shape {tuple(idx.shape)}; (batch, seq) is expected.",
        )
        expect(
            idx.size(1) <= self.config.block_size,
            f"the model gets {idx.size(1)} tokens, and its block_size is {self.config.block_size}. "
            "Give it the last block_size tokens only.",
        )
        expect(not torch.is_grad_enabled(), "keep @torch.no_grad(); drawing needs no gradient.")
        expect(not self.training, "your function calls model.train(); leave that to the caller.")
        self.texts.append(idx.clone())
        logits = torch.zeros(*idx.shape, len(self.table), device=idx.device)
        logits[..., -1] = 1e6
        logits[:, -1] = self.table[idx[:, -1]]
        return logits

    def expect_read(self, text: Tensor) -> None:
        """Fail unless every text that the model got is a part of `text` up to some place."""
        size = self.config.block_size
        windows = {
            tuple(row[max(0, end - size) : end])
            for row in text.tolist()
            for end in range(len(row) + 1)
        }
        read = {tuple(row) for given in self.texts for row in given.tolist()}
        expect(
            read <= windows,
            "the model doesn't get the last block_size tokens of each text, in their order.",
        )


def continued(
    answer: Callable[..., Tensor], model: Scripted, idx: Tensor, new: int, **k: int
) -> Tensor:
    """Call the learner's `generate`, and fail unless the result has the right form."""
    try:
        with unchanged(idx=idx):
            got = answer(model, idx, new, **k)
    except RuntimeError as error:
        negative = "probability tensor contains" in str(error)
        expect(
            not negative,
            "torch.multinomial takes probabilities, not logits or nan. Apply softmax to the "
            "logits, and keep some token of every text.",
        )
        unaligned = f"({len(model.table)}) must match the size" in str(error)
        expect(
            not unaligned,
            "the k-th logits of all texts need the shape (batch, 1), so that each is compared with "
            "its own text, as in .values[:, -1:].",
        )
        raise
    batch, seq = idx.shape
    is_tensor = isinstance(got, Tensor)
    if is_tensor and got.shape == (batch, new) and seq:
        counted = new > seq and torch.equal(got[:, :seq], idx)
        expect(
            not counted, "`new_tokens` is the number of tokens to add; the prompt isn't counted."
        )
        raise DiagnosisError("return the prompt as well.")
    room = model.config.block_size + 1
    is_cut = is_tensor and got.shape == (batch, room) and room < seq + new
    expect(
        not (is_cut and len(model.texts) == new > 1),
        f"only {room} tokens come back. Cut only what the model reads, and append to the whole "
        "idx.",
    )
    one_more = is_tensor and got.shape == (batch, seq + 1) and new != 1
    expect(not one_more, "one token was added; repeat it `new_tokens` times.")
    expect_like(got, torch.zeros(batch, seq + new, dtype=idx.dtype))
    expect(torch.equal(got[:, :seq], idx), "the result must begin with the prompt.")
    return got


def expect_growing_text(answer: Callable[..., Tensor]) -> None:
    """Expect that the model reads the text so far, up to its context length."""
    follow = -1e4 * (1 - torch.eye(VOCAB)).roll(1, 1)  # after token n comes n + 1
    start = torch.tensor([[5, 9, 2], [40, 1, 30]])
    model = Scripted(follow, block_size=6)
    got = continued(answer, model, start, 11)
    right = torch.cat((start, start[:, -1:] + torch.arange(1, 12)), dim=1)
    places = "those are places in topk's list; use the ids in .indices."
    expect(not (got[:, 3] == 0).all(), places)
    expect(not (got[:, 3] == VOCAB - 1).any(), "use the logits of the last position only, [:, -1].")
    lengths = [text.size(1) for text in model.texts]
    expect(
        len(lengths) > 1, "the model is called once; each new token needs the logits of a new call."
    )
    expect(max(lengths) > 1, "the model reads the last token only; give it the whole text.")
    expect(
        lengths[1] > lengths[0],
        "the text that the model reads doesn't grow; append each token before the next call.",
    )
    first = (got[:, 3] == right[0, 3]).all()
    expect(not first, "all texts get the token of the first; draw one for each text.")
    expect(
        not torch.equal(model.texts[-1], got[:, :6]),
        "give the model the last block_size tokens, not the first.",
    )
    expect(
        torch.equal(got, right),
        "the new tokens aren't those that the model wants. Apply one softmax to the logits of the "
        "last position, and draw by its probabilities.",
    )
    expect(max(lengths) == 6, "give the model the last block_size tokens, not fewer.")
    model.expect_read(got)
    expect(torch.equal(continued(answer, model, start, 0), start), "new_tokens=0 adds nothing.")
    bounds = {"batch": (1, 3), "seq": (1, 9), "block": (1, 7), "new": (4, 8)}
    for case in draws.sizes(3, **bounds):
        model = Scripted(follow, case.block)
        with seeded(case.seq):
            prompt = torch.randint(VOCAB, (case.batch, case.seq))
        prompt[:, -1] = VOCAB - 2  # so token 0 follows, which is a token as any other
        got = continued(answer, model, prompt, case.new)
        new = (prompt[:, -1:] + torch.arange(1, case.new + 1)) % VOCAB
        right = torch.cat((prompt, new), dim=1)
        expect(
            torch.equal(got, right),
            "right for a prompt of shape (2, 3) and block_size 6, but not for "
            f"{tuple(prompt.shape)} and block_size {case.block}.",
        )
        model.expect_read(got)


def expect_ranks(ranks: Tensor, k: int, given: str) -> None:
    """Fail if a drawn token isn't one of the k likeliest. Rank 0 is the likeliest token."""
    seen = set(ranks.tolist())
    expect(len(seen) > 1 or k == 1, "every text gets the same token; draw with torch.multinomial.")
    expect(
        k == VOCAB or seen != set(range(k - 1)),
        f"{given}. You keep one token fewer; mask what is below the k-th logit, not the k-th.",
    )
    expect(seen != set(range(50)) or k == 50, f"{given}. You always keep 50 tokens.")
    first_text = ranks[::VOCAB]  # texts that end in token 0, as the first one does
    expect(
        k == VOCAB or seen != set(range(k + 1)),
        f"{given}. You keep one token too many; the k-th is the last one to keep.",
    )
    expect(
        max(seen) < k + 5 or max(first_text) >= k,
        f"{given}. Each text has its own k-th logit; you use one threshold for the whole batch.",
    )
    expect(
        max(seen) < k,
        f"{given}, but more different tokens are drawn; mask all others with -inf, since a logit "
        "of 0 still has a probability.",
    )
    expect(
        k == 1 or first_text.unique().numel() > 1,
        "texts that are equal get the same token; draw one for each text.",
    )


def expect_top_k(answer: Callable[..., Tensor], **top_k: int) -> None:
    """Expect draws from the top_k likeliest tokens, which differ between texts and calls."""
    k, texts = top_k.get("top_k", 50), (torch.arange(800) % VOCAB)[:, None]
    given = f"top_k={k}" if top_k else "without top_k, 50 is the default"
    # The likeliest tokens and the height of the logits depend on the text's last token.
    rise, middle = 0.001 * torch.arange(VOCAB), VOCAB // 2
    table = torch.stack([rise.roll(token) + 3 * (token - middle) for token in range(VOCAB)])

    def ranks(last: Tensor, now: Tensor) -> Tensor:
        return (last - 1 - now) % VOCAB

    with seeded(0):
        drawn = continued(answer, Scripted(table, 4), texts, 1, **top_k)[:, 1]
        expect_ranks(ranks(texts[:, 0], drawn), k, given)
        one, two = continued(answer, Scripted(table, 4), texts, 2, **top_k)[:, 1:].T
        expect_ranks(ranks(texts[:, 0], one), k, given)
    fresh = k == 1 or not torch.equal(drawn, one)
    expect(fresh, "two calls draw the same; leave the seed to the caller.")
    later = ranks(one, two)
    seen = set(torch.cat((ranks(texts[:, 0], drawn), ranks(texts[:, 0], one), later)).tolist())
    expect(max(later) < k, f"{given} holds for every new token, not only for the first.")
    expect(seen == set(range(k)), f"{given}, but not all of those tokens are drawn.")


def expect_shares(answer: Callable[..., Tensor]) -> None:
    """Expect that a token of 90 % is drawn that often."""
    unequal = torch.full((VOCAB, VOCAB), -1e4)
    unequal[:, [20, 60]] = torch.tensor([math.log(0.9), math.log(0.1)])
    with seeded(1):
        drawn = continued(answer, Scripted(unequal, 4), torch.full((4000, 1), 3), 1)[:, 1]
    share = (drawn == 20).float().mean().item()
    found = f"a token of 90 % is drawn in {share:.0%} of the texts"
    expect(share < 0.9995, f"{found}; draw at random.")
    expect(
        share < 0.921,
        f"{found}; take the softmax of the logits as it is, without a temperature or a power.",
    )
    expect(
        share > 0.879, f"{found}. Apply one softmax to the logits, and draw by its probabilities."
    )
    unequal = torch.full((VOCAB, VOCAB), -1e4)
    unequal[:, 20:27] = torch.tensor([0.4] + 6 * [0.1]).log()
    with seeded(2):
        drawn = continued(answer, Scripted(unequal, 4), torch.full((4000, 1), 3), 1)[:, 1]
    share = (drawn == 20).float().mean().item()
    expect(
        abs(share - 0.4) < 0.04,
        f"right for two tokens, but a token of 40 % among six of 10 % is drawn in {share:.0%} of "
        "the texts; draw with torch.multinomial.",
    )


@part(
    library_generate,
    "The text is [7, 3], and block_size is 2. The first new token is 5. What does the model read "
    "for the second one?",
)
def generate(answer: Callable[..., Tensor]) -> None:
    """Check `generate(model, idx, new_tokens, top_k=50)` on models with known probabilities."""
    expect_growing_text(answer)
    expect_top_k(answer, top_k=5)
    expect_shares(answer)
    for top_k in ({"top_k": 1}, {"top_k": VOCAB}, {}):
        expect_top_k(answer, **top_k)
    model = Scripted(torch.zeros(VOCAB, VOCAB, device="meta"), 4)
    prompt = torch.zeros(2, 3, dtype=torch.long, device="meta")
    expect_device(lambda: answer(model, prompt, 2), reads_values=True)


# p = 0.7 of these probabilities keeps 0.5 and 0.3
LETTERS = (0.1, 0.5, 0.05, 0.3, 0.05)
NUCLEUS_SLIPS = {
    "the right tokens, but they add up to 0.8; divide by their sum.": (0, 0.5, 0, 0.3, 0),
    "you return the probabilities sorted; each must go back to its own token.": (
        (0.625, 0.375, 0, 0, 0)
    ),
    "the token that crosses p is missing. 0.5 alone does not reach 0.7, so 0.3 is kept too.": (
        (0, 1, 0, 0, 0)
    ),
    "one token too many, since 0.5 + 0.3 reaches 0.7. Compare the sum BEFORE each token.": (
        (1 / 9, 5 / 9, 0, 3 / 9, 0)
    ),
    "you kept the unlikely ones; sort with descending=True.": (0.5, 0, 0.25, 0, 0.25),
    "indexing with `order` sorts once more; to undo the sorting, assign result[order] = ...": (
        (0.375, 0, 0.625, 0, 0)
    ),
    "a softmax of probabilities is no rescaling; divide them by their sum.": (
        (0, 0.549834, 0, 0.450166, 0)
    ),
    "your softmax gives dropped tokens a probability; divide the kept ones by their sum.": (
        (0.166706, 0.274852, 0.166706, 0.225030, 0.166706)
    ),
    "add up the likeliest tokens first; you go through them in their own order.": (
        (0.1 / 0.95, 0.5 / 0.95, 0.05 / 0.95, 0.3 / 0.95, 0)
    ),
    "nothing is dropped.": LETTERS,
}


def expect_nucleus(
    answer: Callable[[Tensor, float], Tensor], probabilities: Tensor, p: float, wrong: str
) -> None:
    """Fail unless the kept tokens are the fewest likeliest that reach p. Which of equals is free.

    Args:
        answer: The learner's function.
        probabilities: Multiples of a power of two, so that their sums have no rounding.
        p: A multiple of the same power of two.
        wrong: Diagnosis of a wrong answer.
    """
    ordered = probabilities.sort(descending=True).values
    count = int((ordered.cumsum(0) - ordered < p).sum())
    right = torch.zeros(len(ordered)).index_copy(0, torch.arange(count), ordered[:count])
    with unchanged(probabilities=probabilities):
        got = answer(probabilities, p)
    expect_like(got, probabilities)
    kept = got > 0
    found = int(kept.sum())
    only_equals = found > count and ordered[found - 1] == ordered[count - 1]
    expect(
        not only_equals,
        f"{count} of several equal tokens reach p, and you keep {found}. Go by the place in the "
        "sorted list, not by a threshold.",
    )
    is_right = same(got.sort(descending=True).values, right / right.sum())
    own = probabilities.where(kept, 0.0)  # so each token has kept its place
    expect(is_right and same(got, own / own.sum()), wrong)


def expect_near_p(answer: Callable[[Tensor, float], Tensor]) -> None:
    """Expect right results where a sum is just below p."""
    close, kept = torch.tensor([0.698, 0.202, 0.1]), torch.tensor([0.698, 0.202, 0])
    expect(
        same(answer(close, 0.7), kept / 0.9),
        "0.698 is below p = 0.7, so the next token stays, too. Don't round.",
    )
    rounded = draws.normal(50).softmax(0) * (1 - 2**-20)  # their sum is below 1
    below = "rounding may leave the sum of all tokens just below p = 1. Keep all of them then."
    try:
        got = answer(rounded, 1.0)
    except (IndexError, RuntimeError, StopIteration, ValueError) as error:
        raise DiagnosisError(below) from error
    expect(same(got, rounded), below)


@exercise(
    "The probabilities are 0.2, 0.5 and 0.3, and p is 0.6. Which tokens stay, and with which "
    "probabilities?"
)
def nucleus(answer: Callable[[Tensor, float], Tensor]) -> None:
    """Check top-p by `nucleus(probabilities, p)`, whose kept probabilities add up to 1."""
    p = torch.tensor(LETTERS)
    with unchanged(probabilities=p):
        got = answer(p, 0.7)
    expect(
        not isinstance(got, Tensor) or got.shape == p.shape,
        f"the shape is {tuple(getattr(got, 'shape', ()))}; keep all {len(p)} tokens.",
    )
    expect_like(got, p)
    for diagnosis, wrong in NUCLEUS_SLIPS.items():
        expect(not same(got, torch.tensor(wrong)), diagnosis)
    right = [0, 0.625, 0, 0.375, 0]
    if not same(got, torch.tensor(right)):
        figures = f"You get {[round(v, 3) for v in got.tolist()]}, and {right} is right."
        raise DiagnosisError("the probabilities are wrong for p = 0.7.", figures)
    dyadic, only = torch.tensor([0.125, 0.5, 0.125, 0.25]), torch.tensor([0.0, 1, 0, 0])
    smaller, at_half = answer(p, 0.3), answer(dyadic, 0.5)
    expect_like(smaller, p)
    expect_like(at_half, dyadic)
    expect(
        same(smaller, torch.tensor([0.0, 1, 0, 0, 0])),
        "with p = 0.3 the likeliest token alone is more than p, and it must always stay.",
    )
    expect(
        same(at_half, only),
        "with p = 0.5 a token of 0.5 reaches it alone, so the next one, with 0.5 before it, is "
        "out. Write < p, not <= p.",
    )
    expect(same(answer(p, 1.0), p), "p = 1 keeps every token.")
    expect_like(answer(dyadic.double(), 0.75), dyadic.double())
    expect_nucleus(answer, torch.ones(1), 0.25, "one token keeps its probability of 1.")
    equal = torch.tensor(0.125).expand(8)
    expect_nucleus(answer, equal, 0.5, "wrong for eight tokens with equal probabilities.")
    bounds = {"tokens": (2, 70), "eighths": (1, 8), "most": (1, 40)}
    for seed, case in enumerate(draws.sizes(6, **bounds)):
        with seeded(seed):
            counts = torch.bincount(torch.randint(case.most, (256,)) % case.tokens)
        text = (
            f"right for {len(LETTERS)} tokens, but not for {len(counts)} and p = {case.eighths}/8."
        )
        expect_nucleus(answer, counts / 256, case.eighths / 8, text)
    expect_near_p(answer)
