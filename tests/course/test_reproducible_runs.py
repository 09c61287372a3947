"""Notebook 06b's exercises: what is said about a training script, and about each letter."""

import os
from pathlib import Path

import nbformat
import pytest

from cs336_course.engine.judge import diagnose
from cs336_course.pages.reproducible_runs import exercises as exercises
from cs336_course.pages.reproducible_runs.exercises import (
    ATOMIC,
    EVALUATED_AT,
    FLUSHED,
    FOLDER,
    IN_MEMORY,
    RENAMED,
    SCHEDULER,
    SYNCED,
)

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "side_trips/reproducible_runs.ipynb"


def found(exercise, answer):
    """The diagnosis of an answer."""
    return diagnose(exercise, list(exercise.records(answer)))


@pytest.mark.parametrize(
    ("letter", "name", "said"),
    [
        ("A", "optimizer", "A's loss is off"),
        ("A", "torch rng", "another dropout mask changes a loss only slightly"),
        ("B", "schedule", "B: it isn't 'schedule': only the first learning rate is off in B"),
        ("B", "weights", "with other weights the first loss would differ"),
        ("C", "schedule", "the learning rates are right in C"),
        ("C", "data position", "the batch is the same in C"),
        ("D", "torch rng", "dropout doesn't change the batch"),
        ("E", "step", "the run ended where it should in E"),
        ("F", "data position", "the first batch is right in F"),
        ("F", "weights", "look at the first thing that differs"),
        ("A", "gradients", "A: it isn't one of weights"),
        ("A", 3, "A: it isn't one of weights"),
        ("D", ..., "D: it has no answer yet"),
    ],
)
def test_a_wrong_piece_gets_a_hint(letter, name, said):
    assert said in found(exercises.missing_pieces, exercises.PIECES | {letter: name}).said


