"""Predict the time of published training runs from their stated MFU."""

from dataclasses import dataclass

from cs336_lib import accounting, architecture
from cs336_lib.architecture import Architecture
from cs336_lib.data.corpus import DATA
from cs336_lib.hardware import DATASHEET
from cs336_lib.io import read_json

# What a paper's "FLOPs" are, as a multiple of our count of forward and backward passes.
# "recomputed" adds the second forward pass of full activation checkpointing.
PASSES = {"computed": 1.0, "full": 1.0, "recomputed": 4 / 3}


@dataclass(frozen=True)
class PublishedRun:
    """A training run as its authors describe it. `None` stands for what wasn't published.

    Attributes:
        title: Name of the run.
        source: Where the figures come from.
        architecture: Shape of the model.
        seq: Tokens in a sequence.
        tokens: Tokens of the whole run.
        devices: Number of devices.
        device: Key of their datasheet.
        precision: Number format of the matmuls.
        layout: How the model was spread over the devices.
        mfu: Utilization as stated, as a fraction of the peak.
        convention: Which FLOPs the utilization counts: "computed" (the mask's keys), "full" (all
            keys) or "recomputed" (all keys, and a second forward pass).
        stated: The time as stated: days, device_hours, tokens_per_second or seconds_per_step.
        reason: Why the prediction can't be made or differs by more than 5%.
    """

    title: str
    source: str
    architecture: Architecture | None
    seq: int | None
    tokens: float | None
    devices: int | None
    device: str
    precision: str
    layout: str
    mfu: float | None
    convention: str
    stated: dict[str, float]
    reason: str

    @property
    def flops_per_token(self) -> float | None:
        """FLOPs of a training token by the convention of the run."""
        if self.architecture is None or self.seq is None:
            return None
        count: architecture.Count = "computed" if self.convention == "computed" else "full"
        once = architecture.train_flops_per_token(self.architecture, self.seq, count)
        return PASSES[self.convention] * once

    @property
    def predicted_speed(self) -> float | None:
        """Tokens per second and device that the stated MFU gives."""
        if self.flops_per_token is None or self.mfu is None:
            return None
        if self.device not in DATASHEET:
            return None
        return self.mfu * DATASHEET[self.device].peak_flops["bf16"] / self.flops_per_token

    @property
    def stated_speed(self) -> float | None:
        """Tokens per second and device that the stated time gives."""
        stated, devices = self.stated, self.devices
        if "tokens_per_second" in stated and devices:
            return stated["tokens_per_second"] / devices
        if "seconds_per_step" in stated and devices:
            return stated["batch_tokens"] / stated["seconds_per_step"] / devices
        hours = stated.get("device_hours")
        if "days" in stated and devices:
            hours = stated["days"] * 24 * devices
        return self.tokens / (3600 * hours) if hours and self.tokens else None

    @property
    def ratio(self) -> float | None:
        """Predicted time over stated time."""
        predicted, stated = self.predicted_speed, self.stated_speed
        return stated / predicted if predicted and stated else None

    def days(self, speed: float | None) -> float | None:
        """Return the days of the whole run at a speed in tokens per second and device."""
        if speed is None or self.tokens is None or self.devices is None:
            return None
        return self.tokens / speed / self.devices / accounting.SECONDS_PER_DAY


def runs() -> dict[str, PublishedRun]:
    """Return the published runs of data/runs.json by name."""
    found = {}
    for name, entry in read_json(DATA / "runs.json").items():
        fields = dict(entry)
        model, shape = fields.pop("model", ""), fields.pop("shape", None)
        built = Architecture(**shape) if shape else None
        fields["architecture"] = architecture.model(model).architecture if model else built
        found[name] = PublishedRun(**{"reason": "", **fields})
    return found


def table() -> str:
    """Format the runs as a Markdown table, with the predicted and the stated speed."""
    rows = [
        "| run | devices | layout | MFU | tokens/s a device, predicted | stated | ratio | time |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for run in runs().values():
        several = run.devices is not None and run.devices > 1
        devices = f"{run.devices:,} x {run.device.upper()}" if several else run.device.upper()
        cells = [run.title, devices, run.layout]
        cells += ["-" if run.mfu is None else f"{run.mfu:.1%}", speed(run.predicted_speed)]
        cells += [speed(run.stated_speed), "-" if run.ratio is None else f"{run.ratio:.3f}"]
        days = run.days(run.stated_speed or run.predicted_speed)
        seconds = days and days * accounting.SECONDS_PER_DAY
        cells.append("-" if seconds is None else accounting.duration(seconds))
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def speed(value: float | None) -> str:
    """Format a speed with four digits, or a dash."""
    return "-" if value is None else f"{value:,.0f}" if value >= 1000 else f"{value:.1f}"
