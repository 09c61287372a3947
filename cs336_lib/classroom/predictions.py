"""Multiple-choice predictions that a reader makes before running the next cell.

The cell contains the options. To hide the correct answer from the reader, it is stored with the
topic in the cell metadata, as in `{"cs336": {"prediction": "bf16_sum", "answer": "256", "topic":
"precision"}}`. `cs336 check` compares the correct answer with the reader's first guess.
"""

import html
from pathlib import Path
from string import ascii_uppercase

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from cs336_lib.classroom import study
from cs336_lib.classroom.explorers.widget import Explorer, Values, View, choice, tag

MINE, HANDS = "my guess", "count hands"


class Prediction(Explorer):
    """Buttons for the options of a prediction.

    The buttons record the guess of one reader, or count raised hands in a classroom.

    Args:
        name: Name of the prediction, as in the cell's metadata.
        options: Possible answers.
    """

    def __init__(self, name: str, options: tuple[str, ...]):
        self.name, self.options = name, options
        values = {"mode": MINE, "pick": "", "guess": "", "hands": ",".join("0" * len(options))}
        controls = [choice("mode", "mode", [MINE, HANDS])]
        super().__init__("prediction", "Your prediction", controls, values)

    def settle(self, values: dict[str, str], changed: set[str]) -> dict[str, str]:
        """Count a click on an option as the reader's guess or as one raised hand."""
        pick, values = values["pick"], {**values, "pick": ""}
        if changed != {"pick"} or pick not in self.options:
            return values
        if values["mode"] == MINE:
            study.record_guess(Path.cwd(), self.name, pick)
            return {**values, "guess": pick}
        hands = [int(count) for count in values["hands"].split(",")]
        hands[self.options.index(pick)] += 1
        return {**values, "hands": ",".join(map(str, hands))}

    def view(self, values: Values) -> View:
        """Render the options, and the guess or the number of raised hands."""
        hands = [int(count) for count in values["hands"].split(",")]
        rows = []
        for letter, option, count in zip(ascii_uppercase, self.options, hands, strict=False):
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
            width = f"width: {18 * count / max(1, *hands):.1f}em"
            bar = tag("div", class_="cs336-bar", style=width) + tag("span", str(count))
            counted = tag("div", bar, class_="cs336-row") if values["mode"] == HANDS else ""
            rows.append(tag("div", button + counted, class_="cs336-row"))
        picture = tag("div", "".join(rows), data_arrows=1, data_group="options")
        if values["mode"] == HANDS:
            return View(f"{sum(hands)} hands so far. Click an option for each hand.", picture)
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


def predict(name: str, *options: str) -> Prediction:
    """Ask for a prediction, with one button for each option.

    In a learner's copy of the notebooks, the first guess is recorded for `cs336 check`. In a
    classroom, switch the mode to "count hands" and click once for each raised hand.

    Args:
        name: Short name, unique in the course, as in the cell's metadata.
        options: Two to six possible answers.

    Raises:
        ValueError: If there aren't two to six options, or an option appears twice.
    """
    if not 2 <= len(options) <= 6 or len(set(options)) < len(options):
        raise ValueError(f"predict needs two to six different options, not {list(options)}")
    return Prediction(name, options)
