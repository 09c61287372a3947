"""Turn the log of a run of notebook 09's file into hour_run.json.

python data/make_hour_run.py LOG.jsonl --date 2026-11-26 --machine "two cores" --command "..."
"""

import argparse
import json
from pathlib import Path
from typing import Any

from cs336_lib.accounting import count_parameters
from cs336_lib.config import GPTConfig


def main() -> None:
    """Keep the losses of some steps, and the samples of the stages."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("log", type=Path)
    parser.add_argument("--date", required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--command", required=True, help="with the sizes, as in --n-layer 6")
    parser.add_argument("--cooler", type=Path, help="text drawn at temperature 0.7 in the end")
    parser.add_argument("--stages", type=int, nargs="*", help="numbers of steps; default: four")
    given = parser.parse_args()
    rows = [json.loads(line) for line in given.log.read_text(encoding="utf-8").splitlines()]
    evaluated = [row for row in rows if "sample" in row]
    last = len(evaluated) - 1
    chosen = [evaluated[round(last * share)] for share in (0, 0.25, 0.5, 1)]
    if given.stages:
        chosen = [row for row in evaluated if row["step"] + 1 in given.stages]
    words = given.command.replace("=", " ").split()
    sizes: dict[str, Any] = {
        n: int(words[words.index("--" + n.replace("_", "-")) + 1])
        for n in ("n_layer", "n_head", "n_embd", "block_size")
    }
    made = {
        "date": given.date,
        "machine": given.machine,
        "seconds": round(sum(row["seconds"] for row in rows)),
        "parameters": count_parameters(GPTConfig(vocab_size=62, **sizes)),
        "command": given.command,
        "stages": [
            {"step": row["step"] + 1, "val_loss": round(row["val_loss"], 4)}
            | {"sample": row["sample"]}
            for row in chosen
        ],
        "losses": [[row["step"] + 1, round(row["loss"], 3)] for row in rows[::10]],
        "clipped": round(sum(row["grad_norm"] > 1 for row in rows) / len(rows), 3),
    }
    if given.cooler:
        made["at_temperature_0.7"] = given.cooler.read_text(encoding="utf-8").rstrip("\n")
    path = Path(__file__).with_name("hour_run.json")
    path.write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
