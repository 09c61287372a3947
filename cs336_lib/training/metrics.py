"""Metrics of training steps: what is in a step's row, and where the row goes."""

import json
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cs336_lib import accounting, schedule
from cs336_lib.config import UserError
from cs336_lib.io import Bar, Log, digest, draws_in_place, sync, write_atomic, writing
from cs336_lib.system import hardware
from cs336_lib.training import checkpoint, run_folder
from cs336_lib.training.job import OpenRun
from cs336_lib.training.run_folder import nan_hint
from cs336_lib.training.trackers import Send, open_tracker

# A loss is a spike if it exceeds the median of the RECENT losses before it by SPIKE times their
# median absolute deviation. Normally distributed losses would do so once in thirty million steps.
SPIKE, RECENT = 8.0, 100


@dataclass(frozen=True)
class Metric:
    """A number in the rows of metrics.jsonl.

    Attributes:
        name: Its key in a row.
        title: What it is, the title of its curve in the report.
        unit: Its unit, the label of the curve's axis.
        drawn: How matplotlib draws its curve, such as "o-", or "" for no curve of its own.
        shown: Format in the line for each step, or "" if the line leaves it out.
        factor: Factor from the number in the file to that on the axis, such as 100 for percent.
        is_needed: Whether a row with anything but a number there is refused. The report leaves out
            what is wrong with the others, which older versions lacked.
        nullable: Whether it may be null, which stands for NaN or for what isn't known.
    """

    name: str
    title: str
    unit: str = ""
    drawn: str = ""
    shown: str = ""
    factor: float = 1.0
    is_needed: bool = False
    nullable: bool = False


NATS = "loss [nats per token]"

# In the order of the report and of a step's line. The measured ones come from `loop.train_step` and
# `loop.evaluate`, the others from `StepLog`.
METRICS = (
    Metric("step", "Steps before this one", is_needed=True),
    Metric("tokens", "Tokens up to this step", "tokens", is_needed=True),
    Metric("train_loss", "Loss", NATS, "", "loss {:.3f}", is_needed=True, nullable=True),
    Metric("val_loss", "Validation loss", NATS, "", "val {:.3f}", is_needed=True, nullable=True),
    Metric("hellaswag", "HellaSwag", "accuracy [%]", "o-", "HellaSwag {:.4f}", factor=100),
    Metric("lr", "Learning rate", "learning rate", "-", "lr {:.1e}"),
    Metric("grad_norm", "Gradient norm before clipping", "norm", "-", nullable=True),
    Metric("step_ms", "Time of a step", "ms", is_needed=True),
    Metric(
        "tokens_per_sec", "Throughput", "tokens per second", "-", "{:,.0f} tok/s", is_needed=True
    ),
    Metric(
        "mfu", "Model FLOPs utilization", "MFU [%]", "-", "MFU {:.0%}", factor=100, nullable=True
    ),
)
TIMES = ("step_ms", "tokens_per_sec", "mfu")
LARGEST = 1e18  # so that sums stay finite


