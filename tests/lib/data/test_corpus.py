"""The files in data/ are what data/README.md says."""

import hashlib
from pathlib import Path

import pytest
import torch

from cs336_lib.data.loader import Loader, open_data
from cs336_lib.evals.loss import validation_loss
from cs336_lib.system.processes import Place
from cs336_lib.training import checkpoint

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
    (weights,) = checkpoint.SHIPPED_RUN.rglob("*.safetensors")
    assert weights.stat().st_size <= 15_000_000
    digest = hashlib.sha256(weights.read_bytes()).hexdigest()
    assert f"{weights.stat().st_size:,} | `{digest}`" in readme
    model, tokenizer = checkpoint.load_shipped()
    assert f"{model.num_parameters():,} parameters" in readme
    claimed = checkpoint.read_state(weights.parent)["val_loss"]
    assert f"loss is {claimed:.4f} nats" in readme
    _, stream, _ = open_data("", "", "char")
    loader = Loader(stream, model.config.block_size, tokenizer.vocab_size, 1337)
    place = Place(torch.device("cpu"))
    # A quarter of the tokens that the claim was measured on
    assert abs(validation_loss(model, loader, 32768, 16, place) - claimed) < 0.03
