"""Train the best small GPT that this machine can train within some minutes, on the shipped plays.

The number of minutes is fixed, so a faster machine trains a larger model for more tokens. The
result is in bits per byte, which doesn't depend on the tokenizer.
"""

import dataclasses
import signal
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from cs336_lib import accounting
from cs336_lib.config import PRESETS, TrainConfig, UserError
from cs336_lib.data.loader import Loader, open_data
from cs336_lib.evals.loss import Score, score, scored
from cs336_lib.system import hardware
from cs336_lib.system.processes import Place
from cs336_lib.training import run_folder
from cs336_lib.training.job import open_run
from cs336_lib.training.loop import train, train_step

# The small preset with one more layer and more context. In small runs, a batch of 2,048 tokens
# reached a loss with 20% fewer tokens than one of 4,096 (data/scaling_runs.json).
RECIPE = dataclasses.replace(
    PRESETS["shakespeare-char"][1],
    tokenizer="gpt2-1k",
    n_layer=3,
    block_size=128,
    batch_tokens=16 * 128,
    micro_batch_size=16,
    learning_rate=2e-2,
    weight_decay=0.1,
    log_every=5,
    eval_every=0,
    eval_tokens=2**20,  # more than the validation text has
    checkpoint_every=0,
)
HEAD = 32  # width of an attention head
WIDTHS = (32, 64, 96, 128, 160, 192, 256, 384)

# Small runs of a fixed compute are best at about 40 letters for each parameter
# (data/scaling_runs.json), which are 18 tokens here. Wide matrices run faster, and the text ends
# after two million tokens, so a race takes a model that sees fewer.
TOKENS_PER_PARAMETER = 3
# More passes over the text teach less than new text would (Muennighoff et al. 2023).
FRESH_EPOCHS = 4
DROPOUT = 0.1  # beyond that

TRIALS, PREPARING = 12, 4  # steps to time, of which the first ones prepare kernels
# Part of the time for a longer trial of the chosen model. On a busy machine, eight steps took from
# half to twice the time of the next fifty.
LONG_TRIAL = 0.02
# A forward pass is a third of a step's FLOPs, and a bit more of its time.
FORWARD = 0.4
# Part of the time that is left for what the trial doesn't show: kernels that are prepared again,
# a busy moment, the checkpoint. The run stops early rather than be late.
SPARE = 0.03


def race(minutes: float, run_dir: str, device: str = "auto") -> Score:
    """Train a GPT for some minutes, everything included, and score it on the validation text.

    Returns:
        The loss and bits per byte on the whole validation text.

    Raises:
        UserError: If the minutes aren't a number from 0.1 to 60, or if the folder holds a run.
    """
    end = time.perf_counter() + 60 * minutes * (1 - SPARE)
    if not 0.1 <= minutes <= 60:
        raise UserError(f"minutes is {minutes}; a number from 0.1 to 60 expected")
    config = dataclasses.replace(RECIPE, run_dir=run_dir, device=device)
    _, text, tokenizer = open_data("", "", config.tokenizer)
    run_folder.check(Path(run_dir), config, tokenizer)  # before seconds go into trials
    config = fitted(config, end, len(text))
    deadline, stopped = Deadline(end, len(text)), threading.Event()

    def stop_in_time(row: dict[str, Any]) -> None:
        if deadline.passes(row["tokens"]) and not stopped.is_set():
            stopped.set()  # a second signal would end the program
            signal.raise_signal(signal.SIGINT)  # the loop saves and ends after this step

    run = train(config, on_step=stop_in_time)
    loader = Loader(text, config.block_size, tokenizer.vocab_size, seed=0)
    if run.finished:
        return scored(run.val_loss, loader, tokenizer, config.eval_tokens)
    chosen = hardware.select_device(device)
    place = Place(chosen, hardware.autocast_dtype(chosen, config.precision))
    sizes = config.eval_tokens, config.micro_batch_size
    return score(run.model, loader, tokenizer, *sizes, place)


class Deadline:
    """The last moment at which an evaluation still ends in time, from the pace of the training.

    Args:
        end: When the evaluation must be over, as `time.perf_counter` counts.
        val_tokens: Tokens of the evaluation.
    """

    def __init__(self, end: float, val_tokens: int):
        self.end, self.val_tokens = end, val_tokens
        self.first: tuple[float, int] | None = None  # time and tokens of the first row

    def passes(self, tokens: int) -> bool:
        """Return whether training should stop now, after this many tokens."""
        now = time.perf_counter()
        # Before the first row, the run is opened, which takes seconds on a busy machine.
        self.first = self.first or (now, tokens)
        begun, before = self.first
        pace = (now - begun) / max(tokens - before, 1)  # seconds per token
        return now > self.end - FORWARD * pace * self.val_tokens


def fitted(config: TrainConfig, end: float, val_tokens: int) -> TrainConfig:
    """Choose the width and the number of steps that fit, evaluation included, until a time.

    Widths are tried from the narrowest on, until a model would see too few tokens.
    """

    def steps(seconds: float) -> int:
        evaluation = FORWARD * seconds / config.batch_tokens * val_tokens
        return int((end - evaluation - time.perf_counter()) / seconds)

    chosen = None
    for width in WIDTHS:
        wider = dataclasses.replace(config, n_embd=width, n_head=width // HEAD)
        seconds, parameters, _ = trial(wider)
        if chosen and steps(seconds) * config.batch_tokens < TOKENS_PER_PARAMETER * parameters:
            break
        chosen = wider
    assert chosen
    seconds, _, epoch = trial(chosen, LONG_TRIAL * (end - time.perf_counter()))
    max_steps = max(steps(seconds), config.warmup_steps)
    dropout = DROPOUT if max_steps * config.batch_tokens > FRESH_EPOCHS * epoch else 0.0
    return dataclasses.replace(chosen, max_steps=max_steps, dropout=dropout)


def trial(config: TrainConfig, least: float = 0.0) -> tuple[float, int, int]:
    """Time some steps, for at least so many seconds.

    Returns:
        The mean seconds of a step, the number of parameters, and the text's tokens.
    """
    with tempfile.TemporaryDirectory() as folder:
        short = dataclasses.replace(config, run_dir=folder, max_steps=1_000_000)
        with open_run(short) as run:
            batches, times = run.batches(), []
            for step in run.steps:
                begun = time.perf_counter()
                train_step(run.job, batches, step)
                hardware.synchronize(run.job.place.device)
                times.append(time.perf_counter() - begun)
                if len(times) >= TRIALS and sum(times) > least:
                    break
            parameters = accounting.count_parameters(run.job.model.config)
            return statistics.mean(times[PREPARING:]), parameters, len(run.data.train.stream)