class StepLog:
    """Rows of metrics of a run.

    The file metrics.jsonl has exactly one row per step, even after a kill and resume. Only rank 0
    writes and prints, but every rank keeps all rows in memory.

    Args:
        run: The run. Rows of the file from its first step on are removed.
        listeners: Functions to call with each row on rank 0.
    """

    def __init__(self, run: OpenRun, listeners: list[Send | None]):
        job = run.job
        self.run, self.is_main, self.done = run, job.place.world.is_main, run.steps.start
        self.listeners = [send for send in listeners if send and self.is_main]
        self.flops_per_token = accounting.train_flops_per_token(job.model.config)
        peak = hardware.peak_flops(job.place.device, job.place.dtype)[0]
        self.peak = peak and peak * job.place.world.size  # None where it is unknown
        self.pending: list[dict[str, Any]] = []
        self.path = run.folder / run_folder.METRICS
        saved = read_metrics(self.path) if self.path.exists() else []
        self.rows = [row for row in saved if row["step"] < self.done]
        if self.is_main:
            check_rows(run.folder, self.rows)
            write_atomic(self.path, "".join(json.dumps(row) + "\n" for row in self.rows))
            self.size = self.path.stat().st_size
        self.has_bar = draws_in_place(sys.stderr)  # a log gets a line for every row instead
        hidden = not (self.is_main and self.has_bar)
        size = {"initial": self.done, "total": job.config.max_steps}
        self.bar = Bar(run.steps, **size, unit="step", disable=hidden, leave=True, delay=0)

    def steps(self) -> Iterator[int]:
        """Yield the step numbers, and show a progress bar."""
        self.restart_clock()
        yield from self.bar

    def restart_clock(self) -> None:
        """Restart the timer, because evaluation and saving don't count as training time."""
        hardware.synchronize(self.run.job.place.device)
        self.start = time.perf_counter()

    def add(self, measured: dict[str, Tensor]) -> None:
        """Record what is known about a step, without waiting for the device.

        `measured` has tensors on the device. `read` adds what is known only after some steps.
        """
        config = self.run.job.config
        self.pending.append(
            {
                "step": self.done,
                "tokens": schedule.windows_before(self.done + 1, config) * config.block_size,
                "lr": self.run.job.optimizer.param_groups[0]["lr"],
                **measured,
            }
        )
        self.done += 1

    def read(self) -> list[dict[str, Any]]:
        """Wait for the device, and return one row of metrics for each step since the last call.

        Raises:
            FloatingPointError: If on_nan="stop" and the loss or gradient of a step isn't finite.
                The rows of earlier steps are written first.
        """
        on_device = [v for row in self.pending for v in row.values() if torch.is_tensor(v)]
        values = iter(torch.stack(on_device).tolist())
        hardware.synchronize(self.run.job.place.device)
        seconds, config = time.perf_counter() - self.start, self.run.job.config
        before = schedule.windows_before(self.pending[0]["step"], config) * config.block_size
        speed = (self.pending[-1]["tokens"] - before) / seconds
        timing = {
            "step_ms": seconds * 1000 / len(self.pending),
            "tokens_per_sec": speed,
            "mfu": accounting.mfu(self.flops_per_token * speed, self.peak),
        }
        rows: list[dict[str, Any]] = []
        for known in self.pending:
            measured = {k: next(values) for k, v in known.items() if torch.is_tensor(v)}
            row = known | measured | timing
            is_broken = not all(map(math.isfinite, measured.values()))
            if is_broken and config.on_nan == "stop":
                self.write(rows)
                raise FloatingPointError(not_finite(self.run, row))
            if is_broken:
                row |= dict.fromkeys(measured) | {"skipped": True}  # null, as JSON has no NaN
            rows.append(row)
        self.pending = []
        return rows

    def write(self, rows: list[dict[str, Any]]) -> None:
        """Append rows to the metrics file, display them, and send them to the listeners.

        A loss spike is marked. A terminal shows the latest row in the progress bar. A log file gets
        one line per row.
        """
        for row in rows:
            if is_spike(row["train_loss"], self.rows[-RECENT:]):
                row["spike"] = True
            self.rows.append(row)
            if not self.is_main:
                continue
            with writing(self.path), open(self.path, "a") as file:
                if file.tell() != self.size:
                    raise UserError(f"{self.path}: another process writes there, too; stop one")
                file.write(json.dumps(row) + "\n")
                self.size = file.tell()
            if self.has_bar:
                self.bar.set_postfix_str(summary(row), refresh=False)
            else:
                print(f"step {row['step'] + 1}/{self.bar.total}: {summary(row)}", file=Log())
            if "sample" in row:
                self.bar.write(f"step {row['step'] + 1}: {row['sample']}", file=Log())
            for send in self.listeners:
                send(row)

    def sync(self) -> None:
        """Flush the rows to disk."""
        if self.is_main:
            sync(self.path)

    def finish(self) -> None:
        """Print skipped steps, loss spikes and an early stop."""
        self.bar.close()
        total = self.run.job.config.max_steps
        if self.is_main and (trouble := troubles(self.rows)):
            print(f"Worth a look: {trouble}")
        if self.is_main and self.done < total:
            print(f"Stopped after step {self.done} of {total} and saved; --resume continues it.")


@contextmanager
def open_log(run: OpenRun, on_step: Send | None) -> Iterator[StepLog]:
    """Open the log of a run, and the tracker named by `log_to`. Without an error, finish it."""
    job = run.job
    with ExitStack() as stack:
        tracker = (
            open_tracker(job.config, stack, run.steps.start) if job.place.world.is_main else None
        )
        log = StepLog(run, [on_step, tracker])
        yield log
        log.finish()


