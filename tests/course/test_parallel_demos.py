"""Notebook 10's programs for several ranks send and keep what the page says."""

import os

import pytest
import torch
from torch.distributed.fsdp import fully_shard

from cs336_course.pages.gpt2_scale import ddp_step, scenes, torchrun
from cs336_course.pages.thousands_of_gpus import fsdp_units
from cs336_lib.config import GPTConfig
from cs336_lib.model import GPT


def once(model, step, first, second):
    with model.no_sync():
        step(first)
    step(second)


def test_ddp_sends_once_under_no_sync(tmp_path):
    ((before, after),) = ddp_step.on_two_ranks(tmp_path, once)
    assert [moment.calls for moment in (*before, *after)] == [0, 0, 1, 1]
    assert before[0].gradient != before[1].gradient
    assert after[0].gradient == pytest.approx(after[1].gradient)


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


def test_a_scene_has_one_real_ending():
    text = scenes.shakespeare()
    for scene in scenes.make(5):
        real = [ending for ending in scene.endings if scene.context + ending in text]
        assert real == [scene.endings[scene.label]]


def test_programs_are_finished_or_killed(tmp_path):
    (tmp_path / "count.py").write_text("for i in range(10**9): print('step', i, flush=True)")
    running = torchrun.start(tmp_path, "count.py")
    torchrun.kill_after(running, "step 3")
    assert running.returncode not in (None, 0)
    assert torchrun.finish(torchrun.start(tmp_path, "-c", "print('é')")) == "é\n"
    with pytest.raises(ChildProcessError, match="NameError"):
        torchrun.finish(torchrun.start(tmp_path, "-c", "unknown"))
    printed = torchrun.ranks(tmp_path, 2, "-c", "import os; print(os.environ['RANK'])")
    assert [int(text) for text in printed] == [0, 1]
    assert "RANK" not in os.environ
