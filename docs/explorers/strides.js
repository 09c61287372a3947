// The stride explorer without Python: a parser of indexing and method calls, and PyTorch's rules for
// strides. A tensor is {shape, stride, offset, data}, and views share `data`.

const ELLIPSIS = Symbol("...");
const NOT_SUPPORTED = "use only indexing and view methods of x here";
const product = (sizes) => sizes.reduce((all, size) => all * size, 1);
const listed = (items) => `[${items.join(", ")}]`;

function must(condition, message) {
  if (!condition) throw new Problem(message);
}

// The parser: an expression such as x.T[1:, ::2] as a tree.

function tokens(text) {
  const found = [];
  const pattern = /\s*(?:(\d+(?:\.\d*)?)|([A-Za-z_]\w*)|(\.\.\.|[().,:=[\]-])|(\S))/gy;
  for (let match; (match = pattern.exec(text.trimEnd())); ) {
    const [, number, name, sign, other] = match;
    must(other === undefined, NOT_SUPPORTED);
    found.push(number ? { number: Number(number) } : name ? { name } : { sign });
  }
  return found;
}

function parse(text) {
  const left = tokens(text);
  const sign = () => left[0]?.sign;
  const next = (wanted) => {
    const token = left.shift();
    must(token && (!wanted || token.sign === wanted), `not valid Python yet: ${wanted ?? "something"} is missing`);
    return token;
  };
  const NAMES = { None: null, True: true, False: false };

  function many(item, end) {
    const items = [];
    let comma = false;
    while (left.length && !(end && sign() === end)) {
      items.push(item());
      comma = sign() === ",";
      if (!comma) break;
      next();
    }
    return { items, comma };
  }
  function atom() {
    const token = next();
    if (token.number !== undefined) return { kind: "constant", value: token.number };
    if (token.name in NAMES) return { kind: "constant", value: NAMES[token.name] };
    if (token.name) return { kind: "name", name: token.name };
    if (token.sign === "...") return { kind: "constant", value: ELLIPSIS };
    if (token.sign === "-") return { kind: "minus", of: expression() };
    const end = { "(": ")", "[": "]" }[token.sign];
    must(end, "not valid Python yet: a value is missing");
    const { items, comma } = many(expression, end);
    next(end);
    return end === ")" && items.length === 1 && !comma ? items[0] : { kind: "tuple", items, list: end === "]" };
  }
  function argument() {
    if (left[0]?.name && left[1]?.sign === "=") {
      const name = next().name;
      next("=");
      return { name, value: expression() };
    }
    return { value: expression() };
  }
  function part() {
    const bounds = [undefined];
    for (;;) {
      if (sign() === ":") {
        next();
        bounds.push(undefined);
      } else if (sign() === "]" || sign() === ",") break;
      else bounds[bounds.length - 1] = expression();
    }
    must(bounds.length <= 3 && (bounds.length > 1 || bounds[0]), "not valid Python yet: an index is missing");
    return bounds.length > 1 ? { kind: "slice", bounds } : bounds[0];
  }
  function expression() {
    let tree = atom();
    for (;;) {
      if (sign() === ".") {
        next();
        tree = { kind: "attribute", of: tree, name: next().name };
        must(tree.name, "not valid Python yet: a method is missing");
      } else if (sign() === "(") {
        next();
        const { items } = many(argument, ")");
        next(")");
        tree = { kind: "call", of: tree, items };
      } else if (sign() === "[") {
        next();
        const { items, comma } = many(part, "]");
        must(items.length, "not valid Python yet: an index is missing");
        next("]");
        tree = { kind: "index", of: tree, items, single: items.length === 1 && !comma };
      } else return tree;
    }
  }
  const { items, comma } = many(expression);
  must(items.length && !left.length, "not valid Python yet: invalid syntax");
  return comma || items.length > 1 ? { kind: "tuple", items } : items[0];
}

// PyTorch's rules.

