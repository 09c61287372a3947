"""Make README's thumbnails, one for each notebook, from the figures that it stores."""

import base64
import io
import shutil
from pathlib import Path

import nbformat
from nbformat import NotebookNode
from PIL import Image, ImageOps
from PIL.PngImagePlugin import PngInfo

from cs336_course.course import written
from cs336_lib.config import UserError

NOTEBOOKS, FOLDER = Path("notebooks"), Path("docs/thumbnails")
SIZE, COLOURS = (240, 128), 64
PREDICTION = "The explorer Your prediction"  # the cards of predictions look alike

# The beginning of the alternative text of a figure that is clearer than the cover when it is small.
CHOSEN = {
    "03_einops": "6 panels. Head 0",
    "bug_hunt": "Five cases",
}


def figures(notebook: NotebookNode) -> list[tuple[str, bytes]]:
    """Return the alternative text and the PNG of each figure, without the predictions' cards."""
    found = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            alt = output.get("metadata", {}).get("image/png", {}).get("alt", "")
            if alt and not alt.startswith(PREDICTION):
                found.append((alt, base64.b64decode(output.data["image/png"])))
    return found


def chosen(path: Path, beginning: str | None = None) -> tuple[str, bytes]:
    """Return the figure that stands for a notebook: the one in CHOSEN, or else its cover.

    Args:
        path: the notebook.
        beginning: how the alternative text of another figure begins, which is wanted instead.
    """
    every = figures(nbformat.read(path, as_version=4))
    if not every:
        raise UserError(f"{path} stores no figure; run `python -m tools.notebooks {path}`")
    if beginning is None:
        beginning = CHOSEN.get(path.stem, "")
    return next((one for one in every if one[0].startswith(beginning)), every[0])


def thumbnail(png: bytes) -> Image.Image:
    """Return a picture on white, as large as the others and with few colours."""
    picture = Image.open(io.BytesIO(png)).convert("RGBA")
    white = Image.new("RGBA", picture.size, "white")
    flat = Image.alpha_composite(white, picture).convert("RGB")
    fitted = ImageOps.pad(flat, SIZE, Image.Resampling.LANCZOS, color="white")
    return fitted.quantize(COLOURS)


def write(notebooks: Path = NOTEBOOKS, folder: Path = FOLDER) -> None:
    """Write a thumbnail for each page. It contains the alternative text of its figure."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for page in written(notebooks):
        alt, png = chosen(page.path(notebooks))
        about = PngInfo()
        about.add_text("Description", alt)
        thumbnail(png).save(folder / f"{page.key}.png", optimize=True, pnginfo=about)
