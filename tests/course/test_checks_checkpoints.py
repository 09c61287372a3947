"""Notebook 06b's checks: typical mistakes by their diagnosis, right answers."""

import re
from pathlib import Path
from types import MappingProxyType

import nbformat
import pytest
from verdicts import assert_untouched, assert_verdicts, verdict

from cs336_course.checks import checkpoints as checks
from cs336_course.checks.report import DiagnosisError
from cs336_course.demos import bug_hunt

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
    names = list(RIGHT.values())
    right = [
        RIGHT,
        dict(reversed(RIGHT.items())),
        dict(zip("ABCDEF", names, strict=True)),
        {letter: f" {name.title()} " for letter, name in RIGHT.items()},
        MappingProxyType(RIGHT),
    ]
    slips = [
        ({"A": "optimizer"}, "A's loss is off"),
        ({"A": "torch rng"}, "another dropout mask changes a loss only slightly"),
        ({"B": "schedule", "E": "optimizer"}, "not right yet. B is not 'schedule': only the first"),
        ({"B": "schedule"}, "without the schedule, the first step's rate is right"),
        ({"B": "schedule"}, "'schedule' is given to B and E; each piece is missing once. B is"),
        ({"C": "schedule", "E": "torch rng"}, "C is not 'schedule': the learning rates are right"),
        ({"B": "weights"}, "with other weights the first loss would differ"),
        ({"C": "data position"}, "the batch is the same in C"),
        ({"D": "torch rng"}, "dropout doesn't change the batch"),
        ({"E": "step"}, "the run ended where it should in E"),
        ({"F": "schedule"}, "the learning rates are right in F"),
        ({"F": "data position"}, "the first batch is right in F"),
        ({"F": "weights"}, "look at the first thing that differs"),
        ({"A": "gradients"}, "isn't one of weights"),
        ({"A": 3}, "A: 3 isn't one of weights"),
        ({"D": ...}, "D has no answer yet"),
    ]
    cases = [(answer, "passed") for answer in right]
    cases += [(RIGHT | changes, text) for changes, text in slips]
    assert_verdicts(checks.missing_pieces, [*cases, (names, "keep the form {'A': ...}")])


# training_script

