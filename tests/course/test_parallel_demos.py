"""FSDP keeps whole only what runs."""

import torch
from torch.distributed.fsdp import fully_shard

from cs336_course.pages.thousands_of_gpus import fsdp_units
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT


def test_a_block_is_whole_while_it_runs():
    with fsdp_units.rank_0_of(4) as mesh:
        model = GPT(GPTConfig(block_size=8, vocab_size=64, n_layer=2, n_head=2, n_embd=16))
        for block in model.transformer.h:
            fully_shard(block, mesh=mesh)
        fully_shard(model, mesh=mesh)
        moments = fsdp_units.watch(model, *torch.zeros(2, 1, 8, dtype=torch.long))[:]
        assert fsdp_units.calls(model, 4, 1)["all-gather"] == 5
    assert moments[0] == ("forward 1", ["block 1", "the rest"])
    assert moments[3] == ("backward 2", ["block 2", "the rest"])
    assert moments[-1] == ("end", [])
    assert not torch.distributed.is_initialized()
