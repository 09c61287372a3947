"""What a learner does in JupyterLab: open the course, run it, solve an exercise, present it."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from accessibility import severe
from playwright.sync_api import Browser, Locator, Page, expect

from cs336_course import widgets
from tools.notebooks import KERNEL

ROOT = Path(__file__).parents[2]
SHOTS = ROOT / "build" / "e2e"
TOKEN = "learner"
LONG = 600_000  # ms; only what never comes takes so long, on a busy machine, too
ERRORS = "[data-mime-type='application/vnd.jupyter.error']"


class Lab:
    """A running JupyterLab, and the folder of the course that it serves."""

    def __init__(self, course: Path, port: int):
        self.course, self.port = course, port

    def address(self, path: str, view: str = "lab/tree") -> str:
        """Where a file of the course is shown."""
        return f"http://localhost:{self.port}/{view}/{path}?token={TOKEN}"

    def get(self, path: str) -> Any:
        """What the server's API answers; an error status raises."""
        with urllib.request.urlopen(self.address(path, "api")) as answer:
            return json.load(answer)


@pytest.fixture(scope="module")
def lab(tmp_path_factory) -> Iterator[Lab]:
    """`make lab` in a copy of the course, so that nobody's own notebooks are touched."""
    course = tmp_path_factory.mktemp("learner") / "course"
    course.mkdir()
    for name in ("notebooks", "docs"):
        shutil.copytree(ROOT / name, course / name)
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy2(ROOT / name, course)
    with socket.socket() as found:
        found.bind(("localhost", 0))
        port = found.getsockname()[1]
    options = f"--no-browser --allow-root --port {port} --IdentityProvider.token={TOKEN}"
    # -o: the environment that runs this test is there, and is not to be installed again.
    make = ["make", "-o", f"{sys.prefix}/.lab", "lab", f"VENV={sys.prefix}", f"ARGS={options}"]
    environment = os.environ | {
        "JUPYTERLAB_SETTINGS_DIR": str(course.parent / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(course.parent / "workspaces"),
    }
    SHOTS.mkdir(parents=True, exist_ok=True)
    with open(SHOTS / "lab.log", "w") as log:
        server = subprocess.Popen(
            make,
            cwd=course,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(Lab(course, port), server)
        yield Lab(course, port)
        close(Lab(course, port))
    finally:
        os.killpg(server.pid, signal.SIGKILL)  # told politely, it hears it twice, from make too
        server.wait()


def wait_for(lab: Lab, server: subprocess.Popen) -> None:
    """Until the server answers; what it said, if it never does."""
    while True:
        try:
            lab.get("status")
            return
        except urllib.error.URLError:
            assert server.poll() is None, (SHOTS / "lab.log").read_text()
            time.sleep(0.5)


@pytest.fixture
def tab(browser: Browser, request) -> Iterator[Page]:
    """An empty tab that may talk to the server; its last look is kept in build/e2e."""
    context = browser.new_context(viewport={"width": 1280, "height": 800})
    page = context.new_page()
    page.set_default_timeout(LONG)
    yield page
    name = re.sub(r"\W+", "_", request.node.name).strip("_")
    page.screenshot(path=SHOTS / f"{name}.png")
    context.close()


def wait_for_kernel(page: Page, lab: Lab, path: str) -> None:
    """Until a notebook's kernel is idle and a page hears it, so that no output is lost."""
    while not any(
        session["path"] == path
        and session["kernel"]["execution_state"] == "idle"
        and session["kernel"]["connections"]
        for session in lab.get("sessions")
    ):
        page.wait_for_timeout(250)


def open_notebook(page: Page, lab: Lab, path: str) -> None:
    """Show a notebook, and wait for its kernel to be connected."""
    page.goto(lab.address(path) + "&reset")  # without what the last test had open
    expect(page.locator(".jp-NotebookPanel .jp-Cell").first).to_be_visible()
    wait_for_kernel(page, lab, path)
    expect(page.locator(".jp-Notebook-ExecutionIndicator[data-status=idle]")).to_be_visible()
    expect(page.get_by_role("dialog")).to_have_count(0)


def run_all(page: Page) -> None:
    """Run -> Run All Cells, to the end."""
    page.get_by_role("menuitem", name="Run", exact=True).click()
    page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
    running = page.locator(".jp-InputPrompt", has_text="[*]")
    expect(running.first).to_be_attached()
    expect(running).to_have_count(0)


def close(lab: Lab) -> None:
    """End all kernels, since two cores have other tests to run."""
    for kernel in lab.get("kernels"):
        address = lab.address(f"kernels/{kernel['id']}", "api")
        urllib.request.urlopen(urllib.request.Request(address, method="DELETE"))


def cell_with(page: Page, text: str) -> Locator:
    """The one code cell whose source has this text."""
    found = page.locator(".jp-CodeCell", has=page.locator(".jp-InputArea", has_text=text))
    expect(found).to_have_count(1)
    return found


def type_and_run(page: Page, cell: Locator, source: str) -> None:
    """Replace what a cell says, and press Shift-Enter."""
    cell.locator(".cm-content").click()
    page.keyboard.press("Control+A")
    page.keyboard.insert_text(source)
    page.keyboard.press("Shift+Enter")


def cheapest(condition: str) -> str:
    """An answer to the exercise of notebook 00, which rents what meets the condition."""
    return f"""def cheapest(parameters, tokens, hours, offers):
    bills = {{}}
    for offer in offers:
        needed = 6 * parameters * tokens / (offer.gpus * offer.peak * offer.mfu) / 3600
        if {condition}:
            bills[offer.name] = needed * offer.gpus * offer.price
    return min(bills, key=bills.get, default=None)


checks.cheapest(cheapest)"""


def test_an_exercise_goes_from_untouched_over_wrong_to_passed(lab, tab):
    open_notebook(tab, lab, "my_notebooks/00_start_here.ipynb")
    run_all(tab)
    assert tab.locator(ERRORS).count() == 0
    expect(tab.locator(".Toastify__toast")).to_have_count(0)  # JupyterLab's question about its news
    progress = cell_with(tab, "study.bars(").locator(".jp-OutputArea-output")
    expect(progress).to_contain_text("No progress yet")

    exercise = cell_with(tab, "def cheapest(")
    said = exercise.locator(".jp-OutputArea-output")
    expect(said).to_have_text("cheapest: not attempted yet")
    type_and_run(tab, exercise, cheapest("True"))
    expect(said).to_contain_text("✗ cheapest not right yet")
    expect(said).to_contain_text("One of your choices misses the deadline.")
    tab.screenshot(path=SHOTS / "exercise_wrong.png")
    type_and_run(tab, exercise, cheapest("needed <= hours"))
    expect(said).to_contain_text("✓ cheapest passed")
    expect(said).to_contain_text("1 of 1 in this notebook")
    tab.screenshot(path=SHOTS / "exercise_passed.png")

    cell_with(tab, "study.bars(").locator(".cm-content").click()
    tab.keyboard.press("Shift+Enter")
    expect(progress).to_contain_text("██████████ 1 of 1")
    expect(progress).to_contain_text("next: where_it_ends in 01_dtypes")
    close(lab)
    check = subprocess.run(
        [sys.executable, "-m", "cs336_course", "check"],
        cwd=lab.course,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "    passed         cheapest" in check.stdout


def test_live_slides_show_maths_and_run_code(lab, tab):
    tab.goto(lab.address("my_notebooks/01_dtypes.ipynb", view="rise"))
    slide = tab.locator(".slides section.present:not(.stack)")
    expect(slide).to_contain_text("01 · Number")
    expect(tab.locator(".slides mjx-container").first).to_be_attached()
    assert tab.locator(".slides .jp-MarkdownCell").count() > 50  # one that is missing is no error
    wait_for_kernel(tab, lab, "my_notebooks/01_dtypes.ipynb")
    type_and_run(
        tab, slide.locator(".jp-CodeCell:visible").first, "print('live', 6 * 7)"
    )  # the cover
    # Shift-Enter selects the next cell, which may lie on the next slide.
    expect(tab.locator(".slides")).to_contain_text("live 42")
    close(lab)


def test_a_prediction_is_recorded_and_hands_are_counted(lab, tab):
    source = "from cs336_course.widgets.predictions import predict\n\npredict('sum', '4000', '256')"
    cells = [nbformat.v4.new_code_cell(source)]
    path = lab.course / "my_notebooks" / "predictions.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    open_notebook(tab, lab, "my_notebooks/predictions.ipynb")
    run_all(tab)
    root = tab.locator(".cs336-prediction")
    root.get_by_role("button", name="4000").focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    expect(root.locator(".cs336-said")).to_have_text("You chose “256”. Run the next cell to see.")
    root.screenshot(path=SHOTS / "prediction.png")
    (line,) = (path.parent / ".guesses.jsonl").read_text().splitlines()
    assert '"prediction": "sum", "guess": "256"' in line
    root.locator("summary").click()
    root.get_by_role("combobox").select_option("count hands")
    for count in (1, 2):
        root.get_by_role("button", name="4000").click()
        expect(root.locator(".cs336-said")).to_contain_text(f"{count} hands so far")
    root.screenshot(path=SHOTS / "prediction_hands.png")
    close(lab)


SHOWN = """
from IPython.display import display
from cs336_lib.training.checkpoint import load_shipped
from cs336_course import widgets
for name in widgets.__all__:
    arguments = load_shipped() if name == "sampling" else ()
    display(getattr(widgets, name)(*arguments))
"""


def test_every_explorer_reacts_to_a_click(lab, tab):
    cells = [nbformat.v4.new_code_cell(SHOWN)]
    path = lab.course / "my_notebooks" / "explorers.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={"kernelspec": KERNEL}), path)
    open_notebook(tab, lab, "my_notebooks/explorers.ipynb")
    run_all(tab)
    roots = tab.locator(".cs336-explorer")
    expect(roots).to_have_count(len(widgets.__all__))
    for root in roots.all():
        title = root.get_attribute("aria-label")
        picture = root.locator(".cs336-picture")
        buttons, sliders = picture.locator("button[data-name]"), root.locator("input[type=range]")
        expect(buttons.or_(sliders).first).to_be_attached()
        before = picture.inner_html()
        if buttons.count():
            buttons.last.click()
        else:  # only controls: take the first slider to its beginning
            sliders.first.click(position={"x": 2, "y": 8})
        expect(picture).not_to_have_js_property("innerHTML", before)
        expect(root.locator(".cs336-problem")).to_have_text("")
        assert severe(tab, f".cs336-{root.get_attribute('class').split('cs336-')[-1]}") == [], title
        root.screenshot(path=SHOTS / f"explorer_{re.sub(r'[^a-z]+', '_', title.lower())}.png")
    close(lab)
