// A box in which the model continues a text. It runs in the page, without a kernel.

const AT_ONCE = 120; // letters that "Continue" writes
const SHOWN = 8; // next letters with a bar
const LAST = 4; // letters that are marked as new
const FRAME = 12; // ms of reading before the page may draw
const [SLOWEST, FASTEST, FASTER] = [420, 70, 0.82]; // ms per letter: the first ones can be followed one by one

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const shown = (letter) => ({ "\n": "↵", " ": "·" })[letter] ?? letter;
const percent = (chance) => (100 * chance).toFixed(1) + " %";

// `get` returns what Python sends (widgets/writing.py), and `load` the weights. On pages without a kernel,
// `link` makes an address for values, and `asked` are the values in the page's own address.
function showWriter(el, get, load, link, asked = {}) {
  const [alphabet, config, draws] = [get("alphabet"), get("config"), [...get("draws")]];
  let [written, temperature, shows] = ["", get("temperature"), undefined];
  let model;
  let run = 0; // a newer run stops the older ones
  let writing = false;

  const root = make("div", {
    class: "cs336-explorer cs336-writer",
    role: "group",
    "aria-label": get("title"),
    "data-lm-suppress-shortcuts": "true", // or JupyterLab takes the keys for its own
  });
  const input = make("input", { type: "text", name: "text", "aria-label": "your line", spellcheck: "false", autocomplete: "off" });
  const go = make("button", { type: "button", class: "cs336-go" }, "Continue");
  const clear = make("button", { type: "button" }, "Start over");
  const heat = slider({ options: get("temperatures") }, (value) => setTemperature(value));
  const problem = make("p", { class: "cs336-problem", role: "alert" });
  const said = make("p", { class: "cs336-said", role: "status" });
  const paper = make("div", { class: "cs336-paper", tabindex: 0, role: "region", "aria-label": "the text so far" });
  const bars = make("div", { class: "cs336-bars", role: "group", "aria-label": "choose the next letter", style: "visibility: hidden" });
  const buttons = Array.from({ length: SHOWN }, (_, i) => {
    const button = make("button", { type: "button", "data-name": "letter", tabindex: i ? -1 : 0 });
    button.append(make("code"), make("span", { class: "cs336-track" }), make("span", { class: "cs336-chance" }));
    button.children[1].append(make("span", { class: "cs336-bar" }));
    button.addEventListener("click", () => append(button.dataset.value));
    bars.append(button);
    return button;
  });
  heat.input.setAttribute("name", "temperature");
  heat.input.setAttribute("aria-label", "temperature");
  const next = make("div", { class: "cs336-next" }, make("div", { class: "cs336-faint" }, "The next letter. Click one to choose it."), bars);
  const presets = presetButtons(get("presets"), ({ text }) => {
    input.value = text;
    written = "";
    showPresets();
    start(AT_ONCE);
  });
  const showPresets = () => presets.show({ text: input.value });
  if (link) presets.row.append(linkButton(() => link({ text: input.value, temperature: String(temperature) })));
  const temperatureLabel = make("label", { class: "cs336-slider" }, make("span", {}, "temperature"), ...heat.parts);
  const controls = make("div", { class: "cs336-controls" }, input, go, clear, temperatureLabel);
  root.append(make("div", { class: "cs336-picture" }, make("div", {}, paper, presets.row, controls, problem, said), next));

  const unknown = () => [...input.value].find((letter) => !alphabet.includes(letter));
  const tokens = () => [...(input.value + written)].map((letter) => alphabet.indexOf(letter));

  function drawText() {
    const old = written.slice(0, -LAST);
    paper.replaceChildren(make("b", {}, input.value), old, make("mark", {}, written.slice(old.length)));
    paper.scrollTop = paper.scrollHeight;
  }

  // Most likely first; `chances` are pairs of a letter and its probability.
  function drawBars(chances) {
    shows = chances;
    bars.style.visibility = "visible";
    buttons.forEach((button, i) => {
      const [letter, chance] = chances[i];
      const [name, track, number] = button.children;
      name.textContent = shown(letter);
      track.firstChild.style.width = `${100 * chance}%`;
      number.textContent = percent(chance);
      const spelled = { "\n": "a new line", " ": "a space" }[letter] ?? letter;
      button.setAttribute("aria-label", `append ${spelled}, ${percent(chance)}`);
      button.dataset.value = letter;
    });
  }

  function tell() {
    go.textContent = "Continue";
    if (shows) said.textContent = `After “${shown((input.value + written).at(-1))}”, the likeliest letter is “${shown(shows[0][0])}”, with ${percent(shows[0][1])}.`;
  }

  // The probabilities of all letters after the text, or undefined if a newer run has begun.
  async function predict(mine) {
    if (!model) {
      said.textContent = "Loading the model, 5.5 MB …";
      model = new Gpt(await load(), get("scales"), config);
    }
    let [logits, until] = [undefined, performance.now() + FRAME];
    if (mine !== run) return;
    for (const token of model.unread(tokens())) {
      logits = model.read(token);
      if (performance.now() < until) continue;
      await pause(0);
      if (mine !== run) return;
      until = performance.now() + FRAME;
    }
    const cold = temperature === 0; // then the likeliest has it all
    const most = Math.max(...logits);
    const chances = cold ? logits.map((logit) => Number(logit === most)) : softmax(logits.map((logit) => logit / temperature));
    const order = [...alphabet].map((letter, i) => [letter, chances[i], logits[i]]).sort((a, b) => b[2] - a[2]);
    drawBars(order);
    return chances;
  }

  function drawn(chances) {
    let left = draws.length ? draws.shift() : Math.random();
    const found = chances.findIndex((chance) => (left -= chance) < 0);
    return alphabet[found < 0 ? chances.indexOf(Math.max(...chances)) : found]; // rounding may leave a rest
  }

  // Stop what runs, and then write `count` letters, or only predict the next one.
  async function start(count) {
    const mine = ++run;
    const letter = unknown();
    writing = count > 0 && !letter && input.value !== "";
    problem.textContent = letter ? `The model has never seen “${letter}”. It knows letters, spaces and ${"!',-.:;?"}` : "";
    drawText();
    go.textContent = writing ? "Stop" : "Continue";
    if (letter || !input.value) return (said.textContent = letter ? "" : "Type at least one letter.");
    try {
      if (writing) said.textContent = "Writing …";
      for (let [i, wait] = [0, SLOWEST]; i < count; i++, wait = Math.max(FASTEST, FASTER * wait)) {
        const begun = performance.now();
        const chances = await predict(mine);
        if (!chances) return;
        if (i === 0) said.textContent = "Writing …";
        await pause(begun + wait - performance.now());
        if (mine !== run) return;
        written += drawn(chances);
        drawText();
      }
      if (!(await predict(mine))) return;
    } catch (error) {
      problem.textContent = `The model can't be loaded: ${error.message}`;
      said.textContent = "";
    }
    if (mine !== run) return;
    writing = false;
    tell();
  }

  function append(letter) {
    written += letter;
    start(0);
  }

  function setTemperature(value) {
    temperature = Number(value);
    if (!writing) start(0);
  }

  input.addEventListener("input", () => {
    showPresets();
    written = "";
    start(0);
  });
  input.addEventListener("keydown", (event) => event.key === "Enter" && start(AT_ONCE));
  go.addEventListener("click", () => start(writing ? 0 : AT_ONCE));
  clear.addEventListener("click", () => {
    written = "";
    start(0);
  });
  bars.addEventListener("keydown", (event) => {
    const step = { ArrowUp: -1, ArrowDown: 1 }[event.key];
    if (!step) return;
    buttons[buttons.indexOf(event.target) + step]?.focus();
    event.preventDefault();
  });
  root.addEventListener("keydown", (event) => event.stopPropagation());

  // It writes at once, unless the reader has asked for little motion or little data.
  const quiet = matchMedia("(prefers-reduced-motion: reduce)").matches || navigator.connection?.saveData;
  input.value = asked.text ?? get("text");
  temperature = Number(asked.temperature ?? temperature);
  heat.show(String(temperature));
  showPresets();
  el.append(root);
  if (Object.keys(asked).length) {
    draws.length = 0; // those are for the first text
    start(quiet ? 0 : AT_ONCE);
  } else if (quiet) {
    written = get("written");
    drawText();
    drawBars(get("likeliest"));
    tell();
  } else start(draws.length);
}

const renderWriter = ({ model, el }) => showWriter(el, (name) => model.get(name), async () => model.get("weights"));
