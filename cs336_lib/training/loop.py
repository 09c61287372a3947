"""Training loop for notebooks, the command line and torchrun."""

import dataclasses
import math
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from cs336_lib import schedule
from cs336_lib.config import TrainConfig, UserError
from cs336_lib.data.loader import hash_key
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.evals import hellaswag
from cs336_lib.evals.loss import validation_loss
from cs336_lib.model import GPT
from cs336_lib.sampling import complete
from cs336_lib.system import hardware
from cs336_lib.system.signals import stop_signals
from cs336_lib.training import checkpoint, distributed, run_folder
from cs336_lib.training.job import Batches, Job, OpenRun, announce, check, open_run
from cs336_lib.training.metrics import checksum, open_log
from cs336_lib.training.trackers import Send

SAMPLE_TOKENS = 32  # of a sample during training


@dataclass(frozen=True)
class TrainResult:
    """Model, tokenizer and metrics of a run. `metrics` has one row per step."""

    run_dir: Path
    model: GPT
    tokenizer: Tokenizer
    metrics: list[dict[str, Any]]
    finished: bool

    @property
    def val_loss(self) -> float:
        """The last validation loss in nats per token.

        Raises:
            UserError: If no validation loss has been measured yet.
        """
        losses = [row["val_loss"] for row in self.metrics if "val_loss" in row]
        if not losses:  # metrics.jsonl was lost
            saved = map(checkpoint.val_loss, checkpoint.checkpoints(self.run_dir / "checkpoints"))
            losses = [loss for loss in saved if loss is not None]
        if not losses:
            advice = "continue it with --resume"
            raise UserError(f"{self.run_dir}: no validation loss was measured yet; {advice}")
        return losses[-1]


@hardware.freed_memory_kept()  # a decorator, so that it ends when the optimizer is gone, too
def train(config: TrainConfig, on_step: Send | None = None) -> TrainResult:
    """Train a GPT, and write checkpoints and metrics to `config.run_dir`.

    Args:
        config: All settings of the run. The same settings give the same run.
        on_step: Function to call with each row of metrics after the row is written.

    Returns:
        The model, its tokenizer and the metrics.

    Raises:
        ValueError: If the config, the data or the run folder is invalid. No file is written.
        FloatingPointError: If a loss or gradient is NaN or infinite. The model keeps the last
            finite weights.
        OSError: If the disk is full, or if a distributed process died or hung. Use --resume to
            continue.

    Example:
        >>> train(PRESETS["shakespeare-char"][1]).val_loss
    """
    check(config)
    with open_run(config) as run, stop_signals() as stop:
        announce(run)
        job, place, batches = run.job, run.job.place, run.batches()
        with open_log(run, on_step) as log:
            for step in log.steps():
                log.add(train_step(job, batches, step))
                evaluates = is_due(step, config.eval_every, config.max_steps)
                saves = is_due(step, config.checkpoint_every, config.max_steps)
                if not (evaluates or saves or is_due(step, config.log_every, config.max_steps)):
                    continue
                rows = log.read()
                stopping = place.world.sum(stop.is_set(), device=place.device)[0] > 0
                try:
                    if evaluates:
                        rows[-1] |= evaluate(run, step)
                finally:  # the steps are done, whatever becomes of the evaluation
                    log.write(rows)
                if saves or stopping:
                    log.sync()  # a checkpoint relies on the rows of its steps
                    save(run, log.rows)
                if stopping:
                    break
                log.restart_clock()
        model, finished = job.model.eval(), log.done >= config.max_steps
        return TrainResult(run.folder, model, run.data.tokenizer, log.rows, finished)


def is_due(step: int, every: int, max_steps: int) -> bool:
    """Return whether a periodic action is due after this step. It is always due at the end."""
    return step + 1 == max_steps or (every > 0 and (step + 1) % every == 0)


