"""What each rank holds during accumulation is what `accounting` says (gloo on CPUs)."""

import json

import forked
import pytest

from cs336_lib import accounting
from cs336_lib.config import TrainConfig

# Four micro-batches a step on two ranks, so that gradients are accumulated.
FLAGS = {
    "tokenizer": "char",
    "n_layer": 4,
    "n_head": 4,
    "n_embd": 128,
    "block_size": 32,
    "max_steps": 2,
    "batch_tokens": 16 * 32,
    "micro_batch_size": 2,
    "warmup_steps": 0,
    "eval_tokens": 64,
    "device": "cpu",
}
VOCAB_SIZE = 64  # 62 characters, padded


@pytest.mark.parametrize(
    ("processes", "parallel", "precision", "stage"),
    [(2, "fsdp", "bf16", 3)],
)
def test_a_rank_holds_what_accounting_says(tmp_path, processes, parallel, precision, stage):
    flags = FLAGS | {"parallel": parallel, "precision": precision}
    arguments = [str(tmp_path / "run"), json.dumps(flags)]
    out, err = forked.run(
        "cs336_course.pages.thousands_of_gpus.bytes_per_rank", arguments, processes, tmp_path
    )
    lines = [line for line in out.splitlines() if line.startswith("held ")]
    assert len(lines) == processes, err[-3000:]
    parameters = accounting.count_parameters(TrainConfig(**FLAGS).model_config(VOCAB_SIZE))
    per = accounting.bytes_per_parameter("adamw")
    shards = processes if parallel == "fsdp" else 1
    for line in lines:
        held = json.loads(line.split(maxsplit=2)[2])
        assert held["weights"] == pytest.approx(parameters * per.weights / shards, rel=0.05)
        assert held["gradients"] == pytest.approx(parameters * per.gradient / shards, rel=0.05)
        assert held["optimizer state"] == pytest.approx(parameters * per.state / shards, rel=0.05)
        expected = parameters * per.sharded(processes, stage)
        assert held["everything"] == pytest.approx(expected, rel=0.05)
