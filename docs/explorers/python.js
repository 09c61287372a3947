// Numbers, texts and HTML exactly as the explorers' Python code formats them.

// |x| as a fraction of two BigInts, which is exact.
function fraction(x) {
  const view = new DataView(new ArrayBuffer(8));
  view.setFloat64(0, Math.abs(x));
  const code = view.getBigUint64(0);
  const field = Number(code >> 52n);
  const digits = BigInt.asUintN(52, code) | (field ? 1n << 52n : 0n);
  const exponent = BigInt(Math.max(field, 1) - 1075);
  return exponent < 0n ? [digits, 1n << -exponent] : [digits << exponent, 1n];
}

// |x| times 10^power as the nearest integer, with ties to even as in Python (toFixed rounds them up).
function scaled(x, power) {
  let [top, bottom] = fraction(x);
  if (power >= 0) top *= 10n ** BigInt(power);
  else bottom *= 10n ** BigInt(-power);
  const rest = 2n * (top % bottom);
  const down = top / bottom;
  return down + (rest > bottom || (rest === bottom && down % 2n === 1n) ? 1n : 0n);
}

const special = (x) => (Number.isNaN(x) ? "nan" : x === Infinity ? "inf" : x === -Infinity ? "-inf" : "");
const minus = (x) => (x < 0 || Object.is(x, -0) ? "-" : "");
const grouped = (digits) => digits.replace(/\B(?=(\d{3})+$)/g, ",");

// f"{x:,.{places}f}", or without the commas
function fixed(x, places, comma = "") {
  const digits = scaled(x, places).toString().padStart(places + 1, "0");
  const whole = digits.slice(0, digits.length - places);
  const rest = places ? "." + digits.slice(-places) : "";
  return minus(x) + (comma ? grouped(whole) : whole) + rest;
}

// The significant digits of |x| and the exponent of the first.
function significant(x, count) {
  if (x === 0) return ["0".repeat(count), 0];
  let exponent = Number(x.toExponential().split("e")[1]);
  let digits = scaled(x, count - 1 - exponent).toString();
  if (digits.length > count) [digits, exponent] = [digits.slice(0, count), exponent + 1];
  return [digits, exponent];
}

function withExponent(digits, exponent) {
  const point = digits.length > 1 ? "." : "";
  const size = String(Math.abs(exponent)).padStart(2, "0");
  return `${digits[0]}${point}${digits.slice(1)}e${exponent < 0 ? "-" : "+"}${size}`;
}

// f"{x:,.{count}g}", or without the commas
function general(x, count, comma = "") {
  if (special(x)) return special(x);
  const [digits, exponent] = significant(x, count);
  if (exponent < -4 || exponent >= count) return minus(x) + withExponent(digits.replace(/0+$/, "") || "0", exponent);
  const plain = fixed(x, count - 1 - exponent, comma);
  return plain.includes(".") ? plain.replace(/\.?0+$/, "") : plain;
}

// formatting.digits, formatting.short and formatting.duration
function digits(value) {
  const plain = general(value, 4, 1e-3 <= Math.abs(value) && Math.abs(value) < 1e6 ? "," : "");
  return plain.replace(/e([+-])0*/, (_, sign) => "e" + sign.replace("+", ""));
}

function short(value) {
  for (const [power, letter] of [[12, "T"], [9, "B"], [6, "M"]])
    if (value >= 10 ** power) return general(value / 10 ** power, 4) + letter;
  return digits(value);
}

function duration(seconds) {
  for (const [unit, size] of [["days", 86400], ["hours", 3600], ["minutes", 60]])
    if (seconds >= 2 * size) return `${fixed(seconds / size, 1, ",")} ${unit}`;
  return `${fixed(seconds, 0)} seconds`;
}

// widget.tag and widget.table
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;" };
const escaped = (words) => String(words).replace(/[&<>"']/g, (letter) => ESCAPES[letter]);

function tag(name, content = "", attributes = {}) {
  const spelled = Object.entries(attributes)
    .filter(([, value]) => value !== undefined)
    .map(([key, value]) => ` ${key}="${escaped(value)}"`);
  return `<${name}${spelled.join("")}>${content}</${name}>`;
}

function table(rows, head = []) {
  const lines = head.length ? [tag("tr", head.map((cell) => tag("th", cell, { scope: "col" })).join(""))] : [];
  for (const [first, ...rest] of rows)
    lines.push(tag("tr", tag("th", first, { scope: "row" }) + rest.map((cell) => tag("td", cell)).join("")));
  return tag("table", lines.join(""));
}
