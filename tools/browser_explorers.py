"""Prepare the explorers that live on the site, where JavaScript computes the answers.

All others show their stored picture there.
"""

import ast
import base64
import json
from pathlib import Path
from typing import Any

from cs336_course import widgets
from cs336_course.drawing import ruler
from cs336_course.widgets import price, writing
from cs336_course.widgets.widget import Explorer, tag
from cs336_course.widgets.widget import script as viewed
from cs336_lib import accounting
from cs336_lib.bill.text import training_length

SENT = ("kind", "title", "controls", "presets", "values", "said", "html", "problem")
WRITTEN = ("title", "presets", "scales", "config", "alphabet", "text", "written", "likeliest")
WRITTEN += ("temperature", "temperatures", "draws")
PARTS = ("python.js", "first_bill.js")


def constants() -> dict[str, Any]:
    """Return the value of each option of the first bill's controls, and the things on its ruler."""
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


def state(widget: Explorer | writing.Writer) -> dict[str, Any]:
    """Return all that a page needs to show an explorer and to compute its answers."""
    if isinstance(widget, writing.Writer):  # its weights are a file of their own
        return {"kind": "writer", **{key: getattr(widget, key) for key in WRITTEN}}
    sent = {key: getattr(widget, key) for key in SENT}
    return {**sent, "constants": constants()}


def element(source: str) -> str:
    """Return the HTML of the explorer that a cell makes, or "" if it needs a kernel.

    Args:
        source: A cell such as `widgets.first_bill(share="41 %")`.
    """
    try:
        call = ast.parse(source).body[-1].value
        name = call.func.attr
        arguments = [ast.literal_eval(argument) for argument in call.args]
        named = {keyword.arg: ast.literal_eval(keyword.value) for keyword in call.keywords}
    except (AttributeError, IndexError, SyntaxError, ValueError):
        return ""
    if name not in ("first_bill", "writer"):
        return ""
    widget = getattr(widgets, name)(*arguments, **named)
    words = json.dumps(state(widget)).replace("<", "\\u003c")  # no </script> inside
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
