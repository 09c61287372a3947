"""Train the stacks of notebook 07 at five rates with three seeds.

Usage: python data/make_stack_runs.py
"""

import json
from datetime import date

import torch
from torch import Tensor, nn

from cs336_course.pages.gpt2_model import story

RATES, SEEDS, STEPS, EVERY = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), 3, 300, 20


def streams(model: nn.Module, idx: Tensor, way: str) -> list[Tensor]:
    """Return the stream before the first block and after each block, as in the notebook."""
    x = model.transformer.wte(idx) + model.transformer.wpe(torch.arange(idx.size(1)))
    found = [x]
    for block in model.transformer.h:
        for norm, part in ((block.ln_1, block.attn), (block.ln_2, block.mlp)):
            if way == "replaces":
                x = part(norm(x))
            elif way == "adds, norm before":
                x = x + part(norm(x))
            else:
                x = norm(x + part(x))
        found.append(x)
    return found


def main() -> None:
    """Write data/stack_runs.json."""
    torch.set_num_threads(1)  # these models are too small to be shared between threads
    runs: dict[str, dict[float, list[list[float]]]] = {}
    for way in ("adds, norm before", "adds, norm after", "replaces"):
        runs[way] = {}
        for lr in RATES:
            runs[way][lr] = []
            for seed in range(SEEDS):
                losses = story.train(
                    lambda model, idx, way=way: streams(model, idx, way), 12, STEPS, lr, seed
                )
                means = torch.tensor(losses).view(-1, EVERY).mean(1).tolist()
                runs[way][lr].append([round(mean, 3) for mean in means])
            print(way, lr, [curve[-1] for curve in runs[way][lr]], flush=True)
    about = f"12 blocks of 64, mean loss of {EVERY} steps at a time; {date.today()}"
    story.STACKS.write_text(json.dumps({"about": about, "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
