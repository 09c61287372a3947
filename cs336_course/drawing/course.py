"""Map of the course, with the order and length of the notebooks."""

from dataclasses import dataclass
from pathlib import Path

from matplotlib.figure import Figure

from cs336_course.drawing.style import BLUE, GREEN, GREY, RED, figure


@dataclass(frozen=True)
class Lecture:
    """A notebook of the course, with its place on the map, length and prerequisites."""

    name: str
    title: str
    minutes: int
    builds_on: tuple[str, ...]
    place: tuple[float, float]
    colour: str

    @property
    def number(self) -> str:
        """The notebook's two digits, and a letter if it is another part, as in "06b"."""
        return self.name.partition("_")[0]


NUMBERS, TRAINING, GPT2 = BLUE, GREEN, RED
COURSE = (
    Lecture("00_start_here", "Start here", 35, (), (0, 1), GREY),
    Lecture("01_dtypes", "Number\nformats", 100, ("00",), (1, 2), NUMBERS),
    Lecture("01b_low_bits", "Eight and\nfour bits", 90, ("01",), (1, 1), NUMBERS),
    Lecture("02_strides_and_views", "Strides\nand views", 95, ("00",), (1, 0), NUMBERS),
    Lecture("02b_stride_costs", "What\nstrides cost", 60, ("02",), (0, 0), NUMBERS),
    Lecture("03_einops", "Named\ndimensions", 100, ("02",), (2, 0), NUMBERS),
    Lecture("04_compute", "FLOPs\nand time", 105, ("01", "03"), (2, 2), NUMBERS),
    Lecture("04b_memory", "Memory and\nmany devices", 105, ("04",), (2.8, 1), NUMBERS),
    Lecture("05_adagrad", "AdaGrad and\nits family", 90, ("04b",), (3, 2), TRAINING),
    Lecture("05b_loss_and_muon", "Losses,\nfirst weights\nand Muon", 80, ("05",), (4, 1), TRAINING),
    Lecture("06_training_loop", "The training\nloop", 105, ("05",), (4, 2), TRAINING),
    Lecture("06b_reproducible_runs", "Reproducible\nruns", 105, ("06",), (5, 2), TRAINING),
    Lecture("06c_bug_hunt", "A bug\nhunt", 95, ("06b",), (6, 2), TRAINING),
    Lecture("07_gpt2_model", "GPT-2, part\nby part", 120, ("03", "05b"), (3, 0), GPT2),
    Lecture("07a_gpt2_speaks", "GPT-2\nspeaks", 98, ("07",), (4, 0), GPT2),
    Lecture(
        "07b_model_of_today",
        "A model of\ntoday, from\nyour parts",
        120,
        ("07a",),
        (5, 0),
        GPT2,
    ),
    Lecture("08_gpt2_training", "GPT-2,\ntrained", 115, ("06", "07a"), (5, 1), GPT2),
    Lecture("09_gpt2_speed", "GPT-2,\nfast", 117, ("08",), (6, 1), GPT2),
    Lecture("09b_recipe_of_today", "The recipe\nof today", 88, ("09",), (7, 2), GPT2),
    Lecture("10_gpt2_scale", "GPT-2, at\nfull scale", 110, ("09",), (6, 0), GPT2),
    Lecture("10b_models_of_today", "Models\nof today", 45, ("10",), (7, 1), GPT2),
    Lecture("10c_how_large", "How large, and\nfor whom", 65, ("10b",), (7, 0), GPT2),
    Lecture("10d_thousands_of_gpus", "Thousands\nof GPUs", 90, ("10b",), (8, 1), GPT2),
    Lecture("11_errata", "Errata", 55, (), (8, 2), GREY),
)


def course_map(notebooks: Path) -> Figure:
    """Draw the course as boxes and arrows. Boxes of missing notebooks are dashed."""
    fig, axes = figure(16.9, 5)
    axes.set(xlim=(-0.5, 8.5), ylim=(-0.6, 2.6))
    axes.axis("off")
    boxes = {}
    for lecture in COURSE:
        there = (notebooks / f"{lecture.name}.ipynb").exists()
        boxes[lecture.number] = axes.text(
            *lecture.place,
            f"{lecture.number}\n{lecture.title}\n{lecture.minutes} min",
            ha="center",
            va="center",
            bbox={
                "boxstyle": "round,pad=0.5",
                "facecolor": "white",
                "edgecolor": lecture.colour,
                "linewidth": 3,
                "linestyle": "-" if there else ":",
            },
        )
    fig.canvas.draw()  # computes the size of the boxes, where the arrows end
    for lecture in COURSE:
        for number in lecture.builds_on:
            axes.annotate(
                "",
                xy=lecture.place,
                xytext=boxes[number].get_position(),
                arrowprops={
                    "arrowstyle": "-|>,head_width=0.35,head_length=0.6",
                    "color": GREY,
                    "linewidth": 2,
                    "patchA": boxes[number].get_bbox_patch(),
                    "patchB": boxes[lecture.number].get_bbox_patch(),
                },
            )
    return fig


def lectures() -> str:
    """Return the map as text. It is stored in the README's picture, so that a test can check it."""
    return "; ".join(f"{each.number} {each.title!r} {each.minutes}" for each in COURSE)


def save_map(notebooks: Path, path: Path) -> None:
    """Write the map as a PNG file."""
    course_map(notebooks).savefig(path, metadata={"Description": lectures()})