def not_finite(run: OpenRun, row: dict[str, Any]) -> str:
    """Return an error message with the step, the batch and possible fixes."""
    step, config = row["step"], run.job.config
    first, end = (schedule.windows_before(n, config) for n in (step, step + 1))
    start = int(run.data.train.starts(first, 1)[0])
    return (
        f"step {step}: loss {row['train_loss']}, gradient norm {row['grad_norm']}; the batch is "
        f"windows {first} to {end - 1}, the first at {run.data.train.stream.where(start)}; "
        f"{nan_hint(run.folder)}, or continue this one with --resume --on-nan skip"
    )


def troubles(rows: list[dict[str, Any]]) -> str:
    """Summarize skipped steps and loss spikes. Return "" if there are no such steps."""
    parts = []
    for key, name in (("skipped", "skipped for NaN or infinity"), ("spike", "with a loss spike")):
        steps = [row["step"] for row in rows if row.get(key)]
        if steps:
            shown = ", ".join(map(str, steps[:5])) + (", ..." if steps[5:] else "")
            parts.append(f"{len(steps)} of {len(rows)} steps {name}: {shown}")
    return "; ".join(parts)


def summary(row: dict[str, Any]) -> str:
    """Format a row of metrics for the progress bar."""
    known = [m for m in METRICS if m.shown and row.get(m.name) is not None]
    parts = [metric.shown.format(row[metric.name]) for metric in known]
    if row["train_loss"] is None:
        parts.insert(0, "skipped")
    if row.get("spike"):
        parts[0] += " (spike)"
    return ", ".join(parts)


def read_metrics(path: Path, convert: Callable[[Any], Any] | None = None) -> list[dict[str, Any]]:
    """Return the rows of a metrics.jsonl file.

    An incomplete last line is ignored. What isn't a number is removed from its row, unless it is
    needed.

    Args:
        path: The file.
        convert: Function that makes a row of metrics from a row of another program's log.

    Raises:
        ValueError: If a complete line isn't a valid row.
    """
    rows = []
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            row = convert(row) if convert else row
            if not isinstance(row, dict):
                raise UserError("not a JSON object")
            for metric in METRICS:
                value: Any = row.get(metric.name)
                is_number = type(value) in (int, float) and -LARGEST < value < LARGEST  # not NaN
                is_null = value is None and metric.nullable
                if is_number or is_null:
                    continue
                if metric.is_needed:
                    raise UserError(f"{metric.name} is {value!r:.40}; a number expected")
                row.pop(metric.name, None)
        except (ValueError, LookupError, TypeError, ArithmeticError, RecursionError) as error:
            message = f"{path}: line {number} isn't a row of metrics ({error}); fix or delete it"
            raise UserError(message) from None
        if row.get("val_loss") is None:
            row.pop("val_loss", None)
        rows.append(row)
    return rows


def checksum(rows: Sequence[dict[str, Any]]) -> str:
    """Return the SHA-256 of rows without their times, which differ when steps are done again."""
    return digest([[row[name] for name in row if name not in TIMES] for row in rows])


def check_rows(folder: Path, rows: Sequence[dict[str, Any]]) -> None:
    """Tell in the log if the rows of a run aren't those that its newest checkpoint knows."""
    newest = checkpoint.newest_valid(folder / "checkpoints", (checkpoint.STATE,))
    if newest is None:
        return
    state = checkpoint.read_state(newest)
    known = checksum([row for row in rows if row["step"] < state["step"]])
    if state.get("metrics", known) != known:
        path = folder / run_folder.METRICS
        print(f"{path}: not as it was when {newest.name} was saved", file=Log())


def is_spike(loss: float | None, before: list[dict[str, Any]]) -> bool:
    """Return whether a loss is far above the previous losses.

    The result is False if there are fewer than RECENT / 5 previous losses.
    """
    recent = [row["train_loss"] for row in before if row.get("train_loss") is not None]
    if loss is None or len(recent) < RECENT // 5:
        return False
    median = statistics.median(recent)
    deviation = statistics.median(abs(other - median) for other in recent)
    return loss - median > SPIKE * max(deviation, 0.001 * median)