const view = (x, changes) => ({ ...x, ...changes });
const slotOf = (x, index) => index.reduce((slot, i, dim) => slot + i * x.stride[dim], x.offset);
const rowMajor = (shape) => shape.map((_, dim) => product(shape.slice(dim + 1)));
const isContiguous = ({ shape, stride }) =>
  product(shape) === 0 || rowMajor(shape).every((step, dim) => shape[dim] === 1 || step === stride[dim]);

function dimension(x, dim, extra = 0) {
  const most = Math.max(x.shape.length + extra, 1);
  must(Number.isInteger(dim), "PyTorch: a dimension must be an integer");
  must(-most <= dim && dim < most, `PyTorch: Dimension out of range (expected to be in range of [${-most}, ${most - 1}], but got ${dim})`);
  return dim < 0 ? dim + most : dim;
}

// A new tensor whose values are those of x at `source(index)`, with the strides of row-major order or others.
function copy(x, shape, source, stride = rowMajor(shape)) {
  must(product(shape) <= 1000, "the result is too large to draw");
  const data = Array(product(shape));
  for (const index of indices(shape)) data[slotOf({ stride, offset: 0 }, index)] = x.data[slotOf(x, source(index))];
  return { shape, stride, offset: 0, data };
}

// The strides of a copy with "preserve_format": torch's infer_dense_strides. The order of x's memory stays.
function denseStrides({ shape, stride }) {
  const order = shape.map((_, dim) => dim).reverse();
  const compare = (a, b) => {
    if (!stride[a] || !stride[b]) return 0;
    return stride[a] !== stride[b] ? Math.sign(stride[a] - stride[b]) : shape[a] > shape[b] ? 1 : 0;
  };
  for (let i = 1; i < order.length; i++)
    for (let high = i, low = i - 1; low >= 0; low--) {
      const way = compare(order[low], order[high]);
      if (way < 0) break;
      if (way > 0) {
        [order[low], order[high]] = [order[high], order[low]];
        high = low;
      }
    }
  const steps = [];
  let step = 1;
  for (const dim of order) {
    steps[dim] = step;
    step *= Math.max(shape[dim], 1);
  }
  return steps;
}

function isDense({ shape, stride }) {
  if (shape.length === 1) return shape[0] < 2 || stride[0] === 1;
  const order = shape.map((_, dim) => dim).filter((dim) => shape[dim] > 1).sort((a, b) => stride[a] - stride[b]);
  return order.every((dim, i) => stride[dim] === product(order.slice(0, i).map((other) => shape[other])));
}

const keptStrides = (x) => (isDense(x) ? x.stride : denseStrides(x));

// The strides of a view with a new shape, or undefined if it needs a copy: torch's computeStride.
function viewStrides({ shape, stride }, wanted) {
  if (!product(shape)) return String(shape) === String(wanted) ? stride : rowMajor(wanted);
  const steps = [];
  let at = wanted.length - 1;
  let base = stride.at(-1) ?? 1;
  let [old, made] = [1, 1];
  for (let dim = shape.length - 1; dim >= 0; dim--) {
    old *= shape[dim];
    if (dim && (shape[dim - 1] === 1 || stride[dim - 1] === old * base)) continue;
    while (at >= 0 && (made < old || wanted[at] === 1)) {
      steps[at] = made * base;
      made *= wanted[at--];
    }
    if (made !== old) return undefined;
    if (dim) [base, old, made] = [stride[dim - 1], 1, 1];
  }
  while (at >= 0 && wanted[at] === 1) steps[at--] = base * made;
  return at < 0 ? steps : undefined;
}

function inferred(sizes, count) {
  const holes = sizes.filter((size) => size === -1).length;
  const known = product(sizes.filter((size) => size !== -1));
  must(holes <= 1, "PyTorch: only one dimension can be inferred");
  const fits = sizes.every((size) => size >= -1) && (holes ? known && count % known === 0 : known === count);
  must(fits, `PyTorch: shape '${listed(sizes)}' is invalid for input of size ${count}`);
  return sizes.map((size) => (size === -1 ? count / known : size));
}

function reshaped(x, sizes, mayCopy) {
  const shape = inferred(sizes, product(x.shape));
  const stride = viewStrides(x, shape);
  if (stride) return view(x, { shape, stride });
  must(mayCopy, "PyTorch: view size is not compatible with input tensor's size and stride (at least one dimension "
    + "spans across two contiguous subspaces). Use .reshape(...) instead.");
  return view(contiguous(x), { shape, stride: rowMajor(shape) });
}

