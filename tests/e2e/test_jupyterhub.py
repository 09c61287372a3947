"""Two students of a JupyterHub follow the link in docs/jupyterhub.md, work, pull, and are graded.

`make jupyterhub` installs what this needs beyond the other browser tests, and runs it.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat
import pytest
from playwright.sync_api import Browser, Page, expect
from test_lab import ERRORS, LONG, SHOTS, cell_with, cheapest, run_all, type_and_run

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "jupyterhub.md").read_text()
(LINK,) = re.findall(r"^https://hub\.example\.org/\S+", PAGE, re.M)
(SERVER_CONFIG,) = re.findall(
    r"```python\n(# etc/jupyter/jupyter_server_config\.py.*?)```", PAGE, re.S
)
FIRST, SECOND = "notebooks/00_start_here.ipynb", "notebooks/01_dtypes.ipynb"
HUB_CONFIG = """
c.JupyterHub.bind_url = "http://127.0.0.1:{ports[0]}"
c.JupyterHub.hub_port = {ports[1]}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{ports[2]}"
c.JupyterHub.authenticator_class = "dummy"
c.Authenticator.allow_all = True
c.JupyterHub.spawner_class = "simple"
c.SimpleLocalProcessSpawner.home_dir_template = "{folder}/homes/{{username}}"
c.Spawner.environment = {{"JUPYTER_CONFIG_PATH": "{folder}/etc/jupyter"}}
c.Spawner.args = ["--allow-root"]
c.Spawner.start_timeout = 3600
c.Spawner.http_timeout = 3600
"""


@dataclass(frozen=True)
class Class:
    """A hub, the homes of its students, and the lecturer's clone, which pushes to `origin`."""

    port: int
    homes: Path
    author: Path
    origin: Path

    @property
    def link(self) -> str:
        """The link of the documentation, for this hub and this repository."""
        link = LINK.replace("https://hub.example.org", f"http://127.0.0.1:{self.port}")
        return re.sub(r"repo=[^&]+", f"repo=file://{self.origin}", link)

    def publish(self, said: str) -> None:
        """Commit the lecturer's files and push them."""
        git = ("git", "-c", "user.name=author", "-c", "user.email=author@example.org")
        for command in (("add", "."), ("commit", "-qm", said), ("push", "-q", "origin", "main")):
            subprocess.run([*git, *command], cwd=self.author, check=True)


def free_ports(count: int) -> list[int]:
    """Return ports that are free."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [found.getsockname()[1] for found in sockets]
    for found in sockets:
        found.close()
    return ports


@pytest.fixture(scope="module")
def classroom(tmp_path_factory) -> Iterator[Class]:
    """A JupyterHub, and a bare repository that has the files of this one."""
    folder = tmp_path_factory.mktemp("hub")
    ports = free_ports(3)
    made = Class(ports[0], folder / "homes", folder / "author", folder / "origin.git")
    for command in (
        ("init", "-q", "--bare", "-b", "main", made.origin),
        ("init", "-q", "-b", "main", made.author),
        ("-C", made.author, "remote", "add", "origin", made.origin),
    ):
        subprocess.run(["git", *command], check=True)
    listed = subprocess.check_output(["git", "ls-files", "-z"], cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        (made.author / name).parent.mkdir(parents=True, exist_ok=True)
        (made.author / name).write_bytes((ROOT / name).read_bytes())
    made.publish("The course")
    (folder / "etc" / "jupyter").mkdir(parents=True)
    (folder / "etc" / "jupyter" / "jupyter_server_config.py").write_text(SERVER_CONFIG)
    made.homes.mkdir()
    (folder / "jupyterhub_config.py").write_text(HUB_CONFIG.format(ports=ports, folder=folder))
    SHOTS.mkdir(parents=True, exist_ok=True)
    with open(SHOTS / "jupyterhub.log", "w") as log:
        hub = subprocess.Popen(
            [sys.executable, "-m", "jupyterhub"],
            cwd=folder,
            env=os.environ | {"PATH": f"{sys.prefix}/bin{os.pathsep}{os.environ['PATH']}"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_for(f"http://127.0.0.1:{ports[0]}/hub/api", hub)
        yield made
    finally:
        hub.send_signal(signal.SIGTERM)  # it ends the students' servers and the proxy
        hub.wait()


def wait_for(address: str, hub: subprocess.Popen) -> None:
    """Wait until the hub answers, and raise what it said if it never does."""
    while True:
        try:
            with urllib.request.urlopen(address):
                return
        except urllib.error.URLError:
            assert hub.poll() is None, (SHOTS / "jupyterhub.log").read_text()
            time.sleep(0.5)


def follow_link(page: Page, classroom: Class, name: str) -> None:
    """Open the link, log in if the hub asks, and wait for the notebook and its kernel."""
    page.goto(classroom.link)
    if "/hub/login" in page.url:
        page.get_by_label("Username").fill(name)
        page.get_by_label("Password").fill("secret")
        page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"**/user/{name}/lab/tree/cs336-lib/{FIRST}")
    expect(page.locator(".jp-Notebook .jp-Cell").first).to_be_visible()
    idle = page.locator(".jp-Notebook-ExecutionIndicator[data-status='idle']")
    expect(idle.first).to_be_attached()
    expect(page.locator(".Toastify__toast")).to_have_count(0)  # no question about news


def save(page: Page) -> None:
    """Press Ctrl+S, and wait until the file is written."""
    page.keyboard.press("Control+S")
    expect(page.locator(".jp-mod-dirty")).to_have_count(0)


def learners_course(classroom: Class, name: str) -> Path:
    """Return the folder that the link makes in a student's home."""
    return classroom.homes / name / "cs336-lib"


