"""Put a GPT-2 124M beside published curves of validation losses."""

import numpy as np

from cs336_lib import formatting
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import DATA
from cs336_lib.io import read_json
from cs336_lib.report.compare import Run

PUBLISHED = DATA / "published_curves.json"

# Losses on another text of the web are higher or lower at every step, but by less than this.
OTHER_TEXT = 0.4
# The offset to the curve of the same recipe shouldn't grow by more than this after the warm-up.
GROWTH = 0.1
SETTLED = 10**9  # tokens from which curves of different warm-ups run side by side
ROWS = 8  # of the table, at most


def is_gpt2(run: Run) -> bool:
    """Return whether a run trains GPT-2 124M in GPT-2's tokens."""
    shape = GPTConfig()
    wanted = (shape.n_layer, shape.n_head, shape.n_embd, shape.block_size, "gpt2")
    config = run.config
    ours = (config.n_layer, config.n_head, config.n_embd, config.block_size, config.tokenizer)
    return ours == wanted and not config.init_from


def beside(run: Run) -> list[str]:
    """Return a judgement, and a table of losses at equal numbers of tokens.

    Losses between two points of a curve are interpolated.
    """
    content = read_json(PUBLISHED)
    curves = {one["name"]: np.array(one["val_loss"]) for one in content["curves"]}
    measured = [(row["tokens"], row["val_loss"]) for row in run.rows if "val_loss" in row]
    measured = [point for point in measured if point[0] >= SETTLED]
    if not measured:
        return [f"no reference: no validation after {formatting.short(SETTLED)} tokens yet"]
    tokens, losses = np.array(measured).T
    known = {
        name: np.interp(tokens, curve[:, 0], curve[:, 1], right=np.nan)
        for name, curve in curves.items()
    }
    chosen = np.unique(np.linspace(0, len(tokens) - 1, ROWS).astype(int))
    rows = [("tokens", "this run", *known)]
    for i in chosen:
        cells = (losses[i], *(theirs[i] for theirs in known.values()))
        rows.append((formatting.short(tokens[i]), *(f"{c:.3f}" if c == c else "-" for c in cells)))
    (same,) = (one for one in content["curves"] if one["is_gpt2"])
    offsets = (losses - known[same["name"]])[~np.isnan(known[same["name"]])]
    lines = [verdict(offsets, same["name"]), "", *formatting.table(rows), ""]
    lines += [f"{one['name']}: {one['recipe']}, {one['source']}" for one in content["curves"]]
    return [*lines, f"Their text is {content['text']}. On another text all losses shift."]


def verdict(offsets: np.ndarray, name: str) -> str:
    """Judge by how far a run lies above a curve, and whether it falls behind."""
    if not len(offsets):
        return f"no reference: {name} ended before this run's first validation"
    above, growth = offsets[-1], offsets[-1] - offsets[0]
    if abs(above) > OTHER_TEXT:
        return f"off: {above:+.2f} nats beside {name}, more than another text of the web explains"
    if growth > GROWTH:
        return f"off: it falls behind {name} by {growth:.2f} nats from its first row to its last"
    return f"normal: {above:+.2f} nats beside {name}, and {growth:+.2f} since the first row"
