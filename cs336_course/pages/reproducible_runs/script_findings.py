"""What is wrong with a training script, found by watching it run, lose its power and resume."""

import functools
import math
import statistics
import tempfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from cs336_course.engine.compare import shown
from cs336_course.engine.witness import (
    HELD_OUT,
    Forward,
    PowerCutError,
    Update,
    Witness,
    write_files,
)


class FindingError(Exception):
    """Error for a wrong script.

    Args:
        said: Tells the learner what to fix.
        figures: Compares the learner's number with the right one.
    """

    def __init__(self, said: str, figures: str = ""):
        super().__init__(said)
        self.figures = figures


def expect(condition: object, said: str) -> None:
    """Raise an error with a sentence for the learner unless a condition is true.

    Raises:
        FindingError: If the condition is false.
    """
    if not bool(condition):
        raise FindingError(said)


STEPS, WARMUP, PEAK, LOWEST = 24, 4, 1e-2, 1e-3
WINDOWS, PIECE, LENGTH, CLIP = 8, 2, 32, 1.0
EVALUATED, SAVED, CUT_AT, EVALUATION = 8, 5, 13, 16
BETAS = (0.9, 0.95)
VOCAB = 2 * HELD_OUT
Script = Callable[[Path, nn.Module, np.ndarray, np.ndarray], Sequence[Mapping[str, float]]]
Rows = Sequence[Mapping[str, float]]
Text = tuple[np.ndarray, np.ndarray]
Schedule = Callable[[int], float]


def falling(step: int, top: float = PEAK, low: float = LOWEST, late: int = 0) -> float:
    """Return a rate that falls along half a cosine, `late` steps late."""
    progress = (step - WARMUP + 1 - late) / (STEPS - WARMUP)
    return low + (top - low) * (1 + math.cos(math.pi * progress)) / 2


def rate(step: int) -> float:
    """Return the expected learning rate of a step."""
    return PEAK * (step + 1) / WARMUP if step < WARMUP else falling(step)


def line(step: int) -> float:
    """Return a rate that falls along a line."""
    return PEAK + (LOWEST - PEAK) * (step - WARMUP + 1) / (STEPS - WARMUP)


# By diagnosis: the warm-up and what follows it
WRONG_RATES: dict[str, tuple[Schedule, Schedule]] = {
    "Your warm-up counts from 0. Step 0 has 1e-2 / 4.": (lambda n: PEAK * n / WARMUP, falling),
    "Your schedule is one step late. Step 0 has 1e-2 / 4.": (
        lambda n: PEAK * n / WARMUP,
        lambda n: falling(n, late=1),
    ),
    "Your cosine is one step late, so step 23 isn't at 1e-3 yet.": (
        rate,
        lambda n: falling(n, late=1),
    ),
    "The cosine takes 20 steps, from step 3 to step 23; yours takes 21.": (
        rate,
        lambda n: LOWEST + (PEAK - LOWEST) * (1 + math.cos(math.pi * (n - WARMUP + 1) / 21)) / 2,
    ),
    "Your cosine falls to 0; it falls to 1e-3.": (rate, lambda n: falling(n, low=0)),
    "Only what is above 1e-3 falls; your peak is 1e-2 + 1e-3.": (
        rate,
        lambda n: falling(n, top=PEAK + LOWEST),
    ),
    "That is a straight line; the task asks for half a cosine.": (rate, line),
    "Your schedule advances with every micro-batch.": (
        lambda n: rate(4 * n),
        lambda n: rate(min(4 * n, STEPS - 1)),
    ),
    "Your rate stays at the peak.": (rate, lambda n: PEAK),
}


