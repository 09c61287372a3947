// The budget explorer without Python: widgets/budget.py and the formulas of accounting.py.

function duration(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]])
    if (seconds >= 2 * size) return `${fixed(seconds / size, 1, ",")} ${unit}`;
  return `${fixed(seconds, 0)} seconds`;
}

const money = (dollars) => "$" + (dollars < 1e6 ? fixed(dollars, 0, ",") : short(dollars));

function trainingBudget(known) {
  function view(values) {
    const [parameters, tokens, devices] = ["parameters", "tokens", "devices"].map((name) => known[name][values[name]]);
    const sheet = known.hardware[values.hardware];
    const flops = 6 * parameters * tokens;
    const seconds = flops / (devices * sheet.peak * known.mfu[values.mfu]);
    const dollars = (seconds / 3600) * devices * known.price[values.price];
    const stage = known.sharded.indexOf(values.sharded);
    const held = known.parts[`${values.optimizer}, ${values.precision}`].map(([name, size, first], i) => {
      return { name, size: (parameters * size) / (stage >= first ? devices : 1), colour: known.palette[i] };
    });
    const total = held.reduce((sum, { size }) => sum + size, 0);
    const facts = [
      ["work, 6 N D", `${digits(flops)} FLOPs`],
      ["tokens per parameter", digits(tokens / parameters)],
      ["time", duration(seconds)],
      ["device-hours", short((seconds / 3600) * devices)],
      ["cost", money(dollars)],
    ];
    const scale = 100 / Math.max(total, sheet.memory);
    const pieces = held.filter(({ size }) => size).map(({ name, size, colour }) => {
      return tag("span", "", { style: `width: ${fixed(scale * size, 2)}%; background: ${colour}`, title: name });
    });
    const limit = tag("span", "", { class: "cs336-limit", style: `left: ${fixed(scale * sheet.memory, 2)}%` });
    const kinds = held.map(({ name, size, colour }) => {
      return [tag("span", "", { class: "cs336-swatch", style: `background: ${colour}` }) + name, gigabytes(size)];
    });
    kinds.push(["in all", gigabytes(total)]);
    const note = "Each device's memory; the stroke is what it has. Activations come on top.";
    const fits = total < sheet.memory ? "fits" : "does not fit";
    return {
      said: `${duration(seconds)}, ${money(dollars)}; ${gigabytes(total)} on each device of ${gigabytes(sheet.memory)}: ${fits}`,
      html: tag("div", pieces.join("") + limit, { class: "cs336-track", role: "img", "aria-label": "memory" })
        + tag("div", note, { class: "cs336-faint" })
        + tag("div", table(facts) + table(kinds), { class: "cs336-row", style: "gap: 6px 50px" }),
    };
  }

  return { settle: (values) => values, view };
}
