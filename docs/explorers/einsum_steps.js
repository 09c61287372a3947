// The einsum explorer without Python, which has drawn all of its views beforehand.

function einsumSteps({ views }) {
  function settle(values, changes) {
    if (Object.keys(changes).join() === "pattern") return { ...values, step: "0" };
    return { ...values, step: String(Math.min(Number(values.step), views[values.pattern].length - 1)) };
  }

  return { settle, view: ({ pattern, step }) => views[pattern][step] };
}