const contiguous = (x) => (isContiguous(x) ? x : copy(x, x.shape, (index) => index));

function negated(x) {
  if (!x?.data) return -x;
  const result = copy(x, x.shape, (index) => index, keptStrides(x));
  return view(result, { data: result.data.map((value) => -value) });
}

function permuted(x, dims) {
  return view(x, { shape: dims.map((dim) => x.shape[dim]), stride: dims.map((dim) => x.stride[dim]) });
}

function swapped(x, first, second) {
  const dims = x.shape.map((_, dim) => dim);
  if (!dims.length) return x;
  [dims[first], dims[second]] = [second, first];
  return permuted(x, dims);
}

function without(items, ...dims) {
  return items.filter((_, dim) => !dims.includes(dim));
}

function select(x, dim, index, message) {
  const size = x.shape[dim];
  must(-size <= index && index < size, message);
  const offset = x.offset + (index < 0 ? index + size : index) * x.stride[dim];
  return view(x, { shape: without(x.shape, dim), stride: without(x.stride, dim), offset });
}

function sliced(x, dim, start, stop, step) {
  must(step !== 0, "PyTorch: slice step cannot be zero");
  must(step > 0, "PyTorch: step must be greater than zero");
  const size = x.shape[dim];
  const clamp = (at) => Math.min(Math.max(at < 0 ? at + size : at, 0), size);
  const [from, to] = [clamp(start ?? 0), clamp(stop ?? size)];
  const count = Math.max(0, Math.ceil((to - from) / step));
  const offset = x.offset + from * x.stride[dim];
  return view(x, { shape: x.shape.with(dim, count), stride: x.stride.with(dim, x.stride[dim] * step), offset });
}

function unsqueezed(x, dim) {
  const step = dim < x.shape.length ? x.shape[dim] * x.stride[dim] : 1;
  return view(x, { shape: x.shape.toSpliced(dim, 0, 1), stride: x.stride.toSpliced(dim, 0, step) });
}

const integers = (values, message) => must(values.every(Number.isInteger), message);
const flat = (values) => (values.length === 1 && Array.isArray(values[0]) ? values[0] : values);
const ARGUMENTS = "PyTorch: these arguments do not fit this method";

function indexed(x, parts) {
  const taken = parts.filter((part) => part !== null && part !== ELLIPSIS).length;
  must(x.shape.length || !taken, "PyTorch: invalid index of a 0-dim tensor. Use `tensor.item()` in Python or "
    + "`tensor.item<T>()` in C++ to convert a 0-dim tensor to a number");
  must(taken <= x.shape.length, `PyTorch: too many indices for tensor of dimension ${x.shape.length}`);
  let [dim, result] = [0, x];
  for (const part of parts) {
    if (part === ELLIPSIS) dim = result.shape.length - parts.slice(parts.indexOf(part) + 1).filter((p) => p !== null && p !== ELLIPSIS).length;
    else if (part === null) result = unsqueezed(result, dim++);
    else if (part?.bounds) {
      const bounds = part.bounds.map((bound) => bound ?? undefined);
      integers(bounds.filter((bound) => bound !== undefined), ARGUMENTS);
      result = sliced(result, dim++, bounds[0], bounds[1], bounds[2] ?? 1);
    } else {
      must(Number.isInteger(part), "index with integers, slices, None and ... here; lists and masks work in JupyterLab");
      const place = parts.slice(0, parts.indexOf(part)).filter((p) => Number.isInteger(p)).length + dim;
      result = select(result, dim, part, `PyTorch: index ${part} is out of bounds for dimension ${place} with size ${result.shape[dim]}`);
    }
  }
  return result;
}

