"""Test what a check sees of a model's forward passes."""

import pytest
import torch
from torch import nn

from cs336_course.engine.witness import Witness, watch_forward

CALLS = {"call": lambda model, x: model(x), "forward": lambda model, x: model.forward(x)}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_both_ways_to_call_a_model_are_seen_until_the_end(call):
    model, seen, x = nn.Linear(2, 1), [], torch.ones(3, 2)
    end = watch_forward(
        model,
        lambda model, given, named: seen.append(given),
        lambda model, given, named, result: seen.append(result),
    )
    result = call(model, x)
    end()
    call(model, x)
    assert seen[0] == (x,)
    assert seen[1] is result
    assert len(seen) == 2


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_a_witness_records_both_ways(tmp_path, call):
    model = nn.Embedding(40, 3)
    witness = Witness(model, tmp_path)
    with witness.watching():
        call(model, torch.tensor([[1, 2]]))
    assert [seen.x.tolist() for seen in witness.steps[0]] == [[[1, 2]]]
    call(model, torch.tensor([[3]]))
    assert len(witness.steps[0]) == 1
