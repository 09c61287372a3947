"""The run that dies at step 9,000, and what can be asked about it.

The model is tiny, so the run takes only seconds, but large models can fail in the same way. The
matmuls run in fp16, and the loss is scaled by a fixed factor. One window of the corpus is planted.
Every request for evidence is counted, as in a real investigation, where each costs somebody's time.
What the notebook shows by itself isn't counted. The evidence is what the run recorded, or what its
last checkpoint and its data let us compute again.
"""

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from cs336_lib.config import UserError
from cs336_lib.data.corpus import shakespeare
from cs336_lib.data.tokenizer import CharTokenizer

LENGTH, BAD_STEP, SAVED_STEP, LAST_STEP = 32, 9_000, 8_960, 10_000
WIDTHS = (16, 32)

Finish = Callable[[torch.optim.Optimizer, float, float], float]
"""Finish a step: take the optimizer, the loss scale and the clipping limit, and return the scale of
the next step. The gradients are still multiplied by the scale."""


@dataclass(frozen=True)
class Config:
    """Settings of the run. A replay changes one of them."""

    rate: float = 0.1
    momentum: float = 0.9
    clip: float = math.inf
    dtype: torch.dtype = torch.float16
    scale: float = 2.0**16
    skip: bool = False
    """Whether a step is skipped if its gradient isn't finite."""
    windows: int = 1
    """Windows per step, each in a micro-batch of its own."""
    page: bool = True
    """Whether step 9,000 reads the planted window, or the text that stood there."""
    autocast: bool = True
    """Whether matmuls run in `dtype`, or in fp32 without a loss scale."""
    seed: int = 0
    """Seed of the initial weights. It also shifts the order of the windows."""


CONFIG = Config()


@dataclass(frozen=True)
class Log:
    """Metrics of each step, and the last checkpoint of the run."""

    losses: np.ndarray
    grad_norms: np.ndarray
    largest: np.ndarray
    """Largest number of each step's gradient, which is still multiplied by the scale."""
    scales: np.ndarray
    checkpoint: dict[str, Any]


class Pages:
    """Training data in which the window for step 9,000 doesn't contain natural language."""

    def __init__(self, text: str):
        self.tokenizer = CharTokenizer(text)
        self.vocab = self.tokenizer.vocab_size
        self.text = torch.from_numpy(self.tokenizer.encode(text).astype(np.int64))
        generator = torch.Generator().manual_seed(0)
        self.starts = torch.randint(len(self.text) - LENGTH, (LAST_STEP,), generator=generator)
        self.ids = self.text.clone()
        bad = self.starts[BAD_STEP]
        self.ids[bad : bad + LENGTH + 1] = self.tokenizer.encode("!")[0]

    def batch(
        self, step: int, page: bool = True
    ) -> tuple[Int[Tensor, " length"], Int[Tensor, " length"]]:
        """Return the inputs and targets of a step. The batch is one window of 32 tokens."""
        start, ids = self.starts[step], self.ids if page else self.text
        return ids[start : start + LENGTH], ids[start + 1 : start + LENGTH + 1]