def make_model(seed: int) -> nn.Sequential:
    """Create a small model with dropout. Its initial gradients exceed the clipping limit."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Embedding(VOCAB, 16), nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.2), nn.Linear(32, VOCAB)
    )
    nn.init.normal_(model.get_parameter("4.weight"), std=1.0)
    return model


@functools.cache
def make_tokens(seed: int = 0, sizes: tuple[int, int] = (6500, 1000)) -> Text:
    """Create training and held-out tokens. Half of all tokens follow from the previous token."""
    chance = np.random.default_rng(seed)

    def text(size: int) -> np.ndarray:
        ids = chance.integers(0, HELD_OUT, size)
        follows = chance.random(size) < 0.5
        for place in range(1, size):
            if follows[place]:
                ids[place] = (5 * ids[place - 1] + 3) % HELD_OUT
        return ids.astype(np.uint16)

    return text(sizes[0]), text(sizes[1]) + np.uint16(HELD_OUT)


def watch(train: Script) -> None:
    """Run a script straight through, on another text, and with power cuts.

    Args:
        train: The learner's `train(folder, model, tokens, held_out)`.

    Raises:
        FindingError: With the first thing that is wrong.
    """
    threads = torch.get_num_threads()
    with torch.random.fork_rng(devices=[]), tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        torch.set_num_threads(1)
        try:
            straight = Witness(make_model(seed=1), folder / "straight")
            rows = run(train, straight, make_tokens())
            expect_rows(rows)
            expect_batches(straight, make_tokens()[0])
            expect_seeds(straight, rows)
            expect_updates(straight, rows)
            expect_evaluation(straight, rows, make_tokens()[1])
            expect(
                any(state.files for state in straight.states),
                "the folder is empty during the whole run: save a checkpoint in `folder` every "
                f"{SAVED} steps, and read it from there.",
            )
            expect_other_texts(train, folder / "others")
            cut = expect_resume(train, straight, rows, folder / "cut")
            expect_whole_files(train, straight, cut, folder)
        finally:
            torch.set_num_threads(threads)


def run(train: Script, witness: Witness, texts: Text) -> Any:
    """Run the learner's training script in the folder of a `Witness`."""
    witness.folder.mkdir(exist_ok=True)
    given = [text.copy() for text in texts]
    with witness.watching(getattr(train, "__globals__", None)):
        try:
            return train(witness.folder, witness.model, *given)
        finally:
            is_kept = all(map(np.array_equal, given, texts))
            expect(is_kept, "your function changes the tokens that it gets; change a copy.")


def expect_rows(rows: Any) -> None:
    """Fail unless `rows` contains one row per step."""
    expect(rows is not None, "your function returns None; return the list of rows.")
    expect(
        len(rows) == STEPS,
        f"your run returns {len(rows)} rows, but it has {STEPS} steps: one row per step.",
    )
    for name in ("step", "loss", "lr", "grad_norm", "seed"):
        missing = [place for place, row in enumerate(rows) if name not in row]
        expect(not missing, f"row {missing[:1]} has no {name!r}.")
        graph = [place for place, row in enumerate(rows) if holds_graph(row[name])]
        expect(
            not graph, f"the {name!r} of row {graph[:1]} holds the graph; log a number (.item())."
        )
    expect(
        [row["step"] for row in rows] == list(range(STEPS)),
        f"the rows' steps must be 0 to {STEPS - 1}, in order.",
    )


def holds_graph(value: Any) -> bool:
    """Return whether a value is a tensor that keeps the graph of its gradient."""
    return isinstance(value, Tensor) and value.requires_grad


