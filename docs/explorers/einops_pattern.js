// The einops explorer without Python: widgets/pattern.py, and the rules of einops for small tensors.
// A side of a pattern is a list of axes, and an axis is the list of the names in its parentheses.

const EINOPS = {
  rearrange: { same: "both" },
  repeat: { same: "left" },
  "reduce sum": { same: "right", join: (all) => all.reduce((a, b) => a + b) },
  "reduce mean": { same: "right", join: (all) => Math.fround(all.reduce((a, b) => a + b) / all.length) },
  "reduce max": { same: "right", join: (all) => Math.max(...all) },
};

function readShape(words, mostElements, mostAxes) {
  const parts = words.replace(/^[()[\] ]+|[()[\] ]+$/g, "").split(/[\s,]+/);
  const good = parts.length <= mostAxes && parts.every((part) => /^\d+$/.test(part) && Number(part) > 0);
  must(good, `shape ${reprText(words)} is not a list of 1 to ${mostAxes} sizes; try 2 3 4`);
  const count = product(parts.map(Number));
  must(count <= mostElements, `shape ${reprText(words)} has ${count} elements; use at most ${mostElements}`);
  return parts.map(Number);
}

function readSizes(words) {
  const parts = words.replace(/\s*=\s*/g, "=").split(/[\s,]+/).filter(Boolean);
  const good = parts.every((part) => /^[a-z_]\w*=[1-9]\d*$/.test(part));
  must(good, `sizes ${reprText(words)} are not of the form name=size; try head=2, or leave it empty`);
  return Object.fromEntries(parts.map((part) => [part.split("=")[0], Number(part.split("=")[1])]));
}

function readSide(words) {
  must(!/\.\.\.|…/.test(words), "this page needs all dimensions written out, without ...");
  must(/^[\w\s()]*$/.test(words), "a pattern has only names, spaces and parentheses");
  const axes = [];
  let group;
  for (const part of words.match(/\w+|[()]/g) ?? []) {
    if (part === "(") {
      must(!group, "parentheses inside parentheses are not allowed");
      axes.push((group = []));
    } else if (part === ")") {
      must(group, "a parenthesis is missing");
      group = undefined;
    } else {
      must(part === "1" || /^[A-Za-z](\w*[A-Za-z0-9])?$/.test(part), `${part} is not a name of a dimension`);
      const names = part === "1" ? [] : [part];
      if (group) group.push(...names);
      else axes.push(names);
    }
  }
  must(!group, "a parenthesis is missing");
  const names = axes.flat();
  must(new Set(names).size === names.length, "a name stands twice on one side");
  return axes;
}

// The size of each name, from the shape of the input and the sizes that are given.
function sizesOf(left, right, shape, given) {
  must(left.length === shape.length, `the pattern has ${left.length} dimensions on the left, and the tensor ${shape.length}`);
  const names = new Set([...left, ...right].flat());
  for (const name of Object.keys(given)) must(names.has(name), `${name} is not in the pattern`);
  const sizes = { ...given };
  left.forEach((axis, i) => {
    const open = axis.filter((name) => sizes[name] === undefined);
    const known = product(axis.filter((name) => sizes[name] !== undefined).map((name) => sizes[name]));
    must(open.length < 2, `the sizes of ${open.join(" and ")} are not known`);
    if (open.length) sizes[open[0]] = shape[i] / known;
    must(Number.isInteger(shape[i] / known) && (open.length || known === shape[i]), `${shape[i]} elements can't be split into ${axis.join(" × ") || 1}`);
  });
  for (const name of names) must(sizes[name] !== undefined, `the size of ${name} is not known`);
  return sizes;
}

