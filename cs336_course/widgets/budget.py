"""Explore the time, memory and price of a training run."""

from dataclasses import dataclass

from matplotlib.figure import Figure

from cs336_course.drawing import accounting as plots
from cs336_course.widgets.widget import (
    Explorer,
    Values,
    View,
    choice,
    slider,
    swatch,
    table,
    tag,
    track,
)
from cs336_lib import accounting
from cs336_lib.formatting import digits, duration, gigabytes, short
from cs336_lib.system.hardware import DATASHEET

PARAMETERS = {
    short(n): n
    for n in (
        *(124e6, 355e6, 774e6, 1.5e9, 3e9, 7e9, 13e9, 30e9, 40e9),
        *(70e9, 175e9, 405e9, 671e9, 1e12),
    )
}
TOKENS = {
    short(n): n
    for n in (
        *(1e9, 2.5e9, 10e9, 30e9, 100e9, 140e9, 300e9, 600e9, 1e12, 1.4e12),
        *(2e12, 5e12, 10e12, 15e12, 30e12),
    )
}
DEVICES = {f"{2**k:,}": 2**k for k in range(16)}
UTILISATION = {f"{percent} %": percent / 100 for percent in range(5, 75, 5)}
PRICES = {f"${price:g}": price for price in (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)}
SHARDING = ("nothing", "state (ZeRO-1)", "+ gradients (ZeRO-2)", "+ weights (ZeRO-3)")
ONE_COPY = {"optimizer": "adamw", "precision": "mixed", "sharded": SHARDING[0]}
PRESETS = {
    "GPT-2 on 8 A100s": {
        **{"parameters": "124M", "tokens": "10B", "hardware": DATASHEET["a100"].name},
        **{"devices": "8", "mfu": "40 %", "price": "$2", **ONE_COPY},
    },
    "fits a gaming GPU": {
        **{"parameters": "774M", "tokens": "2.5B", "hardware": DATASHEET["rtx 4090"].name},
        **{"devices": "1", "mfu": "40 %", "price": "$0.5", **ONE_COPY},
    },
    "Llama 3.1 405B": {
        **{"parameters": "405B", "tokens": "15T", "hardware": DATASHEET["h100"].name},
        **{"devices": "16,384", "mfu": "40 %", "price": "$2", **ONE_COPY, "sharded": SHARDING[3]},
    },
}
HARDWARE = {sheet.name: key for key, sheet in DATASHEET.items()}


def money(dollars: float) -> str:
    """Format an amount of dollars, such as $12,530 or $7.074M."""
    return f"${dollars:,.0f}" if dollars < 1e6 else f"${short(dollars)}"


START = {
    "parameters": "70B",
    "tokens": "15T",
    "hardware": DATASHEET["h100"].name,
    "devices": "1,024",
    "mfu": "50 %",
    "price": "$2",
    "optimizer": "adamw",
    "precision": "mixed",
    "sharded": SHARDING[0],
}


@dataclass(frozen=True)
class Budget:
    """Cost of a training run. The bytes are per device and without activations."""

    flops: float
    seconds: float
    dollars: float
    tokens_per_parameter: float
    bytes: dict[str, float]
    memory: float

    @property
    def total(self) -> float:
        """The bytes of training state on each device."""
        return sum(self.bytes.values())

    @property
    def fits(self) -> bool:
        """Whether the training state is smaller than the memory of a device."""
        return self.total < self.memory


def budget(
    parameters: float,
    tokens: float,
    devices: int,
    hardware: str,
    mfu: float,
    optimizer: str,
    precision: str,
    stage: int,
    price: float,
) -> Budget:
    """Estimate the time, memory and price of a training run with 6 N D FLOPs.

    Args:
        parameters: Number of parameters.
        tokens: Number of training tokens.
        devices: Number of devices.
        hardware: A key of DATASHEET. Its dense bf16 peak is used.
        mfu: Model FLOPs utilization, as a fraction of the peak.
        optimizer: A key of accounting.STATE_BYTES.
        precision: A key of accounting.PRECISIONS.
        stage: ZeRO stage, 0 to 3 (see `BytesPerParameter.sharded`).
        price: Dollars per hour of one device.

    Raises:
        UserError: If a formula in `accounting` rejects a value.
    """
    sheet = DATASHEET[hardware]
    flops = accounting.six_n_d(parameters, tokens)
    seconds = accounting.training_seconds(flops, devices, sheet.peak_flops["bf16"], mfu)
    per = accounting.bytes_per_parameter(optimizer, precision)
    parts = {  # bytes, and the ZeRO stage that begins to shard them
        "weights": (per.weights, 3),
        "gradients": (per.gradient, 2),
        "master weights": (per.master, 1),
        "optimizer state": (per.state, 1),
    }
    held = {
        name: parameters * size / (devices if stage >= first else 1)
        for name, (size, first) in parts.items()
    }
    dollars = seconds / 3600 * devices * price
    return Budget(flops, seconds, dollars, tokens / parameters, held, sheet.memory)


