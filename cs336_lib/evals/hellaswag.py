"""HellaSwag (Zellers et al. 2019): choose the most likely of four endings."""

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

# acc_per_token of OpenAI's 124M on the 10,042 validation examples. Two files of
# karpathy/build-nanogpt (play.ipynb and hellaswag.py) differ by ten examples.
GPT2_124M, GPT2_124M_BY_SCRIPT = 0.2945, 0.2955

SPLIT = "validation"  # of the hub's data set; the test split has no labels


@dataclass(frozen=True)
class Example:
    """A context and four endings as token ids; `label` is the index of the true ending."""

    context: list[int]
    endings: list[list[int]]
    label: int


@dataclass(frozen=True)
class HellaSwag:
    """Accuracy: the share of examples whose true ending has the lowest loss.

    `acc` compares the summed loss of an ending's tokens. `acc_per_token` compares their mean, as
    "acc_norm" of build-nanogpt does. The "acc_norm" of EleutherAI's lm-eval divides the sum by the
    number of characters instead, and gives 0.3114 for GPT-2 124M.
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
    """Read examples from a JSON lines file, or from a dataset on the hub.

    Args:
        source: A file name, or the dataset's name (Rowan/hellaswag).
        tokenizer: Must be GPT-2's.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: The tokenizer is another one, or the source has a bad example or none.
    """
    require(
        tokenizer.name == "gpt2",
        f"HellaSwag needs a model of GPT-2's tokens, and this one has the tokenizer "
        f"{tokenizer.name!r}; train with --tokenizer gpt2",
    )
    if Path(source).exists() or Path(source).suffix in (".json", ".jsonl"):
        rows, where = json_lines(Path(source)), f"{source}, line"
    else:
        rows, where = hub_lines(source, "", SPLIT), f"{source}, row"
    examples = [parse(row, tokenizer, f"{where} {number + 1}") for number, row in rows]
    require(len(examples) > 0, f"{source}: holds no examples")
    return examples


def parse(row: dict[str, Any], tokenizer: Tokenizer, where: str) -> Example:
    """Check and tokenize one example; the space before an ending is part of its first token."""
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
    """Compute the negative log-likelihood of each ending.

    Args:
        block_size: Longer rows are cut from the left, so the context is cut first.
        device: Where the model is.
        autocast: The precision of the forward pass.

    Returns:
        The sum and the mean over the ending's tokens, in nats.
    """
    rows = [(example.context + ending)[-(block_size + 1) :] for ending in example.endings]
    longest = max(len(row) for row in rows)
    tokens = torch.zeros(len(rows), longest, dtype=torch.long)  # right padding
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
    """Measure the accuracy on all examples, which the ranks of `world` share."""
    world = world or World()
    mine = Bar(world.share(len(examples)), desc="HellaSwag", delay=1, disable=not world.is_main)
    was_training = model.training
    model.eval()
    right = right_per_token = 0
    for example in (examples[i] for i in mine):
        sums, means = ending_losses(model, example, block_size, device=device, autocast=autocast)
        right += int(sums.argmin()) == example.label
        right_per_token += int(means.argmin()) == example.label
    model.train(was_training)
    right, right_per_token = world.sum(right, right_per_token, device=device)
    return HellaSwag(right_per_token / len(examples), right / len(examples), len(examples))
