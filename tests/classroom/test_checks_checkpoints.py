"""Notebook 06b's checks: typical mistakes by their diagnosis, right answers."""

import re
from pathlib import Path

import nbformat
import pytest
from verdicts import assert_untouched, assert_verdicts, verdict

from cs336_lib.classroom import bug_hunt
from cs336_lib.classroom.checks import checkpoints as checks

NOTEBOOK = Path(__file__).parents[2] / "notebooks" / "06b_reproducible_runs.ipynb"


def test_untouched_stubs():
    pieces, cases = dict.fromkeys("ABCDEF", ...), dict.fromkeys("ABCDEFGHIJ", ...)
    names = ("missing_pieces", "training_script", "bug_hunt")
    assert_untouched(checks, names, missing_pieces=pieces, bug_hunt=cases)


# missing_pieces

RIGHT = {
    "A": "weights",
    "B": "optimizer",
    "C": "torch rng",
    "D": "data position",
    "E": "schedule",
    "F": "step",
}


def test_missing_pieces():
    cases = [
        ({}, "passed"),
        ({"B": "schedule"}, "only the first learning rate is off in B"),
        ({"C": "data position"}, "the batch is the same in C"),
        ({"D": "torch rng"}, "dropout doesn't change the batch"),
        ({"E": "step"}, "the run ended where it should in E"),
        ({"F": "weights"}, "look at the first thing that differs"),
        ({"A": "gradients"}, "is not one of weights"),
        ({"D": ...}, "D has no answer yet"),
    ]
    assert_verdicts(checks.missing_pieces, [(RIGHT | changes, text) for changes, text in cases])


# training_script

MISTAKES = {
    "your function returns None": ("    return rows", "    rows.clear()"),
    "returns 23 rows": ("    return rows", "    return rows[1:]"),
    "row [0] has no 'lr'": ('"lr": rate(step), ', ""),
    "instead of 24": ("    optimizer.step()", "    optimizer.step(), optimizer.step()"),
    "must go through 4 micro-batches": ("x.split(PIECE), y.split(PIECE)", "x.split(8), y.split(8)"),
    "trains in eval mode": ("    model.train()\n", ""),
    "isn't in bf16": ("dtype=torch.bfloat16", "dtype=torch.bfloat16, enabled=False"),
    "the targets are the inputs": ("both[:, :-1], both[:, 1:]", "both[:, :-1], both[:, :-1]"),
    "the targets aren't the tokens": ("both[:, :-1], both[:, 1:]", "both[:, 1:], both[:, :-1]"),
    "a token counts 4.0": (" * (PIECE / WINDOWS)", ""),
    "begins with old gradients": ("    optimizer.zero_grad()\n", ""),
    "reads the batch of step 0 again": (
        "manual_seed(step)\n    starts",
        "manual_seed(0)\n    starts",
    ),
    "has learning rate": ("progress = (step - WARMUP + 1)", "progress = (step - WARMUP)"),
    "clip it to 1.0": ("model.parameters(), 1.0)", "model.parameters(), 9.0)"),
    "logs another learning rate": ('"lr": rate(step)', '"lr": rate(step + 1)'),
    "log the norm before clipping": ('"grad_norm": norm', '"grad_norm": min(norm, 1.0)'),
    "held-out tokens must be read after": (
        "EVALUATE_EVERY, SAVE_EVERY = 8",
        "EVALUATE_EVERY, SAVE_EVERY = 6",
    ),
    "runs with dropout": ("    model.eval()\n", ""),
    "keeps a graph": ("@torch.no_grad()\n", ""),
    "val_loss must be in the rows": ('rows[-1]["val_loss"] = evaluate', "evaluate"),
    "the folder is empty": ("            save(", "            ("),
    "doesn't load with weights_only=True": ('"step": step}', '"step": step, "path": path}'),
    "resumes at step 11": ("optimizer, step + 1)", "optimizer, step + 2)"),
    "aren't those of the checkpoint": ('    model.load_state_dict(state["model"])\n', ""),
    "dropout draws other numbers": ("    torch.manual_seed(step)  # dropout's\n", ""),
    "makes another update": ('    optimizer.load_state_dict(state["optimizer"])\n', ""),
    "Save under another name": (
        'path.with_suffix(".tmp"))\n    os.replace(path.with_suffix(".tmp"), path)',
        "path)",
    ),
}


@pytest.fixture(scope="module")
def solution() -> str:
    """The printed solution with the notebook's imports."""
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    imports = next(cell.source for cell in cells if cell.cell_type == "code")
    text = next(cell.source for cell in cells if "def train_step" in cell.source)
    return f"{imports}\n{re.search('```python(.*?)```', text, flags=re.S)[1]}"


def script(source: str):
    """Return the `train` that the source defines."""
    namespace = {}
    exec(source, namespace)
    return namespace["train"]


def test_training_script(solution: str):
    cases = [(script(solution), "passed")]
    for expected, (right, wrong) in MISTAKES.items():
        assert right in solution, expected
        cases.append((script(solution.replace(right, wrong)), expected))
    assert_verdicts(checks.training_script, cases)


def test_training_script_accepts_saved_generators(solution: str):
    saved = solution.replace("    torch.manual_seed(step)  # dropout's\n", "")
    saved = saved.replace('"step": step}', '"step": step, "rng": torch.get_rng_state()}')
    restored = '    torch.set_rng_state(state["rng"])\n    return state["step"]'
    saved = saved.replace('    return state["step"]', restored)
    assert saved.count("rng_state") == 2
    assert verdict(checks.training_script, script(saved)) == "training_script: passed"


def test_training_script_notices_a_run_that_catches_everything(solution: str):
    caught = "    try:\n        optimizer.step()\n    except BaseException:\n        pass\n"
    stubborn = solution.replace("    optimizer.step()\n", caught)
    assert "don't catch every exception" in verdict(checks.training_script, script(stubborn))


# bug_hunt


def test_bug_hunt():
    right = bug_hunt.CASES
    cases = [
        (right, "passed"),
        (right | {"C": "no_zero_grad"}, "C isn't no_zero_grad. Look at its 'gradient norm'"),
        (right | {"C": "a gremlin"}, "'a gremlin' isn't one of"),
        (right | {"J": ...}, "J has no answer yet"),
    ]
    assert_verdicts(checks.bug_hunt, cases)


def test_the_notebook_lists_every_bug_as_the_module_does():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    task = next(cell.source for cell in cells if "Ten bugs" in cell.source)
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", task.replace("`model.", "model."), re.M))
    said = {name: bug.replace("`", "") for name, bug in listed.items()}
    assert said == bug_hunt.BUGS
