"""Draw README's moving picture: a model's loss falls while its babble becomes Shakespeare.

    python -m tools.learning_picture           # trains the run in runs/learning, and draws it
    python -m tools.learning_picture --again   # draws the recorded run again

The picture is an animated SVG. The recorded run is in data, since notebook 00 shows it, too.
"""

import argparse
import html
import json
import textwrap
from pathlib import Path
from typing import Any

from cs336_lib import GPT, TrainConfig, train
from cs336_lib.sampling import complete
from cs336_lib.training import checkpoint

PICTURE, RECORDED = Path("docs/learning.svg"), Path("data/learning_run.json")
EVERY = 20  # steps between checkpoints, so the steps shown are multiples of it
SHOWN = (0, 20, 40, 60, 100, 160, 260, 400)
RUN = TrainConfig(
    run_dir="runs/learning",
    resume=True,
    tokenizer="char",
    n_layer=4,
    n_head=4,
    n_embd=128,
    block_size=128,
    max_steps=SHOWN[-1],
    batch_tokens=32 * 128,
    micro_batch_size=32,
    optimizer="muon",
    learning_rate=1e-2,
    min_learning_rate=0.0,
    schedule="linear",
    warmup_steps=20,
    beta2=0.99,
    eval_every=EVERY,
    eval_tokens=16384,
    checkpoint_every=EVERY,
    keep_every=EVERY,
)
PROMPT, SAMPLING = "ROMEO:\n", {"max_new_tokens": 500, "temperature": 0.6, "seed": 2}

WIDTH, HEIGHT, COLUMNS, LINES = 960, 330, 50, 11  # pixels; characters of the text
LEFT, RIGHT, TOP, BOTTOM = 64, 400, 76, 282  # edges of the axes in pixels
LOSSES = (1.0, 4.5)
SECONDS, LAST = 1.8, 5.0  # that a step is shown, and that the last one is
STYLE = """
text { font: 15px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3 }
.axis { fill: #9da7b3; font-size: 13px }
.title { font: 600 19px system-ui, -apple-system, "Segoe UI", sans-serif }
.step { visibility: hidden }
.last { visibility: visible }
@media (prefers-reduced-motion: no-preference) {
  .step { animation: TOTALs step-end infinite }
  .grow { animation: TOTALs linear infinite grow }
STEPS}
"""


def record() -> dict[str, Any]:
    """Train the run, or continue it, and return its losses and what the model writes at each step.

    The losses are those of the training batches, because they exist from the first step on.
    """
    done = train(RUN)
    folder = Path(RUN.run_dir) / "checkpoints"
    texts = {}
    for step in SHOWN:
        model = GPT(RUN.model_config(done.tokenizer.vocab_size), RUN.seed)  # as the run begins
        if step:
            checkpoint.load_weights(checkpoint.path_of(folder, step) / checkpoint.MODEL, model)
        texts[step] = complete(model.eval(), done.tokenizer, PROMPT, **SAMPLING)
    losses = [round(row["train_loss"], 3) for row in done.metrics]
    return {
        "parameters": sum(p.numel() for p in done.model.parameters()),
        "val_loss": round(done.val_loss, 3),
        "losses": losses,
        "texts": texts,
    }


def place(step: int, loss: float, steps: int) -> tuple[float, float]:
    """Return where a loss is in the picture, in pixels."""
    low, high = LOSSES
    x = LEFT + (RIGHT - LEFT) * step / steps
    return round(x, 1), round(TOP + (BOTTOM - TOP) * (high - loss) / (high - low), 1)


def loss_at(losses: list[float], step: int) -> float:
    """Return the mean loss of the batches around a step, as many after it as before it."""
    reach = min(5, step, len(losses) - step)
    near = losses[step - reach : step + reach + 1]
    return sum(near) / len(near) if near else losses[-1]


def lines(text: str) -> list[str]:
    """Return the first lines of a text as they fit into the picture."""
    wrapped = [part for line in text.split("\n") for part in textwrap.wrap(line, COLUMNS) or [""]]
    return wrapped[:LINES]


