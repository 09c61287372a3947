// Explorers without a kernel: a model with the four methods that explorer.js uses, whose answers are
// computed here instead of in Python. It replaces the stored picture of a cell.

class Problem extends Error {}

const ANSWERS = { "float-bits": floatBits, strides, "training-budget": trainingBudget };

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
    send({ name, value }) {
      const wanted = { ...state.values, [name]: value };
      try {
        const values = settle(wanted, name);
        update({ values, ...view(values), problem: "" });
      } catch (error) {
        if (!(error instanceof Problem)) throw error;
        update({ values: wanted, problem: error.message });
      }
      emit("msg:custom");
    },
  };
}

function showAll() {
  for (const script of document.querySelectorAll("script.cs336-state")) {
    const picture = script.closest(".cell_output")?.querySelector("img");
    render({ model: pageModel(JSON.parse(script.textContent)), el: script.parentElement });
    picture?.remove();
  }
}

window.cs336 = { pageModel };
if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", showAll);
else showAll();
