"""Wrong ideas for the exercises of 06b_reproducible_runs, and mutants that are right."""


def swapped(one: str, other: str) -> list[tuple[str, str]]:
    """Exchange two names in an answer."""
    return [(f'"{one}"', '"?"'), (f'"{other}"', f'"{one}"'), ('"?"', f'"{other}"')]


ATOMIC = """    torch.save(state, path.with_suffix(".tmp"))
    os.replace(path.with_suffix(".tmp"), path)
"""

# By exercise: the idea, and edits of the solution or the code of the whole answer
IDEAS: dict[str, dict[str, str | list[tuple[str, str]]]] = {
    "missing_pieces": {
        "a wrong loss means lost weights (C)": swapped("weights", "torch rng"),
        "the first learning rate is the schedule's": swapped("optimizer", "schedule"),
        "dropout decides the batch": swapped("torch rng", "data position"),
        "the schedule knows where the run ends": swapped("schedule", "step"),
        "the step count is the data position": swapped("data position", "step"),
        "an update needs the weights": swapped("weights", "optimizer"),
        "everything is the optimizer": 'answer = dict.fromkeys("ABCDEF", "optimizer")',
    },
    "bug_hunt": {
        "a large norm means old gradients": swapped("no_zero_grad", "loss_not_divided"),
        "the last rate is wrong, so the schedule is late": swapped(
            "schedule_off_by_one", "schedule_per_piece"
        ),
        "the validation loss is too high without eval": swapped(
            "dropout_in_evaluation", "replayed_data"
        ),
        "a resume shows in the losses": swapped("replayed_data", "optimizer_not_restored"),
        "a low loss comes from replayed data": swapped("targets_not_shifted", "replayed_data"),
        "small gains are small weights": swapped("decay_on_norms", "weights_too_large"),
        "old gradients after every resume": swapped("no_zero_grad", "optimizer_not_restored"),
    },
    "training_script": {
        "the schedule is one step late": [("= rate(step)\n", "= rate(step - 1)\n")],
        "the schedule counts micro-batches": [("= rate(step)\n", "= rate(min(4 * step, 23))\n")],
        "decays to 0": [("LOWEST = 24, 4, 1e-2, 1e-3", "LOWEST = 24, 4, 1e-2, 0.0")],
        "a new seed only for every second step": [
            ("Generator().manual_seed(step)", "Generator().manual_seed(step // 2)")
        ],
        "seeds that collide": [
            ("Generator().manual_seed(step)", "Generator().manual_seed(step % 7)")
        ],
        "one dropout mask per step": [
            (
                "        loss = loss_of(model, inputs",
                "        torch.manual_seed(step)\n        loss = loss_of(model, inputs",
            )
        ],
        "one dropout mask for the run": [
            ("    torch.manual_seed(step)", "    torch.manual_seed(0)")
        ],
        "the first micro-batch four times": [
            ("loss_of(model, inputs, targets)", "loss_of(model, x[:2], y[:2])")
        ],
        "the first micro-batch's gradient only": [
            ("        loss.backward()", "        if not total:\n            loss.backward()")
        ],
        "the first windows of the text in every step": [
            ("starts.tolist()", "list(range(0, WINDOWS * LENGTH, LENGTH))")
        ],
        "windows of 32 tokens with the targets wrapped around": [
            ("both[:, :-1], both[:, 1:]", "both[:, :-1], both[:, :-1].roll(-1, 1)")
        ],
        "a text of the same length as the first one": [("len(tokens) - LENGTH", "6500 - LENGTH")],
        "the last micro-batch's loss": [('"loss": total', '"loss": loss.item()')],
        "the mean of a sum that is a mean already": [('"loss": total', '"loss": total / 4')],
        "the norm after clipping": [('"grad_norm": norm', '"grad_norm": min(norm, 1.0)')],
        "the norm of the last micro-batch": [
            (
                "        loss.backward()\n",
                "        optimizer.zero_grad()\n        loss.backward()\n",
            )
        ],
        "clips values": [
            (
                "clip_grad_norm_(model.parameters(), 1.0).item()",
                "clip_grad_norm_(model.parameters(), 1e9).item()\n"
                "    nn.utils.clip_grad_value_(model.parameters(), 0.02)",
            )
        ],
        "clips every parameter": [
            (
                "    norm =",
                "    for p in model.parameters():\n"
                "        nn.utils.clip_grad_norm_([p], 0.4)\n    norm =",
            )
        ],
        "Adam with decay in the gradient": [
            (
                "AdamW(model.parameters(), lr=PEAK,",
                "Adam(model.parameters(), lr=PEAK, weight_decay=0.1,",
            )
        ],
        "swapped betas": [("(0.9, 0.95)", "(0.95, 0.9)")],
        "SGD with momentum": [
            (
                "AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95))",
                "SGD(model.parameters(), lr=PEAK, momentum=0.9)",
            )
        ],
        "evaluates on training tokens": [
            ("evaluate(model, held_out)\n        if", "evaluate(model, tokens)\n        if")
        ],
        "evaluates on other windows each time": [
            ("range(0, 16 * LENGTH, LENGTH)", "torch.randint(900, (16,)).tolist()")
        ],
        "evaluates on windows that overlap": [("range(0, 16 * LENGTH, LENGTH)", "range(16)")],
        "evaluates in fp32": [
            (
                "    loss = loss_of(model, *cut_windows(held_out, ",
                "    def loss_of(model, x, y):\n"
                "        return F.cross_entropy(model(x).flatten(0, 1), y.flatten())\n\n"
                "    loss = loss_of(model, *cut_windows(held_out, ",
            )
        ],
        "loads the newest name, finished or not": [
            (
                "    if not path.exists():",
                "    found = sorted(path.parent.glob('checkpoint*'))\n    if not found:",
            ),
            ("torch.load(path,", "torch.load(found[-1],"),
        ],
        "evaluates before the step": [
            ("if (step + 1) % EVALUATE_EVERY", "if step % EVALUATE_EVERY")
        ],
        "perplexity for loss": [("    return loss.item()\n", "    return math.exp(loss.item())\n")],
        "seeded once, and not saved": [("    torch.manual_seed(step)  # dropout's\n", "")],
        "an empty optimizer after the resume": [
            ('    optimizer.load_state_dict(state["optimizer"])\n', "")
        ],
        "the file is read, and not loaded": [('    model.load_state_dict(state["model"])\n', "")],
        "the resumed run makes the last step again": [
            ("optimizer, step + 1)\n    return", "optimizer, step)\n    return")
        ],
        "written in place": [(ATOMIC, "    torch.save(state, path)\n")],
        "written in place by an open file": [
            (ATOMIC, "    with open(path, 'wb') as file:\n        torch.save(state, file)\n")
        ],
        "copied over the old one": [
            (
                'os.replace(path.with_suffix(".tmp"), path)',
                "shutil.copy(path.with_suffix('.tmp'), path)",
            )
        ],
        "the old one is removed first": [(ATOMIC, "    path.unlink(missing_ok=True)\n" + ATOMIC)],
        "the whole model is pickled": [
            ('"step": step}', '"step": step, "all": path}'),
            ("weights_only=True", "weights_only=False"),
        ],
        "saved only at the end": [
            ("            save(folder", "            step == 19 and save(folder")
        ],
    },
}

