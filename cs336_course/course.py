"""The pages of the course in their order: the road of twelve evenings, and the side trips."""

from dataclasses import dataclass

from cs336_lib.config import UserError

SIDE_TRIPS = "side_trips"  # the folder of the pages beside the road


@dataclass(frozen=True)
class Page:
    """A page of the course.

    Attributes:
        name: Its notebook below notebooks/, as in "03_einops" or "side_trips/low_bits".
        title: Its title on the map.
        needs: Keys of the pages that it builds on.
    """

    name: str
    title: str
    needs: tuple[str, ...] = ()

    @property
    def is_side_trip(self) -> bool:
        """Whether the page stands beside the road."""
        return self.name.startswith(SIDE_TRIPS)

    @property
    def key(self) -> str:
        """What names the page elsewhere: its two digits, or a side trip's own name."""
        return self.name.partition("/")[2] or self.name.partition("_")[0]


PAGES = (
    Page("00_start_here", "Start here"),
    Page("01_dtypes", "Number formats", ("00",)),
    Page("side_trips/low_bits", "Eight and four bits", ("01",)),
    Page("02_strides_and_views", "Strides and views", ("00",)),
    Page("side_trips/stride_costs", "What strides cost", ("02",)),
    Page("03_einops", "Named dimensions", ("02",)),
    Page("04_compute", "FLOPs and time", ("01", "03")),
    Page("side_trips/memory", "Memory", ("04",)),
    Page("05_adagrad", "AdaGrad and its family", ("04",)),
    Page("side_trips/loss_and_muon", "Losses, first weights and Muon", ("05",)),
    Page("06_training_loop", "The training loop", ("05",)),
    Page("side_trips/reproducible_runs", "Reproducible runs", ("06",)),
    Page("side_trips/bug_hunt", "A bug hunt", ("06",)),
    Page("side_trips/errata", "Errata", ("06",)),
    Page("07_gpt2_model", "GPT-2, part by part", ("03", "06")),
    Page("08_gpt2_speaks", "GPT-2 speaks", ("07",)),
    Page("side_trips/model_of_today", "A model of today, from your parts", ("08",)),
    Page("side_trips/inside_a_model", "Inside a model", ("08",)),
    Page("09_gpt2_training", "GPT-2, trained", ("08",)),
    Page("10_gpt2_speed", "GPT-2, fast", ("09",)),
    Page("side_trips/recipe_of_today", "The recipe of today", ("10",)),
    Page("11_gpt2_scale", "GPT-2, at full scale", ("10",)),
    Page("side_trips/what_a_model_costs", "What a model costs", ("04", "11")),
    Page("side_trips/how_large", "How large, and for whom", ("side_trips/what_a_model_costs",)),
    Page("side_trips/thousands_of_gpus", "Thousands of GPUs", ("11",)),
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
