"""What follows from the table of pages agrees with it, and with the pages."""

from pathlib import Path

import pytest
from PIL import Image

from cs336_course import course
from cs336_course.drawing.course import description
from tools import pages, thumbnails

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def here(monkeypatch):
    """In the folder of the course, as make is."""
    monkeypatch.chdir(ROOT)


def test_every_notebook_is_in_the_table():
    found = {path.relative_to(pages.NOTEBOOKS) for path in pages.NOTEBOOKS.rglob("*.ipynb")}
    assert found == {Path(f"{page.name}.ipynb") for page in course.PAGES}


def test_a_page_begins_with_its_title_and_says_its_minutes():
    for page in course.written(pages.NOTEBOOKS):
        number = "Side trip" if page.is_side_trip else page.key
        assert page.prose(pages.NOTEBOOKS)[0].startswith(f"# {number} · "), page.name
        assert page.minutes_of_exercises(pages.NOTEBOOKS) < page.minutes(pages.NOTEBOOKS)


def test_what_follows_from_the_pages_is_fresh():
    """README's table, the syllabus, the timings, the links to the cloud, map and thumbnails."""
    said = "run `python -m tools.pages`"
    stale = [str(path) for path, text in pages.texts().items() if path.read_text() != text]
    assert not stale, f"{said}: {stale}"
    with Image.open(pages.MAP) as picture:
        assert picture.text["Description"] == description(pages.NOTEBOOKS), said
    written = course.written(pages.NOTEBOOKS)
    assert {path.stem for path in thumbnails.FOLDER.iterdir()} == {page.key for page in written}
    for page in written:
        with Image.open(thumbnails.FOLDER / f"{page.key}.png") as picture:
            alt, _ = thumbnails.chosen(page.path(pages.NOTEBOOKS))
            assert picture.text["Description"] == alt, f"{said}: {page.key}"


def test_a_page_builds_on_earlier_ones():
    keys = [page.key for page in course.PAGES]
    for page in course.PAGES:
        assert all(keys.index(key) < keys.index(page.key) for key in page.needs), page.name


def test_side_trips_follow_their_pages(tmp_path):
    for key in ("00", "02", "stride_costs", "low_bits"):
        path = course.page_of(key).path(tmp_path)
        path.parent.mkdir(exist_ok=True)
        path.touch()
    keys = [(page.key, [each.key for each in below]) for page, below in course.legs(tmp_path)]
    assert keys == [("00", ["low_bits"]), ("02", ["stride_costs"])]
