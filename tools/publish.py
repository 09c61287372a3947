"""Build offline slides, an offline web site, and a handout without solutions."""

import argparse
import os
import re
import shutil
import subprocess
import sys
from importlib import metadata, resources
from pathlib import Path

import nbformat
from nbconvert import SlidesExporter
from nbformat import NotebookNode
from nbformat.v4 import new_output
from tqdm import tqdm
from traitlets.config import Config

from cs336_course.course import SIDE_TRIPS, written
from cs336_course.drawing import shown
from cs336_course.learner import study
from cs336_course.widgets.widget import HERE
from cs336_lib.report import palette
from tools import browser_explorers
from tools.landing import cover, landing
from tools.page_predictions import with_predictions, with_questions

NOTEBOOKS, DOCS, BUILD = Path("notebooks"), Path("docs"), Path("build")
ONLY_FOR_BUILDING = shutil.ignore_patterns(
    "_*", "explorers", "site", "slides", "conf.py"
)  # files in docs
MATHJAX = ("tex-chtml.js", "input/tex/extensions", "output/chtml/fonts")


def title(notebook: NotebookNode) -> str:
    """Return the title of a notebook without "#", for example "03 · Named dimensions"."""
    return notebook.cells[0].source.splitlines()[0].removeprefix("# ")


def without_solutions(notebook: NotebookNode) -> NotebookNode:
    """Remove the cells with the tag `solution` from a notebook. Hints are kept."""
    kept = [cell for cell in notebook.cells if "solution" not in cell.metadata.get("tags", [])]
    return NotebookNode(notebook | {"cells": kept})


def with_alt_texts(notebook: NotebookNode) -> NotebookNode:
    """Copy the alternative texts of figures to the cell metadata, which myst-nb reads."""
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        found = [o.get("metadata", {}).get("image/png", {}).get("alt", "") for o in outputs]
        if texts := [text for text in found if text]:
            cell.metadata["mystnb"] = {"image": {"alt": " ".join(texts)}}
    return notebook


def with_exercise_names(notebook: NotebookNode) -> NotebookNode:
    """Put the name of each exercise before its heading, as a target such as `exercise-cheapest`."""
    heading = None
    for cell in notebook.cells:
        if cell.source.startswith(("### Exercise", "### Extra exercise")):
            heading = cell
        if heading and (name := cell.metadata.get("cs336", {}).get("exercise")):
            heading.source = f"(exercise-{name})=\n{heading.source}"
    return notebook


def with_cover_first(notebook: NotebookNode) -> NotebookNode:
    """Let myst-nb fold the imports, as JupyterLab does, and show the cover's picture above them."""
    cells = notebook.cells
    for index, cell in enumerate(cells):
        tags = cell.metadata.get("tags", [])
        if "imports" in tags or "given" in tags:
            tags.append("hide-input")
        if "cover" in tags:
            tags.append("remove-input")
            cells[index - 1 : index + 1] = cell, cells[index - 1]
    return notebook


def with_live_explorers(notebook: NotebookNode) -> NotebookNode:
    """Add the explorers that need no kernel to the outputs of their cells."""
    for cell in notebook.cells:
        if cell.cell_type == "code" and (html := browser_explorers.element(cell.source)):
            cell.outputs.append(new_output("display_data", {"text/html": html}))
    return notebook


def handout(notebooks: list[Path], folder: Path) -> None:
    """Write learners' notebooks without solutions, and copy the documents that they link to."""
    for path in notebooks:
        copy = study.for_learners(without_solutions(nbformat.read(path, as_version=4)))
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(nbformat.from_dict(copy), target)
    shutil.copytree(DOCS, folder / "docs", ignore=ONLY_FOR_BUILDING)
    shutil.copyfile(".gitattributes", folder / ".gitattributes")  # for a class that pulls it


def exporter() -> SlidesExporter:
    """Create nbconvert's slide exporter with the template in `docs/slides`."""
    config = Config()
    config.CSSHTMLHeaderPreprocessor.style = "default"
    return SlidesExporter(
        config=config,
        extra_template_basedirs=[str(DOCS)],
        template_name="slides",
        embed_images=True,
    )


def copy_assets(folder: Path) -> None:
    """Copy reveal.js, MathJax and the style sheet for the slides.

    The Python packages sphinx-revealjs and sphinx-mathjax-offline contain reveal.js 5 and MathJax
    3. You therefore don't need Node or a network.
    """
    reveal = Path(str(resources.files("sphinx_revealjs"))) / "_static" / "revealjs"
    for part in ("dist", "plugin/notes"):
        shutil.copytree(reveal / part, folder / "reveal" / part, dirs_exist_ok=True)
    package = metadata.distribution("sphinx-mathjax-offline")
    mathjax = Path(str(package.locate_file("sphinx-mathjax-offline/static/mathjax")))
    for part in MATHJAX:
        source, target = mathjax / part, folder / "mathjax" / part
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, dirs_exist_ok=True)
        else:
            shutil.copyfile(source, target)
    for name in ("deck.css", "deck.js"):
        shutil.copyfile(DOCS / "slides" / name, folder / name)
    (folder / "palette.css").write_text(palette.CSS, encoding="utf-8")


