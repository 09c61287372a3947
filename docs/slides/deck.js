// Maths first, then the layout of every slide, then the deck.
window.MathJax = {
  tex: {inlineMath: [["$", "$"], ["\\(", "\\)"]], processEscapes: true},
  chtml: {matchFontHeight: false},
  startup: {ready: () => { MathJax.startup.defaultReady(); MathJax.startup.promise.then(start); }},
};

// How large the type and the figures are. The first pair with which a slide fits is taken.
const SIZES = [[1.75, 1.4], [1.5, 1.3], [1.3, 1.2], [1.15, 1.1], [1, 1], [1, 0.9], [1, 0.8], [1, 0.7], [1, 0.6]];
const LETTER = 10.9, PADDING = 32;  // pixels of a letter of code in the smallest type, and beside a line

async function start() {
  const deck = document.querySelector(".reveal");
  await Promise.all([...document.images].map(image => image.decode()));
  await Promise.all([...document.fonts].map(font => font.load()));
  deck.classList.add("measuring");  // reveal.js hides slides, and what is hidden has no size
  deck.querySelectorAll("section:not(:has(section))").forEach(layOut);
  deck.querySelectorAll("section > section").forEach(joinNext);
  deck.classList.remove("measuring");
  Reveal.initialize({
    width: 1280, height: 720, margin: 0, center: false, hash: true, transition: "none",
    slideNumber: "h.v", controls: false, plugins: [RevealNotes],
  });
}

// A slide's only output stands beside the rest if everything can then be larger.
function layOut(slide) {
  const outputs = slide.querySelectorAll(".jp-Cell-outputWrapper");
  for (const image of slide.querySelectorAll("img"))
    image.style.setProperty("--width", `${image.getAttribute("width") ?? image.naturalWidth}px`);
  for (const [type, figures] of SIZES) {
    slide.style.setProperty("--type", type);
    slide.style.setProperty("--figures", figures);
    slide.classList.toggle("large", type > 1);
    limitCode(slide, "pre", 1280 - 2 * 48);
    if (fits(slide)) return;
    if (outputs.length !== 1) continue;
    slide.classList.add("beside");
    const column = 1280 - 3 * 48 - outputs[0].offsetWidth;
    slide.style.setProperty("--output", `${outputs[0].offsetWidth}px`);
    slide.style.setProperty("--top", `${outputs[0].parentElement.offsetTop}px`);
    limitCode(slide, ".highlight pre", column);
    if (column >= 360 && fits(slide)) return;
    slide.classList.remove("beside");
  }
}

// Two slides, of which one is two fifths empty, become one if that needs no type below full size.
// A question stays alone: what follows it may be its answer.
function joinNext(slide) {
  const next = slide.nextElementSibling, text = [...slide.querySelectorAll("p, li, pre")].at(-1)?.textContent;
  if (!next || slide.querySelector("h1, .options") || text?.trim().endsWith("?")) return;
  if (Math.min(filled(slide), filled(next)) >= 0.6) return;
  const added = [...next.children];
  slide.append(...added);
  layOut(slide);
  if (fits(slide) && slide.style.getPropertyValue("--figures") >= 1) {
    next.remove();
    joinNext(slide);
  } else {
    next.append(...added);
    layOut(slide);
  }
}

// The share of the screen's height between the highest and the lowest part.
function filled(slide) {
  const parts = [...slide.querySelectorAll("h1, h2, h3, p, li, pre, table, img, mjx-container")];
  const boxes = parts.filter(part => part.offsetParent).map(part => part.getBoundingClientRect());
  return (Math.max(...boxes.map(box => box.bottom)) - Math.min(...boxes.map(box => box.top))) / 720;
}

// Code grows with the rest until its longest line fills the column.
function limitCode(slide, selector, column) {
  const lines = [...slide.querySelectorAll(selector)].flatMap(pre => pre.textContent.split("\n"));
  const longest = Math.max(1, ...lines.map(line => line.length));
  slide.style.setProperty("--code-type", Math.max(1, (column - PADDING) / (longest * LETTER)));
}

function fits(slide) {
  const screen = slide.getBoundingClientRect();
  const column = screen.right - parseFloat(getComputedStyle(slide).paddingRight) + 1;
  return [...slide.querySelectorAll("pre, table, img, mjx-container, mjx-math, p, li")].every(part => {
    if (!part.offsetParent) return true;  // a note, or the code of the cover
    const {top, right, bottom} = part.getBoundingClientRect();
    const edge = part.closest(".jp-Cell-outputWrapper") ? screen.right - 47 : column;
    const cut = part.clientWidth && part.scrollWidth > part.clientWidth + 1;
    return top >= screen.top && bottom <= screen.bottom - 12 && right <= edge && !cut;
  });
}
