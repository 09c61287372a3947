"""A box in which a small GPT continues a text. The model runs in the page, in JavaScript."""

import dataclasses
import random
from typing import Any

import torch
import traitlets
from matplotlib.figure import Figure

from cs336_course.drawing import writing as plots
from cs336_course.widgets.letters import TEMPERATURES
from cs336_course.widgets.widget import Pictured, script
from cs336_lib.data.tokenizer import Tokenizer
from cs336_lib.model import GPT, KVCache
from cs336_lib.sampling import encode, filter_logits
from cs336_lib.training.checkpoint import load_shipped

PARTS = ("explorer.js", "gpt.js", "writing.js")
LARGEST = 2**15 - 1  # of a 16-bit integer
LINES = ("What is the price of", "To be, or not to ", "My kingdom for a ", "O Romeo, ")
LETTERS = 111  # of the first text, which ends where several letters are likely
SHOWN = 8  # next letters with a bar
SEED = 0  # of the first text


def packed(model: GPT) -> tuple[bytes, list[float]]:
    """Return all parameters as 16-bit integers, and the scale of each tensor.

    A shared scale spends all 16 bits on the digits, so the probabilities are five times as exact
    as with fp16, which spends five bits of each number on an exponent.
    """
    tensors = [parameter.detach().float() for parameter in model.parameters()]
    scales = [float(tensor.abs().max()) / LARGEST for tensor in tensors]
    codes = [
        (tensor / scale).round().short().numpy().astype("<i2").tobytes()
        for tensor, scale in zip(tensors, scales, strict=True)
    ]
    return b"".join(codes), scales


@torch.no_grad()
def continued(
    model: GPT, tokenizer: Tokenizer, text: str, temperature: float, draws: list[float]
) -> tuple[str, list[tuple[str, float]]]:
    """Continue a text by a letter per draw, as writing.js does.

    Returns:
        What was written, and all letters with their probabilities of being the next, the likeliest
        first.
    """
    ids = encode(tokenizer, text).tolist()
    cache = KVCache(model.config, 1, model.device, model.lm_head.weight.dtype)
    unread = ids
    for draw in [*draws, None]:
        logits = model(torch.tensor([unread]), cache=cache, last_only=True)[:, -1]
        chances = filter_logits(logits, temperature).softmax(-1)[0]
        if draw is not None:
            found = int(torch.searchsorted(chances.cumsum(0), draw))
            unread = [min(found, len(chances) - 1)]
            ids += unread
    order = chances.argsort(descending=True).tolist()
    likeliest = [(tokenizer.decode([token]), float(chances[token])) for token in order]
    return tokenizer.decode(ids)[len(text) :], likeliest


class Writer(Pictured):
    """A box in which the model continues a line that the reader types.

    On the page, the element has the classes `.cs336-explorer.cs336-writer`. It contains
    `.cs336-paper` with the text, a button for each preset, the line, the buttons `Continue` and
    `Start over`, and in `.cs336-bars` a button for each of the likeliest next letters.
    """

    _esm = "\n".join([*map(script, PARTS), "export default { render: renderWriter };"])
    weights = traitlets.Bytes().tag(sync=True)
    scales = traitlets.List().tag(sync=True)
    presets = traitlets.Dict({line.strip(): {"text": line} for line in LINES}).tag(sync=True)
    config = traitlets.Dict().tag(sync=True)
    alphabet = traitlets.Unicode().tag(sync=True)
    text = traitlets.Unicode().tag(sync=True)
    written = traitlets.Unicode().tag(sync=True)
    likeliest = traitlets.List().tag(sync=True)
    temperature = traitlets.Float().tag(sync=True)
    temperatures = traitlets.List(["0", *TEMPERATURES]).tag(sync=True)
    draws = traitlets.List().tag(sync=True)

    def __init__(self, model: GPT, tokenizer: Tokenizer, text: str, temperature: float):
        draw = random.Random(SEED).random
        draws = [round(draw(), 6) for _ in range(LETTERS)]
        written, likeliest = continued(model, tokenizer, text, temperature, draws)
        weights, scales = packed(model)
        letter, chance = likeliest[0]
        super().__init__(
            title="A small GPT writes",
            said=(
                f"after “{text}”, it has written “{' '.join(written.split())}”. The likeliest next "
                f"letter is “{letter}”, with {chance:.1%}."
            ),
            weights=weights,
            scales=scales,
            config=self.sizes(model),
            alphabet=tokenizer.alphabet,
            text=text,
            written=written,
            likeliest=likeliest,
            temperature=temperature,
            draws=draws,
        )

    @staticmethod
    def sizes(model: GPT) -> dict[str, Any]:
        """Return the shape of the model, with the padded size of its vocabulary."""
        padded = model.config.padded_vocab_size
        return {**dataclasses.asdict(model.config), "padded_vocab_size": padded}

    def still(self) -> Figure:
        """Draw the text that the box writes first, and the next letters after it."""
        return plots.written(self.text, self.text + self.written, self.likeliest[:SHOWN])


def writer(text: str = "What is the price of", temperature: float = 0.7) -> Writer:
    """Type a line, and watch the small GPT that ships continue it, letter by letter."""
    return Writer(*load_shipped(), text, temperature)