class TrainingBudget(Explorer):
    """Explore the cost of a training run.

    By default, the run has 70B parameters, 15T tokens and 1024 H100s. `values` overrides the
    initial values of controls, as in `training_budget(mfu="40 %")`.

    It has the controls `parameters`, `tokens`, `devices`, `hardware`, `mfu`, `optimizer`,
    `precision`, `sharded` and `price`. The bars have the class `.cs336-track`, and the device's
    memory has the class `.cs336-limit`.
    """

    def __init__(self, **values: str):
        controls = [
            slider("parameters", "parameters", list(PARAMETERS)),
            slider("tokens", "tokens", list(TOKENS)),
            choice("hardware", "device", list(HARDWARE)),
            slider("devices", "devices", list(DEVICES)),
            slider("mfu", "MFU", list(UTILISATION)),
            slider("price", "per device-hour", list(PRICES)),
            choice("optimizer", "optimizer", list(accounting.STATE_BYTES)),
            choice(
                "precision",
                "precision",
                [n for n, of in accounting.PRECISIONS.items() if not of.copies],
            ),
            choice("sharded", "sharded", SHARDING),
        ]
        super().__init__(
            "training-budget", "Training budget", controls, {**START, **values}, PRESETS
        )

    def budget(self, values: Values) -> Budget:
        """Compute the budget from the values of the controls."""
        return budget(
            PARAMETERS[values["parameters"]],
            TOKENS[values["tokens"]],
            DEVICES[values["devices"]],
            HARDWARE[values["hardware"]],
            UTILISATION[values["mfu"]],
            values["optimizer"],
            values["precision"],
            SHARDING.index(values["sharded"]),
            PRICES[values["price"]],
        )

    def sentence(self, values: Values) -> str:
        """Format the time, the price and the memory as one sentence."""
        found = self.budget(values)
        fits = "fits" if found.fits else "does not fit"
        return (
            f"{duration(found.seconds)}, {money(found.dollars)}; "
            f"{gigabytes(found.total)} on each device of {gigabytes(found.memory)}: {fits}"
        )

    def view(self, values: Values) -> View:
        """Return a bar that shows the memory, and a table of time and price."""
        found = self.budget(values)
        hours = found.seconds / 3600 * DEVICES[values["devices"]]
        facts = [
            ("work, 6 N D", f"{digits(found.flops)} FLOPs"),
            ("tokens per parameter", digits(found.tokens_per_parameter)),
            ("time", duration(found.seconds)),
            ("device-hours", short(hours)),
            ("cost", money(found.dollars)),
        ]
        colours = dict(zip(found.bytes, plots.FILLS, strict=False))
        kinds = [(swatch(colours[kind], kind), gigabytes(n)) for kind, n in found.bytes.items()]
        kinds.append(("in all", gigabytes(found.total)))
        note = "Each device's memory; the stroke is what it has. Activations come on top."
        return View(
            self.sentence(values),
            track(found.bytes, colours, found.memory, "memory")
            + tag("div", note, class_="cs336-faint")
            + tag("div", table(facts) + table(kinds), class_="cs336-row", style="gap: 6px 50px"),
        )

    def figure(self, values: Values) -> Figure:
        """Draw the memory as a bar, with the three results above it."""
        found = self.budget(values)
        parts = {kind: size / 1e9 for kind, size in found.bytes.items()}
        what = f"{values['parameters']} on {values['tokens']} tokens,\n{values['devices']} devices"
        drawn = plots.stacked(
            {what: parts}, self.sentence(values), "memory of each device [GB]", found.memory / 1e9
        )
        drawn.set_figheight(3.2)
        return drawn
