// Maths first, while every slide still has a size; then the deck.
window.MathJax = {
  tex: {inlineMath: [["$", "$"], ["\\(", "\\)"]], processEscapes: true},
  chtml: {matchFontHeight: false},
  startup: {ready: () => { MathJax.startup.defaultReady(); MathJax.startup.promise.then(start); }},
};

function start() {
  Reveal.initialize({
    width: 1280, height: 720, margin: 0, center: false, hash: true, transition: "none",
    slideNumber: "h.v", controls: false, plugins: [RevealNotes],
  });
  Reveal.on("ready", event => fitFigures(event.currentSlide));
  Reveal.on("slidechanged", event => fitFigures(event.currentSlide));
}

// What is too tall is made to fit by its figures, down to 0.6 of their size; text keeps its own.
function fitFigures(slide) {
  const figures = [...slide.querySelectorAll("img")];
  if (!figures.length || slide.dataset.fitted) return;
  slide.dataset.fitted = "yes";
  const height = figure => figure.offsetHeight;
  const total = figures.reduce((sum, figure) => sum + height(figure), 0);
  const excess = slide.scrollHeight - slide.clientHeight;
  const scale = Math.max(0.6, 1 - Math.max(0, excess) / total);
  const wanted = figures.map(figure => Math.floor(height(figure) * scale));
  figures.forEach((figure, index) => { figure.style.height = wanted[index] + "px"; });
}
