// GPT-2's forward pass without a library, as in cs336_lib/model.py: one token at a time, with a cache of keys and values.

// The parameters come as 16-bit integers in the order of model.parameters(), with a scale for each tensor.
function unpack(bytes, scales) {
  const codes = new Int16Array(bytes.buffer.slice(bytes.byteOffset, bytes.byteOffset + bytes.byteLength));
  let [start, tensor] = [0, 0];
  return (size) => {
    const scale = scales[tensor++];
    const values = new Float32Array(size);
    for (let i = 0; i < size; i++) values[i] = scale * codes[start + i];
    start += size;
    return values;
  };
}

// Four sums instead of one, because an addition has to wait for the one before it.
function dot(a, b, from, size) {
  let [s0, s1, s2, s3] = [0, 0, 0, 0];
  for (let i = 0; i < size; i += 4) {
    s0 += a[i] * b[from + i];
    s1 += a[i + 1] * b[from + i + 1];
    s2 += a[i + 2] * b[from + i + 2];
    s3 += a[i + 3] * b[from + i + 3];
  }
  return s0 + s1 + s2 + s3;
}

const linear = (x, { weight, bias }) => bias.map((b, row) => b + dot(x, weight, row * x.length, x.length));
const gelu = (x) => 0.5 * x * (1 + Math.tanh(0.7978845608028654 * (x + 0.044715 * x ** 3)));

function layerNorm(x, { weight, bias }) {
  const mean = x.reduce((sum, value) => sum + value, 0) / x.length;
  const variance = x.reduce((sum, value) => sum + (value - mean) ** 2, 0) / x.length;
  const scale = 1 / Math.sqrt(variance + 1e-5);
  return x.map((value, i) => (value - mean) * scale * weight[i] + bias[i]);
}

function softmax(logits) {
  const most = logits.reduce((a, b) => Math.max(a, b));
  const powers = logits.map((logit) => Math.exp(logit - most));
  const sum = powers.reduce((a, b) => a + b);
  return powers.map((power) => power / sum);
}

// The first token that the model reads when a text has this many: sampling.context_start.
function contextStart(length, blockSize) {
  const jump = Math.max(1, blockSize >> 1);
  return Math.ceil(Math.max(0, length - blockSize) / jump) * jump;
}

class Gpt {
  constructor(bytes, scales, config) {
    const take = unpack(bytes, scales);
    const width = config.n_embd;
    const norm = () => ({ weight: take(width), bias: take(width) });
    const layer = (inputs, outputs) => ({ weight: take(inputs * outputs), bias: take(outputs) });
    this.config = config;
    this.wte = take(config.padded_vocab_size * width);
    this.wpe = take(config.block_size * width);
    this.blocks = Array.from({ length: config.n_layer }, () => ({
      ln1: norm(),
      attention: layer(width, 3 * width),
      projection: layer(width, width),
      ln2: norm(),
      up: layer(width, 4 * width),
      down: layer(4 * width, width),
      keys: new Float32Array(config.block_size * width),
      values: new Float32Array(config.block_size * width),
    }));
    this.lnF = norm();
    this.start = 0; // of the context in the text
    this.cached = []; // the tokens of the context whose keys and values are known
  }

  // The tokens of a text that must be read before its next token can be predicted. What the cache knows is kept.
  unread(tokens) {
    const start = contextStart(tokens.length, this.config.block_size);
    const context = tokens.slice(start);
    if (start !== this.start) this.cached = [];
    this.start = start;
    let same = 0;
    while (same < this.cached.length && this.cached[same] === context[same]) same++;
    same = Math.min(same, context.length - 1); // the last one gives the prediction
    this.cached.length = same;
    return context.slice(same);
  }

  // Read a token, and return the logits of the next one.
  read(token) {
    const { n_embd: width, vocab_size: letters } = this.config;
    const place = this.cached.length;
    let x = this.wte.slice(token * width, (token + 1) * width).map((value, i) => value + this.wpe[place * width + i]);
    const add = (change) => (x = x.map((value, i) => value + change[i]));
    for (const block of this.blocks) {
      add(linear(this.attend(block, linear(layerNorm(x, block.ln1), block.attention), place), block.projection));
      add(linear(linear(layerNorm(x, block.ln2), block.up).map(gelu), block.down));
    }
    this.cached.push(token);
    const last = layerNorm(x, this.lnF);
    return Float32Array.from({ length: letters }, (_, letter) => dot(last, this.wte, letter * width, width));
  }

  attend({ keys, values }, qkv, place) {
    const { n_embd: width, n_head: heads } = this.config;
    const size = width / heads;
    keys.set(qkv.subarray(width, 2 * width), place * width);
    values.set(qkv.subarray(2 * width), place * width);
    const result = new Float32Array(width);
    for (let from = 0; from < width; from += size) {
      const query = qkv.subarray(from, from + size);
      const scores = new Float32Array(place + 1).map((_, i) => dot(query, keys, i * width + from, size) / Math.sqrt(size));
      softmax(scores).forEach((weight, i) => {
        for (let j = 0; j < size; j++) result[from + j] += weight * values[i * width + from + j];
      });
    }
    return result;
  }
}
