"""Evaluate a model on HellaSwag (Zellers et al. 2019).

The model chooses the most likely of four endings for each context.
"""

import reprlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cs336_lib.config import UserError
from cs336_lib.data.documents import hub_rows, json_rows
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.io import Bar
from cs336_lib.system.processes import Place

# acc_per_token of OpenAI's 124M on the 10,042 validation examples. Two files of
# karpathy/build-nanogpt (play.ipynb and hellaswag.py) differ by ten examples.
GPT2_124M, GPT2_124M_BY_SCRIPT = 0.2945, 0.2955

SPLIT = "validation"  # of the hub's data set; the test split has no labels


@dataclass(frozen=True)
class Example:
    """Token ids of a context and its four endings. `label` is the index of the correct ending."""

    context: list[int]
    endings: list[list[int]]
    label: int


@dataclass(frozen=True)
class HellaSwag:
    """Accuracy on HellaSwag.

    An example is correct if the true ending has the lowest loss. `acc` compares the total loss of
    each ending. `acc_per_token` compares the mean loss per token, like "acc_norm" in build-nanogpt.
    "acc_norm" in EleutherAI's lm-eval is a different metric, which divides the total loss by the
    number of characters. GPT-2 124M has an lm-eval "acc_norm" of 0.3114.
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
    """Read examples from a JSON lines file or from a dataset on the Hugging Face hub.

    `source` is a file name or the name of the dataset (Rowan/hellaswag).

    Raises:
        FileNotFoundError: If the file doesn't exist.
        UserError: If the source is empty or contains an invalid example, or if `tokenizer` isn't
            the GPT-2 tokenizer.
    """
    if tokenizer.name != "gpt2":
        raise UserError(
            "HellaSwag needs a model of GPT-2's tokens, and this one has the tokenizer "
            f"{tokenizer.name!r}; train with --tokenizer gpt2"
        )
    if Path(source).exists() or Path(source).suffix in (".json", ".jsonl"):
        rows = json_rows(Path(source))
    else:
        rows = hub_rows(source, "", SPLIT)
    examples = [parse(row.content, tokenizer, row.where) for row in rows]
    if not examples:
        raise UserError(f"{source}: holds no examples")
    return examples


def parse(row: dict[str, Any], tokenizer: Tokenizer, where: str) -> Example:
    """Validate and tokenize one example.

    Each ending is encoded with a leading space.
    """
    context, endings, label = row.get("ctx"), row.get("endings"), row.get("label")
    texts = [context, *endings] if isinstance(endings, list) else []
    are_texts = [type(text) for text in texts] == 5 * [str] and context != ""
    is_label = str(label) in ("0", "1", "2", "3")  # the hub has labels as text
    if not (are_texts and is_label):
        wanted = "a text ctx, a list of four texts endings and a label of 0 to 3 expected"
        raise UserError(f"{where}: {reprlib.repr(row)}; {wanted}")
    return Example(
        tokenizer.encode(texts[0]).tolist(),
        [tokenizer.encode(" " + ending).tolist() for ending in texts[1:]],
        int(str(label)),
    )


@torch.no_grad()
def ending_losses(
    model: nn.Module, example: Example, block_size: int, place: Place
) -> tuple[Float[Tensor, "4"], Float[Tensor, "4"]]:
    """Compute the negative log-likelihood of each ending in nats.

    The result is the sum and the mean over the tokens of each ending. If an example is too long for
    `block_size`, its first tokens are dropped.
    """
    rows = [torch.tensor(example.context + ending)[-block_size - 1 :] for ending in example.endings]
    tokens = nn.utils.rnn.pad_sequence(rows, batch_first=True).to(place.device)
    ends = torch.tensor([[len(row) - 1] for row in rows], device=place.device)
    begins = ends - torch.tensor([[len(ending)] for ending in example.endings]).to(place.device)
    positions = torch.arange(tokens.shape[1] - 1, device=place.device)
    is_ending = (begins <= positions) & (positions < ends)
    with place.autocast:
        logits = model(tokens[:, :-1])
    losses = F.cross_entropy(logits.float().transpose(1, 2), tokens[:, 1:], reduction="none")
    sums = (losses * is_ending).sum(1)
    return sums, sums / is_ending.sum(1)


def score(model: nn.Module, examples: list[Example], block_size: int, place: Place) -> HellaSwag:
    """Measure the accuracy on all examples. The examples are split between the ranks."""
    world = place.world
    # Every rank runs the model equally often, which FSDP needs. The last piece may have size 0.
    pieces = world.pieces(len(examples), 1)
    was_training = model.training
    model.eval()
    right = torch.zeros(2)
    for first, size in Bar(pieces, desc="HellaSwag", disable=not world.is_main):
        example = examples[first]
        losses = ending_losses(model, example, block_size, place)
        right += size * (torch.stack(losses).argmin(1).cpu() == example.label)
    model.train(was_training)
    acc, acc_per_token = world.sum(*right.tolist(), device=place.device)
    return HellaSwag(acc_per_token / len(examples), acc / len(examples), len(examples))