def work(page: Page, condition: str, said: str) -> None:
    """Run the notebook, answer its exercise, and save."""
    run_all(page)
    assert page.locator(ERRORS).count() == 0
    exercise = cell_with(page, "def cheapest(")
    type_and_run(page, exercise, cheapest(condition))
    expect(exercise.locator(".jp-OutputArea-output")).to_contain_text(said)
    bars = cell_with(page, "study.bars(")
    bars.locator(".cm-content").click()
    page.keyboard.press("Shift+Enter")
    passed = "1 of 1" if said.endswith("passed") else "No progress yet"
    expect(bars.locator(".jp-OutputArea-output")).to_contain_text(passed)
    save(page)


def teach(classroom: Class) -> None:
    """Publish what a lecturer changes in a term: two texts, and a notebook for week 2."""
    for path in (classroom.author / FIRST, classroom.author / SECOND):
        notebook = nbformat.read(path, as_version=4)
        notebook.cells[0].source += "\n\nRead this before Monday."
        nbformat.write(notebook, path)
    week2 = nbformat.v4.new_notebook(cells=[nbformat.v4.new_markdown_cell("# Week 2")])
    nbformat.write(week2, classroom.author / "notebooks" / "week2.ipynb")
    classroom.publish("Week 2")


ANSWERS = {
    "ada": ("needed <= hours", "cheapest: passed"),
    "grace": ("True", "cheapest: not right yet. One of your choices misses the deadline."),
}


@pytest.fixture(scope="module")
def students(classroom, browser: Browser) -> Iterator[dict[str, Page]]:
    """Two students who have followed the link, worked in the first notebook, and saved it."""
    pages = {}
    for name, (condition, said) in ANSWERS.items():
        context = browser.new_context(viewport={"width": 1280, "height": 800})
        pages[name] = context.new_page()
        pages[name].set_default_timeout(LONG)
        follow_link(pages[name], classroom, name)
        pages[name].screenshot(path=SHOTS / f"jupyterhub_{name}.png")
        work(pages[name], condition, said)
    yield pages
    for page in pages.values():
        page.context.close()


def test_a_second_pull_keeps_the_answer_and_brings_what_is_new(classroom, students):
    before = {name: (learners_course(classroom, name) / FIRST).read_bytes() for name in students}
    ran = learners_course(classroom, "ada") / SECOND
    notebook = nbformat.read(ran, as_version=4)
    notebook.metadata.language_info.version = "3.12.7"  # Jupyter changes this when it saves
    nbformat.write(notebook, ran)
    teach(classroom)
    for name, page in students.items():
        follow_link(page, classroom, name)
        exercise = cell_with(page, "def cheapest(")
        expect(exercise.locator(".cm-content")).to_contain_text(f"if {ANSWERS[name][0]}:")
        course = learners_course(classroom, name)
        assert (course / FIRST).read_bytes() == before[name]
        assert (course / "notebooks" / "week2.ipynb").exists()
        assert (course / SECOND).read_bytes() == (classroom.author / SECOND).read_bytes()
        files = page.get_by_role("listitem").filter(has_text="week2.ipynb")
        expect(files).to_be_visible()


def test_the_homes_are_graded(classroom, students, tmp_path):
    command = [sys.executable, "-m", "cs336_course", "grade", classroom.homes]
    done = subprocess.run(
        [*command, "--out", tmp_path / "week1.csv"], capture_output=True, text=True, check=True
    )
    assert re.search(r"^ada +1 of \d+ passed, \d+ not attempted$", done.stdout, re.M), done.stdout
    assert re.search(r"^grace +0 of \d+ passed, ", done.stdout, re.M), done.stdout
