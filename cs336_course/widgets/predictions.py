"""Multiple-choice predictions that a reader makes before running the next cell.

The cell contains the options. To hide the correct answer from the reader, it is stored with the
topic in the cell metadata, as in `{"cs336": {"prediction": "bf16_sum", "answer": "256", "topic":
"precision"}}`. `cs336 check` compares the correct answer with the reader's first guess.
"""

import asyncio
import html
import json
import re
from pathlib import Path
from string import ascii_uppercase

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from cs336_course.learner import study
from cs336_course.widgets.widget import Explorer, Values, View, choice, code, tag

MINE, HANDS, LIVE = "my guess", "count hands", "live votes"
SYMBOLS = {r"\infty": "∞", r"\sqrt{d}": "√d", "$": ""}  # phones show no formulas


class Prediction(Explorer):
    """Buttons for the options of a prediction.

    The buttons record the guess of one reader, or count raised hands in a classroom. With live
    votes, the audience also votes by phone (see `votes`).

    Args:
        name: Name of the prediction, as in the cell's metadata.
        options: Possible answers.
    """

    def __init__(self, name: str, options: tuple[str, ...]):
        self.name, self.options = name, options
        self.poll = None
        none = ",".join("0" * len(options))
        values = {"mode": MINE, "pick": "", "guess": "", "hands": none, "votes": none}
        values |= {"address": "", "open": ""}
        controls = [choice("mode", "mode", [MINE, HANDS, LIVE])]
        super().__init__("prediction", "Your prediction", controls, values)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Count a click on an option as the reader's guess or as one raised hand."""
        pick, values = values["pick"], {**values, "pick": ""}
        if changed == {"mode"} and values["mode"] == LIVE:
            values["address"] = self.open_poll()
        elif self.poll and changed == {"open"} and values["open"]:
            self.open_poll()
        elif self.poll and changed <= {"mode", "open"}:
            self.poll.is_open = False
        if self.poll:
            values["votes"] = ",".join(map(str, self.poll.counts()))
            values["open"] = "yes" if self.poll.is_open else ""
        if changed != {"pick"} or pick not in self.options:
            return values
        if values["mode"] == MINE:
            study.record_guess(study.here(), self.name, pick)
            return {**values, "guess": pick}
        hands = [int(count) for count in values["hands"].split(",")]
        hands[self.options.index(pick)] += 1
        return {**values, "hands": ",".join(map(str, hands))}

    def open_poll(self) -> str:
        """Let phones vote, and return the address that they open.

        Raises:
            UserError: If this machine has no network.
        """
        from cs336_course.widgets import votes  # only presenters need a server

        booth = votes.booth()
        if self.poll is None:
            kernel = asyncio.get_running_loop()

            def show() -> None:
                kernel.call_soon_threadsafe(self.answer, "votes", "")

            self.poll = votes.Poll(question(study.here(), self.name), self.options, show)
        booth.open(self.poll)
        return booth.address

    def view(self, values: Values) -> View:
        """Render the options, and the guess or the number of votes."""
        counts = [int(count) for count in values["hands"].split(",")]
        if values["mode"] == LIVE:
            votes = map(int, values["votes"].split(","))
            counts = [hands + count for hands, count in zip(counts, votes, strict=True)]
        rows = []
        for letter, option, count in zip(ascii_uppercase, self.options, counts, strict=False):
            button = tag(
                "button",
                f"{letter} &nbsp; {html.escape(option)}",
                class_="cs336-option" + (" cs336-chosen" if option == values["guess"] else ""),
                aria_label=option,
                aria_pressed=str(option == values["guess"]).lower(),
                data_key=option,
                data_name="pick",
                data_value=option,
            )
            width = f"width: {18 * count / max(1, *counts):.1f}em"
            bar = tag("div", class_="cs336-bar", style=width) + tag("span", str(count))
            counted = tag("div", bar, class_="cs336-row") if values["mode"] != MINE else ""
            rows.append(tag("div", button + counted, class_="cs336-row"))
        picture = tag("div", "".join(rows), data_arrows=1, data_group="options")
        if values["mode"] == LIVE and values["address"]:
            picture = tag("div", picture + invitation(values), class_="cs336-row")
            state = "Scan the code to vote." if values["open"] else "The vote is closed."
            return View(f"Votes: {sum(counts)}. {state}", picture)
        if values["mode"] != MINE:
            return View(f"{sum(counts)} hands so far. Click an option for each hand.", picture)
        if values["guess"]:
            return View(f"You chose {values['guess']}. Run the next cell to see.", picture)
        return View("Choose before you run the next cell.", picture)

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


def invitation(values: Values) -> str:
    """Return the QR code, the address, and the button that closes or opens the poll."""
    from cs336_course.widgets import votes

    action, value = ("Close the vote", "") if values["open"] else ("Open it again", "yes")
    button = tag("button", action, data_key="open", data_name="open", data_value=value)
    address = tag("div", code(values["address"]), class_="cs336-address")
    return tag(
        "div", votes.qr_code(values["address"]) + address + button, class_="cs336-invitation"
    )


def question(folder: Path, name: str) -> str:
    """Return the question before a prediction in one of the folder's notebooks, or ""."""
    for path in sorted(folder.glob("*.ipynb")):
        text = path.read_text(encoding="utf-8")
        if f'"{name}"' not in text:
            continue
        asked = ""
        for cell in json.loads(text)["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown" and "**Predict:**" in source:
                asked = source.split("**Predict:**")[1].split("\n\n")[0]
            if cell["metadata"].get("cs336", {}).get("prediction") == name:
                for old, new in SYMBOLS.items():
                    asked = asked.replace(old, new)
                asked = re.sub(r"\*+(\w[^*]*)\*+", r"\1", " ".join(asked.split()))
                return asked[:1].upper() + asked[1:]
    return ""


def predict(name: str, *options: str) -> Prediction:
    """Ask for a prediction, with one button for each option.

    In a learner's copy of the notebooks, the first guess is recorded for `cs336 check`. In a
    classroom, switch the mode to "live votes" and let the audience vote by phone, or to "count
    hands" and click once for each raised hand.

    Args:
        name: Short name, unique in the course, as in the cell's metadata.
        options: Two to six possible answers.

    Raises:
        ValueError: If there aren't two to six options, or an option appears twice.
    """
    if not 2 <= len(options) <= 6 or len(set(options)) < len(options):
        raise ValueError(f"predict needs two to six different options, not {list(options)}")
    return Prediction(name, options)
