"""Ranks and steps draw different dropout masks."""

import dataclasses

import torch
import torch.nn.functional as F

from cs336_lib.model import GPT
from cs336_lib.system.processes import Place, World
from cs336_lib.training import job, loop


def test_no_two_ranks_and_no_two_steps_share_a_dropout_mask(tiny_run, tiny_config, monkeypatch):
    """Each rank steps alone, with sums that the other one doesn't take part in."""
    config = dataclasses.replace(tiny_run, dropout=0.5, block_size=16, batch_tokens=64)
    monkeypatch.setattr(World, "all_reduce", lambda self, tensor: tensor)
    masks, dropout = [], F.dropout

    def noted(x, p, training):
        y = dropout(x, p, training)
        masks.append(tuple((y == 0).flatten().tolist()))
        return y

    monkeypatch.setattr(F, "dropout", noted)
    model = GPT(dataclasses.replace(tiny_config, dropout=0.5))
    ids = torch.randint(50, (2, 16))
    for rank in (0, 1):
        made = job.make_job(model, config, Place(torch.device("cpu")))
        made = dataclasses.replace(
            made, place=Place(torch.device("cpu"), None, World(rank, rank, 2))
        )
        for step in range(3):
            loop.train_step(made, iter([(ids, ids)] * 2), step)
    # The embedding's mask, then two from each layer
    assert len(masks) == 2 * 3 * (1 + 2 * tiny_config.n_layer)
    assert len(set(masks)) == len(masks)