def slides(notebooks: list[Path], folder: Path) -> None:
    """Write one slide deck per notebook, and an index page."""
    folder.mkdir(parents=True, exist_ok=True)
    copy_assets(folder / "assets")
    shutil.copytree(DOCS, folder / "docs", ignore=ONLY_FOR_BUILDING)
    covers = folder / "assets" / "covers"
    covers.mkdir()
    export, items = exporter(), []
    for path in tqdm(notebooks, unit="deck"):
        notebook = with_questions(nbformat.read(path, as_version=4))
        page, _ = export.from_notebook_node(notebook, {"title": title(notebook)})
        # Decks lie in one folder: links between notebooks become links between them.
        page = re.sub(r'href="(?:\.\./|side_trips/)?(\w+)\.ipynb"', r'href="\1.html"', page)
        page = re.sub(r'href="(?:\.\./)+docs/', 'href="docs/', page)
        (folder / f"{path.stem}.html").write_text(page, encoding="utf-8")
        (covers / f"{path.stem}.webp").write_bytes(cover(path))
        items.append(
            f'<li><a href="{path.stem}.html"><img src="assets/covers/{path.stem}.webp" alt="">'
            f"{title(notebook)}</a></li>"
        )
    index = (DOCS / "slides" / "decks.html").read_text(encoding="utf-8")
    index = index.replace("DECKS", "\n".join(items), 1)
    (folder / "index.html").write_text(index, encoding="utf-8")


def entry(path: Path) -> str:
    """Return a page's line in the navigation, with the title of a side trip alone."""
    place = path.with_suffix("").as_posix()
    if path == Path("README.md"):
        return f"Overview <{place}>"
    if path.parent.name != SIDE_TRIPS:
        return place
    return f"{title(nbformat.read(path, as_version=4)).partition(' · ')[2]} <{place}>"


def lay_out(notebooks: list[Path], folder: Path) -> None:
    """Copy the pages of the site. Relative links work because the folder structure is kept."""
    last = map(Path, ("data/README.md", "CONTRIBUTING.md", "CHANGELOG.md"))
    pages = [Path("README.md"), *sorted(DOCS.glob("*.md")), *last]
    linked = []
    for page in pages:
        for target in re.findall(r"\]\(([^)#:]+)", page.read_text(encoding="utf-8")):
            linked.append(Path(os.path.relpath(page.parent / target)))
    for path in {*notebooks, *pages, *(path for path in linked if path.is_file())}:
        (folder / path.parent).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / path)
    for path in notebooks:
        notebook = with_alt_texts(nbformat.read(path, as_version=4))
        notebook = with_predictions(with_cover_first(notebook))
        nbformat.write(with_exercise_names(with_live_explorers(notebook)), folder / path)
    (folder / "_static").mkdir()
    script = browser_explorers.script(DOCS / "explorers")
    (folder / "_static" / "explorers.js").write_text(script, encoding="utf-8")
    (folder / "_static" / "weights.js").write_text(browser_explorers.weights(), encoding="utf-8")
    shutil.copyfile(HERE / "explorer.css", folder / "_static" / "explorer.css")
    (folder / "_static" / "dark.css").write_text(shown.DARK, encoding="utf-8")
    (folder / "_static" / "palette.css").write_text(palette.CSS, encoding="utf-8")
    template = (DOCS / "site" / "landing.md").read_text(encoding="utf-8")
    parts = [landing(template, NOTEBOOKS, folder)]
    road = [path for path in notebooks if path.parent == NOTEBOOKS]
    side_trips = [path for path in notebooks if path.parent != NOTEBOOKS]
    for caption, listed in (("The road", road), ("Side trips", side_trips), ("About it", pages)):
        names = "\n".join(map(entry, listed))
        parts.append(f"```{{toctree}}\n:hidden:\n:caption: {caption}\n\n{names}\n```\n")
    (folder / "index.md").write_text("\n".join(parts), encoding="utf-8")


def site(notebooks: list[Path], folder: Path) -> None:
    """Build the web site with Sphinx. A warning, such as a broken link, is an error."""
    sources = folder.with_name("site-sources")
    shutil.rmtree(sources, ignore_errors=True)
    lay_out(notebooks, sources)
    strict = ("--nitpicky", "--fail-on-warning", "--keep-going", "--quiet")
    command = (sys.executable, "-m", "sphinx", *strict, "--conf-dir", DOCS, sources, folder)
    done = subprocess.run(command, check=False)
    if done.returncode:
        sys.exit(done.returncode)


def main() -> None:
    """Build the slides, the handout or the web site, as the command line requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("slides", "handout", "site"))
    what = parser.parse_args().what
    notebooks = [page.path(NOTEBOOKS) for page in written(NOTEBOOKS)]
    folder = BUILD / what
    shutil.rmtree(folder, ignore_errors=True)
    {"slides": slides, "handout": handout, "site": site}[what](notebooks, folder)
    print(f"{len(notebooks)} notebooks in {folder}")


if __name__ == "__main__":
    main()