# Edits of the printed solution
EVALUATED_AT = [
    ("list(range(0, 16 * LENGTH, LENGTH))", "AT"),
    ("SAVE_EVERY = 8, 5", "SAVE_EVERY = 8, 5\nAT = range(0, 16 * LENGTH, LENGTH)"),
]
SEEDED_ONCE = [
    ("SAVE_EVERY = 8, 5", "SAVE_EVERY = 8, 5\nGENERATOR = torch.Generator()"),
    ("torch.Generator().manual_seed(step)", "GENERATOR"),
    ("    rows = []", "    rows = []\n    GENERATOR.manual_seed(0)"),
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
ATOMIC = """    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)
"""
TWO_FILES = [
    (
        ATOMIC,
        """    for part in ("model", "optimizer"):
        torch.save(state | {part: None}, path.with_suffix(".tmp"))
        os.replace(path.with_suffix(".tmp"), path.with_name(f"{part}.pt"))
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
ONE_FILE_PER_STEP = [
    (
        ATOMIC,
        """    torch.save(state, path.with_suffix(".tmp"))
    path.with_suffix(".tmp").rename(path.with_name(f"{step:02}.pt"))
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
VARIANTS = {
    "the printed solution": [],
    "saved generators": [
        ("    torch.manual_seed(step)  # dropout's\n", ""),
        ('"step": step}', '"step": step, "rng": torch.get_rng_state()}'),
        (
            '    return state["step"]',
            '    torch.set_rng_state(state["rng"])\n    return state["step"]',
        ),
    ],
    "zero_grad between forward and backward": [
        ("    optimizer.zero_grad()\n", ""),
        (
            "        loss.backward()",
            "        if not total:\n            optimizer.zero_grad()\n        loss.backward()",
        ),
    ],
    "gradients that are divided after the last backward": [
        (" * (PIECE / WINDOWS)", ""),
        (
            "loss.item()\n    norm",
            "loss.item() / 4\n    for p in model.parameters():\n        p.grad /= 4\n    norm",
        ),
    ],
    "one backward for all micro-batches": [
        ("total = 0.0", "total, sum_of = 0.0, 0.0"),
        ("        loss.backward()", "        sum_of = sum_of + loss"),
        ("    norm =", "    sum_of.backward()\n    norm ="),
    ],
    "the loss outside of autocast": [
        (
            "        return F.cross_entropy(model(x)",
            "        logits = model(x)\n    return F.cross_entropy(logits",
        )
    ],
    "a scheduler that is told the step": [
        *SCHEDULER,
        (
            '    for step in range(load(folder / "checkpoint.pt", model, optimizer), STEPS):',
            '    start = load(folder / "checkpoint.pt", model, optimizer)\n'
            "    schedule.last_epoch = start\n"
            "    for step in range(start, STEPS):",
        ),
    ],
    "consecutive windows": [
        ("starts.tolist()", "[(WINDOWS * step + n) * LENGTH for n in range(WINDOWS)]")
    ],
    "consecutive windows, and again from the first one": [
        (
            "starts.tolist()",
            "[(WINDOWS * step + n) % (len(tokens) // LENGTH) * LENGTH for n in range(WINDOWS)]",
        )
    ],
    "weight decay for matrices only": [
        (
            "AdamW(model.parameters(), lr=PEAK,",
            "AdamW([{'params': [p], 'weight_decay': p.dim() / 9} for p in model.parameters()],"
            " eps=1e-4,",
        ),
        (
            '    optimizer.param_groups[0]["lr"] = rate(step)',
            '    for group in optimizer.param_groups:\n        group["lr"] = rate(step)',
        ),
    ],
    "an evaluation in two batches": [
        *EVALUATED_AT,
        (
            "    loss = loss_of(model, *cut_windows(held_out, AT))",
            "    x, y = cut_windows(held_out, AT)\n"
            "    loss = sum(loss_of(model, x[n : n + 8], y[n : n + 8]) for n in (0, 8)) / 2",
        ),
        ("@torch.no_grad()", "@torch.inference_mode()"),
    ],
    "bytes in memory that are written at once": [
        (
            ATOMIC,
            ATOMIC.replace(
                "torch.save(state,", "buffer = io.BytesIO()\n    torch.save(state, buffer)\n    ("
            ).replace('(".tmp"))\n    os', '(".tmp")).write_bytes(buffer.getvalue())\n    os', 1),
        )
    ],
    "a file for each step, of which the last one stays": ONE_FILE_PER_STEP,
    "older files if the last one can't be read": TRYING_OLDER_FILES,
    "model.forward instead of model": [("model(x)", "model.forward(x)")],
    "a log that is read again, up to its last whole line": [
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
    ],
}
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
        ("        loss.backward()", "        optimizer.zero_grad(), loss.backward()")
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
        ("manual_seed(step)\n    starts", "manual_seed(0)\n    starts"),
    ],
    "step 1 reads the batch of step 0": [
        ("manual_seed(step)\n    starts", "manual_seed(step // 2)\n    starts"),
    ],
    "the same mask for two micro-batches": [
        (
            "        loss = loss_of(model, inputs",
            "        torch.manual_seed(step)\n        loss = loss_of(model, inputs",
        )
    ],
    "the same mask in steps 0 and 1": [("torch.manual_seed(step)", "torch.manual_seed(0)")],
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
    "that is the loss of the last micro-batch": [('"loss": total', '"loss": 4 * loss.item()')],
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
    "dropout draws other numbers": [("    torch.manual_seed(step)  # dropout's\n", "")],
    "step 11 has another learning rate after the resume": SCHEDULER,
    "makes another update": [('    optimizer.load_state_dict(state["optimizer"])\n', "")],
    "while checkpoint.pt was being written, and your run can't resume": [
        ('path.with_suffix(".tmp"))\n    os.replace(path.with_suffix(".tmp"), path)', "path)")
    ],
    "after a file was removed, and your run begins again with step 0": [
        ("    torch.save(state", "    path.unlink(missing_ok=True)\n    torch.save(state")
    ],
    "after a file was renamed, and the resumed run ends with other weights": TWO_FILES,
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


def edited(solution: str, edits):
    """Return the `train` of the solution with these edits."""
    for old, new in edits:
        assert old in solution, old
        solution = solution.replace(old, new)
    return script(solution)


def test_training_script(solution: str):
    cases = [(edited(solution, edits), expected) for expected, edits in MISTAKES.items()]
    assert_verdicts(checks.training_script, cases)


@pytest.mark.parametrize("name", VARIANTS)
def test_training_script_accepts(solution: str, name: str):
    train = edited(solution, VARIANTS[name])
    assert verdict(checks.training_script, train) == "training_script: passed"


def test_training_script_notices_a_run_that_catches_everything(solution: str):
    caught = "    try:\n        optimizer.step()\n    except BaseException:\n        pass\n"
    stubborn = solution.replace("    optimizer.step()\n", caught)
    assert "don't catch every exception" in verdict(checks.training_script, script(stubborn))


# bug_hunt


def test_bug_hunt():
    right = bug_hunt.CASES
    cases = [
        (right, "passed"),
        (dict(reversed(right.items())), "passed"),
        ({letter: f" {bug.upper()}" for letter, bug in right.items()}, "passed"),
        (MappingProxyType(right), "passed"),
        (right | {"C": "no_zero_grad"}, "pile up to much more than C's"),
        (right | {"I": "loss_not_divided"}, "makes the gradient four times as large"),
        (right | {"D": "schedule_per_piece"}, "moves 'rate at half / peak' far away from 0.60"),
        (right | {"A": "optimizer_not_restored"}, "moves 'update after resume / others' far away"),
        (right | {"H": "decay_on_norms"}, "another bug explains its numbers better"),
        (
            right | {"E": "replayed_data", "G": "targets_not_shifted"},
            "E isn't replayed_data: that bug moves 'val - train' far away from -0.03 to -0.02, as "
            "in healthy runs, and it is -0.02 here",
        ),
        (
            right | {"J": "replayed_data"},
            "'replayed_data' is given to G and J; every name occurs once. J isn't replayed_data: "
            "its 'val - train' is off, but another bug explains its numbers better",
        ),
        (right | {"C": "a gremlin"}, "'a gremlin' isn't one of"),
        (right | {"J": ...}, "J has no answer yet"),
        (list(right.values()), "keep the form {'A': ...}"),
    ]
    assert_verdicts(checks.bug_hunt, cases)


def test_bug_hunt_names_the_number_to_look_at_from_the_third_attempt_on():
    answer = bug_hunt.CASES | {"C": "no_zero_grad"}
    with pytest.raises(DiagnosisError) as error:
        checks.bug_hunt.__wrapped__(answer)
    assert "gradient norm" not in str(error.value)
    assert error.value.figures.startswith("Look at C's 'gradient norm', which is ")


def test_the_notebook_lists_every_bug_as_the_module_does():
    cells = nbformat.read(NOTEBOOK, as_version=4).cells
    task = next(cell.source for cell in cells if "Ten bugs" in cell.source)
    listed = dict(re.findall(r"^\| `(\w+)` \| (.+) \|$", task.replace("`model.", "model."), re.M))
    said = {name: bug.replace("`", "") for name, bug in listed.items()}
    assert said == bug_hunt.BUGS
