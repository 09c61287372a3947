"""Write the web page and the model card of a training run."""

import dataclasses
import re
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from cs336_lib import accounting, formatting
from cs336_lib.config import CHANGEABLE, PATHS, UserError
from cs336_lib.data.tokenizer import tokenizer_of
from cs336_lib.io import Log, digest, inside, printable, read_json
from cs336_lib.report import palette
from cs336_lib.report.runs import Run, judge, outcome, read_run
from cs336_lib.training import run_folder
from cs336_lib.training.metrics import troubles

MOST_SAMPLES = 20  # on the page; the newest ones

MOST_DEVICES = 10**6

# The policy forbids every request, whatever a damaged run folder contains.
POLICY = "default-src 'none'; style-src 'unsafe-inline'"

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #5a5a5a;
  --line: #d5d5d5; --box: #f5f6f8; }
@media (prefers-color-scheme: dark) { :root { --ink: #ececec; --paper: #16181c; --soft: #a9adb5;
  --line: #3b3f46; --box: #20242a; } }
body { margin: 0 auto; max-width: 68rem; padding: 1.5rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
h1 { margin: 0; line-height: 1.2; } h2 { margin: 2.2rem 0 .6rem; }
p { margin: .4rem 0; } .soft { color: var(--soft); }
.tiles, .curves { display: grid; gap: 1rem; margin: 0; padding: 0; list-style: none; }
.tiles { grid-template-columns: repeat(auto-fit, minmax(10rem, 1fr)); margin-top: 1.2rem; }
.tiles li { background: var(--box); border-radius: .5rem; padding: .6rem .9rem; }
.tiles b { display: block; font-size: 1.35rem; }
.curves { grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr)); }
svg { width: 100%; height: auto; color: var(--ink); }
table { border-collapse: collapse; width: 100%; }
th, td { border-bottom: 1px solid var(--line); padding: .25rem .8rem .25rem 0; text-align: left; }
th { font-weight: normal; color: var(--soft); width: 16rem; vertical-align: top; }
pre { background: var(--box); border-radius: .5rem; padding: .7rem .9rem; white-space: pre-wrap; }
.alert { border-left: .3rem solid var(--cs336-red); background: var(--box); padding: .5rem .9rem; }
summary { cursor: pointer; }
"""


def read(folder: Path) -> tuple[Run, dict[str, Any]]:
    """Read a run, and the hardware and software that it recorded.

    A run of an older version recorded no environment, so the second result may be empty.

    Raises:
        FileNotFoundError: If the folder, config.json or metrics.jsonl doesn't exist.
        UserError: If a file is corrupt or contains no finished step.
    """
    run = read_run(folder)
    path = inside(folder, run_folder.ENVIRONMENT)
    environment = read_json(path) if path.exists() else {}
    if environment.pop("sha256", digest(environment)) != digest(environment):
        print(f"{path}: not as it was written", file=Log())
    devices = environment.get("devices", 1)
    if type(devices) is not int or not 1 <= devices <= MOST_DEVICES:
        raise UserError(f"{path}: devices is {devices!r:.40}; a number of devices expected")
    return run, environment


def costs(run: Run, environment: dict[str, Any], price: float | None = None) -> dict[str, str]:
    """Format the compute, the device hours and the price of a run.

    Args:
        run: The run. Only the time of its training steps counts.
        environment: What the run recorded. Without it, the run counts as one device.
        price: Dollars for one device and hour.
    """
    hours = sum(row["step_ms"] for row in run.rows) / 3.6e6
    devices = environment.get("devices", 1)
    found = {}
    if tokenizer := tokenizer_of(Path(run.name)):  # without it, the vocabulary is unknown
        model = run.config.model_config(tokenizer.vocab_size)
        flops = accounting.train_flops_per_token(model) * run.rows[-1]["tokens"]
        found["parameters"] = f"{accounting.count_parameters(model):,}"
        found["training FLOPs (as in PaLM)"] = f"{flops:.2e}"
    found["time in steps"] = formatting.duration(hours * 3600)
    kind = "CPU" if str(environment.get("device", "")).startswith("CPU") else "GPU"
    if not environment:
        kind = "device"
    found[f"{kind} hours"] = f"{hours * devices:,.3g} ({devices:,} x {hours:,.3g} hours)"
    if price is not None:
        dollars = hours * devices * price
        found["cost"] = (
            f"${dollars:,.{2 if dollars >= 1 else 6}f} at ${price:g} per {kind} and hour"
        )
    return found


def page(
    run: Run,
    environment: dict[str, Any],
    figures: Sequence[tuple[str, str]],
    price: float | None = None,
) -> str:
    """Return a web page about a run, which makes no requests.

    Args:
        run: A finished or unfinished run from `read`.
        environment: What the run recorded about its machine.
        figures: SVG and alternative text of each figure.
        price: Dollars for one device and hour, or `None` to leave the price out.
    """
    name = escape(run.name)
    config = dataclasses.asdict(run.config)
    finished = run.rows[-1]["step"] + 1 >= run.config.max_steps
    found = troubles(run.rows)
    trouble = f'<p class="alert">Worth a look: {escape(found)}.</p>' if found else ""
    missing = "" if environment else "<p>This run didn't record its environment.</p>"
    curves = (
        svg.replace("<svg ", f'<svg role="img" aria-label="{escape(alt)}" ', 1)
        for svg, alt in figures
    )
    results = outcome(run).items()
    tiles = (f"<li>{escape(name)}<b>{escape(value)}</b></li>" for name, value in results)
    prices = (
        "The time leaves out validation, checkpoints and steps that were repeated after a kill."
    )
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<title>Run {name}</title>
<style>{palette.CSS}{STYLE}</style>
</head>
<body>
<main>
<h1>{name}</h1>
<p class="soft">{"Finished" if finished else "Unfinished"} training run</p>
<ul class="tiles">{"".join(tiles)}</ul>
{trouble}
<p class="soft">Beside the reference: {escape(judge(run).line)}</p>
<h2>Curves</h2>
<div class="curves">{"".join(curves)}</div>
{samples(run)}
<h2>Cost</h2>
{html_table(costs(run, environment, price))}
<p class="soft">{prices}</p>
<h2>Environment</h2>
{missing or html_table(environment)}
<h2>Config</h2>
<details><summary>All {len(config)} settings</summary>{html_table(config)}</details>
</main>
</body>
</html>
"""


def html_table(values: dict[str, Any]) -> str:
    """Return a table of names and values."""
    rows = (
        f'<tr><th scope="row">{escape(str(name))}</th><td>{escape(str(value)) or "-"}</td></tr>'
        for name, value in values.items()
    )
    return f"<table>{''.join(rows)}</table>"


def samples(run: Run) -> str:
    """Return the newest sample, and the ones before it in a part that can be opened."""
    found = [(row["step"] + 1, row["sample"]) for row in run.rows if "sample" in row]
    if not found:
        return ""
    texts = [
        f"<p>After step {step:,}</p><pre>{escape(text)}</pre>"
        for step, text in reversed(found[-MOST_SAMPLES:])
    ]
    older = f"<details><summary>Earlier samples</summary>{''.join(texts[1:])}</details>"
    return f"<h2>Samples</h2>{texts[0]}{older if texts[1:] else ''}"


# Settings that describe the machine or a place on it, not the recipe.
PRIVATE = (*CHANGEABLE, *PATHS)


def model_card(run_dir: Path) -> str:
    """Write the README.md of an exported run for the Hugging Face hub.

    Paths are left out, because a card is public.

    Args:
        run_dir: Folder of the run. Without config.json or metrics.jsonl, the recipe or the metrics
            are left out.

    Raises:
        UserError: If a file of the run is corrupt.
    """
    data = "Not described. Say here what the data is, where it comes from, and its licence."
    recipe = metrics = "Not recorded."
    if (run_dir / run_folder.METRICS).exists():
        run, environment = read(run_dir)
        if not run.config.train_data:
            data = "37 plays of Shakespeare, as they ship with cs336-lib, in the public domain."
        fields = dataclasses.asdict(run.config).items()
        recipe = code({name: value for name, value in fields if name not in PRIVATE})
        metrics = code(outcome(run) | costs(run, environment))
    return f"""---
library_name: transformers
pipeline_tag: text-generation
---

# {markdown(run_dir.resolve().name)}

A GPT-2 trained with [cs336-lib](https://github.com/YOUR_NAME/cs336-lib).

## Load

    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained("FOLDER_OR_NAME")
    tokenizer = AutoTokenizer.from_pretrained("FOLDER_OR_NAME")

## Data

{data}

## Recipe

{recipe}

## Metrics

Losses are in nats per token.

{metrics}

## Licence

Not stated. Ask the author before you use the model.

## Limits

The model continues text. It wasn't trained to follow instructions or to answer questions, and no
filter keeps it from false, offensive or memorized text. It only knows the kind of text that it was
trained on.
"""


def code(values: dict[str, Any]) -> str:
    """Return names and values as a code block in Markdown, one per line."""
    lines = (" ".join(f"{name}: {value}".split()) for name, value in values.items())
    return "\n".join(f"    {line}" for line in lines)


def markdown(text: str) -> str:
    """Return a text as one line in which Markdown and HTML have no meaning."""
    line = printable(" ".join(text.split()))
    return re.sub(r"([\\`*_{}\[\]<>()#+!|~-])", r"\\\1", line)
