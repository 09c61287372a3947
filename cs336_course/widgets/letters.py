"""Explore the attention and the next-token probabilities of a trained model."""

import base64
import html
import io

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from matplotlib.figure import Figure
from matplotlib.image import imsave
from torch import Tensor, nn

from cs336_course.drawing import gpt2_model as plots
from cs336_course.drawing.style import BLUE, figure, label
from cs336_course.widgets.widget import Explorer, Values, View, choice, slider, table, tag, text
from cs336_lib.config import UserError
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.model import GPT
from cs336_lib.sampling import encode, filter_logits

LONGEST = 32  # tokens that a map can show
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


@torch.no_grad()
def read(
    model: GPT, ids: Int[Tensor, " seq"]
) -> tuple[Float[Tensor, "layer head seq seq"], Float[Tensor, " vocab"]]:
    """Return the attention weights of all heads for a text, and the next-token logits."""
    found = []

    def look(attention: nn.Module, inputs: tuple[Tensor]) -> None:
        parts = "batch seq (three head dim) -> three batch head seq dim"
        qkv = rearrange(attention.c_attn(inputs[0]), parts, three=3, head=attention.n_head)
        q, k = qkv[:2].float()
        scores = q @ k.mT / q.size(-1) ** 0.5
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        found.append(scores.masked_fill(future, -torch.inf).softmax(-1)[0].cpu())

    hooks = [block.attn.register_forward_pre_hook(look) for block in model.transformer.h]
    was_training = model.training
    model.eval()
    try:
        logits = model(ids[None].to(model.device))[0, -1].float().cpu()
    finally:
        model.train(was_training)
        for hook in hooks:
            hook.remove()
    return torch.stack(found), logits


def next_chances(
    logits: Float[Tensor, " vocab"], temperature: str, top_k: str, top_p: str
) -> Float[Tensor, " vocab"]:
    """Return the sampling probabilities of the next token. "off" disables top-k or top-p."""
    k = None if top_k == "off" else int(top_k)
    p = None if top_p == "off" else float(top_p)
    return filter_logits(logits[None], float(temperature), k, p).softmax(-1)[0]


def picture(weights: Float[Tensor, "query key"]) -> str:
    """Draw a heat map with one pixel per weight, and return it as a PNG data URI."""
    file = io.BytesIO()
    imsave(file, weights.numpy(), vmin=0, vmax=1, cmap="Blues", format="png")
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


