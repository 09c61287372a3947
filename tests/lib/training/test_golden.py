"""Twenty steps of training give the losses that they gave when these were stored.

A change of the numbers that isn't intended fails here. After one that is, make them again with

    .venv/bin/python tests/lib/training/test_golden.py

and say in the commit why they changed. Other processors and other versions of PyTorch need the
tolerance, but two runs on one machine are equal to the last bit.
"""

import dataclasses
import json
import tempfile
from pathlib import Path

import pytest

from cs336_lib.config import TrainConfig
from cs336_lib.training.loop import train

STORED = Path(__file__).with_name("golden_losses.json")
TOLERANCE = 1e-4  # relative; measured between SSE and AVX-512: losses 1.4e-7, norms 8.6e-6

# Every value that the numbers depend on, whatever the defaults become. Without dropout, whose
# masks on the CPU come from a library that not every build of PyTorch has.
ADAMW = TrainConfig(
    tokenizer="char",
    n_layer=2,
    n_head=4,
    n_embd=64,
    block_size=64,
    dropout=0.0,
    bias=True,
    max_steps=20,
    batch_tokens=64 * 16,
    initial_batch_tokens=64 * 8,
    batch_growth_steps=5,
    micro_batch_size=8,
    optimizer="adamw",
    learning_rate=3e-3,
    min_learning_rate=3e-4,
    schedule="cosine",
    warmup_steps=5,
    weight_decay=0.1,
    beta1=0.9,
    beta2=0.95,
    momentum=0.95,
    grad_clip=1.0,
    seed=1337,
    eval_every=10,
    eval_tokens=4096,
    checkpoint_every=0,
    device="cpu",
    precision="fp32",
    parallel="ddp",
    compile="off",
    deterministic="on",
)
CONFIGS = {
    "adamw": ADAMW,
    "muon": dataclasses.replace(ADAMW, optimizer="muon", bias=False, schedule="linear"),
}
COLUMNS = ("train_loss", "grad_norm", "lr", "val_loss")


def numbers(name: str, folder: Path) -> dict[str, list[float]]:
    """What a run measures: losses in nats per token, the gradient's norm, the learning rate."""
    rows = train(dataclasses.replace(CONFIGS[name], run_dir=str(folder))).metrics
    return {column: [row[column] for row in rows if column in row] for column in COLUMNS}


@pytest.mark.parametrize("name", CONFIGS)
def test_losses_are_the_stored_ones(name, tmp_path):
    found, stored = numbers(name, tmp_path / "run"), json.loads(STORED.read_text())[name]
    assert list(found) == list(stored)
    for column in COLUMNS:
        assert found[column] == pytest.approx(stored[column], rel=TOLERANCE), column


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        made = {name: numbers(name, Path(folder) / name) for name in CONFIGS}
    STORED.write_text(json.dumps(made, indent=1) + "\n")