SEEDED_ONCE = [
    ("SAVE_EVERY = 8, 5", "SAVE_EVERY = 8, 5\nGENERATOR = torch.Generator()"),
    ("torch.Generator().manual_seed(seed_of(WINDOW_SEEDS, step))", "GENERATOR"),
    ("    rows = []", "    rows = []\n    GENERATOR.manual_seed(0)"),
]
TWO_FILES = [
    (
        ATOMIC,
        """    for part in ("model", "optimizer"):
        with atomic(path.with_name(f"{part}.pt")) as unfinished:
            torch.save(state | {part: None}, unfinished)
""",
    ),
    (
        """    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
""",
        """    if not path.with_name("model.pt").exists():
        return 0
    state = torch.load(path.with_name("model.pt"), weights_only=True)
    state["model"] = torch.load(path.with_name("optimizer.pt"), weights_only=True)["model"]
""",
    ),
]
# The diagnosis, and edits of the printed solution
MISTAKES = {
    "your function returns None": [("    return rows", "    rows.clear()")],
    "returns 23 rows": [("    return rows", "    return rows[1:]")],
    "row [0] has no 'lr'": [('"lr": rate(step), ', "")],
    "changes the tokens that it gets": [("    rows = []\n", "    rows = []\n    tokens += 1\n")],
    "instead of 24": [("    optimizer.step()", "    optimizer.step(), optimizer.step()")],
    "must go through 4 micro-batches": [
        ("x.split(PIECE), y.split(PIECE)", "x.split(8), y.split(8)")
    ],
    "trains on the held-out tokens": [("optimizer, tokens, step))", "optimizer, held_out, step))")],
    "trains in eval mode": [("    model.train()\n", "")],
    "isn't in bf16": [("dtype=torch.bfloat16", "dtype=torch.bfloat16, enabled=False")],
    "the targets are the inputs": [("both[:, :-1], both[:, 1:]", "both[:, :-1], both[:, :-1]")],
    "the targets aren't the tokens": [("both[:, :-1], both[:, 1:]", "both[:, 1:], both[:, :-1]")],
    "isn't 32 consecutive tokens": [("rows.astype(np.int64)", "np.sort(rows).astype(np.int64)")],
    "the last target of a window isn't the token after it": [
        ("both[:, :-1], both[:, 1:]", "both[:, :-1], both[:, :-1].roll(-1, 1)")
    ],
    "a token counts 4.0": [(" * (PIECE / WINDOWS)", "")],
    "don't count equally": [
        (" * (PIECE / WINDOWS)", " * (PIECE / WINDOWS if total else 0.5)"),
    ],
    "micro-batches of step 0 are the same two windows": [
        (
            "    x, y = batch(tokens, step)",
            "    x, y = (t[:2].repeat(4, 1) for t in batch(tokens, step))",
        )
    ],
    "begins with old gradients": [("    optimizer.zero_grad()\n", "")],
    "uses the gradient of its last micro-batch only": [
        ("        loss.backward()", "        model.zero_grad(), loss.backward()")
    ],
    "isn't the sum of the micro-batches' gradients": [
        (
            "        total +=",
            "        nn.utils.clip_grad_norm_(model.parameters(), 0.2)\n        total +=",
        )
    ],
    "the model isn't called before the optimizer's step 0": [
        ("    for inputs, targets in zip(", "    for inputs, targets in [] and zip(")
    ],
    "your optimizer is Adam, not AdamW": [("torch.optim.AdamW", "torch.optim.Adam")],
    "the folder is empty during the whole run": [
        ('folder / "checkpoint.pt"', 'folder.parent / "checkpoint.pt"')
    ],
    "gets no gradient at step 0": [
        ("    optimizer.step()", "    optimizer.zero_grad()\n    optimizer.step()")
    ],
    "'loss' of row [0] holds the graph": [("total += loss.item()", "total = total + loss")],
    "reads the batch of step 0 again": [
        ("manual_seed(seed_of(WINDOW_SEEDS, step))\n    starts", "manual_seed(0)\n    starts"),
    ],
    "step 1 reads the batch of step 0": [
        ("seed_of(WINDOW_SEEDS, step)", "seed_of(WINDOW_SEEDS, step // 2)"),
    ],
    "the same mask for two micro-batches": [
        (
            "        loss = loss_of(model, inputs",
            "        torch.manual_seed(0)\n        loss = loss_of(model, inputs",
        )
    ],
    "the same mask in steps 0 and 1": [
        ("torch.manual_seed(seed_of(MASK_SEEDS, step))", "torch.manual_seed(0)")
    ],
    "Your cosine is one step late": [
        ("progress = (step - WARMUP + 1)", "progress = (step - WARMUP)")
    ],
    "from step 3 to step 23; yours takes 21": [("/ (STEPS - WARMUP)", "/ (STEPS - WARMUP + 1)")],
    "Your warm-up counts from 0": [("PEAK * (step + 1)", "PEAK * step")],
    "step 23 has the wrong learning rate": [
        ("= rate(step)\n", "= rate(step) if step < 23 else 0.0\n")
    ],
    "Your schedule is one step late": [("= rate(step)\n", "= rate(step - 1) if step else 0.0\n")],
    "Your cosine falls to 0": [("return LOWEST + (PEAK - LOWEST)", "return PEAK")],
    "Only what is above 1e-3 falls": [("(PEAK - LOWEST)", "PEAK")],
    "That is a straight line": [("(1 + math.cos(math.pi * progress)) / 2", "(1 - progress)")],
    "Your schedule advances with every micro-batch": [
        ("= rate(step)\n", "= rate(min(4 * step, 23))\n")
    ],
    "Your rate stays at the peak": [
        ("if step < WARMUP:", "if step >= WARMUP:\n        return PEAK\n    if True:")
    ],
    "your parameter groups have different learning rates": [
        ("AdamW(model.parameters(),", "AdamW([{'params': [p]} for p in model.parameters()],")
    ],
    "autocast is still on at optimizer.step()": [
        ("    optimizer.step()", "    with torch.autocast('cpu'):\n        optimizer.step()")
    ],
    "the weights must stay in float32": [
        ("    rows = []", "    rows, model = [], model.bfloat16()")
    ],
    "doesn't get 4.weight, 4.bias": [
        ("AdamW(model.parameters(),", "AdamW(model[:4].parameters(),")
    ],
    "clip it to 1.0": [("model.parameters(), 1.0)", "model.parameters(), 9.0)")],
    "is clipped to less than 1.0": [("model.parameters(), 1.0)", "model.parameters(), 0.5)")],
    "changes, though its norm is below 1.0": [
        (
            "    optimizer.step()",
            "    [p.grad.mul_(1 / norm if norm < 1 else 1) for p in model.parameters()]\n"
            "    optimizer.step()",
        )
    ],
    "logs another learning rate": [('"lr": rate(step)', '"lr": rate(step + 1)')],
    "log the norm before clipping": [('"grad_norm": norm', '"grad_norm": min(norm, 1.0)')],
    "it isn't the gradient's norm": [('"grad_norm": norm', '"grad_norm": norm**2')],
    "that is the loss of the last micro-batch": [
        ("return total, norm", "return 4 * loss.item(), norm")
    ],
    "a fourth of the last micro-batch's loss": [("total += loss", "total = loss")],
    "that is the sum of the micro-batches' losses": [('"loss": total', '"loss": 4 * total')],
    "you divide twice": [('"loss": total', '"loss": total / 4')],
    "isn't the mean over the 8 windows": [("total = 0.0", "total = 1.0")],
    "your optimizer is SGD": [
        (
            "torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95))",
            "torch.optim.SGD(model.parameters(), lr=PEAK)",
        )
    ],
    "AdamW's betas are (0.9, 0.999)": [(", betas=(0.9, 0.95)", "")],
    "isn't AdamW's with betas": [("betas=(0.9, 0.95))", "betas=(0.9, 0.95), amsgrad=True)")],
    "held-out tokens must be read after": [
        ("EVALUATE_EVERY, SAVE_EVERY = 8", "EVALUATE_EVERY, SAVE_EVERY = 6")
    ],
    "runs with dropout": [("    model.eval()\n", "")],
    "the evaluation's forward pass isn't in bf16": [
        (
            "    loss = loss_of(model, *cut_windows(",
            "    def loss_of(model, x, y):\n"
            "        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())\n\n"
            "    loss = loss_of(model, *cut_windows(",
        )
    ],
    "An unfinished checkpoint.tmp may be left in the folder. Don't load it": [
        (
            "    if not path.exists():",
            "    found = sorted(path.parent.glob('checkpoint*'))\n    if not found:",
        ),
        ("torch.load(path,", "torch.load(found[-1],"),
    ],
    "keeps a graph": [("@torch.no_grad()\n", "")],
    "val_loss must be in the rows": [('rows[-1]["val_loss"] = evaluate', "evaluate")],
    "val_loss is None": [("    return loss.item()\n\n\ndef save", "\n\ndef save")],
    "reads 17 windows": [("16 * LENGTH", "17 * LENGTH")],
    "the windows that begin at 0, 32": [("range(0, 16 * LENGTH, LENGTH)", "range(16)")],
    "windows have [(8, 64)] ids": [
        *EVALUATED_AT,
        (
            "*cut_windows(held_out, AT)",
            "*(t.reshape(8, 64) for t in cut_windows(held_out, AT))",
        ),
    ],
    "val_loss compares with the inputs": [
        *EVALUATED_AT,
        ("*cut_windows(held_out, AT)", "*[cut_windows(held_out, AT)[0]] * 2"),
    ],
    "val_loss is a sum": [("    return loss.item()\n", "    return loss.item() * 16\n")],
    "val_loss is a perplexity": [
        ("    return loss.item()\n", "    return math.exp(loss.item())\n")
    ],
    "val_loss isn't the mean loss": [("    return loss.item()\n", "    return loss.item() + 1\n")],
    "after 8 steps, an evaluation reads training tokens": [
        ("evaluate(model, held_out)\n        if", "evaluate(model, tokens)\n        if")
    ],
    "right for one text, but not for another of 3000 and 600 tokens": [
        ("randint(len(tokens) - LENGTH", "randint(6500 - LENGTH")
    ],
    "the folder is empty": [("            save(", "            (")],
    "doesn't load with weights_only=True": [('"step": step}', '"step": step, "path": path}')],
    "checkpoint.bin doesn't load with weights_only=True": [
        ('"step": step}', '"step": step, "path": path}'),
        ("checkpoint.pt", "checkpoint.bin"),
        ("weights_only=True", "weights_only=False"),
    ],
    "resumes at step 11": [("optimizer, step + 1)", "optimizer, step + 2)")],
    "resumes at step 0": [('load(folder / "checkpoint.pt"', 'load(folder / "model.pt"')],
    "your run makes 24 steps": [
        ("STEPS):", "STEPS + load(folder / 'checkpoint.pt', model, optimizer)):")
    ],
    "aren't those of the checkpoint": [('    model.load_state_dict(state["model"])\n', "")],
    "reads another batch after the resume": SEEDED_ONCE,
    "dropout draws other numbers": [("    torch.manual_seed(seed_of(MASK_SEEDS, step))\n", "")],
    "step 11 has another learning rate after the resume": SCHEDULER,
    "makes another update": [('    optimizer.load_state_dict(state["optimizer"])\n', "")],
    "while checkpoint.pt was being written, and your run can't resume": [
        (ATOMIC, "    torch.save(state, path)\n")
    ],
    "after a file was removed, and your run begins again with step 0": [
        (ATOMIC, "    path.unlink(missing_ok=True)\n" + ATOMIC)
    ],
    "after a file was renamed, and the resumed run ends with other weights": TWO_FILES,
    "after checkpoint.pt was renamed, and before its bytes were on the disk": [(SYNCED, "")],
    "Flush the file and os.fsync it": [FLUSHED, *IN_MEMORY],
    "row [0] has no 'seed'": [(', "seed": SEED', "")],
    "every row says the same one": [('"seed": SEED', '"seed": step')],
    "dropout and the windows use the same random numbers": [
        ("seed_of(MASK_SEEDS, step)", "seed_of(WINDOW_SEEDS, step)")
    ],
}


