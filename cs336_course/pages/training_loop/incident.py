"""Investigate the run of `run_with_nan`, one request for evidence at a time.

Every request is counted, as in a real investigation, where each costs somebody's time. What a
notebook shows by itself isn't counted. The evidence is what the run recorded, or what its last
checkpoint and its data let us compute again.
"""

import copy
import dataclasses
import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from cs336_course.pages.training_loop import run_with_nan
from cs336_course.pages.training_loop.run_with_nan import CONFIG, SAVED_STEP, Finish, Log, Pages
from cs336_lib.config import UserError
from cs336_lib.data.corpus import shakespeare

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
    return pages, run_with_nan.train(pages)


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
        if not SAVED_STEP <= step <= run_with_nan.BAD_STEP:
            raise UserError(
                f"from the checkpoint of step {SAVED_STEP:,} we can recompute steps up to "
                f"{run_with_nan.BAD_STEP:,}, where the run breaks"
            )
        model, optimizer = run_with_nan.restored(self.pages.vocab, self.log.checkpoint)
        finish = run_with_nan.finish_as_configured(CONFIG)
        for number in range(SAVED_STEP, step):
            run_with_nan.backward(model, self.pages, number, CONFIG, CONFIG.scale)
            finish(optimizer, CONFIG.scale, CONFIG.clip)
        return model

    def see_gradient(self, step: int) -> tuple[str, Float[np.ndarray, "parameters"]]:
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
        steps = run_with_nan.BAD_STEP + 1 + AFTER
        log = run_with_nan.train(self.pages, steps, config, self.log.checkpoint)
        return float(log.losses[-AFTER:].mean())

    def repair(self, finish: Finish, limit: float = 1.0) -> Log:
        """Train from the last checkpoint to step 10,000 with another end of each step."""
        config = dataclasses.replace(CONFIG, clip=limit)
        return run_with_nan.train(
            self.pages, run_with_nan.LAST_STEP, config, self.log.checkpoint, finish
        )


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
