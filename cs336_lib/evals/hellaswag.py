"""HellaSwag (Zellers et al. 2019): which of four endings does the model find likeliest?"""

from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cs336_lib.config import require
from cs336_lib.data.documents import hub_lines, json_lines
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.distributed import World
from cs336_lib.io import Bar

# The acc_per_token of OpenAI's 124M on the 10,042 validation examples. Two files of
# karpathy/build-nanogpt disagree by ten examples: play.ipynb and hellaswag.py.
GPT2_124M, GPT2_124M_BY_SCRIPT = 0.2945, 0.2955

SPLIT = "validation"  # of the hub's data set; the test split has no labels


@dataclass(frozen=True)
class Example:
    """A context and four endings, as token ids; `label` is the ending that really followed."""

    context: list[int]
    endings: list[list[int]]
    label: int


@dataclass(frozen=True)
class HellaSwag:
    """How often the true ending had the lowest loss of the four.

    `acc_per_token` compares the mean loss of an ending's tokens, as build-nanogpt's "acc_norm"
    does, and `acc` compares the sum. EleutherAI's lm-eval reports another "acc_norm": the sum
    divided by the number of characters. It gives GPT-2 124M 0.3114, so compare like with like.
    """

    acc_per_token: float
    acc: float
    examples: int

    def __str__(self) -> str:
        return (
            f"{self.acc_per_token:.4f} acc_per_token, {self.acc:.4f} acc "
            f"({self.examples:,} examples; GPT-2 124M on 10,042: {GPT2_124M} or "
            f"{GPT2_124M_BY_SCRIPT} acc_per_token)"
        )


def load_examples(source: str, tokenizer: Tokenizer) -> list[Example]:
    """Read examples from a JSON lines file, or from the hub's data set of that name.

    Raises:
        ValueError: the tokenizer is not GPT-2's, or something in the source is not as it must be.
    """
    require(
        tokenizer.name == "gpt2",
        f"HellaSwag needs a model of GPT-2's tokens, and this one has the tokenizer "
        f"{tokenizer.name!r}; train with --tokenizer gpt2",
    )
    is_file = Path(source).exists() or Path(source).suffix in (".json", ".jsonl")
    rows = file_rows(Path(source)) if is_file else hub_rows(source)
    examples = [parse(row, tokenizer, where) for where, row in rows]
    require(len(examples) > 0, f"{source}: holds no examples")
    return examples


def file_rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a file, each with where it stands."""
    for number, row in json_lines(path):
        yield f"{path}, line {number + 1}", row


def hub_rows(name: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a data set on the hub (Rowan/hellaswag), each with where it stands."""
    for number, row in hub_lines(name, "", SPLIT):
        yield f"{name}, row {number + 1}", row


def parse(row: dict[str, Any], tokenizer: Tokenizer, where: str) -> Example:
    """Check and tokenize one example; the blank before an ending belongs to its first token."""
    for field in ("ctx", "endings", "label"):
        require(field in row, f"{where}: no field {field!r}; ctx, endings and label expected")
    context, endings, label = row["ctx"], row["endings"], row["label"]
    require(
        isinstance(context, str) and context != "",
        f"{where}: ctx is {context!r}; a text expected",
    )
    require(
        isinstance(endings, list)
        and len(endings) == 4
        and all(isinstance(ending, str) for ending in endings),
        f"{where}: endings is {str(endings)[:80]}; a list of four texts expected",
    )
    require(
        str(label) in ("0", "1", "2", "3"),  # the hub has them as text
        f"{where}: label is {label!r}; 0 to 3 expected",
    )
    return Example(
        tokenizer.encode(context).tolist(),
        [tokenizer.encode(" " + ending).tolist() for ending in endings],
        int(label),
    )


@torch.no_grad()
def ending_losses(
    model: nn.Module,
    example: Example,
    block_size: int,
    *,
    device: torch.device,
    autocast: AbstractContextManager,
) -> tuple[Float[Tensor, "4"], Float[Tensor, "4"]]:
    """Negative log-likelihood of each ending: in sum, and per token.

    What does not fit before the last token is cut from the left, the context first.
    """
    rows = [(example.context + ending)[-(block_size + 1) :] for ending in example.endings]
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)  # what follows a row changes nothing
    counted = torch.zeros(len(rows), longest - 1, dtype=torch.bool)
    for i, (row, ending) in enumerate(zip(rows, example.endings, strict=True)):
        tokens[i, : len(row)] = torch.tensor(row)
        counted[i, max(0, len(row) - 1 - len(ending)) : len(row) - 1] = True
    tokens, counted = tokens.to(device), counted.to(device)
    with autocast:
        logits = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    sums = (losses * counted).sum(1)
    return sums, sums / counted.sum(1)


def score(
    model: nn.Module,
    examples: list[Example],
    block_size: int,
    *,
    device: torch.device,
    autocast: AbstractContextManager,
    world: World | None = None,
) -> HellaSwag:
    """The share of examples whose true ending has the lowest loss, counted by all ranks."""
    world = world or World()
    mine: Iterable[int] = Bar(
        world.share(len(examples)), desc="HellaSwag", delay=1, disable=not world.is_main
    )
    was_training = model.training
    model.eval()
    right = right_per_token = 0
    for i in mine:
        sums, means = ending_losses(
            model, examples[i], block_size, device=device, autocast=autocast
        )
        right += int(sums.argmin()) == examples[i].label
        right_per_token += int(means.argmin()) == examples[i].label
    model.train(was_training)
    right, right_per_token = world.sum(right, right_per_token, device=device)
    return HellaSwag(right_per_token / len(examples), right / len(examples), len(examples))