# By exercise: the name of a mutant that passes, and why its answer is right
DRAWN = "starts = torch.randint(len(tokens) - LENGTH, (WINDOWS,), "
SPLIT = "for inputs, targets in zip(x.split(PIECE), y.split(PIECE), "
LOADED = "state = torch.load(path, "
LOWERED = 'with torch.autocast("cpu", '
OWN_FILE = "the task asks only that the file can be read with weights_only=True"
SEEDED = "`train_step` has seeded the global generator with the step right before"
EQUALLY_LONG = "both have four micro-batches"
RIGHT: dict[str, dict[str, str]] = {
    "training_script": {
        "generator = torch.Generator().manual_seed(step)  =>  generator = None": SEEDED,
        f"{DRAWN}generator=generator)  =>  {DRAWN}generator=None)": SEEDED,
        f"{DRAWN}generator=generator)  =>  {DRAWN})": SEEDED,
        f"{LOWERED}dtype=torch.bfloat16):  =>  {LOWERED}dtype=None):": "bf16 is the CPU's default",
        f"{LOWERED}dtype=torch.bfloat16):  =>  {LOWERED}):": "bf16 is the CPU's default",
        f"{LOADED}weights_only=True)  =>  {LOADED}weights_only=False)": OWN_FILE,
        f"{LOADED}weights_only=True)  =>  {LOADED}weights_only=None)": OWN_FILE,
        f"{LOADED}weights_only=True)  =>  {LOADED})": OWN_FILE,
        f"{SPLIT}strict=True):  =>  {SPLIT}strict=False):": EQUALLY_LONG,
        f"{SPLIT}strict=True):  =>  {SPLIT}strict=None):": EQUALLY_LONG,
        f"{SPLIT}strict=True):  =>  {SPLIT}):": EQUALLY_LONG,
        "optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95))  =>  "
        "optimizer = torch.optim.AdamW(model.parameters(), betas=(0.9, 0.95))": (
            "every step sets the learning rate"
        ),
    },
}