def make_model(vocab: int, seed: int = 0) -> nn.Sequential:
    """Create a model that predicts the next character from the current one."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embedding, hidden = WIDTHS
        return nn.Sequential(
            nn.Embedding(vocab, embedding),
            nn.Linear(embedding, hidden),
            nn.GELU(),
            nn.Linear(hidden, vocab),
        )


def make_optimizer(model: nn.Module, config: Config = CONFIG) -> torch.optim.Optimizer:
    """Create SGD with momentum."""
    return torch.optim.SGD(
        model.parameters(), lr=config.rate, momentum=config.momentum, foreach=True
    )


def restored(
    vocab: int, checkpoint: Mapping[str, Any], config: Config = CONFIG
) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """Return the model and the optimizer of a checkpoint, which share no memory with it."""
    model = make_model(vocab)
    optimizer = make_optimizer(model, config)
    model.load_state_dict(checkpoint["model"])
    # Without a copy, the optimizer would go on in the checkpoint's own momentum buffers
    optimizer.load_state_dict(copy.deepcopy(checkpoint["optimizer"]))
    optimizer.param_groups[0]["lr"] = config.rate
    return model, optimizer


def backward(model: nn.Module, pages: Pages, step: int, config: Config, scale: float) -> Tensor:
    """Accumulate the scaled gradient of a step, and return its mean loss.

    Only the first micro-batch is the window of this step. The others belong to earlier steps.
    """
    total = torch.zeros(())
    for number in range(config.windows):
        place = step - 97 * number + 1_000 * config.seed
        x, y = pages.batch(place % LAST_STEP, config.page)
        with torch.autocast("cpu", dtype=config.dtype, enabled=config.autocast):
            loss = F.cross_entropy(model(x), y)
        (loss * (scale / config.windows)).backward()
        total += loss.detach() / config.windows
    return total


def finish_as_configured(config: Config) -> Finish:
    """Return how the run finishes a step. By default, it takes any step, and keeps the scale."""

    def finish(optimizer: torch.optim.Optimizer, scale: float, limit: float) -> float:
        parameters = optimizer.param_groups[0]["params"]
        gradients = [p.grad for p in parameters]
        torch._foreach_div_(gradients, scale)
        is_good = True
        if limit < math.inf or config.skip:
            norm = nn.utils.clip_grad_norm_(parameters, limit)
            is_good = bool(norm.isfinite()) or not config.skip
        if is_good:
            optimizer.step()
        optimizer.zero_grad()
        return scale

    return finish


def train(
    pages: Pages,
    steps: int = BAD_STEP + 20,
    config: Config = CONFIG,
    checkpoint: Mapping[str, Any] | None = None,
    finish: Finish | None = None,
) -> Log:
    """Train on the CPU until `steps`, and return the log from the first step or the checkpoint on.

    Args:
        pages: The training data.
        steps: Number of the step before which the run ends.
        config: Settings.
        checkpoint: A log's checkpoint to resume from.
        finish: What follows after backward, instead of what the settings say.
    """
    finish = finish or finish_as_configured(config)
    if checkpoint is None:
        model, first = make_model(pages.vocab, config.seed), 0
        optimizer, saved = make_optimizer(model, config), {}
    else:
        model, optimizer = restored(pages.vocab, checkpoint, config)
        first, saved = checkpoint["step"], dict(checkpoint)
    scale = config.scale if config.autocast else 1.0
    losses, norms, largest, scales = [], [], [], []
    for step in range(first, steps):
        if step == SAVED_STEP and checkpoint is None:
            saved = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            saved = copy.deepcopy(saved) | {"step": step}
        losses.append(backward(model, pages, step, config, scale))
        gradients = [p.grad for p in model.parameters()]
        norms.append(torch.stack(torch._foreach_norm(gradients)).norm() / scale)
        largest.append(torch.stack(torch._foreach_norm(gradients, math.inf)).max())
        scales.append(scale)
        scale = finish(optimizer, scale, config.clip)
    logged = (torch.stack(each).numpy() for each in (losses, norms, largest))
    return Log(*logged, np.array(scales), saved)


# What can be asked about the run

AFTER = 40  # steps after step 9,000 that a replay trains
KINDS = ("rows", "file", "batch", "checkpoint", "gradient", "tensors", "replay")
SETTINGS = {
    "data": "the plays that ship, a window of 32 characters a step, its place drawn with seed 0",
    "model": "Embedding(62, 16), Linear(16, 32), GELU, Linear(32, 62)",
    "optimizer": "SGD, learning rate 0.1, momentum 0.9",
    "clipping": "none",
    "weights": "fp32, and so is the momentum",
    "matmuls": "fp16, by autocast",
    "loss scale": "65,536, fixed",
    "bad gradients": "no check, so every step is taken",
    "checkpoints": "every 1,280 steps; the last is of step 8,960",
}


@functools.cache
def staged() -> tuple[Pages, Log]:
    """Train the run until step 9,020, once per process."""
    pages = Pages(shakespeare())
    return pages, train(pages)


class Incident:
    """A run that died, with its settings, and what can be asked about it."""

    def __init__(self) -> None:
        self.pages, self.log = staged()
        self.requests: list[str] = []

    def config(self) -> None:
        """Print all settings of the run."""
        print("\n".join(f"{name:14} {value}" for name, value in SETTINGS.items()))

    def request(self, kind: str, *given: int, **changes: Any) -> Any:
        """Count a request for evidence, print the evidence, and return it where it is data.

        Args:
            kind: "rows" (first, last), "file", "batch" (step), "checkpoint", "gradient" (step),
                "tensors" (step), or "replay" with one or more changed settings.
            given: The step, or the first and the last one.
            changes: Settings that a replay changes, as in `clip=1.0`.

        Raises:
            UserError: If there is no such evidence.
        """
        asked, text, data = self.evidence(kind, *given, **changes)
        self.requests.append(asked)
        print(f"request {len(self.requests)}: {asked}\n{text}")
        return data

    def show(self, kind: str, *given: int, **changes: Any) -> Any:
        """Print evidence as `request` does, and return it, without counting it."""
        asked, text, data = self.evidence(kind, *given, **changes)
        print(f"{asked}\n{text}")
        return data

    def evidence(self, kind: str, *given: int, **changes: Any) -> tuple[str, str, Any]:
        """Return the name of the evidence, its text, and what it is as data, if it is data.

        Raises:
            UserError: If there is no such evidence.
        """
        if kind not in KINDS:
            raise UserError(f"there is no evidence {kind!r}; ask for {', '.join(KINDS)}")
        text, data = getattr(self, f"see_{kind}")(*given, **changes)
        what = [f"{number:,}" for number in given]
        what += [f"{name}={value}" for name, value in changes.items()]
        return " ".join([kind, *what]), text, data

    def see_rows(self, first: int, last: int) -> tuple[str, None]:
        """Return rows of the log."""
        steps = len(self.log.losses)
        if not 0 <= first <= last < steps:
            raise UserError(f"the log has steps 0 to {steps - 1:,}")
        rows = [
            f"{step:>5,}  loss {self.log.losses[step]:5.2f}  "
            f"gradient norm {self.log.grad_norms[step]:5.2f}  rate {CONFIG.rate}"
            for step in range(first, last + 1)
        ]
        return "\n".join(rows), None

    def see_file(self) -> tuple[str, None]:
        """Return what a scan of all tokens finds."""
        ids = self.pages.ids
        return f"{len(ids):,} tokens, ids {ids.min()} to {ids.max()}", None

    def see_batch(self, step: int) -> tuple[str, None]:
        """Return the characters that a step read."""
        if not 0 <= step < len(self.pages.starts):
            raise UserError(f"the data order has steps 0 to {len(self.pages.starts) - 1:,}")
        x, _ = self.pages.batch(step)
        text = self.pages.tokenizer.decode(x.tolist())
        return f"{text!r}, {len(set(text))} different characters", None

    def see_checkpoint(self) -> tuple[str, dict[str, Any]]:
        """Return the last checkpoint, and the largest numbers in it."""
        saved = copy.deepcopy(self.log.checkpoint)
        weights = max(w.abs().max().item() for w in saved["model"].values())
        momenta = [s["momentum_buffer"] for s in saved["optimizer"]["state"].values()]
        momentum = max(m.abs().max().item() for m in momenta)
        return (
            f"step {saved['step']:,}; largest weight {weights:.2f}, largest momentum "
            f"{momentum:.2f}, all finite"
        ), saved

    def model_before(self, step: int) -> nn.Sequential:
        """Train from the last checkpoint to a step, and return the model.

        Raises:
            UserError: If no checkpoint reaches the step.
        """
        if not SAVED_STEP <= step <= BAD_STEP:
            raise UserError(
                f"from the checkpoint of step {SAVED_STEP:,} we can recompute steps up to "
                f"{BAD_STEP:,}, where the run breaks"
            )
        model, optimizer = restored(self.pages.vocab, self.log.checkpoint)
        finish = finish_as_configured(CONFIG)
        for number in range(SAVED_STEP, step):
            backward(model, self.pages, number, CONFIG, CONFIG.scale)
            finish(optimizer, CONFIG.scale, CONFIG.clip)
        return model

    def see_gradient(self, step: int) -> tuple[str, Float[np.ndarray, " parameters"]]:
        """Return the sizes of all numbers of a step's gradient, computed in fp32, unscaled."""
        model = self.model_before(step)
        x, y = self.pages.batch(step)
        gradients = torch.autograd.grad(F.cross_entropy(model(x), y), list(model.parameters()))
        sizes = torch.cat([gradient.flatten() for gradient in gradients]).abs()
        return (
            f"{len(sizes):,} numbers in fp32, unscaled; largest {sizes.max():.2f}, "
            f"norm {sizes.norm():.2f}"
        ), sizes.numpy()

    def see_tensors(self, step: int) -> tuple[str, None]:
        """Return dtype and largest number of every tensor of a step, in the order of computation.

        The casts of autocast are written out, so that the gradients of the fp16 weights show.
        """
        model = self.model_before(step)
        rows = [
            f"{name:28} {str(t.dtype).removeprefix('torch.'):8} largest "
            f"{t.detach().abs().max().item():8.2f}"
            for name, t in tensors_of_step(model, *self.pages.batch(step)).items()
        ]
        return "\n".join(rows), None

    def see_replay(self, **changes: Any) -> tuple[str, None]:
        """Return how the run goes from the last checkpoint on with changed settings."""
        if not changes:
            raise UserError("change a setting, as in clip=1.0")
        loss = self.loss_after(**changes)
        fate = "lives" if np.isfinite(loss) else "dies"
        return f"it {fate}; the mean loss of the {AFTER} steps after step 9,000 is {loss:.2f}", None

    def loss_after(self, **changes: Any) -> float:
        """Replay from the last checkpoint, and return the mean loss of the 40 steps after 9,000."""
        known = {field.name for field in dataclasses.fields(CONFIG)}
        if unknown := set(changes) - known:
            raise UserError(f"the run has no {', '.join(unknown)}; it has {', '.join(known)}")
        config = dataclasses.replace(CONFIG, **changes)
        steps = BAD_STEP + 1 + AFTER
        log = train(self.pages, steps, config, self.log.checkpoint)
        return float(log.losses[-AFTER:].mean())

    def repair(self, finish: Finish, limit: float = 1.0) -> Log:
        """Train from the last checkpoint to step 10,000 with another end of each step."""
        config = dataclasses.replace(CONFIG, clip=limit)
        return train(self.pages, LAST_STEP, config, self.log.checkpoint, finish)


def tensors_of_step(
    model: nn.Sequential, x: Tensor, y: Tensor, scale: float = CONFIG.scale
) -> dict[str, Tensor]:
    """Run a step of the tiny model as fp16 autocast does, and return its tensors by name."""
    table, *others = model.parameters()
    weight_1, bias_1, weight_2, bias_2 = (p.detach().half().requires_grad_() for p in others)
    embedding = F.embedding(x, table)
    linear_1 = F.linear(embedding.half(), weight_1, bias_1)
    gelu = F.gelu(linear_1)
    linear_2 = F.linear(gelu, weight_2, bias_2)
    loss = F.cross_entropy(linear_2.float(), y)
    forward = {"embedding": embedding, "linear 1": linear_1, "gelu": gelu, "linear 2": linear_2}
    order = {
        "linear 2": linear_2,
        "weight 2": weight_2,
        "gelu": gelu,
        "linear 1": linear_1,
        "weight 1": weight_1,
        "embedding": embedding,
    }
    gradients = torch.autograd.grad(loss * scale, list(order.values()))
    named = zip(order, gradients, strict=True)
    backward = {f"scaled gradient of {name}": gradient for name, gradient in named}
    return forward | {"loss": loss} | backward
