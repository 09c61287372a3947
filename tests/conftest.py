"""Small models and data that many tests share."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

from cs336_lib.config import GPTConfig, TrainConfig

# On a busy machine, an example may take long.
NOT_CHECKED = [HealthCheck.too_slow, HealthCheck.function_scoped_fixture]
settings.register_profile("course", deadline=None, suppress_health_check=NOT_CHECKED)
settings.load_profile("course")


@pytest.fixture
def tiny_config() -> GPTConfig:
    """A GPT that runs in milliseconds; 50 is no multiple of 64, so there is padding."""
    return GPTConfig(block_size=16, vocab_size=50, n_layer=2, n_head=2, n_embd=32)


@pytest.fixture
def model(tiny_config: GPTConfig) -> torch.nn.Module:
    """A tiny GPT whose logits differ from each other, as after training."""
    from cs336_lib.model import GPT

    model = GPT(tiny_config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@pytest.fixture
def tiny_run(tmp_path: Path) -> TrainConfig:
    """A training run of a second on a text of a few thousand characters."""
    from cs336_lib.data.prepare import prepare

    text = tmp_path / "text.txt"
    text.write_text("To be, or not to be, that is the question:\n" * 100)
    prepare(text, tmp_path / "prepared", "char")
    return TrainConfig(
        run_dir=str(tmp_path / "run"),
        train_data=str(tmp_path / "prepared"),
        tokenizer="char",
        n_layer=2,
        n_head=2,
        n_embd=16,
        block_size=8,
        dropout=0.1,
        max_steps=12,
        batch_tokens=8 * 8,
        micro_batch_size=8,
        learning_rate=1e-2,
        min_learning_rate=1e-3,
        warmup_steps=3,
        eval_every=4,
        eval_tokens=64,
        checkpoint_every=5,
        keep_checkpoints=2,
        device="cpu",
    )


@pytest.fixture(autouse=True)
def cpu_without_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test takes the CPU for one without bf16, whatever it is; see `either_cpu`."""
    monkeypatch.setenv("CS336_CPU_BF16", "0")


@pytest.fixture(params=["fp32", "bf16"])
def either_cpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run the test for a CPU without bf16 and for one with it; the precision "auto" means."""
    monkeypatch.setenv("CS336_CPU_BF16", str(int(request.param == "bf16")))
    return request.param


@pytest.fixture(autouse=True)
def fixed_seed() -> None:
    """Every test starts from the same random numbers."""
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def no_open_figures() -> Iterator[None]:
    """Every test leaves pyplot without a figure, so the next finds only its own."""
    yield
    if plt := sys.modules.get("matplotlib.pyplot"):
        plt.close("all")
