"""Multiple-choice predictions that a reader makes before running the next cell.

The cell contains the options. To hide the correct answer from the reader, it is stored with the
topic in the cell metadata, as in `{"cs336": {"prediction": "bf16_sum", "answer": "256", "topic":
"precision", "why": {"4000": "It is the exact sum."}}}`, where `why` says of each wrong option why
it looked right. A click on an option is final. The next cell that runs computes the answer, and
then the card says whether the guess was right. `cs336 check` compares the answer with the reader's
first guess.
"""

import html
import json
from dataclasses import dataclass, field
from pathlib import Path
from string import ascii_uppercase
from typing import Any

import matplotlib.pyplot as plt
from IPython.core.getipython import get_ipython
from matplotlib.figure import Figure

from cs336_course.course import SIDE_TRIPS
from cs336_course.learner import study
from cs336_course.widgets.widget import Explorer, Values, View, choice, tag

MINE, HANDS = "my guess", "count hands"
MARKS = {"": "", "✓": "(right)", "✗": "(not this time)"}


@dataclass(frozen=True)
class Asked:
    """What a notebook says about a prediction.

    Attributes:
        answer: The right option.
        why: Maps a wrong option to a sentence on why it looks right.
    """

    answer: str = ""
    why: dict[str, str] = field(default_factory=dict)


class Prediction(Explorer):
    """Buttons for the options of a prediction.

    The buttons record the guess of one reader, or count raised hands in a classroom.

    Args:
        name: Name of the prediction, as in the cell's metadata.
        options: Possible answers.
    """

    def __init__(self, name: str, options: tuple[str, ...]):
        self.name, self.options = name, options
        self.asked: Asked | None = None  # what the notebook says, once the next cell has run
        none = ",".join("0" * len(options))
        values = {"mode": MINE, "pick": "", "guess": "", "hands": none}
        mode = choice("mode", "mode", [MINE, HANDS]) | {"folded": "For a classroom"}
        super().__init__("prediction", "Your prediction", [mode], values)
        if shell := get_ipython():
            shell.events.register("post_run_cell", self.wait)

    def wait(self, _: Any) -> None:
        """Wait for the next cell, when the prediction's own cell has run."""
        events = get_ipython().events
        events.unregister("post_run_cell", self.wait)
        events.register("post_run_cell", self.resolve)

    def resolve(self, _: Any) -> None:
        """Tell whether the guess is right, after the next cell has run."""
        get_ipython().events.unregister("post_run_cell", self.resolve)
        self.asked = asked(study.here(), self.name)
        self.answer({"pick": ""})

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Count a click on an option as the reader's guess or as one raised hand."""
        pick, values = values["pick"], {**values, "pick": ""}
        if changed != {"pick"} or pick not in self.options:
            return values
        if values["mode"] == MINE:
            if values["guess"]:
                return values  # the first guess counts
            study.record_guess(study.here(), self.name, pick)
            return {**values, "guess": pick}
        hands = [int(count) for count in values["hands"].split(",")]
        hands[self.options.index(pick)] += 1
        return {**values, "hands": ",".join(map(str, hands))}

    def view(self, values: Values) -> View:
        """Render the options, and the guess or the number of votes."""
        counts = [int(count) for count in values["hands"].split(",")]
        rows = []
        for letter, option, count in zip(ascii_uppercase, self.options, counts, strict=False):
            mark = self.mark(option, values)
            is_mine = values["mode"] == MINE and option == values["guess"]
            button = tag(
                "button",
                f"{letter} &nbsp; {html.escape(option)}" + tag("span", mark, class_="cs336-mark"),
                class_="cs336-option" + (" cs336-chosen" if is_mine else ""),
                aria_label=f"{option} {MARKS[mark]}".strip(),
                aria_pressed=str(is_mine).lower(),
                aria_disabled=str(values["mode"] == MINE and bool(values["guess"])).lower(),
                data_key=option,
                data_name="pick",
                data_value=option,
            )
            width = f"width: {18 * count / max(1, *counts):.1f}em"
            bar = tag("div", class_="cs336-bar", style=width) + tag("span", str(count))
            counted = tag("div", bar, class_="cs336-row") if values["mode"] != MINE else ""
            rows.append(tag("div", button + counted, class_="cs336-row"))
        picture = tag("div", "".join(rows), data_arrows=1, data_group="options")
        if values["mode"] != MINE:
            return View(f"{sum(counts)} hands so far. Click an option for each hand.", picture)
        return View(self.verdict(values["guess"]), picture)

    def mark(self, option: str, values: Values) -> str:
        """Return the sign behind an option, or "" while the answer is unknown."""
        if not self.asked or values["mode"] != MINE or not values["guess"]:
            return ""
        if option == self.asked.answer:
            return "✓"
        return "✗" if option == values["guess"] else ""

    def verdict(self, guess: str) -> str:
        """Return what the card says about a guess, or what to do next."""
        if not guess:
            return "Choose before you run the next cell."
        if not self.asked:
            return f"You chose “{guess}”. Run the next cell to see."
        if guess == self.asked.answer:
            return f"You chose “{guess}”, and that is right."
        if not self.asked.answer:
            return f"You chose “{guess}”."
        said = f"You chose “{guess}”. It is “{self.asked.answer}”."
        return f"{said} {self.asked.why.get(guess, '')}".strip()

    def figure(self, values: Values) -> Figure:
        """Draw the options in large type, for pages where widgets don't run."""
        figure, axes = plt.subplots(figsize=(8, 0.2 + 0.42 * len(self.options)))
        axes.set(xlim=(0, 1), ylim=(len(self.options) - 0.4, -0.6))
        axes.axis("off")
        for row, (letter, option) in enumerate(zip(ascii_uppercase, self.options, strict=False)):
            axes.text(0.01, row, letter, fontsize=17, fontweight="bold", va="center")
            axes.text(0.06, row, option, fontsize=17, va="center", parse_math=False)
        return figure

    def __repr__(self) -> str:
        lettered = zip(ascii_uppercase, self.options, strict=False)
        return "   ".join(f"{letter} {option}" for letter, option in lettered)


def asked(folder: Path, name: str) -> Asked:
    """Return what the folder's notebooks say about a prediction."""
    for path in sorted([*folder.glob("*.ipynb"), *folder.glob(f"{SIDE_TRIPS}/*.ipynb")]):
        text = path.read_text(encoding="utf-8")
        if f'"{name}"' not in text:
            continue
        for cell in json.loads(text)["cells"]:
            about = cell["metadata"].get("cs336", {})
            if about.get("prediction") == name:
                return Asked(about.get("answer", ""), about.get("why", {}))
    return Asked()


def predict(name: str, *options: str) -> Prediction:
    """Ask for a prediction, with one button for each option.

    In a learner's copy of the notebooks, the first guess is recorded for `cs336 check`. In a
    classroom, switch the mode to "count hands" and click once for each raised hand.

    Args:
        name: Short name, unique in the course, as in the cell's metadata.
        options: Possible answers, which differ.
    """
    return Prediction(name, options)
