// The first bill without Python: widgets/price.py and figures/ruler.py.

function priceOf(dollars) {
  for (const [size, letter] of [[1e9, "B"], [1e6, "M"]])
    if (dollars >= size) return "$" + general(dollars / size, 3) + letter;
  return "$" + (dollars < 10 ? fixed(dollars, 2) : fixed(dollars, 0, ","));
}

function firstBill({ flops, tokens, peaks, counts, shares, prices, things, ends, size }) {
  const [width, height] = size;
  const [low, high] = ends.map(Math.log10);
  const place = (dollars) => (width * (Math.min(Math.max(Math.log10(dollars), low), high) - low)) / (high - low);
  const write = (words, x, y, size, more = {}) => tag("text", words, { x, y, "text-anchor": "middle", "font-size": size, ...more });

  function drawing(dollars) {
    const parts = [
      tag("rect", "", { width, height, fill: "white" }),
      tag("path", "", { d: `M 0 48 H ${width}`, stroke: "black", "stroke-width": 2 }),
    ];
    for (const [name, price] of Object.entries(things)) {
      const x = fixed(place(price), 1);
      parts.push(tag("path", "", { d: `M ${x} 40 v 16`, stroke: "black", "stroke-width": 2 }));
      parts.push(write(name, x, 74, 14), write(priceOf(price), x, 90, 12));
    }
    const mark = `M ${fixed(place(dollars), 1)} 46 l -9 -18 h 18 z`;
    parts.push(tag("path", "", { d: mark, class: "cs336-run" }));
    const x = fixed(Math.min(Math.max(place(dollars), 40), width - 40), 1);
    parts.push(write(priceOf(dollars), x, 20, 16, { "font-weight": "bold" }));
    const said = `${priceOf(dollars)} on a ruler from a coffee to an airliner`;
    return tag("svg", parts.join(""), { role: "img", "aria-label": said, viewBox: `0 0 ${width} ${height}`, width, height });
  }

  function view(values) {
    const work = flops[values.model] * tokens[values.tokens];
    const [count, peak, share] = [counts[values.gpus], peaks[values.gpu], shares[values.share]];
    const seconds = work / (count * peak * share);
    const hours = (seconds / 3600) * count;
    const dollars = hours * prices[values.price];
    const rows = [
      ["work", `${digits(work)} FLOPs`],
      ["speed", `${digits(count * peak * share)} FLOP/s`],
      ["time = work / speed", duration(seconds)],
      ["GPU-hours", short(hours)],
      ["price", priceOf(dollars)],
    ];
    return {
      said: `${values.model} on ${values.tokens} tokens: ${duration(seconds)}, ${priceOf(dollars)}`,
      html: drawing(dollars) + table(rows),
    };
  }

  return { settle: (values) => values, view };
}
