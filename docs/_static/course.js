// What scrolls sideways can be reached with Tab, so that the arrow keys scroll it.
function reachScrolling() {
  for (const block of document.querySelectorAll("pre, .table-wrapper, div.math, .cs336-explorer")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
    else block.removeAttribute("tabindex");
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  reachScrolling();
});
addEventListener("load", reachScrolling);
addEventListener("resize", reachScrolling);
