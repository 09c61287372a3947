"""Explore the bill of a published model on a cluster: days, memory, traffic and the bottleneck."""

import math
from dataclasses import dataclass

from matplotlib.figure import Figure

from cs336_course.drawing import bills as plots
from cs336_course.drawing.style import FILLS
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
from cs336_lib.bill import models, traffic
from cs336_lib.bill.simulate import Cluster, Step, Workload, memory, simulate
from cs336_lib.bill.text import training_length
from cs336_lib.bill.traffic import Layout, Recompute
from cs336_lib.config import UserError
from cs336_lib.formatting import digits, duration, gigabytes, short
from cs336_lib.system.datasheets import DATASHEET, LINKS

MODELS = {published.title: published for published in models.models().values()}
CLUSTERS = {  # device, link inside of a machine, link between machines
    "A100, InfiniBand HDR": ("a100", "nvlink3", "infiniband-hdr"),
    "H100, InfiniBand NDR": ("h100", "nvlink4", "infiniband-ndr"),
    "H100, 100 Gb/s Ethernet": ("h100", "nvlink4", "ethernet-100g"),
    "H800, InfiniBand NDR": ("h800", "nvlink4-h800", "infiniband-ndr"),
    "H200, InfiniBand NDR": ("h200", "nvlink4", "infiniband-ndr"),
    "B200, InfiniBand NDR": ("b200", "nvlink5", "infiniband-ndr"),
}
TOKENS = {
    short(n): n
    for n in (
        *(1e9, 2.5e9, 10e9, 30e9, 100e9, 140e9, 300e9, 600e9, 1e12, 1.4e12),
        *(2e12, 5e12, 10e12, 15e12, 30e12),
    )
}
PRICES = {f"${price:g}": price for price in (0.5, 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10)}
DEVICES = {f"{2**k:,}": 2**k for k in range(15)}
BATCHES = {f"{2**k:,}": 2**k for k in range(3, 15)}  # sequences
WAYS = {str(2**k): 2**k for k in range(5)}
SHARDING = ("nothing", "state (ZeRO-1)", "+ gradients (ZeRO-2)", "+ weights (ZeRO-3)")
SCHEDULES = ("1F1B", "interleaved")
PARTS = {  # of a step
    "matmuls": "matmuls",
    "elementwise": "elementwise",
    "tensor": "waiting for sums (tensor)",
    "expert": "waiting for experts",
    "context": "waiting for context parallelism",
    "pipeline": "pipeline bubble",
    "data": "waiting for weights (data)",
    "update": "update",
}
PRESETS = {
    "Llama 3.1 405B": {
        **{"model": "Llama 3.1 405B", "tokens": "15T", "cluster": "H100, InfiniBand NDR"},
        **{"devices": "16,384", "tensor": "8", "pipeline": "16", "schedule": "interleaved"},
        **{"sharded": SHARDING[2], "batch": "2,048", "recompute": "nothing"},
    },
    "Llama 3 8B on 64 H100s": {
        **{"model": "Llama 3 8B", "tokens": "1T", "cluster": "H100, InfiniBand NDR"},
        **{"devices": "64", "tensor": "1", "pipeline": "1", "schedule": "1F1B"},
        **{"sharded": SHARDING[3], "batch": "128", "recompute": "attention"},
    },
    "GPT-2 on 8 A100s": {
        **{"model": "GPT-2 124M", "tokens": "10B", "cluster": "A100, InfiniBand HDR"},
        **{"devices": "8", "tensor": "1", "pipeline": "1", "schedule": "1F1B"},
        **{"sharded": SHARDING[0], "batch": "512", "recompute": "nothing"},
    },
}
RECOMPUTE: dict[str, Recompute] = {"nothing": "none", "attention": "selective", "all": "full"}
START = {
    "model": "Llama 3.1 405B",
    "tokens": "15T",
    "cluster": "H100, InfiniBand NDR",
    "devices": "16,384",
    "tensor": "8",
    "pipeline": "16",
    "schedule": "interleaved",
    "sharded": SHARDING[2],
    "batch": "2,048",
    "recompute": "nothing",
    "price": "$2",
}


def money(dollars: float) -> str:
    """Format an amount of dollars, such as $12,530 or $7.074M."""
    return f"${dollars:,.0f}" if dollars < 1e6 else f"${short(dollars)}"


@dataclass(frozen=True)
class Bill:
    """What a run costs.

    Attributes:
        work: The model and its layout.
        cluster: The devices and links.
        step: The simulated step.
        seconds: Time of the whole run.
        dollars: Price of the whole run.
        memory: Bytes on the fullest device, by kind.
    """

    work: Workload
    cluster: Cluster
    step: Step
    seconds: float
    dollars: float
    memory: dict[str, float]

    @property
    def seconds_by_part(self) -> dict[str, float]:
        """Seconds of a step, by what the device does."""
        return {name: self.step.parts[kind] for kind, name in PARTS.items()}


