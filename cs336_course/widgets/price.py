"""Explore the bill of a training run: its FLOPs, its time and its price."""

import math
from typing import NamedTuple

from matplotlib.figure import Figure

from cs336_course.drawing import ruler
from cs336_course.drawing.ruler import money
from cs336_course.widgets.widget import Explorer, Values, View, choice, slider, table, tag
from cs336_lib import accounting
from cs336_lib.bill.models import models
from cs336_lib.bill.text import training_length
from cs336_lib.formatting import digits, duration, short
from cs336_lib.system.hardware import DATASHEET

KEYS = ("gpt2", "gpt2-large", "gpt2-xl", "llama3-8b", "llama3-70b", "llama3-405b")
MODELS = {models()[key].title: models()[key].architecture for key in KEYS}
TOKENS = {
    short(n): n for n in (1e9, 3e9, 10e9, 30e9, 100e9, 300e9, 1e12, 3e12, 10e12, 15.6e12, 30e12)
}
GPUS = {DATASHEET[key].name: DATASHEET[key] for key in ("a100", "h100", "b200")}
COUNTS = {f"{2**k:,}": 2**k for k in range(15)}
SHARES = {f"{percent} %": percent / 100 for percent in (10, 20, 30, 41, 50, 60, 80, 100)}
PRICES = {f"${price:.2f}": price for price in (0.5, 1, 1.5, 2, 2.5, 3, 3.5, 4, 5, 6, 8, 10)}
PRESETS = {  # none sets the share of the peak, which notebook 00 asks about
    "GPT-2": {"model": "GPT-2 124M", "tokens": "10B", "gpus": "8"},
    "Llama 3 70B": {"model": "Llama 3 70B", "tokens": "15.6T"},
    "Llama 3.1 405B": {"model": "Llama 3.1 405B", "tokens": "15.6T", "gpus": "16,384"},
}
WIDTH, HEIGHT = 640, 104  # of the ruler, in SVG units
START = {
    "model": models()["gpt2"].title,
    "tokens": "10B",
    "gpu": DATASHEET["h100"].name,
    "gpus": "8",
    "share": "100 %",
    "price": "$3.50",
}


class Cost(NamedTuple):
    """What a run costs."""

    flops: float
    seconds: float
    gpu_hours: float
    dollars: float


def cost(values: Values) -> Cost:
    """Work out the bill from the values of the controls."""
    model, gpu = MODELS[values["model"]], GPUS[values["gpu"]]
    per_token = accounting.train_flops_per_token(model, training_length(model, 0))
    flops = per_token * TOKENS[values["tokens"]]
    count, share = COUNTS[values["gpus"]], SHARES[values["share"]]
    seconds = accounting.training_seconds(flops, count, gpu.peak_flops["bf16"], share)
    gpu_hours = seconds / 3600 * count
    return Cost(flops, seconds, gpu_hours, gpu_hours * PRICES[values["price"]])


class FirstBill(Explorer):
    """Explore what a training run costs.

    By default, GPT-2 124M reads 10B tokens on eight H100s that always run at their peak. `values`
    overrides the initial values of controls, as in `first_bill(share="41 %")`.

    It has the controls `model`, `tokens`, `gpu`, `gpus`, `share` and `price`. The ruler is one
    `svg`, and the run's mark on it has the class `.cs336-run`.
    """

    def __init__(self, **values: str):
        controls = [
            choice("model", "model", list(MODELS)),
            slider("tokens", "tokens", list(TOKENS)),
            choice("gpu", "GPU", list(GPUS)),
            slider("gpus", "GPUs", list(COUNTS)),
            slider("share", "share of the peak", list(SHARES)),
            slider("price", "per GPU-hour", list(PRICES)),
        ]
        super().__init__(
            "first-bill", "The bill of a training run", controls, {**START, **values}, PRESETS
        )

    def sentence(self, values: Values) -> str:
        """Format the run, its time and its price as one sentence."""
        found = cost(values)
        run = f"{values['model']} on {values['tokens']} tokens"
        return f"{run}: {duration(found.seconds)}, {money(found.dollars)}"

    def view(self, values: Values) -> View:
        """Return the price on a ruler, and the steps of the calculation as a table."""
        found = cost(values)
        sheet = GPUS[values["gpu"]]
        rate = COUNTS[values["gpus"]] * sheet.peak_flops["bf16"] * SHARES[values["share"]]
        rows = [
            ("work", f"{digits(found.flops)} FLOPs"),
            ("speed", f"{digits(rate)} FLOP/s"),
            ("time = work / speed", duration(found.seconds)),
            ("GPU-hours", short(found.gpu_hours)),
            ("price", money(found.dollars)),
        ]
        return View(self.sentence(values), drawing(found.dollars) + table(rows))

    def figure(self, values: Values) -> Figure:
        """Draw the price on the same ruler."""
        run = f"{values['model']}, {values['tokens']} tokens"
        count, share = values["gpus"], values["share"]
        title = (
            f"{count} x {values['gpu']} at {share} of the peak, {values['price']} per GPU-hour: "
            f"{duration(cost(values).seconds)}"
        )
        return ruler.price_ruler(run, cost(values).dollars, title)


def place(dollars: float) -> float:
    """Return the x coordinate of an amount on the ruler."""
    low, high = math.log10(ruler.LEFT), math.log10(ruler.RIGHT)
    inside = min(max(math.log10(dollars), low), high)
    return WIDTH * (inside - low) / (high - low)


def drawing(dollars: float, run: str = "") -> str:
    """Draw a logarithmic ruler with everyday prices and the mark of a run, as SVG."""
    parts = [
        tag("rect", width=WIDTH, height=HEIGHT, fill="white"),
        tag("path", d=f"M 0 48 H {WIDTH}", stroke="black", stroke_width=2),
    ]
    for name, price in ruler.THINGS.items():
        x = f"{place(price):.1f}"
        parts.append(tag("path", d=f"M {x} 40 v 16", stroke="black", stroke_width=2))
        parts.append(tag("text", name, x=x, y=74, text_anchor="middle", font_size=14))
        parts.append(tag("text", money(price), x=x, y=90, text_anchor="middle", font_size=12))
    x = f"{place(dollars):.1f}"
    mark = f"M {x} 46 l -9 -18 h 18 z"
    parts.append(tag("path", d=mark, class_="cs336-run"))
    parts.append(
        tag(
            "text",
            run + money(dollars),
            x=f"{min(max(place(dollars), 40), WIDTH - 40):.1f}",
            y=20,
            text_anchor="middle",
            font_size=16,
            font_weight="bold",
        )
    )
    size = {"viewBox": f"0 0 {WIDTH} {HEIGHT}", "width": WIDTH, "height": HEIGHT}
    said = f"{run}{money(dollars)} on a ruler from a coffee to an airliner"
    return tag("svg", "".join(parts), role="img", aria_label=said, **size)
