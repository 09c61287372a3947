"""Exercises of notebook 06b: what a checkpoint needs, and a training script."""

import io
import json
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.engine import Case, Exercise, edits
from cs336_course.engine.records import Record
from cs336_course.pages.reproducible_runs.script_findings import FindingError, watch
from cs336_course.shared.named_letters import named_letters, says, swapped
from cs336_lib.io import atomic

NOTEBOOK = "side_trips/reproducible_runs"


# missing_pieces

PIECES = {
    "A": "weights",
    "B": "optimizer",
    "C": "torch rng",
    "D": "data position",
    "E": "schedule",
    "F": "step",
}
CONFUSED = {
    ("A", "optimizer"): "the optimizer takes part only after the loss, and A's loss is off",
    ("A", "torch rng"): "another dropout mask changes a loss only slightly",
    ("B", "weights"): "with other weights the first loss would differ",
    ("B", "schedule"): (
        "only the first learning rate is off in B; without the schedule, the first step's rate is "
        "right and the later ones are off"
    ),
    ("C", "schedule"): "the learning rates are right in C",
    ("C", "data position"): "the batch is the same in C",
    ("C", "weights"): "a model that lost its weights would be back at ln(V)",
    ("D", "torch rng"): "dropout doesn't change the batch; batches have a separate generator",
    ("E", "optimizer"): "the first update is right in E, so AdamW's state was there",
    ("E", "step"): "the run ended where it should in E",
    ("F", "schedule"): "the learning rates are right in F",
    ("F", "data position"): "the first batch is right in F",
}


def why_not_that_piece(letter: str, name: str) -> Record:
    """Return a hint about the first thing that differs."""
    if name == PIECES[letter]:
        return {}
    why = CONFUSED.get((letter, name), "look at the first thing that differs, in time")
    return {"said": f"it isn't {name!r}: {why}."}


def attempts() -> Iterator[Case]:
    """Yield the attempts to resume a run."""
    yield from map(Case, PIECES)


missing_pieces = Exercise(
    NOTEBOOK,
    "missing_pieces",
    attempts,
    observe=named_letters(list(PIECES.values()), why_not_that_piece),
    answers=("answer",),
    is_quiz=True,
    smaller="Only AdamW's state is missing. In the first step after the resume, is the loss right? "
    "Is the update?",
    says=says(PIECES.values()),
    wrong={},
    refused=[
        swapped("weights", "torch rng"),
        swapped("optimizer", "schedule"),
        swapped("torch rng", "data position"),
        swapped("schedule", "step"),
        swapped("data position", "step"),
        swapped("weights", "optimizer"),
        'answer = dict.fromkeys("ABCDEF", "optimizer")',
        'answer = ["weights", "optimizer", "torch rng", "data position", "schedule", "step"]',
    ],
    right=[
        ('"torch rng"', '" Torch RNG "'),
        "from types import MappingProxyType\nanswer = MappingProxyType(PIECES)",
    ],
)


# training_script


def whole_run() -> Iterator[Case]:
    """Yield the one case of all runs together."""
    yield Case()


def see_script(answer: Any, case: Case) -> Record:
    """Observe a script until the first thing that is wrong.

    A script chooses its own batches and seeds, so there is no other script's record to compare.
    """
    try:
        watch(answer)
    except FindingError as error:
        return {"right": False, "said": str(error), "figures": error.figures}
    return {"right": True}