class ModelBill(Explorer):
    """Explore the bill of a published model.

    By default, Llama 3.1 405B trains on 15T tokens with 16,384 H100s, in the layout of its paper.
    `values` overrides the initial values of controls, as in `model_bill(model="DeepSeek-V3")`.

    It has the controls `model`, `tokens`, `cluster`, `devices`, `tensor`, `pipeline`, `schedule`,
    `sharded`, `batch`, `recompute` and `price`. Bars have the class `.cs336-track`, and a device's
    memory has the class `.cs336-limit`.
    """

    def __init__(self, **values: str):
        controls = [
            choice("model", "model", list(MODELS)),
            slider("tokens", "tokens", list(TOKENS)),
            choice("cluster", "cluster", list(CLUSTERS)),
            slider("devices", "devices", list(DEVICES)),
            slider("tensor", "tensor parallel", list(WAYS)[:4]),
            slider("pipeline", "pipeline stages", list(WAYS)),
            choice("schedule", "schedule", SCHEDULES),
            choice("sharded", "sharded", SHARDING),
            slider("batch", "sequences a step", list(BATCHES)),
            choice("recompute", "recomputed", list(RECOMPUTE)),
            slider("price", "per device-hour", list(PRICES)),
        ]
        super().__init__(
            "model-bill", "The bill of a model", controls, {**START, **values}, PRESETS
        )

    def bill(self, values: Values) -> Bill:
        """Work out the bill from the values of the controls."""
        a = MODELS[values["model"]].architecture
        devices, batch = DEVICES[values["devices"]], BATCHES[values["batch"]]
        tp, pp = WAYS[values["tensor"]], WAYS[values["pipeline"]]
        dp = devices // (tp * pp)
        if dp == 0:
            held = f"{tp} x {pp} devices hold one copy of the model"
            raise UserError(f"{held}, and you have {devices}; use more devices")
        if batch < dp:
            message = f"{dp:,} copies of the model can't share {batch:,} sequences"
            raise UserError(f"{message}; take {dp:,} sequences or more")
        interleaved = pp > 1 and values["schedule"] == "interleaved"
        chunks = max(1, min(8, (a.n_layer + 2) // pp)) if interleaved else 1
        layout = Layout(
            dp=dp,
            tp=tp,
            pp=pp,
            ep=math.gcd(max(1, a.n_expert), dp),
            zero=SHARDING.index(values["sharded"]),
            micro_batches=batch // dp,
            chunks=chunks,
        )
        work = Workload(a, layout, training_length(a, 0), RECOMPUTE[values["recompute"]])
        device, inner, outer = CLUSTERS[values["cluster"]]
        cluster = Cluster(DATASHEET[device], LINKS[inner], LINKS[outer])
        step = simulate(work, cluster)
        seconds = step.seconds * TOKENS[values["tokens"]] / (layout.batch * work.seq)
        dollars = seconds / 3600 * devices * PRICES[values["price"]]
        return Bill(work, cluster, step, seconds, dollars, memory(work))

    def sentence(self, values: Values) -> str:
        """Format the time, the price, the memory and the bottleneck as one sentence."""
        found = self.bill(values)
        held, there = sum(found.memory.values()), found.cluster.device.memory
        fits = "fits" if held <= there else "does not fit"
        others = list(found.seconds_by_part.items())[1:]  # all but the matmuls
        kind, seconds = max(others, key=lambda part: part[1])
        share = seconds / found.step.seconds
        return (
            f"{duration(found.seconds)}, {money(found.dollars)}; "
            f"{gigabytes(held)} on a device of {gigabytes(there)}: {fits}; "
            f"after the matmuls, the most time goes to {kind} ({share:.0%} of a step)"
        )

    def view(self, values: Values) -> View:
        """Return bars of a step's time and memory, and tables of the run and its traffic."""
        found = self.bill(values)
        layout, a = found.work.layout, found.work.architecture
        hours = found.seconds / 3600 * layout.devices
        facts = [
            ("parameters", short(MODELS[values["model"]].parameters)),
            ("of these active", short(accounting.active_parameters(a))),
            ("copies of the model", f"{layout.dp:,}"),
            ("a step", f"{digits(found.step.seconds)} s, {found.step.mfu:.0%} MFU (PaLM)"),
            ("device-hours", short(hours)),
        ]
        sends = traffic.traffic(found.work)
        sent = [(kind, gigabytes(size)) for kind, size in sends.items() if size]
        sent = sent or [("nothing", "")]
        note = "The stroke is a device's memory. Below is what each device sends in a step."
        return View(
            self.sentence(values),
            bar("time of a step", found.seconds_by_part, "s")
            + bar("memory of a device", found.memory, "B", found.cluster.device.memory)
            + tag("div", note, class_="cs336-faint")
            + tag(
                "div",
                table(facts) + table(sent, ("sent for", "")),
                class_="cs336-row",
                style="gap: 50px",
            ),
        )

    def figure(self, values: Values) -> Figure:
        """Draw the step's time and a device's memory as two bars."""
        found = self.bill(values)
        title = (
            f"{values['model']}, {values['devices']} x {found.cluster.device.name}: "
            f"{duration(found.seconds)}, {money(found.dollars)}"
        )
        in_gb = {kind: size / 1e9 for kind, size in found.memory.items()}
        return plots.bill(title, found.seconds_by_part, in_gb, found.cluster.device.memory / 1e9)


def bar(name: str, parts: dict[str, float], unit: str, limit: float = 0.0) -> str:
    """Return an HTML bar of the parts with a legend, and a stroke at the limit."""
    total = sum(parts.values())
    colours = dict(zip(parts, FILLS, strict=False))

    def told(size: float) -> str:
        return gigabytes(size) if unit == "B" else digits(size) + " s"

    legend = " ".join(
        tag("span", swatch(colours[kind], f"{kind} {told(size)}"))
        for kind, size in parts.items()
        if size > 0.002 * total
    )
    words = f"{name}, {told(total)}"
    return (
        tag("div", tag("strong", words))
        + track(parts, colours, limit, words)
        + tag("div", legend, class_="cs336-row")
    )
