"""Accessibility rules of axe-core, which a browser checks on a page."""

from axe_playwright_python.base import AXE_SCRIPT
from playwright.sync_api import Page

CHECK = """async scope => {
  const {violations} = await axe.run(scope, {resultTypes: ["violations"]});
  const severe = violations.filter(({impact}) => ["serious", "critical"].includes(impact));
  return severe.flatMap(({id, nodes}) => nodes.map(({html}) => `${id}: ${html.slice(0, 200)}`));
}"""


def severe(page: Page, scope: str | dict = "html") -> list[str]:
    """Return the serious and critical violations within `scope`, which is a context of axe."""
    page.evaluate(AXE_SCRIPT)
    return page.evaluate(CHECK, scope)
