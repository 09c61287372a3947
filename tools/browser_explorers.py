"""Prepare the explorers that live on the site, where JavaScript computes the answers.

All others show their stored picture there.
"""

import ast
import base64
import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

from cs336_course import widgets
from cs336_course.drawing import ruler
from cs336_course.drawing.accounting import FILLS
from cs336_course.widgets import budget, price, writing
from cs336_course.widgets.widget import Explorer, tag
from cs336_course.widgets.widget import script as viewed
from cs336_lib import accounting
from cs336_lib.bill.text import training_length
from cs336_lib.system.hardware import DATASHEET

SENT = ("kind", "title", "controls", "presets", "values", "said", "html", "problem")
WRITTEN = ("title", "presets", "scales", "config", "alphabet", "text", "written", "likeliest")
WRITTEN += ("temperature", "temperatures", "draws")
PARTS = ("python.js", "training_budget.js", "first_bill.js")


def parts_of(optimizer: str, precision: str) -> list[tuple[str, float, int]]:
    """Return the bytes per parameter by kind, and the ZeRO stage that begins to shard each kind."""

    def held(stage: int) -> dict[str, float]:
        return budget.budget(1, 1, 2, "h100", 0.5, optimizer, precision, stage, 1).bytes

    return [
        (name, size, next((stage for stage in (1, 2, 3) if held(stage)[name] < size), 4))
        for name, size in held(0).items()
    ]


def constants_of_budget(widget: Explorer) -> dict[str, Any]:
    """Return the value of each option of the controls."""
    options = {control["name"]: control["options"] for control in widget.controls}
    sheets = {name: DATASHEET[key] for name, key in budget.HARDWARE.items()}
    return {
        "parameters": budget.PARAMETERS,
        "tokens": budget.TOKENS,
        "devices": budget.DEVICES,
        "hardware": {
            name: {"peak": sheet.peak_flops["bf16"], "memory": sheet.memory}
            for name, sheet in sheets.items()
        },
        "mfu": budget.UTILISATION,
        "price": budget.PRICES,
        "parts": {
            f"{optimizer}, {precision}": parts_of(optimizer, precision)
            for optimizer, precision in product(options["optimizer"], options["precision"])
        },
        "sharded": budget.SHARDING,
        "palette": FILLS,
    }


def constants_of_first_bill(_: Explorer) -> dict[str, Any]:
    """Return the value of each option of the controls, and the things on the ruler."""
    per_token = {
        name: accounting.train_flops_per_token(model, training_length(model, 0))
        for name, model in price.MODELS.items()
    }
    return {
        "flops": per_token,
        "tokens": price.TOKENS,
        "peaks": {name: sheet.peak_flops["bf16"] for name, sheet in price.GPUS.items()},
        "counts": price.COUNTS,
        "shares": price.SHARES,
        "prices": price.PRICES,
        "things": ruler.THINGS,
        "ends": [ruler.LEFT, ruler.RIGHT],
        "size": [price.WIDTH, price.HEIGHT],
    }


CONSTANTS: dict[str, Callable[[Explorer], dict[str, Any]]] = {
    "first_bill": constants_of_first_bill,
    "training_budget": constants_of_budget,
}


def state(name: str, widget: Explorer | writing.Writer) -> dict[str, Any]:
    """Return all that a page needs to show an explorer and to compute its answers.

    Args:
        name: Name of the function that made the explorer, such as "first_bill".
        widget: The explorer.
    """
    if isinstance(widget, writing.Writer):  # its weights are a file of their own
        return {"kind": "writer", **{key: getattr(widget, key) for key in WRITTEN}}
    sent = {key: getattr(widget, key) for key in SENT}
    return {**sent, "constants": CONSTANTS[name](widget)}


def element(source: str) -> str:
    """Return the HTML of the explorer that a cell makes, or "" if it needs a kernel.

    Args:
        source: A cell such as `widgets.training_budget(devices="8")`.
    """
    try:
        call = ast.parse(source).body[-1].value
        name = call.func.attr
        arguments = [ast.literal_eval(argument) for argument in call.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (AttributeError, IndexError, SyntaxError, ValueError):
        return ""
    if name not in (*CONSTANTS, "writer"):
        return ""
    widget = getattr(widgets, name)(*arguments, **named)
    words = json.dumps(state(name, widget)).replace("<", "\\u003c")  # no </script> inside
    script = tag("script", words, type="application/json", class_="cs336-state")
    return tag("div", script, class_="cs336-live")


def script(folder: Path) -> str:
    """Join the scripts in `folder` and the explorers' own views to one that runs from a file.

    Browsers load modules only from a server, so the result isn't a module.
    """
    views = map(viewed, writing.PARTS)
    parts = [(folder / name).read_text(encoding="utf-8") for name in (*PARTS, "page.js")]
    body = "\n".join([*views, *parts])
    return f"(() => {{\n{body}}})();\n"


def weights() -> str:
    """Return the weights of the GPT that ships as a script, which a page can load from a file."""
    packed, _ = writing.packed(writing.load_shipped()[0])
    return f'cs336.receive("{base64.b64encode(packed).decode()}");\n'
