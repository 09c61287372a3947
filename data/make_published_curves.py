"""Copy points of published training logs into published_curves.json.

python data/make_published_curves.py CLONE, a clone of github.com/KellerJordan/modded-nanogpt.
"""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

RECORDS = "records/track_1_short"
WANTED = 24  # points of a curve
BATCH = 2**19  # tokens in a step of both runs

LOGS: dict[str, dict[str, Any]] = {
    "2024-10-13_llmc/main.log": {
        "name": "llm.c",
        "recipe": "GPT-2 124M as llm.c trains it: AdamW, peak rate 6e-4, 19,560 steps",
        "is_gpt2": True,
    },
    "2024-06-06_AdamW/f66d43d7-e449-4029-8adf-e8537bab49ea.log": {
        "name": "tuned AdamW",
        "recipe": "rotary embeddings, AdamW, peak rate 1.8e-3, 9,536 steps",
        "is_gpt2": False,
    },
}


def curve(log: str) -> list[tuple[int, float]]:
    """Return tokens and validation losses of a log in llm.c's format, at most `WANTED`."""
    found = re.findall(r"^s:(\d+) tel:([\d.]+)$", log, re.MULTILINE)
    points = [(int(step) * BATCH, round(float(loss), 4)) for step, loss in found]
    every = -(-len(points) // WANTED)
    return sorted({*points[::every], points[1], points[-1]})


def main(clone: Path) -> None:
    """Write the points of every log, with its source."""
    commit = subprocess.run(
        ["git", "-C", str(clone), "rev-parse", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.strip()
    curves = []
    for name, about in LOGS.items():
        points = curve((clone / RECORDS / name).read_text())
        where = f"https://github.com/KellerJordan/modded-nanogpt/blob/{commit}/{RECORDS}/{name}"
        curves.append({**about, "source": where, "val_loss": points})
    content = {
        "licence": "MIT, Copyright (c) 2024 Keller Jordan",
        "text": "FineWeb, the first 10,485,760 tokens of its validation shard",
        "unit": "[tokens, nats per token]",
        "curves": curves,
    }
    path = Path(__file__).with_name("published_curves.json")
    text = json.dumps(content, indent=1)
    path.write_text(re.sub(r"\[\s+(\d+),\s+([\d.]+)\s+\]", r"[\1, \2]", text) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
