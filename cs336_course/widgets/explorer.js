// One view for every explorer: Python sends controls and a picture in HTML, we send back values.
// In the picture, [data-name][data-value] sets a value when clicked (data-hover: when pointed at or
// focused), and inside [data-arrows="columns"] the arrow keys walk from button to button.

const TYPING_PAUSE = 200; // ms without a key before a half-typed text is read

function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

function textBox(control, set) {
  const input = make("input", { type: "text", spellcheck: "false", autocomplete: "off" });
  let timer;
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => set(input.value), TYPING_PAUSE);
  });
  input.addEventListener("change", () => {
    clearTimeout(timer);
    set(input.value);
  });
  return { input, parts: [input], show: (value) => (input.value = value) };
}

function choice(control, set) {
  const options = control.options.map((name) => make("option", { value: name }, name));
  const input = make("select", {}, ...options);
  input.addEventListener("change", () => set(input.value));
  return { input, parts: [input], show: (value) => (input.value = value) };
}

function slider(control, set) {
  const last = control.options.length - 1;
  const input = make("input", { type: "range", min: 0, max: last, step: 1 });
  const shown = make("output");
  const tell = () => {
    shown.textContent = control.options[input.value];
    input.setAttribute("aria-valuetext", shown.textContent);
  };
  input.addEventListener("input", () => {
    tell();
    set(control.options[input.value]);
  });
  const show = (value) => {
    input.value = control.options.indexOf(value);
    tell();
  };
  return { input, parts: [input, shown], show };
}

const KINDS = { text: textBox, choice, slider };

function render({ model, el }) {
  const kind = model.get("kind");
  const root = make("div", {
    class: `cs336-explorer cs336-${kind}`,
    role: "group",
    "aria-label": model.get("title"),
    "data-lm-suppress-shortcuts": "true", // or JupyterLab takes the keys for its own
  });
  // Only Python changes the values, one at a time: what is done meanwhile waits, the latest of each.
  const waiting = new Map();
  let busy = false;
  const next = () => {
    if (busy || !waiting.size) return;
    const [name, value] = waiting.entries().next().value;
    waiting.delete(name);
    if (model.get("values")[name] === value) return next();
    busy = true;
    model.send({ name, value });
  };
  const set = (name, value) => {
    waiting.set(name, value);
    next();
  };
  model.on("msg:custom", () => {
    busy = false;
    next();
  });

  const form = make("div", { class: "cs336-controls" });
  const shows = model.get("controls").map((control) => {
    const { input, parts, show } = KINDS[control.kind](control, (value) => set(control.name, value));
    input.setAttribute("name", control.name);
    input.setAttribute("aria-label", control.label);
    form.append(make("label", {}, make("span", {}, control.label), ...parts));
    return () => {
      const busy = input.getRootNode().activeElement === input; // it knows better than an answer
      if (!busy) show(model.get("values")[control.name]);
    };
  });
  const problem = make("p", { class: "cs336-problem", role: "alert" });
  const picture = make("div", { class: "cs336-picture" });
  const said = make("p", { class: "cs336-said", role: "status" });
  root.append(make("strong", { class: "cs336-title" }, model.get("title")), form, problem, said, picture);

  const current = {}; // for each group of buttons, the key of the one that Tab reaches
  const rove = () => {
    for (const group of picture.querySelectorAll("[data-arrows]")) {
      const buttons = [...group.querySelectorAll("button")];
      const chosen = buttons.find((b) => b.dataset.key === current[group.dataset.group]) ?? buttons[0];
      for (const button of buttons) button.tabIndex = button === chosen ? 0 : -1;
    }
  };
  const draw = () => {
    const active = picture.getRootNode().activeElement;
    const key = picture.contains(active) ? active.dataset.key : undefined;
    picture.innerHTML = model.get("html");
    rove();
    if (key) picture.querySelector(`[data-key="${CSS.escape(key)}"]`)?.focus({ preventScroll: true });
  };

  picture.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-name]");
    if (button) set(button.dataset.name, button.dataset.value);
  });
  // Not pointerover, which also comes when a new picture appears under a pointer at rest.
  picture.addEventListener("pointermove", ({ target }) => {
    const cell = target.closest("[data-hover]");
    if (cell) set(cell.dataset.name, cell.dataset.value);
  });
  picture.addEventListener("focusin", ({ target }) => {
    const group = target.closest("[data-arrows]");
    if (group) current[group.dataset.group] = target.dataset.key;
    rove();
    if ("hover" in target.dataset) set(target.dataset.name, target.dataset.value);
  });
  picture.addEventListener("keydown", (event) => {
    const group = event.target.closest("[data-arrows]");
    if (!group) return;
    const columns = Number(group.dataset.arrows);
    const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns }[event.key];
    if (!step) return;
    const buttons = [...group.querySelectorAll("button")];
    buttons[buttons.indexOf(event.target) + step]?.focus();
    event.preventDefault();
  });
  root.addEventListener("keydown", (event) => event.stopPropagation());

  const showValues = () => shows.forEach((show) => show());
  const showWords = () => {
    problem.textContent = model.get("problem");
    said.textContent = model.get("said");
  };
  model.on("change:values", showValues);
  model.on("change:html", draw);
  model.on("change:problem change:said", showWords);
  showValues();
  showWords();
  draw();
  el.append(root);
}

export default { render };
