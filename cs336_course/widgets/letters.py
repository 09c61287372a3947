"""Explore the next-token probabilities of a trained model."""

import html

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor

from cs336_course.drawing import gpt2_model as plots
from cs336_course.drawing.style import BLUE, figure, label
from cs336_course.widgets.widget import Explorer, Values, View, slider, table, tag, text
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.model import GPT
from cs336_lib.sampling import encode, filter_logits

SHOWN = 10  # next tokens with a bar
TEMPERATURES = [f"{t:g}" for t in (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 1, 1.2, 1.5, 2, 3, 5)]
TOP_K = ["off", *(str(k) for k in (1, 2, 3, 5, 10, 20, 40))]
TOP_P = ["off", *(f"{p:g}" for p in (0.99, 0.95, 0.9, 0.8, 0.6, 0.4, 0.2))]

PURE = {"temperature": "1", "top_k": "off", "top_p": "off"}
PRESETS = {
    "as the model says": PURE,
    "greedy": {**PURE, "top_k": "1"},
    "temperature 0.5": {**PURE, "temperature": "0.5"},
    "top-k 5": {**PURE, "top_k": "5"},
    "top-p 0.8": {**PURE, "top_p": "0.8"},
}


class Sampling(Explorer):
    """Type a text, and see what the sampling settings do to the letters that may come next.

    It has the controls `text`, `temperature`, `top_k` and `top_p`. The bars have the class
    `.cs336-bar`.
    """

    def __init__(self, model: GPT, tokenizer: Tokenizer, words: str = "to be, or not to be"):
        self.model, self.tokenizer = model, tokenizer
        controls = [
            text("text", "text"),
            slider("temperature", "temperature", TEMPERATURES),
            slider("top_k", "top-k", TOP_K),
            slider("top_p", "top-p", TOP_P),
        ]
        super().__init__("sampling", "Sampling", controls, {"text": words, **PURE}, PRESETS)

    def chances(
        self, values: Values
    ) -> tuple[Float[Tensor, " vocab"], list[str], list[float], list[float]]:
        """Return all probabilities, and the likeliest tokens with theirs before and after the cut.

        Raises:
            UserError: If the text is empty, or has a character outside the vocabulary.
        """
        ids = encode(self.tokenizer, values["text"])[-self.model.config.block_size :]
        with torch.no_grad():
            logits = self.model(ids[None].to(self.model.device), last_only=True)[0].float().cpu()
        k = None if values["top_k"] == "off" else int(values["top_k"])
        p = None if values["top_p"] == "off" else float(values["top_p"])
        cut = filter_logits(logits, float(values["temperature"]), k, p).softmax(-1)[0]
        likeliest = logits[0].argsort(descending=True)[:SHOWN]
        names = [plots.visible(self.tokenizer.decode([token])) for token in likeliest.tolist()]
        return cut, names, logits[0].softmax(-1)[likeliest].tolist(), cut[likeliest].tolist()

    def view(self, values: Values) -> View:
        """Render the likeliest next tokens, as the model says and as they are drawn."""
        cut, names, before, after = self.chances(values)
        bars = [
            (
                tag("code", html.escape(name)),
                f"{old:.1%}",
                tag("div", class_="cs336-bar", style=f"width: {130 * new:.1f}px") if new else "×",
                f"{new:.1%}" if new else "cut off",
            )
            for name, old, new in zip(names, before, after, strict=True)
        ]
        kept = int((cut > 0).sum())
        said = f"{kept} of {len(cut)} tokens can be drawn next, the likeliest with {after[0]:.0%}"
        return View(said, table(bars, ("next", "as it is", "drawn from")))

    def figure(self, values: Values) -> Figure:
        """Draw the same probabilities as bars."""
        _, names, before, after = self.chances(values)
        drawn, axes = figure(10, 4)
        places = np.arange(len(names))
        axes.bar(places - 0.2, before, 0.4, color="#BBBBBB", label="as it is")
        axes.bar(places + 0.2, after, 0.4, color=BLUE, label="drawn from")
        axes.set_xticks(places, names, family="monospace")
        axes.legend()
        label(axes, f"After {values['text']!r}", "next token", "probability")
        return drawn
