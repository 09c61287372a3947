"""Train the stacks of notebook 07 at five rates, and its GPT without a part, with three seeds.

Usage: python data/make_stack_runs.py
"""

import json
from datetime import date

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.pages.gpt2_model import story
from cs336_lib.config import GPTConfig
from cs336_lib.data.corpus import shakespeare
from cs336_lib.model import GPT
from cs336_lib.training import checkpoint

RATES, SEEDS, STEPS, EVERY = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2), 3, 300, 20


def streams(model: nn.Module, idx: Tensor, way: str) -> list[Tensor]:
    """Return the stream before the first block and after each block, as in the notebook."""
    x = model.transformer.wte(idx) + model.transformer.wpe(torch.arange(idx.size(1)))
    found = [x]
    for block in model.transformer.h:
        for norm, part in ((block.ln_1, block.attn), (block.ln_2, block.mlp)):
            if "MLPs alone" in way and part is block.attn:
                continue
            if "replaces" in way:
                x = part(norm(x))
            elif way == "adds, norm before":
                x = x + part(norm(x))
            else:
                x = norm(x + part(x))
        found.append(x)
    return found


def enlarge(model: nn.Module) -> None:
    """Draw the blocks' matrices with a std of 1.5 / sqrt(inputs), for stacks without sums."""
    for parameter in model.transformer.h.parameters():
        if parameter.ndim == 2:
            nn.init.normal_(parameter, 0.0, 1.5 * parameter.size(1) ** -0.5)


class Nothing(nn.Module):
    """A part that writes nothing to the stream."""

    def forward(self, x: Tensor, cache: None = None) -> Tensor:
        """Return zeros."""
        return torch.zeros_like(x)


def without(lacks: str, seed: int) -> float:
    """Train the notebook's GPT of letters without a part; return the loss of the last 20,000."""
    _, letters = checkpoint.load_shipped()
    text = torch.from_numpy(letters.encode(shakespeare()).astype("int64"))
    torch.manual_seed(seed)
    model = GPT(GPTConfig(block_size=16, vocab_size=62, n_layer=3, n_head=4, n_embd=96), seed)
    for block in model.transformer.h:
        if lacks in ("attn", "mlp"):
            setattr(block, lacks, Nothing())
    if lacks == "wpe":
        nn.init.zeros_(model.transformer.wpe.weight.requires_grad_(False))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=2e-3, total_steps=1200)
    for _ in range(1200):
        starts = torch.randint(len(text) * 9 // 10 - 17, (32, 1))
        windows = text[starts + torch.arange(17)]
        loss = model(windows[:, :-1], windows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        logits = model(text[-20016:-1].unfold(0, 16, 1))[:, -1]
    return F.cross_entropy(logits, text[-20000:]).item()


def main() -> None:
    """Write data/stack_runs.json."""
    torch.set_num_threads(1)  # these models are too small to be shared between threads
    lost = {"nothing": "", "attention": "attn", "positions": "wpe", "MLPs": "mlp"}
    parts = {
        name: [round(without(lacks, seed), 3) for seed in range(SEEDS)]
        for name, lacks in lost.items()
    }
    print(parts, flush=True)
    runs: dict[str, dict[float, list[list[float]]]] = {}
    fair = ("replaces, larger weights", "replaces, larger weights, MLPs alone")
    for way in ("adds, norm before", "adds, norm after", "replaces", *fair):
        runs[way] = {}
        for lr in RATES:
            runs[way][lr] = []
            for seed in range(SEEDS):
                losses = story.train(
                    lambda model, idx, way=way: streams(model, idx, way),
                    12,
                    STEPS,
                    lr,
                    seed,
                    enlarge if way in fair else lambda model: None,
                )
                means = torch.tensor(losses).view(-1, EVERY).mean(1).tolist()
                runs[way][lr].append([round(mean, 3) for mean in means])
            print(way, lr, [curve[-1] for curve in runs[way][lr]], flush=True)
    about = f"12 blocks of 64, mean loss of {EVERY} steps at a time; {date.today()}"
    story.STACKS.write_text(json.dumps({"about": about, "without": parts, "runs": runs}) + "\n")


if __name__ == "__main__":
    main()