class AttentionAndSampling(Explorer):
    """Type a text, and see what each head looks at, and what the sampling settings do.

    It has the controls `text`, `layer`, `temperature`, `top_k` and `top_p`, and the buttons `head
    N` (aria-pressed). The large map has the class `.cs336-map`, and the bars have the class
    `.cs336-next`.
    """

    def __init__(
        self, model: GPT, tokenizer: Tokenizer, words: str = "to be, or not to be", layer: int = 0
    ):
        self.model, self.tokenizer = model, tokenizer
        self.known: dict[str, tuple[Tensor, Tensor, list[str]]] = {}  # the last text read
        controls = [
            text("text", "text"),
            choice("layer", "layer", [str(n) for n in range(model.config.n_layer)]),
            slider("temperature", "temperature", TEMPERATURES),
            slider("top_k", "top-k", TOP_K),
            slider("top_p", "top-p", TOP_P),
        ]
        values = {"text": words, "layer": str(layer), "head": "0", **PURE}
        super().__init__("attention", "Attention and sampling", controls, values, PRESETS)

    def read(self, words: str) -> tuple[Tensor, Tensor, list[str]]:
        """Return the attention weights, the next-token logits and the tokens of a text.

        The result for the last text is cached.

        Raises:
            UserError: If the text is empty or too long, or has a character outside the vocabulary.
        """
        if words not in self.known:
            ids = encode(self.tokenizer, words)
            if len(ids) > LONGEST:
                raise UserError(f"{len(ids)} tokens; use at most {LONGEST}")
            tokens = [self.tokenizer.decode([token]) for token in ids.tolist()]
            self.known = {words: (*read(self.model, ids), tokens)}
        return self.known[words]

    def chances(self, values: Values) -> tuple[Tensor, list[str], Tensor, Tensor]:
        """Return the most likely next tokens, with probabilities before and after filtering."""
        _, logits, _ = self.read(values["text"])
        cut = next_chances(logits, *(values[name] for name in ("temperature", "top_k", "top_p")))
        likeliest = logits.argsort(descending=True)[:SHOWN]
        names = [plots.visible(self.tokenizer.decode([token])) for token in likeliest.tolist()]
        return cut, names, logits.softmax(-1)[likeliest], cut[likeliest]

    def view(self, values: Values) -> View:
        """Render the heads of a layer, an enlarged head, and next-token probabilities."""
        attention, _, tokens = self.read(values["text"])
        layer, head = int(values["layer"]), int(values["head"])
        heads = "".join(
            tag(
                "button",
                f'<img alt="" src="{picture(weights)}">{number}',
                class_="cs336-head",
                aria_label=f"head {number}",
                aria_pressed="true" if number == head else "false",
                data_key=f"head {number}",
                data_name="head",
                data_value=number,
            )
            for number, weights in enumerate(attention[layer])
        )
        group = {"class_": "cs336-row", "data_arrows": len(attention[layer]), "data_group": "heads"}
        left = tag("div", "heads of this layer", class_="cs336-faint") + tag("div", heads, **group)
        left += self.large(attention[layer, head], tokens)
        cut, names, before, after = self.chances(values)
        bars = [
            (
                tag("code", html.escape(name)),
                f"{old:.1%}",
                tag("div", class_="cs336-bar", style=f"width: {130 * new:.1f}px") if new else "×",
                f"{new:.1%}" if new else "cut off",
            )
            for name, old, new in zip(names, before.tolist(), after.tolist(), strict=True)
        ]
        right = tag("div", table(bars, ("next", "as it is", "drawn from")), class_="cs336-next")
        kept = int((cut > 0).sum())
        said = f"head {head} of layer {layer}; {kept} of {len(cut)} tokens can be drawn next"
        said += f", the likeliest with {after[0]:.0%}"
        both = tag("div", left) + right
        return View(said, tag("div", both, class_="cs336-row", style="gap: 30px"))

    def large(self, weights: Float[Tensor, "query key"], tokens: list[str]) -> str:
        """Draw the attention map of a head, with token labels and a tooltip for each weight."""
        names = [html.escape(plots.visible(token)) for token in tokens]
        rows = [tag("tr", "<th></th>" + "".join(tag("th", name) for name in names))]
        for query, name in enumerate(names):
            cells = "".join(
                tag(
                    "td",
                    style=f"background: color-mix(in srgb, #08306b {100 * weight:.0f}%, white)",
                    title=f"{tokens[query]!r} looks at {tokens[key]!r}: {weight:.2f}",
                )
                for key, weight in enumerate(weights[query, : query + 1].tolist())
            )
            rows.append(tag("tr", tag("th", name) + cells))
        words = "rows: the token that looks; columns: what it looks at"
        return tag("div", words, class_="cs336-faint") + tag(
            "table", "".join(rows), class_="cs336-map", aria_label="attention map"
        )

    def figure(self, values: Values) -> Figure:
        """Draw the map of the selected head next to the next-token probabilities."""
        attention, _, tokens = self.read(values["text"])
        layer, head = int(values["layer"]), int(values["head"])
        drawn, (left, right) = figure(13, 5.2, ncols=2)
        image = left.imshow(attention[layer, head].numpy(), vmin=0, vmax=1, cmap="Blues")
        names = [plots.visible(token) for token in tokens]
        left.set_xticks(range(len(names)), names, family="monospace")
        left.set_yticks(range(len(names)), names, family="monospace")
        left.grid(visible=False)
        label(left, f"Layer {layer}, head {head}", "what it looks at", "the token that looks")
        drawn.colorbar(image, ax=left, label="attention weight", shrink=0.8)
        _, names, before, after = self.chances(values)
        places = np.arange(len(names))
        right.bar(places - 0.2, before.numpy(), 0.4, color="#BBBBBB", label="as it is")
        right.bar(places + 0.2, after.numpy(), 0.4, color=BLUE, label="drawn from")
        right.set_xticks(places, names, family="monospace")
        right.legend()
        label(right, f"After {values['text']!r}", "next token", "probability")
        return drawn
