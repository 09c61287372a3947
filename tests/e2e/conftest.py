"""A browser for the tests that look at what a reader sees."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Error, Page, expect, sync_playwright

ROOT = Path(__file__).parents[2]
LONG = 600_000  # ms; only what never comes takes so long, on a busy machine, too
expect.set_options(timeout=LONG)
NO_BROWSER = "no browser: `apt-get install chromium`, or `.venv/bin/playwright install chromium`"


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The system's Chromium, or else the one that playwright installs."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser")
    with sync_playwright() as playwright:
        sandbox = os.name != "posix" or os.geteuid() != 0  # Chromium refuses its sandbox to root
        try:
            chromium = playwright.chromium.launch(
                executable_path=executable, chromium_sandbox=sandbox
            )
        except Error as error:
            if "Executable doesn't exist" not in str(error):
                raise
            pytest.exit(NO_BROWSER, returncode=2)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty tab, 1280 x 720, without a network: what asks for one fails."""
    context = browser.new_context(viewport={"width": 1280, "height": 720}, offline=True)
    context.set_default_timeout(LONG)
    yield context.new_page()
    context.close()


def run(*arguments: str) -> None:
    """Run one of the course's modules in the folder of the course."""
    subprocess.run([sys.executable, *arguments], cwd=ROOT, check=True)


@pytest.fixture(scope="session")
def decks() -> Path:
    """The folder of the slides, newly built."""
    run("-m", "tools.publish", "slides")
    return ROOT / "build" / "slides"


@pytest.fixture(scope="session")
def site() -> Path:
    """The folder of the site, newly built."""
    run("-m", "tools.publish", "site")
    return ROOT / "build" / "site"