def train_step(job: Job, batches: Batches, step: int) -> dict[str, Tensor]:
    """Run the forward pass, backward pass, gradient clipping and update of one optimizer step.

    The update is skipped if the loss or the gradient isn't finite. With on_nan="stop", all later
    updates are skipped too. With log_every greater than 1, the check runs on the device, and the
    host doesn't wait for its result.

    Returns:
        The metrics of the step: the mean loss over all ranks in nats per token, and the gradient
        norm before clipping. The tensors stay on the device.
    """
    config, world, optimizer = job.config, job.place.world, job.optimizer
    torch.manual_seed(hash_key(config.seed, step, world.rank))  # dropout's randomness
    schedule.set_learning_rate(optimizer, schedule.learning_rate(step, config))
    loss = world.all_reduce(backward(job, batches, schedule.batch_windows(step, config)))
    grad_norm = clip_gradients(job.model, config.grad_clip)
    broken = ~(loss.isfinite() & grad_norm.isfinite())
    job.broken.copy_(broken if config.on_nan == "skip" else broken | job.broken)
    if config.log_every > 1:
        # GradScaler skips updates in this way too. PyTorch's stubs don't know the attribute.
        optimizer.found_inf = job.broken.float()  # type: ignore[attr-defined]
        optimizer.step()
    elif not job.broken:  # the host waits for every step anyway
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return {"train_loss": loss, "grad_norm": grad_norm}


def backward(job: Job, batches: Batches, windows: int) -> Tensor:
    """Accumulate gradients over the micro-batches of one step.

    Each micro-batch is weighted by its size, so the gradient is the same for any micro-batch size.
    DDP and FSDP average gradients over ranks. We need the sum, so we multiply the loss by
    `world.size`. DDP communicates gradients only after the last micro-batch.

    Args:
        job: The model and where it runs. The model may be wrapped by DDP or torch.compile.
        batches: Inputs and targets of the micro-batches on this rank.
        windows: Number of sequences in the batch over all ranks.

    Returns:
        The loss of this rank, scaled so that the sum over all ranks is the mean loss in nats per
        token.
    """
    losses, world, autocast = [], job.place.world, job.place.autocast
    pieces = world.pieces(windows, job.config.micro_batch_size)
    for number, (_, size) in enumerate(pieces, start=1):
        x, y = next(batches)
        with distributed.gradient_sync(job.called, number == len(pieces)):
            with autocast:
                loss = job.called(x, y) * (size / windows)
            (loss * world.size).backward()
        losses.append(loss.detach())
    return torch.stack(losses).sum()


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    """Clip the gradient to norm `limit`, and return its norm before clipping.

    A limit of 0 turns clipping off.
    """
    norm = nn.utils.clip_grad_norm_(model.parameters(), limit or math.inf)
    return distributed.gathered(norm)


def evaluate(run: OpenRun, step: int) -> dict[str, float | str]:
    """Measure the validation loss in nats per token.

    If the config requests them, the result also includes a HellaSwag score and a text sample. The
    model runs without the compiler, which would compile anew for every layer of a KV cache and for
    the lengths of texts. The compiled training step stays as it is.

    Raises:
        FloatingPointError: If the validation loss isn't finite.
    """
    job, data, config, place = run.job, run.data, run.job.config, run.job.place
    size = distributed.micro_batch(config, place.world)
    # set_stance imports the compiler, which takes a second.
    eager = torch.compiler.set_stance("force_eager") if job.compiled else nullcontext()
    with eager:
        loss = validation_loss(job.called, data.val, config.eval_tokens, size, place)
        if not math.isfinite(loss):
            hint = run_folder.nan_hint(run.folder)
            raise FloatingPointError(f"step {step}: validation loss {loss}; {hint}")
        found: dict[str, float | str] = {"val_loss": loss}
        if data.examples:
            score = hellaswag.score(job.model, data.examples, config.block_size, place)
            found["hellaswag"] = score.acc_per_token
        if config.sample:
            seed = hash_key(config.seed, step) // 2  # as large as a seed may be
            found["sample"] = complete(
                job.model, data.tokenizer, config.sample, SAMPLE_TOKENS, seed=seed
            )
    return found


def save(run: OpenRun, rows: list[dict[str, Any]]) -> None:
    """Write a checkpoint after the steps of these rows, and delete old checkpoints."""
    job, folder = run.job, run.folder / "checkpoints"
    state = {
        "step": rows[-1]["step"] + 1,
        "val_loss": rows[-1].get("val_loss"),
        "metrics": checksum(rows),
        "model": dataclasses.asdict(job.model.config),
        "data": run.data.fingerprints,
        "tokenizer": run.data.tokenizer.digest,
    }
    world = job.place.world
    checkpoint.save(folder, job.model, job.optimizer, state, world)
    if world.is_main:
        checkpoint.prune(folder, job.config.keep_checkpoints, job.config.keep_every)
    world.barrier()