function moved(operation, pattern, shape, given) {
  must(pattern.split("->").length === 2, "a pattern has one arrow, as in axes before -> axes after");
  const [left, right] = pattern.split("->").map(readSide);
  const { same, join = ([only]) => only } = EINOPS[operation];
  const [before, after] = [left.flat(), right.flat()];
  const missing = before.filter((name) => !after.includes(name));
  const added = after.filter((name) => !before.includes(name));
  must(same === "right" || !missing.length, `${missing.join(", ")} stands only on the left`);
  must(same === "left" || !added.length, `${added.join(", ")} stands only on the right`);
  const sizes = sizesOf(left, right, shape, given);
  const result = right.map((axis) => product(axis.map((name) => sizes[name])));
  const names = [...after, ...missing];
  const slot = (at, axes) => axes.reduce((sum, name) => sum * sizes[name] + at[names.indexOf(name)], 0);
  const sources = Array.from({ length: product(result) }, () => []);
  for (const at of indices(names.map((name) => sizes[name]))) sources[slot(at, after)].push(slot(at, before));
  const targets = Array.from({ length: product(shape) }, () => []);
  sources.forEach((all, target) => all.forEach((source) => targets[source].push(target)));
  return { before: { shape, values: targets.map((_, i) => i), ways: targets }, after: { shape: result, values: sources.map(join), ways: sources } };
}

function einopsPattern({ faces, most_elements: mostElements, most_axes: mostAxes }) {
  const paint = (group) => `background: ${group < 0 ? "#ffffff" : faces[group % faces.length]}`;

  function settle(values, changes) {
    return Object.keys(changes).join() === "chosen" ? values : { ...values, chosen: "" };
  }

  function moves(values) {
    const shape = readShape(values.shape, mostElements, mostAxes);
    const found = moved(values.operation, values.pattern, shape, readSizes(values.sizes));
    const { shape: result, values: cells } = found.after;
    must(cells.length <= 2 * mostElements && result.length <= mostAxes,
      `the result has shape ${reprTuple(result)}; it can be drawn with at most ${2 * mostElements} elements in ${mostAxes} axes`);
    const group = (i) => Math.floor(i / (cells.length / (result[0] ?? 1)));
    found.after.groups = cells.map((_, i) => group(i));
    found.before.groups = found.before.ways.map((ways) => {
      const groups = new Set(ways.map(group));
      return groups.size === 1 ? [...groups][0] : -1;
    });
    return found;
  }

  function grid(side, { shape, values, groups }, axes, marked) {
    let number = -1;
    return cells(shape, (index) => {
      number += 1;
      const value = values[number];
      return tag("button", fixed(value, Number.isInteger(value) ? 0 : 1), {
        class: "cs336-cell" + (marked.includes(number) ? " cs336-chosen" : ""),
        style: paint(groups[number]),
        "aria-label": `${side} [${index.join(", ")}]`,
        "data-key": `${side} ${number}`,
        "data-name": "chosen",
        "data-value": `${side} ${number}`,
        "data-hover": "",
      });
    }, side, axes);
  }

  function view(values) {
    const found = moves(values);
    const marked = { before: [], after: [] };
    let said = `${reprTuple(found.before.shape)} -> ${reprTuple(found.after.shape)}`;
    if (values.chosen) {
      const [side, number] = values.chosen.split(" ");
      const other = side === "before" ? "after" : "before";
      const ways = found[side].ways[Number(number)];
      marked[side] = [Number(number)];
      marked[other] = ways;
      said += `; the chosen element ${side === "before" ? "goes to" : "is made of"} ${ways.length} ${ways.length === 1 ? "place" : "places"}`;
    }
    const panels = values.pattern.split("->").map((words, i) => {
      const side = ["before", "after"][i];
      const names = words.match(/\([^)]*\)|[^\s()]+/g) ?? [];
      const dims = found[side].shape.length;
      const axes = names.length === dims ? names : [...Array(dims).keys()].map((axis) => `axis ${axis}`);
      const title = tag("div", escaped(`${side}: ${axes.join(" ")}`));
      return tag("div", title + grid(side, found[side], axes, marked[side]), { class: `cs336-${side}` });
    });
    return { said, html: tag("div", panels.join(""), { class: "cs336-row", style: "gap: 30px" }) };
  }

  return { settle, view };
}
