"""The pages of the course in their order: the road of twelve evenings, and the side trips.

README's table, the map, the syllabus, the table of timings, the thumbnails and the site follow from
this table (`python -m tools.pages`). A page's title and its minutes are written on the page only.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from cs336_lib.config import UserError

SIDE_TRIPS = "side_trips"  # the folder of the pages beside the road


@dataclass(frozen=True)
class Page:
    """A page of the course.

    Attributes:
        name: Its notebook below notebooks/, as in "03_einops" or "side_trips/low_bits".
        ability: What you will be able to do after it.
        needs: Keys of the pages that it builds on.
        week: The week of the syllabus, for a page of the road. A side trip has that of its page.
    """

    name: str
    ability: str
    needs: tuple[str, ...] = ()
    week: int = 0

    @property
    def is_side_trip(self) -> bool:
        """Whether the page stands beside the road."""
        return self.name.startswith(SIDE_TRIPS)

    @property
    def key(self) -> str:
        """What names the page elsewhere: its two digits, or a side trip's own name."""
        return self.name.partition("/")[2] or self.name.partition("_")[0]

    def path(self, notebooks: Path) -> Path:
        """Return where its notebook is."""
        return notebooks / f"{self.name}.ipynb"

    def prose(self, notebooks: Path) -> list[str]:
        """Return the text of its cells in Markdown."""
        cells = json.loads(self.path(notebooks).read_text(encoding="utf-8"))["cells"]
        return ["".join(each["source"]) for each in cells if each["cell_type"] == "markdown"]

    def title(self, notebooks: Path) -> str:
        """Return its title, as in "Named dimensions"."""
        return self.prose(notebooks)[0].splitlines()[0].partition(" · ")[2]

    def heading(self, notebooks: Path) -> str:
        """Return its title with the number of a page of the road, as in "03 · Named dimensions"."""
        title = self.title(notebooks)
        return title if self.is_side_trip else f"{self.key} · {title}"

    def minutes(self, notebooks: Path) -> int:
        """Return how long the page takes, as it says itself.

        Raises:
            UserError: If it doesn't say so.
        """
        for text in self.prose(notebooks):
            if said := re.search(r"\*\*Minutes:\*\* (\d+)", text):
                return int(said[1])
        raise UserError(f"{self.path(notebooks)}: no cell says `**Minutes:** 75`")

    def minutes_of_exercises(self, notebooks: Path) -> int:
        """Return how long its exercises take, as the tasks say."""
        tasks = (text for text in self.prose(notebooks) if text.startswith("### Exercise"))
        found = (re.search(r"(\d+) min", text) for text in tasks)
        return sum(int(minutes[1]) for minutes in found if minutes)


PAGES = (
    Page(
        "00_start_here",
        "hear the model that ships, and work out what any GPT costs in dollars",
        week=1,
    ),
    Page(
        "01_dtypes",
        "decode any float by hand, and rescue two runs that low precision ruins",
        ("00",),
        week=1,
    ),
    Page(
        "side_trips/low_bits",
        "choose four bits for weights and for gradients, and decode a real 4-bit model by hand",
        ("01",),
    ),
    Page(
        "02_strides_and_views",
        "test whether a model sees the future, and tell a view from a copy before running the line",
        ("00",),
        week=2,
    ),
    Page(
        "side_trips/stride_costs",
        "explain why 1,040 columns can be faster to walk than 1,024, and walk through a matrix "
        "in tiles",
        ("02",),
    ),
    Page(
        "03_einops",
        "write attention by name, and say which slips names, sizes and tests catch",
        ("02",),
        week=3,
    ),
    Page(
        "04_compute",
        "predict how long and how many dollars a 70B model takes to train, and say how far to "
        "trust it",
        ("01", "03"),
        week=4,
    ),
    Page(
        "side_trips/memory",
        "account for every byte of a training step, and make it fit at least cost",
        ("04",),
    ),
    Page(
        "05_adagrad",
        "derive and build every optimizer from SGD to AdamW, each from a failure of the one before",
        ("04",),
        week=5,
    ),
    Page(
        "06_training_loop",
        "build the loop, find out what killed a run at step 9,000, and repair it",
        ("05",),
        week=6,
    ),
    Page(
        "side_trips/reproducible_runs",
        "make runs equal bit for bit, and write a training script that survives a power cut",
        ("06",),
    ),
    Page(
        "side_trips/bug_hunt",
        "find the wrong line in five runs that don't crash, by asking for evidence, and prove it",
        ("06",),
    ),
    Page(
        "side_trips/errata",
        "judge nine claims that are easy to believe, and find settings that a program ignores",
        ("06",),
    ),
    Page(
        "07_gpt2_model",
        "climb from a plain mean to attention, account for every part of GPT-2, and predict its "
        "first loss",
        ("03", "06"),
        week=7,
    ),
    Page(
        "08_gpt2_speaks",
        "write a sampler that neither loops nor babbles, prove loaded weights, and let yours write",
        ("07",),
        week=7,
    ),
    Page(
        "side_trips/model_of_today",
        "turn your GPT into a Llama in five changes, load a real 135M model into it, and talk to "
        "it",
        ("08",),
    ),
    Page(
        "side_trips/inside_a_model",
        "read what a trained model has decided after each block, and find the heads that copy",
        ("08",),
    ),
    Page(
        "09_gpt2_training",
        "write GPT-2's training loop, justify its recipe, and watch babble become Shakespeare",
        ("08",),
        week=8,
    ),
    Page(
        "10_gpt2_speed",
        "make a step of your GPT-2 faster, rung by rung, with the same loss, and read a profile",
        ("09",),
        week=9,
    ),
    Page(
        "side_trips/recipe_of_today",
        "judge which changes since GPT-2 matter, with seeds and p-values",
        ("10",),
    ),
    Page(
        "11_gpt2_scale",
        "make your trainer run on many processes, judge it with HellaSwag, and predict the cost of "
        "a full run",
        ("10",),
        week=10,
    ),
    Page(
        "side_trips/what_a_model_costs",
        "count any model from its `config.json`, and turn it into FLOPs, bytes, days and dollars",
        ("04", "11"),
    ),
    Page(
        "side_trips/thousands_of_gpus",
        "find what GPUs wait for, defend a plan for a run of 900,000 dollars, and read a pipeline",
        ("11",),
    ),
)


def page_of(key: str) -> Page:
    """Return a page by its key, such as "07" or "low_bits".

    Raises:
        UserError: If there is none.
    """
    found = {page.key: page for page in PAGES}
    if key not in found:
        raise UserError(f"no page {key!r}; one of {', '.join(found)} expected")
    return found[key]


def written(notebooks: Path) -> list[Page]:
    """Return the pages whose notebooks are there, in their order."""
    return [page for page in PAGES if page.path(notebooks).exists()]


def legs(notebooks: Path) -> list[tuple[Page, list[Page]]]:
    """Return each page of the road with the side trips that follow it."""
    found: list[tuple[Page, list[Page]]] = []
    for page in written(notebooks):
        if page.is_side_trip and found:
            found[-1][1].append(page)
        else:
            found.append((page, []))
    return found


def hours_of(notebooks: Path) -> tuple[float, float]:
    """Return how long the road takes, and how long all side trips do."""
    minutes = [0, 0]
    for page in written(notebooks):
        minutes[page.is_side_trip] += page.minutes(notebooks)
    return minutes[0] / 60, minutes[1] / 60
