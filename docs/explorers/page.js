// Explorers without a kernel: a model with the four methods that explorer.js uses, whose answers are
// computed here instead of in Python. It replaces the stored picture of a cell.
//
// A link carries the state of one explorer: its fragment is the explorer's id, and its query the values
// of the controls, as in ?tokens=30B&gpus=16#first-bill.

class Problem extends Error {}

const ANSWERS = { "first-bill": firstBill };

function pageModel({ constants, ...state }) {
  const { settle, view } = ANSWERS[state.kind](constants);
  const handlers = [];
  const emit = (event) => handlers.filter(({ events }) => events.includes(event)).forEach(({ handler }) => handler());
  const update = (changes) => {
    const changed = Object.keys(changes).filter((name) => state[name] !== changes[name]);
    Object.assign(state, changes);
    changed.forEach((name) => emit(`change:${name}`));
  };
  return {
    get: (name) => state[name],
    on: (events, handler) => handlers.push({ events: events.split(" "), handler }),
    send(changes) {
      const wanted = { ...state.values, ...changes };
      try {
        const values = settle(wanted, changes);
        update({ values, ...view(values), problem: "" });
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        update({ values: wanted, problem: error.message });
      }
      emit("msg:custom");
    },
  };
}

// The weights are a script beside this one, because a page that is opened as a file can't fetch anything else.
const HERE = document.currentScript?.src;
let arriving;

async function load() {
  // A script that is added earlier would delay the page's own load event.
  if (document.readyState !== "complete") await new Promise((done) => addEventListener("load", done));
  return new Promise((done, failed) => {
    // The browser decodes 5.5 MB at once; a loop over the letters would hold the page for half a second.
    window.cs336.receive = (words) => fetch(`data:;base64,${words}`).then((answer) => answer.arrayBuffer()).then((buffer) => done(new Uint8Array(buffer)), failed);
    const script = make("script", { src: new URL("weights.js", HERE) });
    script.addEventListener("error", () => failed(new Error(`${script.src} is missing`)));
    document.head.append(script);
  });
}

const weights = () => (arriving ??= load());

// The values in the address that these controls can have, if its fragment names this explorer.
function valuesFor(id, controls) {
  if (location.hash !== `#${id}`) return {};
  const asked = new URLSearchParams(location.search);
  const known = controls.filter(({ name, options }) => asked.has(name) && (options?.includes(asked.get(name)) ?? true));
  return Object.fromEntries(known.map(({ name }) => [name, asked.get(name)]));
}

function linkTo(id, controls) {
  return (values) => {
    const link = new URL(location.href);
    link.search = new URLSearchParams(controls.map(({ name }) => [name, values[name]]));
    link.hash = id;
    return link.href;
  };
}

// The model in the state that the address asks for. If that makes no picture, it is ignored.
function modelFor(state, id) {
  const fresh = () => pageModel({ ...state, link: linkTo(id, state.controls) });
  const model = fresh();
  model.send(valuesFor(id, state.controls));
  return model.get("problem") ? fresh() : model;
}

function showAt(el, state) {
  if (state.kind !== "writer") return render({ model: modelFor(state, el.id), el });
  const parts = [{ name: "text" }, { name: "temperature", options: state.temperatures }];
  showWriter(el, (name) => state[name], weights, linkTo(el.id, parts), valuesFor(el.id, parts));
}

function showAll() {
  for (const script of document.querySelectorAll("script.cs336-state")) {
    const [state, el] = [JSON.parse(script.textContent), script.parentElement];
    const picture = script.closest(".cell_output")?.querySelector("img");
    const same = document.querySelectorAll(`.cs336-live[id^="${state.kind}"]`).length; // earlier on the page
    el.id = same ? `${state.kind}-${same + 1}` : state.kind;
    showAt(el, state);
    picture?.remove();
    if (location.hash === `#${el.id}`) el.scrollIntoView();
  }
}

window.cs336 = { pageModel, Gpt, contextStart, softmax };
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", showAll);
else showAll();
