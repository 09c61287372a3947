"""Write the first page of the site: the model at work, the bill, and a card for each notebook."""

import html
import io
import re
import tomllib
from pathlib import Path

from PIL import Image

from cs336_course.drawing.course import COURSE, Lecture
from cs336_course.widgets import price
from tools import browser_explorers, thumbnails

GPT2 = 21  # dollars, as notebook 00 computes it
COVER = (480, 300)  # pixels, twice as many as a card shows


def cover(path: Path) -> bytes:
    """Return the thumbnail of a notebook, as WebP."""
    _, png = thumbnails.chosen(path)
    picture, file = Image.open(io.BytesIO(png)).convert("RGB"), io.BytesIO()
    picture.thumbnail(COVER)
    picture.save(file, "WEBP", quality=80)
    return file.getvalue()


def abilities(readme: str) -> dict[str, str]:
    """Return what one can do after each notebook: the words in its row of README's table."""
    found = {}
    for row in re.findall(r"^\|.*\(notebooks/.*\|$", readme, re.M):
        (name,) = set(re.findall(r"notebooks/(\w+)\.ipynb", row))
        words = (cell.strip() for cell in row.strip("|").split("|"))
        found[name] = next(cell for cell in words if " " in cell and not re.search(r"[(<]", cell))
    return found


def card(lecture: Lecture, ability: str) -> str:
    """Return a notebook's card as HTML."""
    title = f"{lecture.number} · {' '.join(lecture.title.split())}"
    return (
        f'<li><a href="notebooks/{lecture.name}.html">'
        f'<img src="_static/covers/{lecture.name}.webp" alt="" loading="lazy">'
        f"<strong>{html.escape(title)}</strong>"
        f'<span class="minutes">{lecture.minutes} minutes</span>'
        f'<span class="ability">You’ll {html.escape(ability)}.</span></a></li>'
    )


def landing(template: str, notebooks: Path, folder: Path) -> str:
    """Return the first page in Markdown, and write its pictures to `folder`.

    The links to hosted notebooks and what one can do after a notebook are those of the README.
    """
    readme = Path("README.md").read_text(encoding="utf-8")
    able = abilities(readme)
    covers = folder / "_static" / "covers"
    covers.mkdir(parents=True, exist_ok=True)
    for lecture in COURSE:
        picture = cover(notebooks / f"{lecture.name}.ipynb")
        (covers / f"{lecture.name}.webp").write_bytes(picture)
    cards = "\n".join(card(lecture, able[lecture.name]) for lecture in COURSE)
    alt, png = thumbnails.chosen(
        notebooks / "side_trips/memory.ipynb", "Memory through one training step"
    )
    (folder / "memory.png").write_bytes(png)
    width = Image.open(io.BytesIO(png)).width // 2  # a stored figure is sharp at half its pixels
    url = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
    for word, text in {
        "LAUNCH": "\n".join(re.findall(r"^\[!\[Open in .*", readme, re.M)),
        "RULER": f'<div class="ruler cs336-first-bill">{price.drawing(GPT2, "GPT-2: ")}</div>',
        "WRITER": browser_explorers.element("widgets.writer()"),
        "EXPLORER": browser_explorers.element("widgets.training_budget()"),
        "PICTURE": f"```{{image}} memory.png\n:alt: {alt}\n:width: {width}px\n```",
        "PATH": f'<ul class="cards">\n{cards}\n</ul>',
        "INSTALL": f"git clone {url} course\ncd course\nmake lab",
    }.items():
        template = template.replace(word, text, 1)
    return template