def frame(number: int, step: int, run: dict[str, Any]) -> str:
    """Return what is shown at a step: its text, its place on the curve, and a line about it."""
    losses, steps = run["losses"], len(run["losses"])
    loss = loss_at(losses, step)
    x, y = place(step, loss, steps)
    last = " last" if step == SHOWN[-1] else ""
    parts = [
        f'<g class="step{last}" style="animation-name: s{number}">',
        f'<circle cx="{x}" cy="{y}" r="6" fill="#ffa657"/>',
        f'<text class="title" x="450" y="44">After {step} steps, loss {loss:.2f}</text>',
    ]
    for row, line in enumerate(lines(run["texts"][str(step)])):
        if line:
            parts.append(f'<text x="450" y="{80 + 21 * row}">{html.escape(line)}</text>')
    return "\n".join([*parts, "</g>"])


def timing(total: float, steps: int) -> str:
    """Return the keyframes: when each step is shown, and how far the curve is drawn by then.

    The curve waits while a text is read, and grows to the next step just before it is shown.
    """
    rules, grow = [], []
    for number, step in enumerate(SHOWN):
        start, end = (100 * SECONDS * n / total for n in (number, number + 1))
        end = 100 if step == SHOWN[-1] else end
        hidden = "" if number == 0 else "0% { visibility: hidden } "
        after = "" if end == 100 else f" {end:.2f}% {{ visibility: hidden }}"
        rules.append(
            f"  @keyframes s{number} {{ {hidden}{start:.2f}% {{ visibility: visible }}{after} }}"
        )
        for when in (start, end - 5):
            grow.append(f"{when:.2f}% {{ transform: scaleX({step / steps:.3f}) }}")
    rules.append(f"  @keyframes grow {{ {' '.join(grow)} 100% {{ transform: scaleX(1) }} }}")
    return "\n".join(rules) + "\n"


def draw(run: dict[str, Any]) -> str:
    """Return the SVG of a recorded run. Without animations, it shows the last step."""
    steps, total = len(run["losses"]), SECONDS * (len(SHOWN) - 1) + LAST
    style = STYLE.replace("TOTAL", f"{total:g}").replace("STEPS", timing(total, steps))
    curve = " ".join("{},{}".format(*place(i, x, steps)) for i, x in enumerate(run["losses"]))
    ticks = [
        f'<text class="axis" x="{LEFT - 12}" y="{place(0, loss, steps)[1] + 5}" '
        f'text-anchor="end">{loss}</text>'
        for loss in range(1, 5)
    ]
    about = f"A GPT with {run['parameters'] / 1e6:.1f} million parameters learns Shakespeare"
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">
<title>{about}: the loss falls, and random letters become verse.</title>
<style>{style}</style>
<clipPath id="drawn"><rect class="grow" x="{LEFT}" width="{RIGHT - LEFT}" height="{HEIGHT}"
style="transform-box: fill-box; transform-origin: left"/></clipPath>
<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="#0d1117" stroke="#30363d"/>
<text class="title" x="{LEFT - 36}" y="44">The loss of one training run</text>
{chr(10).join(ticks)}
<path d="M{LEFT},{TOP} V{BOTTOM} H{RIGHT}" fill="none" stroke="#6e7681"/>
<text class="axis" x="{LEFT}" y="{BOTTOM + 24}">0</text>
<text class="axis" x="{RIGHT}" y="{BOTTOM + 24}" text-anchor="end">{steps} steps</text>
<polyline points="{curve}" fill="none" stroke="#58a6ff" stroke-width="2"
clip-path="url(#drawn)"/>
{chr(10).join(frame(n, step, run) for n, step in enumerate(SHOWN))}
</svg>
"""


def recorded() -> dict[str, Any]:
    """Return the run that the picture shows."""
    run: dict[str, Any] = json.loads(RECORDED.read_text(encoding="utf-8"))
    return run


def main() -> None:
    """Write the picture of a run, which is trained first unless it is to be drawn again."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true", help="draw the recorded run again")
    again = parser.parse_args().again
    if not again:
        RECORDED.write_text(json.dumps(record()) + "\n", encoding="utf-8")
    run = recorded()
    PICTURE.write_text(draw(run), encoding="utf-8")
    print(f"{PICTURE}: {len(run['losses'])} steps, loss {run['val_loss']}")


if __name__ == "__main__":
    main()
