"""Run nanoGPT's train.py with the optimizer and the learning rates of shakespeare-char."""

import dataclasses
import importlib
from itertools import count
from typing import Any

import cs336_lib  # noqa: F401  (before torch: it decides how torch's threads wait)

# isort: split
import torch

from cs336_lib import schedule
from cs336_lib.config import PRESETS
from cs336_lib.optim import make_optimizer


def train(seed: int) -> None:
    """Run train.py in the current folder, which is a checkout of karpathy/nanoGPT.

    train.py reads all other settings from sys.argv. Only its model class is replaced.
    """
    config = dataclasses.replace(PRESETS["shakespeare-char"][1], seed=seed)
    module: Any = importlib.import_module("model")

    class GPT(module.GPT):
        """Model of nanoGPT that brings our seed and optimizer."""

        def __init__(self, shape: Any):
            torch.manual_seed(seed)
            super().__init__(shape)

        def configure_optimizers(self, *_: Any) -> torch.optim.Optimizer:
            optimizer = make_optimizer(self, config)
            steps, step = count(), optimizer.step

            def scheduled_step(*_: Any) -> None:
                rate = schedule.learning_rate(next(steps), config)
                schedule.set_learning_rate(optimizer, rate)
                step()

            # Not as a hook of the optimizer: AdamW's step inside Muon's would call it once more.
            optimizer.step = scheduled_step  # type: ignore[method-assign]
            return optimizer

    module.GPT = GPT
    importlib.import_module("train")  # it trains when it is imported