@pytest.mark.parametrize("said", MISTAKES)
def test_what_is_wrong_with_a_script_is_said(said):
    script = exercises.training_script.run(exercises.training_script.edited(MISTAKES[said]))
    assert said.lower() in found(exercises.training_script, script).said.lower()


def test_a_run_that_catches_everything_is_noticed():
    caught = "    try:\n        optimizer.step()\n    except BaseException:\n        pass\n"
    script = exercises.training_script.build(("    optimizer.step()\n", caught))
    assert "don't catch every exception" in found(exercises.training_script, script).said


def test_a_lost_renaming_is_allowed():
    script = exercises.training_script.build((FOLDER, ""))
    assert found(exercises.training_script, script) is None


def test_names_that_a_script_imports_are_its_own_again():
    code = exercises.training_script.edited(
        [
            ("STEPS, WARMUP,", "from os import fsync, replace\n\nSTEPS, WARMUP,"),
            (RENAMED, "    replace(unfinished, path)\n"),
        ]
    )
    script = exercises.training_script.run(code)
    assert found(exercises.training_script, script) is None
    assert script.__globals__["replace"] is os.replace


def test_the_given_functions_stand_in_the_solution_too():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    given = [c.source for c in cells if c.source.startswith(("STEPS, WARMUP", "def loss_of("))]
    assert len(given) == 2
    assert all(source in exercises.training_script.solution for source in given)
