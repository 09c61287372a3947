"""Write the first page of the site: the model at work, the bill, and a card for each notebook."""

import html
import io
import re
import tomllib
from pathlib import Path

from PIL import Image

from cs336_course.course import Page, page_of, written
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


def card(page: Page, notebooks: Path) -> str:
    """Return a notebook's card as HTML."""
    ability = re.sub("`(.*?)`", r"<code>\1</code>", html.escape(page.ability, quote=False))
    return (
        f'<li><a href="notebooks/{page.name}.html">'
        f'<img src="_static/covers/{page.key}.webp" alt="" loading="lazy">'
        f"<strong>{html.escape(page.heading(notebooks))}</strong>"
        f'<span class="minutes">{page.minutes(notebooks)} minutes</span>'
        f'<span class="ability">You’ll {ability}.</span></a></li>'
    )


def cards(pages: list[Page], notebooks: Path) -> str:
    """Return the cards of several notebooks as HTML."""
    every = "\n".join(card(page, notebooks) for page in pages)
    return f'<ul class="cards">\n{every}\n</ul>'


def landing(template: str, notebooks: Path, folder: Path) -> str:
    """Return the first page in Markdown, and write its pictures to `folder`.

    The links to hosted notebooks are those of the README.
    """
    readme = Path("README.md").read_text(encoding="utf-8")
    pages = written(notebooks)
    covers = folder / "_static" / "covers"
    covers.mkdir(parents=True, exist_ok=True)
    for page in pages:
        (covers / f"{page.key}.webp").write_bytes(cover(page.path(notebooks)))
    alt, png = thumbnails.chosen(
        page_of("memory").path(notebooks), "Memory through one training step"
    )
    (folder / "memory.png").write_bytes(png)
    width = Image.open(io.BytesIO(png)).width // 2  # a stored figure is sharp at half its pixels
    url = tomllib.loads(Path("pyproject.toml").read_text())["project"]["urls"]["Repository"]
    for word, text in {
        "LAUNCH": "\n".join(re.findall(r"^\[!\[Open in .*", readme, re.M)),
        "RULER": f'<div class="ruler cs336-first-bill">{price.drawing(GPT2, "GPT-2: ")}</div>',
        "WRITER": browser_explorers.element("widgets.writer()"),
        "EXPLORER": browser_explorers.element("widgets.first_bill()"),
        "PICTURE": f"```{{image}} memory.png\n:alt: {alt}\n:width: {width}px\n```",
        "ROAD": cards([page for page in pages if not page.is_side_trip], notebooks),
        "SIDE_TRIPS": cards([page for page in pages if page.is_side_trip], notebooks),
        "INSTALL": f"git clone {url} course\ncd course\nmake lab",
    }.items():
        template = template.replace(word, text, 1)
    return template
