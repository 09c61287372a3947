"""The bill of a run, and where it stands on the ruler of prices."""

import pytest

from cs336_course import widgets
from cs336_course.drawing.ruler import LEFT, RIGHT, THINGS, money, price_ruler
from cs336_course.widgets import price
from cs336_lib import accounting
from cs336_lib.config import GPTConfig


def test_the_bill_of_gpt2_is_that_of_its_flops():
    found = price.cost(widgets.first_bill(share="41 %").values)
    assert found.flops == pytest.approx(10e9 * accounting.train_flops_per_token(GPTConfig()))
    assert found.seconds == pytest.approx(found.flops / (8 * 989.5e12 * 0.41))
    assert found.dollars == pytest.approx(found.seconds / 3600 * 8 * 3.5)


def test_more_gpus_change_the_time_and_not_the_price():
    few, many = (price.cost(widgets.first_bill(gpus=count).values) for count in ("8", "64"))
    assert few.seconds == pytest.approx(8 * many.seconds)
    assert few.dollars == pytest.approx(many.dollars)


def test_a_run_stands_where_its_price_is():
    places = [price.place(dollars) for dollars in (0.001, LEFT, 5, 500, RIGHT, 1e15)]
    assert places == sorted(places)
    assert (places[1], places[-1]) == (0, price.WIDTH)
    assert price.place(THINGS["car"]) < price.place(100_000) < price.place(THINGS["house"])
    assert "cs336-run" in widgets.first_bill().html


@pytest.mark.parametrize(
    ("dollars", "said"),
    [(0.351, "$0.35"), (20.6, "$21"), (12_530, "$12,530"), (7.074e6, "$7.07M"), (2e9, "$2B")],
)
def test_money(dollars, said):
    assert money(dollars) == said


def test_the_ruler_names_the_run():
    texts = [text.get_text().strip() for text in price_ruler("a run", 42, "t").axes[0].texts]
    assert texts == [*THINGS, "a run: $42"]
