"""Write what follows from the table of pages, and from the minutes that the pages say.

python -m tools.pages

These are the tables of README, of the syllabus and of docs/presenting.md, the map, the thumbnails,
and the links in each notebook that open it in the cloud. `make notebooks` does this at its end.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from cs336_course import course
from cs336_course.course import Page
from cs336_course.drawing.course import course_map, description
from tools import thumbnails

NOTEBOOKS, MAP = Path("notebooks"), Path("docs/course_map.png")
BEGIN, END = "<!-- pages: python -m tools.pages -->\n", "<!-- end of the pages -->\n"
CLOUD = re.compile(r"\*\*Open in:\*\* .*?\.(?=\"|\\n|$)", re.M)


def readme() -> Iterator[str]:
    """Yield README's table: the road, and the side trips after it."""
    heading = "| | | notebook | you will be able to | minutes |\n|---|---|---|---|---|\n"
    yield f"The road:\n\n{heading}"
    for page, _ in course.legs(NOTEBOOKS):
        yield row(page, page.key)
    yield "\n<details>\n<summary>The side trips, each alone, and the page that they follow"
    yield f"</summary>\n\n{heading}"
    for page, side_trips in course.legs(NOTEBOOKS):
        for side_trip in side_trips:
            yield row(side_trip, f"after {page.key}")
    yield "\n</details>\n"


def row(page: Page, first: str) -> str:
    """Return a page's row of README's table."""
    picture = f"![](docs/thumbnails/{page.key}.png)"
    link = f"[{page.title(NOTEBOOKS)}]({page.path(NOTEBOOKS)})"
    return f"| {first} | {picture} | {link} | {page.ability} | {page.minutes(NOTEBOOKS)} |\n"


def syllabus() -> Iterator[str]:
    """Yield the table of the weeks: a session, and homework."""
    yield "| week | session | homework | hours |\n|---|---|---|---|\n"
    weeks: dict[int, list[Page]] = {}
    for page, side_trips in course.legs(NOTEBOOKS):
        weeks.setdefault(page.week, []).extend([page, *side_trips])
    for week, pages in weeks.items():
        session = " and ".join(page.heading(NOTEBOOKS) for page in pages if not page.is_side_trip)
        links = ", ".join(f"[{page.key}](../{page.path(NOTEBOOKS)})" for page in pages)
        half_hours = round(sum(page.minutes(NOTEBOOKS) for page in pages) / 30)
        hours = f"{half_hours // 2}{'½' if half_hours % 2 else ''}"
        yield f"| {week} | {session} | {links} | {hours} |\n"


def timings() -> Iterator[str]:
    """Yield the table of minutes in docs/presenting.md."""
    yield "| notebook | minutes | exercises |\n|---|---|---|\n"
    for page in course.written(NOTEBOOKS):
        minutes, exercises = page.minutes(NOTEBOOKS), page.minutes_of_exercises(NOTEBOOKS)
        yield f"| {page.heading(NOTEBOOKS)} | {minutes} | {exercises} |\n"


def with_table(text: str, rows: Iterator[str]) -> str:
    """Return a document with other lines between its two marks."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}{''.join(rows)}{END}{after}"


def with_hours(text: str) -> str:
    """Return README with the hours of the road and of all side trips."""
    road, side_trips = (f"{hours:.0f} hours" for hours in course.hours_of(NOTEBOOKS))
    text = re.sub(r"(road of [\w-]+ notebooks takes about )\d+ hours", rf"\g<1>{road}", text)
    return re.sub(r"(side trips another )\d+ hours", rf"\g<1>{side_trips}", text)


def with_links(text: str, page: Page, repository: str) -> str:
    """Return a notebook's file with the links that open it in the cloud."""
    owner = repository.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{owner}/blob/main/{page.path(NOTEBOOKS)}"
    links = f"[Colab]({colab}) · [Codespaces](https://codespaces.new/{owner})"
    return CLOUD.sub(f"**Open in:** {links}.", text)


def texts() -> dict[Path, str]:
    """Return all texts that follow from the pages, by their files."""
    found = {
        Path("README.md"): (readme, with_hours),
        Path("docs/syllabus.md"): (syllabus, str),
        Path("docs/presenting.md"): (timings, str),
    }
    wanted = {
        path: change(with_table(path.read_text(encoding="utf-8"), rows()))
        for path, (rows, change) in found.items()
    }
    settings = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    repository = settings["project"]["urls"]["Repository"]
    for page in course.written(NOTEBOOKS):
        path = page.path(NOTEBOOKS)
        wanted[path] = with_links(path.read_text(encoding="utf-8"), page, repository)
    return wanted


def main() -> None:
    """Write the texts, the map and the thumbnails."""
    for path, text in texts().items():
        path.write_text(text, encoding="utf-8")
    about = {"Description": description(NOTEBOOKS)}
    course_map(NOTEBOOKS).savefig(MAP, metadata=about)
    thumbnails.write(NOTEBOOKS)


if __name__ == "__main__":
    main()