function expanded(x, sizes) {
  const extra = sizes.length - x.shape.length;
  must(extra >= 0, `PyTorch: expand(torch.FloatTensor{${listed(x.shape)}}, size=${listed(sizes)}): the number of sizes provided `
    + `(${sizes.length}) must be greater or equal to the number of dimensions in the tensor (${x.shape.length})`);
  const [shape, stride] = [[], []];
  for (let i = sizes.length - 1; i >= 0; i--) {
    const dim = i - extra;
    must(dim >= 0 || sizes[i] >= 0, `PyTorch: The expanded size of the tensor (${sizes[i]}) isn't allowed in a leading, non-existing dimension ${i}`);
    const size = dim >= 0 ? x.shape[dim] : 1;
    const wanted = sizes[i] === -1 ? size : sizes[i];
    must(size === wanted || size === 1, `PyTorch: The expanded size of the tensor (${wanted}) must match the existing size (${size}) at `
      + `non-singleton dimension ${i}.  Target sizes: ${listed(sizes)}.  Tensor sizes: ${listed(x.shape)}`);
    const step = dim >= 0 ? x.stride[dim] : i === sizes.length - 1 ? 1 : shape[i + 1] * stride[i + 1];
    [shape[i], stride[i]] = [wanted, size === wanted ? step : 0];
  }
  return view(x, { shape, stride });
}

function asStrided(x, shape, stride, offset = x.offset) {
  must(shape.length === stride.length, "PyTorch: mismatch in length of strides and shape");
  must(stride.every((step) => step >= 0), `PyTorch: as_strided: Negative strides are not supported at the moment, got strides: ${listed(stride)}`);
  const last = product(shape) ? offset + shape.reduce((sum, size, dim) => sum + (size - 1) * stride[dim], 0) + 1 : 0;
  must(last <= x.data.length, `PyTorch: setStorage: sizes ${listed(shape)}, strides ${listed(stride)}, storage offset ${offset}, and itemsize 4 `
    + `requiring a storage size of ${4 * last} are out of bounds for storage of size ${4 * x.data.length}`);
  return view(x, { shape, stride, offset });
}

function rolled(x, shifts, dims) {
  if (dims === undefined || !dims.length) {
    must(shifts.length === 1, "PyTorch: shifts and dimensions must align. shifts: " + `${shifts.length}, dims:0`);
    const row = reshaped(x, [-1], true);
    return view(rolled(row, shifts, [0]), { shape: x.shape, stride: rowMajor(x.shape) });
  }
  must(shifts.length === dims.length, `PyTorch: shifts and dimensions must align. shifts: ${shifts.length}, dims:${dims.length}`);
  const by = x.shape.map(() => 0);
  must(x.shape.length, `PyTorch: Dimension specified as ${dims[0]} but tensor has no dimensions`);
  dims.forEach((dim, i) => (by[dimension(x, dim)] += shifts[i]));
  const from = (i, dim) => (((i - by[dim]) % x.shape[dim]) + x.shape[dim]) % x.shape[dim];
  return copy(x, x.shape, (index) => index.map(from));
}

function repeated(x, times) {
  must(times.length >= x.shape.length, "PyTorch: Number of dimensions of repeat dims can not be smaller than number of dimensions of tensor");
  const padded = [...Array(times.length - x.shape.length).fill(1), ...x.shape];
  const shape = padded.map((size, dim) => size * times[dim]);
  const bad = shape.find((size) => size < 0);
  must(bad === undefined, `PyTorch: Trying to create tensor with negative dimension ${bad}: ${listed(shape)}`);
  const source = (index) => index.map((i, dim) => i % padded[dim]).slice(times.length - x.shape.length);
  return copy(x, shape, source);
}

