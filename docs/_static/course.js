// What scrolls sideways can be reached with Tab, so that the arrow keys scroll it.
function reachScrolling() {
  for (const block of document.querySelectorAll("pre, .table-wrapper, div.math, div.cell_output, .cs336-explorer")) {
    if (block.scrollWidth > block.clientWidth) block.tabIndex = 0;
    else block.removeAttribute("tabindex");
  }
}

document.addEventListener("DOMContentLoaded", () => {
  document.querySelector(".sidebar-drawer")?.setAttribute("aria-label", "Pages");
  reachScrolling();
});
addEventListener("load", () => {
  for (const image of document.querySelectorAll("div.cell_output img")) {
    const width = image.getAttribute("width") ?? image.naturalWidth; // a figure has more pixels than it is wide
    image.classList.toggle("wide", width > 660);
  }
  reachScrolling();
});
addEventListener("resize", reachScrolling);