SYNCED = """        file.flush()  # from Python's buffer to the operating system
        os.fsync(file.fileno())  # from there to the disk
"""
WRITTEN = f"""    unfinished = path.with_suffix(".tmp")
    with unfinished.open("wb") as file:
        torch.save(state, file)
{SYNCED}"""
FLUSHED = ("        file.flush()  # from Python's buffer to the operating system\n", "")
IN_MEMORY = [
    (
        "        torch.save(state, file)\n",
        "        for byte in buffer.getvalue():\n            file.write(bytes([byte]))\n",
    ),
    ("    unfinished =", "    torch.save(state, buffer := io.BytesIO())\n    unfinished ="),
]
RENAMED = "    os.replace(unfinished, path)\n"
ATOMIC = WRITTEN + RENAMED
FOLDER = """    if os.name == "posix":  # the new name as well; Windows can't open a folder
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)
"""
EVALUATED_AT = [
    ("list(range(0, 16 * LENGTH, LENGTH))", "AT"),
    ("SAVE_EVERY = 8, 5", "SAVE_EVERY = 8, 5\nAT = range(0, 16 * LENGTH, LENGTH)"),
]
SCHEDULER = [
    ('    optimizer.param_groups[0]["lr"] = rate(step)\n', ""),
    (
        "    rows = []",
        "    rows = []\n    schedule = torch.optim.lr_scheduler.LambdaLR(\n"
        "        optimizer, lambda step: rate(step) / PEAK\n    )",
    ),
    ("tokens, step))", "tokens, step))\n        schedule.step()"),
]
ONE_FILE_PER_STEP = [
    (
        RENAMED,
        """    unfinished.rename(path.with_name(f"{step:02}.pt"))
    for old in sorted(path.parent.glob("*.pt"))[:-1]:
        old.unlink()
""",
    ),
    (
        "    if not path.exists():",
        "    found = sorted(path.parent.glob('*.pt'))\n    if not found:",
    ),
    ("torch.load(path,", "torch.load(found[-1],"),
]
TRYING_OLDER_FILES = [
    (ATOMIC, "    torch.save(state, path.with_name(f'{step:02}.pt'))\n"),
    (
        """    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
""",
        """    for found in sorted(path.parent.glob("*.pt"), reverse=True):
        try:
            state = torch.load(found, weights_only=True)
            break
        except Exception:
            continue
    else:
        return 0
""",
    ),
]
training_script = Exercise(
    NOTEBOOK,
    "training_script",
    whole_run,
    observe=see_script,
    answers=("train",),
    may_seed=True,
    given={
        **{module.__name__: module for module in (io, json, math, os, shutil, torch)},
        "atomic": atomic,
        **{"np": np, "F": F, "nn": nn, "Tensor": Tensor, "Path": Path},
    },
    smaller="You stop after step 9, and another process makes step 10. Which numbers does it need "
    "to make exactly the same update?",
    wrong={},
    refused=[
        edits(("= rate(step)\n", "= rate(step - 1)\n")),  # the schedule is one step late
        edits(("LOWEST = 24, 4, 1e-2, 1e-3", "LOWEST = 24, 4, 1e-2, 0.0")),  # decays to 0
        # a new seed only for every second step
        edits(("seed_of(WINDOW_SEEDS, step)", "seed_of(WINDOW_SEEDS, step // 2)")),
        # seeds that collide
        edits(("seed_of(WINDOW_SEEDS, step)", "seed_of(WINDOW_SEEDS, step % 7)")),
        # one dropout mask for the run
        edits(("    torch.manual_seed(seed_of(MASK_SEEDS, step))", "    torch.manual_seed(0)")),
        # the first micro-batch four times
        edits(("loss_of(model, inputs, targets)", "loss_of(model, x[:2], y[:2])")),
        # the first micro-batch's gradient only
        edits(("        loss.backward()", "        if not total:\n            loss.backward()")),
        # the first windows of the text in every step
        edits(("starts.tolist()", "list(range(0, WINDOWS * LENGTH, LENGTH))")),
        edits(
            ("len(tokens) - LENGTH", "6500 - LENGTH")
        ),  # a text of the same length as the first one
        edits(("return total, norm", "return loss.item(), norm")),  # the last micro-batch's loss
        # the norm of the last micro-batch
        edits(
            (
                "        loss.backward()\n",
                "        model.zero_grad()\n        loss.backward()\n",
            )
        ),
        # clips values
        edits(
            (
                "clip_grad_norm_(model.parameters(), 1.0).item()",
                "clip_grad_norm_(model.parameters(), 1e9).item()\n"
                "    nn.utils.clip_grad_value_(model.parameters(), 0.02)",
            )
        ),
        # clips every parameter
        edits(
            (
                "    norm =",
                "    for p in model.parameters():\n"
                "        nn.utils.clip_grad_norm_([p], 0.4)\n    norm =",
            )
        ),
        # Adam with decay in the gradient
        edits(
            (
                "AdamW(model.parameters(), lr=PEAK,",
                "Adam(model.parameters(), lr=PEAK, weight_decay=0.1,",
            )
        ),
        edits(("(0.9, 0.95)", "(0.95, 0.9)")),  # swapped betas
        # SGD with momentum
        edits(
            (
                "AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95))",
                "SGD(model.parameters(), lr=PEAK, momentum=0.9)",
            )
        ),
        # evaluates on other windows each time
        edits(("range(0, 16 * LENGTH, LENGTH)", "torch.randint(900, (16,)).tolist()")),
        # evaluates in fp32
        edits(
            (
                "    loss = loss_of(model, *cut_windows(held_out, ",
                "    def loss_of(model, x, y):\n"
                "        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())\n\n"
                "    loss = loss_of(model, *cut_windows(held_out, ",
            )
        ),
        # evaluates before the step
        edits(("if (step + 1) % EVALUATE_EVERY", "if step % EVALUATE_EVERY")),
        # the resumed run makes the last step again
        edits(("optimizer, step + 1)\n    return", "optimizer, step)\n    return")),
        edits((ATOMIC, "    torch.save(state, path)\n")),  # written in place
        edits((SYNCED, "")),  # the name may reach the disk before the bytes
        edits(
            (SYNCED, ""), (RENAMED, RENAMED + "    os.fsync(os.open(path, os.O_RDWR))\n")
        ),  # late
        edits(FLUSHED, *IN_MEMORY),  # the last bytes are still in Python's buffer
        # windows and dropout share their seeds
        edits(("seed_of(MASK_SEEDS, step)", "seed_of(WINDOW_SEEDS, step)")),
        edits((', "seed": SEED', "")),  # the seed isn't told
        # written in place by an open file
        edits((ATOMIC, "    with open(path, 'wb') as file:\n        torch.save(state, file)\n")),
        # copied over the old one
        edits(
            ("os.replace(unfinished, path)", "shutil.copy(unfinished, path)"),
        ),
        edits(
            (ATOMIC, "    path.unlink(missing_ok=True)\n" + ATOMIC)
        ),  # the old one is removed first
        # the whole model is pickled
        edits(
            ('"step": step}', '"step": step, "all": path}'),
            ("weights_only=True", "weights_only=False"),
        ),
        # saved only at the end
        edits(("            save(folder", "            step == 19 and save(folder")),
    ],
    right=[
        # saved generators
        edits(
            ("    torch.manual_seed(seed_of(MASK_SEEDS, step))\n", ""),
            ('"step": step}', '"step": step, "rng": torch.get_rng_state()}'),
            (
                '    return state["step"]',
                '    torch.set_rng_state(state["rng"])\n    return state["step"]',
            ),
        ),
        # zero_grad between forward and backward
        edits(
            ("    optimizer.zero_grad()\n", ""),
            (
                "        loss.backward()",
                "        if not total:\n            model.zero_grad()\n        loss.backward()",
            ),
        ),
        # gradients that are divided after the last backward
        edits(
            (" * (PIECE / WINDOWS)", ""),
            (
                "loss.item()\n    norm",
                "loss.item() / 4\n    for p in model.parameters():\n        p.grad /= 4\n    norm",
            ),
        ),
        # one backward for all micro-batches
        edits(
            ("total = 0.0", "total, sum_of = 0.0, 0.0"),
            ("        loss.backward()", "        sum_of = sum_of + loss"),
            ("    norm =", "    sum_of.backward()\n    norm ="),
        ),
        # the loss outside of autocast
        edits(
            (
                "        return F.cross_entropy(model(x)",
                "        logits = model(x)\n    return F.cross_entropy(logits",
            )
        ),
        # a scheduler that is told the step
        edits(
            *SCHEDULER,
            (
                '    for step in range(load(folder / "checkpoint.pt", model, optimizer), STEPS):',
                '    start = load(folder / "checkpoint.pt", model, optimizer)\n'
                "    schedule.last_epoch = start\n"
                "    for step in range(start, STEPS):",
            ),
        ),
        # consecutive windows
        edits(("starts.tolist()", "[(WINDOWS * step + n) * LENGTH for n in range(WINDOWS)]")),
        # consecutive windows, and again from the first one
        edits(
            (
                "starts.tolist()",
                "[(WINDOWS * step + n) % (len(tokens) // LENGTH) * LENGTH for n in range(WINDOWS)]",
            )
        ),
        # weight decay for matrices only
        edits(
            (
                "AdamW(model.parameters(), lr=PEAK,",
                "AdamW([{'params': [p], 'weight_decay': p.dim() / 9} for p in model.parameters()],"
                " eps=1e-4,",
            ),
            (
                '    optimizer.param_groups[0]["lr"] = rate(step)',
                '    for group in optimizer.param_groups:\n        group["lr"] = rate(step)',
            ),
        ),
        # an evaluation in two batches
        edits(
            *EVALUATED_AT,
            (
                "    loss = loss_of(model, *cut_windows(held_out, AT))",
                "    x, y = cut_windows(held_out, AT)\n"
                "    loss = sum(loss_of(model, x[n : n + 8], y[n : n + 8]) for n in (0, 8)) / 2",
            ),
            ("@torch.no_grad()", "@torch.inference_mode()"),
        ),
        edits(*IN_MEMORY),  # bytes in memory that are written one by one
        edits(FLUSHED),  # torch.save itself flushes the file
        # bytes that are brought to the disk by another descriptor
        edits(
            (SYNCED, ""),
            (
                RENAMED,
                "    number = os.open(unfinished, os.O_RDWR)\n    os.fsync(number)\n"
                "    os.close(number)\n" + RENAMED,
            ),
        ),
        edits((FOLDER, "")),  # a renaming that may be lost, with the old checkpoint still there
        # names that are imported from os
        edits(
            ("STEPS, WARMUP,", "from os import fsync, replace\n\nSTEPS, WARMUP,"),
            ("os.fsync(file", "fsync(file"),
            ("os.replace(", "replace("),
        ),
        # the library's atomic write
        edits(
            (
                ATOMIC,
                "    with atomic(path) as unfinished:\n        torch.save(state, unfinished)\n",
            )
        ),
        edits(*ONE_FILE_PER_STEP),  # a file for each step, of which the last one stays
        edits(*TRYING_OLDER_FILES),  # older files if the last one can't be read
        edits(("model(x)", "model.forward(x)")),  # model.forward instead of model
        # a log that is read again, up to its last whole line
        edits(
            (
                "    rows = []",
                "    rows, log = [], folder / 'log.jsonl'\n"
                "    lines = log.read_text().splitlines() if log.exists() else []\n"
                "    old = [json.loads(line) for line in lines[:-1]]\n"
                "    assert [row['step'] for row in old] == list(range(len(old)))",
            ),
            (
                "        if (step + 1) % EVALUATE_EVERY",
                "        with log.open('w' if step == 0 else 'a') as file:\n"
                "            file.write(json.dumps(rows[-1]) + '\\n')\n"
                "        if (step + 1) % EVALUATE_EVERY",
            ),
        ),
    ],
)
