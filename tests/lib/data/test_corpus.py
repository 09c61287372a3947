"""The files in data/ are what data/README.md says."""

import hashlib
from pathlib import Path

import pytest

DATA = Path(__file__).resolve().parents[3] / "data"


@pytest.fixture(scope="module")
def readme() -> str:
    return (DATA / "README.md").read_text(encoding="utf-8")


def test_readme_gives_size_and_checksum(readme: str) -> None:
    for name in ("shakespeare.txt", "gpt2.tiktoken"):
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}`"))
        size, checksum = [cell.strip(" `") for cell in row.split("|")][-3:-1]
        content = (DATA / name).read_bytes()
        assert int(size.replace(",", "")) == len(content)
        assert checksum == hashlib.sha256(content).hexdigest()


def test_the_model_that_ships_is_what_the_readme_says(readme: str) -> None:
    from cs336_lib.training import checkpoint

    (weights,) = checkpoint.SHIPPED_RUN.rglob("*.safetensors")
    assert weights.stat().st_size <= 15_000_000
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"{weights.stat().st_size:,} | `{digest}`" in readme
    model, _ = checkpoint.load_shipped()
    assert f"{model.num_parameters():,} parameters" in readme
    state = checkpoint.read_state(weights.parent)
    assert f"loss is {state['val_loss']:.4f} nats" in readme


def test_the_model_that_ships_has_the_loss_it_claims() -> None:
    import json

    import torch

    from cs336_lib.data.loader import Loader, open_data
    from cs336_lib.evals.loss import validation_loss
    from cs336_lib.system.processes import Place
    from cs336_lib.training import checkpoint

    model, tokenizer = checkpoint.load_shipped()
    _, stream, _ = open_data("", "", "char")
    loss = validation_loss(
        model,
        Loader(stream, model.config.block_size, tokenizer.vocab_size, 1337),
        32768,  # a quarter of what the recorded figure was measured on
        16,
        Place(torch.device("cpu")),
    )
    row = json.loads((checkpoint.SHIPPED_RUN / "metrics.jsonl").read_text().splitlines()[-1])
    assert abs(loss - row["val_loss"]) < 0.03