// Each method: the names of its arguments, those in brackets optional, * for any number; and what it does.
const transpose = (x, first, second) => swapped(x, dimension(x, first), dimension(x, second));
const TORCH = {
  t: ["", (x) => {
    must(x.shape.length <= 2, `PyTorch: t() expects a tensor with <= 2 dimensions, but self is ${x.shape.length}D`);
    return x.shape.length < 2 ? x : swapped(x, 0, 1);
  }],
  transpose: ["dim0 dim1", transpose],
  swapaxes: ["axis0 axis1", transpose],
  movedim: ["source destination", (x, source, destination) => {
    const [from, to] = [source, destination].map((dims) => [dims].flat().map((dim) => dimension(x, dim)));
    must(from.length === to.length, `PyTorch: movedim: Invalid source or destination dims: source (${listed([source].flat())} dims) should contain `
      + `the same number of dims as destination (${listed([destination].flat())} dims)`);
    must(new Set(from).size === from.length && new Set(to).size === to.length, "PyTorch: movedim: repeated dim in `source` or `destination`");
    const rest = x.shape.map((_, dim) => dim).filter((dim) => !from.includes(dim));
    return permuted(x, x.shape.map((_, dim) => (to.includes(dim) ? from[to.indexOf(dim)] : rest.shift())));
  }],
  permute: ["*dims", (x, dims) => {
    must(dims.length === x.shape.length, "PyTorch: permute(sparse_coo): number of dimensions in the tensor input does not match the length of the "
      + `desired ordering of dimensions i.e. input.dim() = ${x.shape.length} is not equal to len(dims) = ${dims.length}`);
    const order = dims.map((dim) => dimension(x, dim));
    must(new Set(order).size === order.length, "PyTorch: permute(): duplicate dims are not allowed.");
    return permuted(x, order);
  }],
  view: ["*shape", (x, shape) => reshaped(x, shape, false)],
  reshape: ["*shape", (x, shape) => reshaped(x, shape, true)],
  flatten: ["[start_dim] [end_dim]", (x, start = 0, end = -1) => {
    const [first, last] = [dimension(x, start), dimension(x, end)];
    must(first <= last, "PyTorch: flatten() has invalid args: start_dim cannot come after end_dim");
    if (!x.shape.length) return reshaped(x, [1], true);
    if (first === last) return x;
    return reshaped(x, x.shape.toSpliced(first, last - first + 1, product(x.shape.slice(first, last + 1))), true);
  }],
  unflatten: ["dim sizes", (x, dim, sizes) => {
    const at = dimension(x, dim);
    must(Array.isArray(sizes) && sizes.filter((size) => size === -1).length < 2, ARGUMENTS);
    const known = product(sizes.filter((size) => size !== -1));
    const whole = sizes.map((size) => (size === -1 ? x.shape[at] / known : size));
    must(product(whole) === x.shape[at] && whole.every(Number.isInteger), `PyTorch: unflatten: Provided sizes ${listed(sizes)} don't multiply up to the `
      + `size of dim ${at} (${x.shape[at]}) in the input tensor`);
    return reshaped(x, x.shape.toSpliced(at, 1, ...whole), false);
  }],
  squeeze: ["[dim]", (x, dim) => {
    const chosen = dim === undefined ? x.shape.map((_, i) => i) : [dim].flat().map((i) => dimension(x, i));
    const gone = chosen.filter((i) => x.shape[i] === 1);
    return view(x, { shape: without(x.shape, ...gone), stride: without(x.stride, ...gone) });
  }],
  unsqueeze: ["dim", (x, dim) => unsqueezed(x, dimension(x, dim, 1))],
  expand: ["*size", expanded],
  select: ["dim index", (x, dim, index) => {
    const at = dimension(x, dim);
    return select(x, at, index, `PyTorch: select(): index ${index} out of range for tensor of size ${listed(x.shape)} at dimension ${at}`);
  }],
  narrow: ["dim start length", (x, dim, start, length) => {
    const at = dimension(x, dim);
    const from = start < 0 ? start + x.shape[at] : start;
    must(length >= 0, "PyTorch: narrow(): length must be non-negative.");
    must(from >= 0 && from + length <= x.shape[at], `PyTorch: start (${from}) + length (${length}) exceeds dimension size (${x.shape[at]}).`);
    return sliced(x, at, from, from + length, 1);
  }],
  diagonal: ["[offset] [dim1] [dim2]", (x, offset = 0, dim1 = 0, dim2 = 1) => {
    const [first, second] = [dimension(x, dim1), dimension(x, dim2)];
    must(first !== second, `PyTorch: diagonal dimensions cannot be identical ${dim1}, ${dim2}`);
    const [down, right] = [Math.max(-offset, 0), Math.max(offset, 0)];
    const size = Math.max(Math.min(x.shape[first] - down, x.shape[second] - right), 0);
    const skipped = size ? down * x.stride[first] + right * x.stride[second] : 0;
    const kept = (items) => without(items, first, second);
    return view(x, { shape: [...kept(x.shape), size], stride: [...kept(x.stride), x.stride[first] + x.stride[second]], offset: x.offset + skipped });
  }],
  unfold: ["dimension size step", (x, dim, size, step) => {
    const at = dimension(x, dim);
    must(size <= x.shape[at], `PyTorch: maximum size for tensor at dimension ${at} is ${x.shape[at]} but size is ${size}`);
    must(step > 0, `PyTorch: step is ${step} but must be > 0`);
    const count = Math.floor((x.shape[at] - size) / step) + 1;
    return view(x, { shape: [...x.shape.with(at, count), size], stride: [...x.stride.with(at, x.stride[at] * step), x.stride[at]] });
  }],
  as_strided: ["size stride [storage_offset]", asStrided],
  contiguous: ["", contiguous],
  clone: ["", (x) => copy(x, x.shape, (index) => index, keptStrides(x))],
  flip: ["*dims", (x, dims) => {
    const turned = dims.map((dim) => dimension(x, dim));
    const twice = turned.find((dim, i) => turned.indexOf(dim) !== i);
    must(twice === undefined, `PyTorch: dim ${twice} appears multiple times in the list of dims`);
    return copy(x, x.shape, (index) => index.map((i, dim) => (turned.includes(dim) ? x.shape[dim] - 1 - i : i)), keptStrides(x));
  }],
  roll: ["shifts [dims]", (x, shifts, dims) => rolled(x, [shifts].flat(), dims === undefined ? undefined : [dims].flat())],
  repeat: ["*repeats", repeated],
};