def expect_batches(seen: Witness, tokens: np.ndarray) -> None:
    """Fail unless every step reads a new batch, in micro-batches, as specified."""
    expect(
        len(seen.updates) == STEPS,
        f"the optimizer made {len(seen.updates)} steps instead of {STEPS}.",
    )
    follows = following(tokens)
    held_out = {after for after, forward in seen.evaluations if forward.with_graph}
    found: dict[bytes, int] = {}
    for number, pieces in enumerate(seen.steps[:STEPS]):
        expect(pieces or number not in held_out, f"step {number} trains on the held-out tokens.")
        expect(
            all(piece.with_graph for piece in pieces),
            f"after {number} steps, an evaluation reads training tokens. It must read `held_out`.",
        )
        expect(
            pieces,
            f"the model isn't called before the optimizer's step {number}.",
        )
        shapes = [tuple(piece.x.shape) for piece in pieces]
        expect(
            shapes == [(PIECE, LENGTH)] * (WINDOWS // PIECE),
            f"step {number} must go through {WINDOWS // PIECE} micro-batches of shape "
            f"({PIECE}, {LENGTH}); yours have the shapes {shapes}.",
        )
        for piece in pieces:
            expect_piece(number, piece, follows)
        expect(
            any(not torch.equal(pieces[0].x, piece.x) for piece in pieces),
            f"all micro-batches of step {number} are the same two windows.",
        )
        batch = torch.cat([piece.x for piece in pieces]).numpy().tobytes()
        expect(
            batch not in found, f"step {number} reads the batch of step {found.get(batch)} again."
        )
        found[batch] = number
    expect_new_masks(seen)


def expect_piece(number: int, piece: Forward, follows: dict[bytes, set[int]]) -> None:
    """Fail unless a micro-batch runs in training mode and bf16, and predicts the next tokens."""
    expect(
        piece.training,
        f"step {number} trains in eval mode; call model.train() after an evaluation.",
    )
    expect(
        piece.autocast is torch.bfloat16,
        f"step {number}'s forward pass isn't in bf16: torch.autocast('cpu', torch.bfloat16).",
    )
    expect(piece.target is not None, f"no gradient came back to the logits of step {number}.")
    target: Any = piece.target
    expect(
        torch.equal(target[:, :-1], piece.x[:, 1:]),
        "the targets are the inputs; the model must predict the next token."
        if torch.equal(target, piece.x)
        else "the targets aren't the tokens that come right after the inputs.",
    )
    for x, last in zip(piece.x.numpy(), target[:, -1].tolist(), strict=True):
        after = follows.get(x.astype(np.uint16).tobytes())
        expect(after, f"an input of step {number} isn't {LENGTH} consecutive tokens of `tokens`.")
        expect(
            last in after,  # type: ignore[operator]
            f"the last target of a window isn't the token after it. Read {LENGTH + 1} tokens, of "
            f"which the first {LENGTH} are inputs and the last {LENGTH} are targets.",
        )


def following(tokens: np.ndarray) -> dict[bytes, set[int]]:
    """Return which tokens follow each window."""
    found: dict[bytes, set[int]] = {}
    for end in range(LENGTH, len(tokens)):
        found.setdefault(tokens[end - LENGTH : end].tobytes(), set()).add(int(tokens[end]))
    return found


def expect_new_masks(seen: Witness) -> None:
    """Fail if dropout draws the same mask twice."""
    found: dict[bytes, int] = {}
    for number, pieces in enumerate(seen.steps[:STEPS]):
        for piece in pieces:
            if piece.mask is None:
                continue
            mask = piece.mask.numpy().tobytes()
            expect(
                found.get(mask) != number,
                f"dropout draws the same mask for two micro-batches of step {number}. Seed it once "
                "per step, before the first of them.",
            )
            expect(
                mask not in found,
                f"dropout draws the same mask in steps {found.get(mask)} and {number}: the seed "
                "must depend on the step.",
            )
            found[mask] = number


def expect_seeds(seen: Witness, rows: Rows) -> None:
    """Fail unless all rows say the same seed, and no number seeds two purposes."""
    named = {row["seed"] for row in rows}
    expect(len(named) == 1, "the run has one seed, so every row says the same one.")
    shared = seen.global_seeds & seen.generator_seeds
    expect(
        not shared,
        f"torch.manual_seed and a separate generator both get the seed {min(shared, default=0)}, "
        "so dropout and the windows use the same random numbers. Make a seed from the run's seed, "
        "the purpose and the step.",
    )


def flat(tensors: Sequence[Tensor]) -> Tensor:
    """Return all numbers of some tensors as one vector in fp64."""
    return torch.cat([tensor.detach().double().flatten() for tensor in tensors])


def is_close(a: float, b: float, rel_tol: float = 0.01) -> bool:
    """Return whether two measurements are equal up to the rounding of bf16."""
    return math.isclose(float(a), float(b), rel_tol=rel_tol)


def expect_updates(seen: Witness, rows: Rows) -> None:
    """Fail unless rate, gradient, log and update are as specified in every step."""
    expect_rates(seen.updates)
    for number, (update, row) in enumerate(zip(seen.updates, rows, strict=True)):
        expect(
            not update.in_autocast,
            "autocast is still on at optimizer.step(), so the next forward pass may read old "
            "bf16 copies of the weights; close the `with` after the loss.",
        )
        expect(
            all(weight.dtype == torch.float32 for weight in update.weights),
            "the weights must stay in float32; only autocast computes in bf16.",
        )
        expect(
            not update.absent,
            f"the optimizer doesn't get {', '.join(update.absent)}. Give it model.parameters().",
        )
        expect_gradient(number, update, seen.steps[number], row)
        expect_loss(number, seen.steps[number], row)
        expect(
            math.isclose(row["lr"], update.rates[0], rel_tol=1e-6),
            f"row {number} logs another learning rate than the optimizer used.",
        )
    expect_adamw(seen)


def expect_rates(updates: list[Update]) -> None:
    """Fail unless all parameter groups have the learning rate of their step."""
    used = [update.rates[0] for update in updates]
    wrong = [n for n in range(STEPS) if not is_close(used[n], rate(n), 1e-6)]
    for diagnosis, (rising, then) in WRONG_RATES.items():
        made = [rising(n) if n < WARMUP else then(n) for n in range(STEPS)]
        expect(not wrong or not np.allclose(used, made), f"the learning rates are off. {diagnosis}")
    if wrong:
        first = wrong[0]
        figures = f"You have {shown(used[first])}, and {shown(rate(first))} is right."
        raise FindingError(f"step {first} has the wrong learning rate.", figures)
    for number, update in enumerate(updates):
        expect(
            all(is_close(each, used[number], 1e-6) for each in update.rates),
            f"in step {number}, your parameter groups have different learning rates. Set the rate "
            "of every group.",
        )


def expect_gradient(number: int, update: Update, pieces: list[Forward], row: Any) -> None:
    """Fail unless the optimizer gets the mean gradient, clipped once, and the norm is logged."""
    expect(
        not update.is_stale,
        f"step {number} begins with old gradients: call zero_grad after every step.",
    )
    shares = [piece.weight * WINDOWS * LENGTH for piece in pieces]
    share = statistics.median(shares)
    expect(
        all(is_close(each, share, 0.05) for each in shares),
        f"the micro-batches of step {number} don't count equally in the gradient.",
    )
    total = flat([torch.stack(parts).sum(0) for parts in update.backwards])
    last = flat([parts[-1] for parts in update.backwards])
    mean = total if is_close(share, 1.0, 0.02) else total / share
    norm = mean.norm().item()
    logged, given = float(row["grad_norm"]), flat(update.gradients)
    is_mean = is_close(share, 1.0, 0.05) or is_close(logged, norm, 0.02)
    expect(
        is_mean,
        f"a token counts {share:.2f} times what it should: the gradient must be that of the mean "
        f"over all {WINDOWS} windows, so divide each micro-batch's mean loss by "
        f"{WINDOWS // PIECE}.",
    )
    want = mean * min(1.0, CLIP / norm)
    if (given - want).norm() > 0.02 * want.norm():
        diagnose_gradient(number, given, total, last, norm)
    if not is_close(logged, norm, 0.01):
        is_clipped = is_close(logged, given.norm().item(), 0.01)
        wrong = "log the norm before clipping." if is_clipped else "it isn't the gradient's norm."
        figures = f"You log {shown(logged)}, and {shown(norm)} is right."
        raise FindingError(f"the grad_norm of row {number} is off: {wrong}", figures)


def diagnose_gradient(number: int, given: Tensor, total: Tensor, last: Tensor, norm: float) -> None:
    """Fail with the mistake that leads to a wrong gradient at the optimizer's step."""
    expect(
        given.any(),
        f"the optimizer gets no gradient at step {number}. Call zero_grad after optimizer.step(), "
        "or before the step's first backward.",
    )
    along, along_last = (F.cosine_similarity(given, x, dim=0) for x in (total, last))
    expect(
        along_last < 0.999 or along > 0.999,
        f"step {number} uses the gradient of its last micro-batch only. Clear the gradients once "
        "per step, and let `backward` add up.",
    )
    expect(
        along > 0.999,
        f"at step {number}, the optimizer's gradient isn't the sum of the micro-batches' gradients "
        "times a number. Clip the norm of all parameters together, once, after the last backward.",
    )
    expect(
        given.norm() < CLIP * 1.001,
        f"at step {number} the gradient has norm {given.norm().item():.3f}: clip it to {CLIP} "
        "between the last backward and the optimizer's step.",
    )
    raise FindingError(
        f"at step {number} the gradient changes, though its norm is below {CLIP}."
        if norm < CLIP
        else f"at step {number} the gradient is clipped to less than {CLIP}."
    )


def expect_loss(number: int, pieces: list[Forward], row: Any) -> None:
    """Fail unless the row has the mean loss over all windows of the step."""
    losses = [loss_on(piece.logits, piece.target) for piece in pieces]
    got, want = float(row["loss"]), statistics.mean(losses)
    if is_close(got, want):
        return
    known = {
        "that is the loss of the last micro-batch.": losses[-1],
        "that is the loss of the first micro-batch.": losses[0],
        "that is a fourth of the last micro-batch's loss; add up all four.": losses[-1] / 4,
        "that is the sum of the micro-batches' losses; log their mean.": sum(losses),
        "that is a fourth of the mean; you divide twice.": want / 4,
    }
    text, nearest = min(known.items(), key=lambda item: abs(item[1] - got))
    expect(not is_close(got, nearest), f"the loss of row {number} is off: {text}")
    figures = f"You log {shown(got)}, and {shown(want)} is right."
    raise FindingError(f"the loss of row {number} isn't the mean over the 8 windows.", figures)


def loss_on(logits: Tensor, target: Any) -> float:
    """Return the mean cross-entropy in fp32."""
    return F.cross_entropy(logits.float().flatten(0, -2), target.flatten()).item()


def expect_adamw(seen: Witness) -> None:
    """Fail unless the weights change as AdamW with the specified betas changes them.

    The task leaves weight decay and eps open.
    """
    first = seen.updates[0]
    expect(first.optimizer != "Adam", "your optimizer is Adam, not AdamW.")
    parameters = [nn.Parameter(weight.clone()) for weight in first.weights]
    groups = [
        {"params": [p], **options} for p, options in zip(parameters, first.options, strict=True)
    ]
    reference = torch.optim.AdamW(groups, betas=BETAS)
    for number, (update, after) in enumerate(pairwise(seen.updates)):
        for group, weight, gradient in zip(
            reference.param_groups, update.weights, update.gradients, strict=True
        ):
            group["lr"] = update.rates[0]
            group["params"][0].data.copy_(weight)
            group["params"][0].grad = gradient
        reference.step()
        if (flat(parameters) - flat(after.weights)).abs().max() < 0.02 * update.rates[0]:
            continue
        expect("Adam" in update.optimizer, f"your optimizer is {update.optimizer}, not AdamW.")
        expect(
            update.betas is None or tuple(update.betas) == BETAS,
            f"AdamW's betas are {update.betas}, and the task asks for {BETAS}.",
        )
        raise FindingError(f"the update of step {number} isn't AdamW's with betas {BETAS}.")


def expect_evaluation(seen: Witness, rows: Rows, held_out: np.ndarray) -> None:
    """Fail unless evaluation runs when and how it should, and its loss is logged."""
    wanted = list(range(EVALUATED, STEPS + 1, EVALUATED))
    found = sorted({after for after, _ in seen.evaluations})
    expect(
        found == wanted,
        f"held-out tokens must be read after {wanted} steps; yours are read after {found}.",
    )
    for _, forward in seen.evaluations:
        expect(not forward.training, "the evaluation runs with dropout; call model.eval() first.")
        expect(not forward.with_graph, "the evaluation keeps a graph; use torch.no_grad().")
        expect(
            forward.autocast is torch.bfloat16,
            "the evaluation's forward pass isn't in bf16: torch.autocast('cpu', torch.bfloat16).",
        )
    logged = [row["step"] + 1 for row in rows if "val_loss" in row]
    expect(logged == wanted, f"val_loss must be in the rows of steps {[n - 1 for n in wanted]}.")
    for after in wanted:
        passes = [forward for number, forward in seen.evaluations if number == after]
        expect_windows(passes, held_out)
        expect_val_loss(passes, rows[after - 1]["val_loss"], held_out)


def expect_windows(passes: list[Forward], held_out: np.ndarray) -> None:
    """Fail unless an evaluation reads the first windows of the held-out tokens, each once."""
    expect(
        all(piece.x.dim() == 2 and piece.x.size(1) == LENGTH for piece in passes),
        f"the evaluation's windows have {[tuple(piece.x.shape) for piece in passes]} ids; each "
        f"window has {LENGTH}.",
    )
    read = torch.cat([piece.x for piece in passes])
    expect(
        len(read) == EVALUATION,
        f"an evaluation reads {len(read)} windows instead of the first {EVALUATION}.",
    )
    whole = torch.from_numpy(held_out[: EVALUATION * LENGTH].astype(np.int64))
    rows = sorted(read.tolist())
    expect(
        rows == sorted(whole.view(EVALUATION, LENGTH).tolist()),
        "an evaluation must read the windows that begin at 0, 32, ..., 480 of `held_out`.",
    )


def expect_val_loss(passes: list[Forward], logged: Any, held_out: np.ndarray) -> None:
    """Fail unless the logged validation loss is the mean over all windows."""
    expect(logged is not None, "val_loss is None; does your evaluation return the loss?")
    x, logits = (torch.cat([getattr(p, name) for p in passes]) for name in ("x", "logits"))
    inputs, after = (
        torch.from_numpy(held_out[first:][: EVALUATION * LENGTH].astype(np.int64)).view(-1, LENGTH)
        for first in (0, 1)
    )
    places = [inputs.tolist().index(row) for row in x.tolist()]
    want, got = loss_on(logits, after[places]), float(logged)
    if is_close(got, want):
        return
    expect(
        not is_close(got, loss_on(logits, x)),
        "val_loss compares with the inputs; the targets are the next tokens.",
    )
    expect(not is_close(got, math.exp(want)), "val_loss is a perplexity; log the loss itself.")
    expect(
        not is_close(got, want * len(passes)) and not is_close(got, want * EVALUATION),
        "val_loss is a sum; log the mean over all windows.",
    )
    figures = f"You log {shown(got)}, and {shown(want)} is right."
    raise FindingError(f"val_loss isn't the mean loss on the {EVALUATION} windows.", figures)


def expect_other_texts(train: Script, folder: Path) -> None:
    """Fail unless a run on shorter texts reads those, and not what the first run read."""
    tokens, held_out = make_tokens(seed=1, sizes=(3000, 600))
    others = Witness(make_model(seed=1), folder, cut_step=EVALUATED + 1)
    follows = following(tokens)
    try:
        with suppress(PowerCutError):
            run(train, others, (tokens, held_out))
        for number, pieces in enumerate(others.steps[: EVALUATED + 1]):
            for piece in pieces:
                expect_piece(number, piece, follows)
        passes = [forward for after, forward in others.evaluations if after == EVALUATED]
        expect_windows(passes, held_out)
    except Exception as error:
        is_known = isinstance(error, FindingError)
        said = str(error) if is_known else f"your code raises {type(error).__name__}: {error}"
        raise FindingError(
            f"right for one text, but not for another of {len(tokens)} and {len(held_out)} tokens: "
            f"{said}"
        ) from error


def expect_resume(train: Script, straight: Witness, rows: Rows, folder: Path) -> Witness:
    """Fail unless an interrupted and resumed run is identical to an uninterrupted run.

    Returns:
        The witness of the interrupted run.
    """
    cut = Witness(make_model(seed=1), folder, cut_step=CUT_AT)
    try:
        run(train, cut, make_tokens())
    except PowerCutError:
        pass
    else:
        expect(False, "the power was cut and your run went on: don't catch every exception.")
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    expect(files, f"the folder is empty after {CUT_AT} steps: save a checkpoint every {SAVED}.")
    expect_no_pickle(files)
    resumed = Witness(make_model(seed=2), folder)
    torch.manual_seed(12345)  # another process has drawn other numbers
    later = run(train, resumed, make_tokens())
    expect(later, "a resumed run returns no rows; return those of the steps that it makes.")
    start = later[0]["step"]
    saved = CUT_AT // SAVED * SAVED
    expect(
        start == saved,
        f"cut off in step {CUT_AT}, your run resumes at step {start} instead of {saved}: the last "
        f"checkpoint was due after {saved} steps.",
    )
    expect(
        len(later) == len(resumed.updates) == STEPS - saved,
        f"resumed at step {saved}, your run makes {len(resumed.updates)} steps and returns "
        f"{len(later)} rows. It ends after step {STEPS - 1}.",
    )
    compare(straight, resumed, start)
    for before, after in zip(rows[start:], later, strict=True):
        expect(
            dict(before) == dict(after),
            f"the rows of step {before['step']} differ: {dict(before)} and {dict(after)}.",
        )
    expect(is_same(straight.parameters, resumed.parameters), "the final weights differ.")
    return cut


def is_same(some: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
    """Return whether tensors are equal bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(some, others, strict=True))


def expect_no_pickle(files: Sequence[Path]) -> None:
    """Fail unless all files of torch.save or pickle can be loaded with `weights_only=True`."""
    for path in files:
        is_torch = zipfile.is_zipfile(path) and any(
            name.endswith("data.pkl") for name in zipfile.ZipFile(path).namelist()
        )
        if is_torch or path.suffix in (".pt", ".pth") or path.read_bytes()[:1] == b"\x80":
            try:
                torch.load(path, weights_only=True)
            except Exception as error:
                raise FindingError(
                    f"{path.name} doesn't load with weights_only=True. Save only tensors, numbers, "
                    "strings, lists and dicts."
                ) from error


def compare(straight: Witness, resumed: Witness, start: int) -> None:
    """Fail with the first difference between a resumed run and an uninterrupted run."""
    expect(
        is_same(straight.updates[start].weights, resumed.updates[0].weights),
        "the weights after the resume aren't those of the checkpoint.",
    )
    for number, update in enumerate(resumed.updates, start):
        want = straight.updates[number]
        first, again = straight.steps[number], resumed.steps[number - start]
        expect(
            is_same(want.weights, update.weights),
            f"step {number - 1} has the right gradient but makes another update: the optimizer's "
            "state isn't that of the checkpoint.",
        )
        expect(
            is_same([piece.x for piece in first], [piece.x for piece in again]),
            f"step {number} reads another batch after the resume: save the data position, or "
            "compute the batch from the step alone.",
        )
        expect(
            is_same([piece.logits for piece in first], [piece.logits for piece in again]),
            f"the batch and the weights of step {number} are right, but dropout draws other "
            "numbers: save torch.get_rng_state(), or seed the generator from the step.",
        )
        expect(
            want.rates == update.rates,
            f"step {number} has another learning rate after the resume: restore the schedule, or "
            "compute the rate from the step alone.",
        )


def expect_whole_files(train: Script, straight: Witness, cut: Witness, folder: Path) -> None:
    """Fail if the previous checkpoint is lost when the power is cut during a save."""
    saved = [state for state in cut.states if state.step == 2 * SAVED][-1].files
    for number, after in enumerate(cut.after_power_cut(2 * SAVED)):
        resumed = Witness(make_model(seed=2), folder / f"torn{number}")
        write_files(resumed.folder, after.files)
        case = f"the power was cut {after.moment}"
        if after.is_named:
            advice = "Flush the file and os.fsync it, and rename it only then."
        elif after.torn and after.torn not in saved:
            advice = (
                f"An unfinished {after.torn} may be left in the folder. Don't load it, and write "
                "over it."
            )
        else:
            advice = "Save under another name, then os.replace it."
        try:
            later = run(train, resumed, make_tokens())
        except FindingError:
            raise
        except Exception as error:
            raise FindingError(
                f"{case}, and your run can't resume ({type(error).__name__}). {advice}"
            ) from error
        expect(later and later[0]["step"], f"{case}, and your run begins again with step 0.")
        expect(
            is_same(straight.parameters, resumed.parameters),
            f"{case}, and the resumed run ends with other weights.",
        )
