import json
import math

import pytest
import torch
from torch import nn

from cs336_lib.data.tokenizer import GPT2Tokenizer
from cs336_lib.evals.hellaswag import Example, ending_losses, load_examples, score
from cs336_lib.system.processes import Place

CPU = Place(torch.device("cpu"))
ROW = {
    "ctx": "A man is sitting on a roof. he",
    "endings": [
        "is using wrap to wrap a pair of skis.",
        "is ripping level tiles off.",
        "is holding a rubik's cube.",
        "starts pulling up roofing on a roof.",
    ],
    "label": 3,
}


class Bigram(nn.Module):
    """The next token depends on the last one only, by a table of probabilities."""

    def __init__(self, table):
        super().__init__()
        self.table = torch.tensor(table).log()
        self.seen = []

    def forward(self, idx):
        assert not self.training
        self.seen.append(idx)
        return self.table[idx]


# After token 0 come 0, 1, 2 with 1/2, 1/4, 1/4; after 1 with 1/8, 3/4, 1/8; after 2 with 1/3 each.
TABLE = [[1 / 2, 1 / 4, 1 / 4], [1 / 8, 3 / 4, 1 / 8], [1 / 3, 1 / 3, 1 / 3]]
BY_HAND = Example(context=[2, 0], endings=[[1], [1, 1], [2, 2, 2], [1, 0]], label=1)
# So after 0, the four endings have these chances:
CHANCES = [1 / 4, 1 / 4 * 3 / 4, 1 / 4 * 1 / 3 * 1 / 3, 1 / 4 * 1 / 8]


def test_losses_and_accuracies_by_hand():
    sums, means = ending_losses(Bigram(TABLE).eval(), BY_HAND, 16, CPU)
    expected = [-math.log(p) for p in CHANCES]
    assert sums.tolist() == pytest.approx(expected)
    each = [s / n for s, n in zip(expected, (1, 2, 3, 2), strict=True)]
    assert means.tolist() == pytest.approx(each)
    # The sum finds ending 0 (1/4 is the most), the mean ending 1 (sqrt(3/16) = 0.43 per token).
    model = Bigram(TABLE).train()
    other = Example(BY_HAND.context, BY_HAND.endings, label=0)
    found = score(model, [BY_HAND, other, other, other], 16, CPU)
    assert (found.acc, found.acc_per_token, found.examples) == (0.75, 0.25, 4)
    assert model.training


def test_what_does_not_fit_is_cut_from_the_left():
    model = Bigram(TABLE).eval()
    example = Example([0, 1, 2] * 5 + [0], [[1], [1, 1], [2, 2, 2], [1, 0]], 0)
    expected, _ = ending_losses(model, example, 16, CPU)
    for block_size in (3, 4, 10):
        sums, _ = ending_losses(model, example, block_size, CPU)
        assert sums.tolist() == pytest.approx(expected.tolist())
        assert model.seen[-1].shape == (4, block_size)
    sums, means = ending_losses(model, example, 2, CPU)  # of 2 2 2 the last two count
    assert sums[2].item() == pytest.approx(2 * math.log(3))
    assert means[2].item() == pytest.approx(math.log(3))


def test_endings_begin_with_a_space(tmp_path):
    path = tmp_path / "val.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    tokenizer = GPT2Tokenizer()
    (example,) = load_examples(str(path), tokenizer)
    assert tokenizer.decode(example.context) == ROW["ctx"]
    assert [tokenizer.decode(ids) for ids in example.endings] == [" " + e for e in ROW["endings"]]
