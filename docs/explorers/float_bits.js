// The float explorer without Python: cs336_course/shared/number_formats.py and widgets/number.py.

const bits = (format) => 1 + format.exponent_bits + format.mantissa_bits;
const bias = (format) => 2 ** (format.exponent_bits - 1) - 1;
const minExponent = (format) => 1 - bias(format);
const ones = (count) => (1n << BigInt(count)) - 1n;

function maxCode(format) {
  const givenUp = { ieee: 1n << BigInt(format.mantissa_bits), "one nan": 1n }[format.specials] ?? 0n;
  return ones(format.exponent_bits + format.mantissa_bits) - givenUp;
}

function split(format, pattern) {
  const [k, m] = [format.exponent_bits, format.mantissa_bits];
  return [pattern >> BigInt(k + m), (pattern >> BigInt(m)) & ones(k), pattern & ones(m)].map(Number);
}

function decode(format, pattern) {
  const [sign, exponent, mantissa] = split(format, pattern);
  const m = format.mantissa_bits;
  const code = pattern & ones(format.exponent_bits + m);
  let value;
  if (code > maxCode(format)) value = format.specials === "ieee" && mantissa === 0 ? Infinity : NaN;
  else if (exponent === 0) value = mantissa * 2 ** (minExponent(format) - m);
  else value = (2 ** m + mantissa) * 2 ** (exponent - bias(format) - m);
  return sign ? -value : value;
}

function exponentOf(value) {
  const [top, bottom] = fraction(value);
  const guess = top.toString(2).length - bottom.toString(2).length;
  return (guess >= 0 ? top >= bottom << BigInt(guess) : top << BigInt(-guess) >= bottom) ? guess : guess - 1;
}

function encode(format, value) {
  const [k, m] = [format.exponent_bits, format.mantissa_bits];
  const sign = minus(value) ? 1n << BigInt(k + m) : 0n;
  if (Number.isNaN(value)) {
    if (format.specials === "none") throw new Problem(`${format.name} has no NaN`);
    return ones(k + m);
  }
  const most = maxCode(format);
  let pattern = most + 1n;
  if (Number.isFinite(value)) {
    const exponent = value ? Math.max(exponentOf(value), minExponent(format)) : minExponent(format);
    const [top, bottom] = fraction(value);
    const shift = BigInt(m - exponent);
    const [over, under] = shift < 0n ? [top, bottom << -shift] : [top << shift, bottom];
    const rest = 2n * (over % under);
    const down = over / under;
    const steps = down + (rest > under || (rest === under && down % 2n === 1n) ? 1n : 0n);
    pattern = (BigInt(exponent - minExponent(format)) << BigInt(m)) + steps;
  }
  if (pattern > most) {
    if (format.specials === "none") pattern = most;
    else if (format.specials === "ieee") pattern = most + 1n;
    else return encode(format, NaN);
  }
  return sign | pattern;
}

function readFloat(words) {
  const text = words.trim().toLowerCase();
  const named = /^([+-]?)(inf|infinity|nan)$/.exec(text);
  if (named) return (named[1] === "-" ? -1 : 1) * (named[2] === "nan" ? NaN : Infinity);
  if (/^[+-]?(\d+(_\d+)*\.?(\d+(_\d+)*)?|\.\d+(_\d+)*)(e[+-]?\d+(_\d+)*)?$/.test(text)) return Number(text.replaceAll("_", ""));
  throw new Problem(`${reprText(words)} is not a number; try 0.1, -3e-5 or inf`);
}

function worked(format, pattern) {
  const value = decode(format, pattern);
  const [sign, exponent, mantissa] = split(format, pattern);
  const signed = sign ? "-" : "";
  if (Number.isNaN(value)) return "this code means NaN";
  if (!Number.isFinite(value)) return "this code means infinity";
  if (value === 0) return `all fields but the sign are 0: ${signed}0`;
  const part = `${mantissa}/2^${format.mantissa_bits}`;
  if (exponent === 0) return `subnormal, no implicit one: ${signed}2^${minExponent(format)} × ${part}`;
  return `${signed}2^(${exponent} - ${bias(format)}) × (1 + ${part})`;
}

function rounded(format, value, mostBits) {
  if (Number.isNaN(value) && format.specials === "none") return ["-", "has no NaN", "-"];
  const pattern = encode(format, value);
  const stored = decode(format, pattern);
  let error = "0";
  if (stored !== value && Number.isFinite(value) && Number.isFinite(stored))
    error = scientific(Math.abs(stored - value) / Math.abs(value), 1);
  else if (stored !== value && !(Number.isNaN(stored) && Number.isNaN(value))) error = "lost";
  const widths = [1, format.exponent_bits, format.mantissa_bits];
  let spelled = split(format, pattern).map((field, i) => field.toString(2).padStart(widths[i], "0")).join(" ");
  if (spelled.length > mostBits) spelled = spelled.slice(0, mostBits - 1) + "…";
  return [spelled, general(stored, 9), error];
}

function floatBits({ formats, fields, colours, most_bits: mostBits }) {
  const format = (values) => formats.find(({ name }) => name === values.format);

  function settle(values, changes) {
    const chosen = format(values);
    const typed = "number" in changes || "format" in changes;
    if (typed) return { ...values, code: String(encode(chosen, readFloat(values.number))) };
    return { ...values, number: reprFloat(decode(chosen, BigInt(values.code))) };
  }

  function box(chosen, pattern, bit) {
    const { mantissa_bits: m, exponent_bits: k } = chosen;
    const [field, place] = bit < m ? [2, bit] : bit < m + k ? [1, bit - m] : [0, 0];
    const on = (pattern >> BigInt(bit)) & 1n;
    return tag("button", on, {
      class: "cs336-cell",
      style: `background: ${colours[field]}`,
      "aria-pressed": on ? "true" : "false",
      "aria-label": `bit ${bit}: ${fields[field]} bit ${place}`,
      "data-key": `bit ${bit}`,
      "data-name": "code",
      "data-value": pattern ^ (1n << BigInt(bit)),
    });
  }

  function view(values) {
    const chosen = format(values);
    const pattern = BigInt(values.code);
    const exact = readFloat(values.number);
    const boxes = [...Array(bits(chosen)).keys()].reverse().map((bit) => box(chosen, pattern, bit));
    const keys = [1, chosen.exponent_bits, chosen.mantissa_bits].map((size, i) => {
      const swatch = tag("span", "", { class: "cs336-swatch", style: `background: ${colours[i]}` });
      return tag("span", `${swatch}${size} ${fields[i]}`);
    });
    const columns = Math.min(32, bits(chosen));
    const style = `grid-template-columns: repeat(${columns}, auto)`;
    const grid = tag("div", boxes.join(""), { class: "cs336-cells", style });
    const row = tag("div", grid, { class: "cs336-bits", "data-arrows": columns, "data-group": "bits" });
    const rows = formats.map((other) => [other.name, ...rounded(other, exact, mostBits).map(code)]);
    const formula = tag("p", code(worked(chosen, pattern)), { class: "cs336-formula" });
    return {
      said: `${chosen.name} stores ${reprFloat(decode(chosen, pattern))}`,
      html: row + tag("div", keys.join(" "), { class: "cs336-row" }) + formula
        + table(rows, ["format", "bits", "stores", "relative error"]),
    };
  }

  return { settle, view };
}