function property(x, name) {
  const ndim = x.shape.length;
  if (name === "T") return permuted(x, x.shape.map((_, dim) => ndim - 1 - dim));
  must(ndim >= 2, `PyTorch: tensor.mT is only supported on matrices or batches of matrices. Got ${ndim}-D tensor.`);
  return swapped(x, ndim - 2, ndim - 1);
}

function called({ of, name }, items) {
  const [signature, work] = TORCH[name];
  const names = signature.split(" ").filter(Boolean);
  const given = items.filter((item) => !item.name).map(({ value }) => value);
  const values = names[0]?.startsWith("*") && given.length ? [flat(given)] : given;
  for (const { name: key, value } of items.filter((item) => item.name)) {
    const place = names.findIndex((known) => known.replace(/[*[\]]/g, "") === key);
    must(place >= values.length || (place >= 0 && values[place] === undefined), ARGUMENTS);
    values[place] = value;
  }
  const needed = names.filter((known) => !known.startsWith("[")).length;
  must(values.length <= names.length && [...values.slice(0, needed)].filter((value) => value !== undefined).length === needed, ARGUMENTS);
  integers(values.flat().filter((value) => value !== undefined), ARGUMENTS);
  return work(of, ...values);
}

function strides({ shape, methods, steps, most_elements: mostElements, most_dims: mostDims }) {
  const count = product(shape);
  const base = { shape, stride: rowMajor(shape), offset: 0, data: [...Array(count).keys()].map((i) => 10 * i) };

  // The same refusals as in Python, before anything is computed.
  function check(tree) {
    const inner = [tree.of, ...(tree.items ?? []).map((item) => ("kind" in item ? item : item.value)), ...(tree.bounds ?? [])];
    must(tree.kind !== "name" || tree.name === "x", `${reprText(tree.name ?? "")} is unknown; the tensor is called x`);
    must(tree.kind !== "attribute" || methods.includes(tree.name), `.${tree.name} is not among: ${methods.join(" ")}`);
    inner.filter(Boolean).forEach(check);
  }

  function evaluate(tree) {
    switch (tree.kind) {
      case "constant": return tree.value;
      case "name": return base;
      case "minus": return negated(evaluate(tree.of));
      case "tuple": return tree.items.map(evaluate);
      case "slice": return { bounds: tree.bounds.map((bound) => bound && evaluate(bound)) };
    }
    const of = evaluate(tree.of);
    if (tree.kind === "call") {
      must(of?.method, "PyTorch: 'Tensor' object is not callable");
      return called({ of: of.of, name: of.method }, tree.items.map(({ name, value }) => ({ name, value: evaluate(value) })));
    }
    must(of?.data, ARGUMENTS);
    if (tree.kind === "attribute") return ["T", "mT"].includes(tree.name) ? property(of, tree.name) : { of, method: tree.name };
    const parts = tree.items.map(evaluate);
    const lists = parts.some((part) => Array.isArray(part));
    return indexed(of, tree.single && lists && !tree.items[0].list ? parts[0] : parts);
  }

  function shownFor(expression) {
    const tree = parse(expression);
    check(tree);
    const result = evaluate(tree);
    must(result?.data, "the result is not a tensor; are parentheses missing?");
    const elements = product(result.shape);
    must(0 < elements && elements <= mostElements && result.shape.length <= mostDims,
      `${reprTuple(result.shape)} cannot be drawn; make it 1 to ${mostElements} elements in at most ${mostDims} dimensions`);
    return result;
  }

  function settle(values, changes) {
    if (!("expression" in changes)) return values;
    return { ...values, element: shownFor(values.expression).shape.map(() => 0).join(",") };
  }

  function view(values) {
    const shown = shownFor(values.expression);
    const chosen = values.element.split(",").filter(Boolean).map(Number);
    const place = slotOf(shown, chosen);
    const seen = new Set(indices(shown.shape).map((index) => slotOf(shown, index)));
    const last = Math.max(1, shown.data.length - 1);
    const paint = (slot) => `background: color-mix(in srgb, var(--cs336-sky) ${35 + Number(fixed((55 * slot) / last, 0))}%, white)`;

    const element = (index) => {
      const where = index.join(",");
      return tag("button", general(shown.data[slotOf(shown, index)], 6), {
        class: "cs336-cell" + (where === chosen.join(",") ? " cs336-chosen" : ""),
        style: paint(slotOf(shown, index)),
        "aria-label": `element [${index.join(", ")}]`,
        "data-key": `element ${where}`,
        "data-name": "element",
        "data-value": where,
        "data-hover": "",
      });
    };
    const slots = shown.data.map((value, number) => {
      const marks = "cs336-cell cs336-slot" + (number === place ? " cs336-chosen" : "");
      const unseen = !seen.has(number);
      const box = tag("div", general(value, 6), { class: marks + (unseen ? " cs336-unseen" : ""), style: unseen ? undefined : paint(number) });
      return tag("div", box + tag("div", number, { class: "cs336-faint" }));
    });
    const facts = [
      ["shape", code(reprTuple(shown.shape))],
      ["stride", code(reprTuple(shown.stride))],
      ["storage_offset", code(shown.offset)],
      ["is_contiguous", code(isContiguous(shown) ? "True" : "False")],
      ["storage", shown.data === base.data ? "x's own: a view" : "a new one: a copy"],
    ];
    const choices = [...steps.map((step) => [`append ${step}`, values.expression + step, step]), ["start again", "x", "x"]];
    const buttons = choices.map(([name, expression, words]) =>
      tag("button", code(words), { "aria-label": name, "data-key": name, "data-name": "expression", "data-value": expression }));
    const terms = chosen.map((i, dim) => `${i}·${shown.stride[dim]}`);
    const formula = [`offset ${shown.offset}`, ...terms].join(" + ") + ` = slot ${place}`;
    return {
      said: `[${chosen.join(", ")}]: ${formula}`,
      html: tag("div", "storage, slot by slot", { class: "cs336-faint" })
        + tag("div", slots.join(""), { class: "cs336-row cs336-storage", style: "gap: 4px 2px" })
        + tag("div", escaped(values.expression), { class: "cs336-faint" })
        + tag("div", cells(shown.shape, element, "elements") + table(facts), { class: "cs336-row" })
        + tag("div", buttons.join(""), { class: "cs336-row", style: "gap: 6px" }),
    };
  }

  return { settle, view };
}
