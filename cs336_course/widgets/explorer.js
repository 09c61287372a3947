// One view for every explorer: Python sends controls and a picture in HTML, we send back changes of
// values. In the picture, [data-name][data-value] sets a value when clicked (data-hover: when pointed
// at or focused), and inside [data-arrows="columns"] the arrow keys walk from button to button.

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

// The controls with their names. `set` takes a change such as {devices: "8"}; the result shows values.
function controlForm(controls, set) {
  const form = make("div", { class: "cs336-controls" });
  const shows = controls.map((control) => {
    const { name, kind, label, folded } = control;
    const { input, parts, show } = KINDS[kind](control, (value) => set({ [name]: value }));
    input.setAttribute("name", name);
    input.setAttribute("aria-label", label);
    const labelled = make("label", { class: `cs336-${kind}` }, make("span", {}, label), ...parts);
    if (!folded) form.append(labelled);
    else form.append(make("details", {}, make("summary", { title: folded, "aria-label": folded }, "⋯"), labelled));
    return (values) => {
      const busy = input.getRootNode().activeElement === input; // it knows better than an answer
      if (!busy) show(values[name]);
    };
  });
  return { form, show: (values) => shows.forEach((show) => show(values)) };
}

// A button for each preset, pressed while its values are the current ones.
function presetButtons(presets, set) {
  const row = make("div", { class: "cs336-presets", role: "group", "aria-label": "presets" });
  const shows = Object.entries(presets).map(([name, preset]) => {
    const button = make("button", { type: "button" }, name);
    button.addEventListener("click", () => set(preset));
    row.append(button);
    return (values) => {
      const is = Object.entries(preset).every(([key, value]) => values[key] === value);
      button.setAttribute("aria-pressed", String(is));
    };
  });
  return { row, show: (values) => shows.forEach((show) => show(values)) };
}

// A button that copies a link to what the page shows now, and puts it into the address bar.
function linkButton(link) {
  const button = make("button", { type: "button", class: "cs336-link" }, "Copy link");
  const told = make("span", { class: "cs336-faint", role: "status" });
  button.addEventListener("click", async () => {
    history.replaceState(null, "", link());
    try {
      await navigator.clipboard.writeText(location.href);
      told.textContent = "Copied.";
    } catch {
      told.textContent = "Copy it from the address bar."; // the browser may refuse
    }
  });
  return make("div", { class: "cs336-share" }, told, button);
}

function render({ model, el }) {
  const kind = model.get("kind");
  const root = make("div", {
    class: `cs336-explorer cs336-${kind}`,
    role: "group",
    "aria-label": model.get("title"),
    "data-lm-suppress-shortcuts": "true", // or JupyterLab takes the keys for its own
  });
  // Only Python changes the values, once at a time: what is done meanwhile waits, the latest of each.
  let waiting = {};
  let busy = false;
  const next = () => {
    if (busy) return;
    const values = model.get("values");
    const changes = Object.entries(waiting).filter(([name, value]) => values[name] !== value);
    waiting = {};
    if (!changes.length) return;
    busy = true;
    model.send(Object.fromEntries(changes));
  };
  const set = (changes) => {
    Object.assign(waiting, changes);
    next();
  };
  model.on("msg:custom", () => {
    busy = false;
    next();
  });

  const said = make("p", { class: "cs336-said", role: "status" });
  const picture = make("div", { class: "cs336-picture" });
  const result = make("div", {}, said, picture);
  const presets = presetButtons(model.get("presets"), set);
  const controls = controlForm(model.get("controls"), set);
  const problem = make("p", { class: "cs336-problem", role: "alert" });
  const link = model.get("link"); // on pages without a kernel
  if (link) presets.row.append(linkButton(() => link(model.get("values"))));
  root.append(make("strong", { class: "cs336-title" }, model.get("title")), result);
  if (presets.row.childElementCount) root.append(presets.row);
  root.append(controls.form, problem);

  let tallest = 0;
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
    tallest = Math.max(tallest, result.offsetHeight); // so that the controls below never move up
    result.style.minHeight = `${tallest}px`;
  };

  picture.addEventListener("click", ({ target }) => {
    const button = target.closest("[data-name]");
    if (button) set({ [button.dataset.name]: button.dataset.value });
  });
  // Not pointerover, which also comes when a new picture appears under a pointer at rest.
  picture.addEventListener("pointermove", ({ target }) => {
    const cell = target.closest("[data-hover]");
    if (cell) set({ [cell.dataset.name]: cell.dataset.value });
  });
  picture.addEventListener("focusin", ({ target }) => {
    const group = target.closest("[data-arrows]");
    if (group) current[group.dataset.group] = target.dataset.key;
    rove();
    if ("hover" in target.dataset) set({ [target.dataset.name]: target.dataset.value });
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

  const showValues = () => [presets, controls].forEach(({ show }) => show(model.get("values")));
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
