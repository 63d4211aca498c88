/**
 * Trained weights into the bytes of the original ONNX file, where all else stays as it is, but for
 * an entry of its metadata that says what was trained, as Python's `Trainer.export` writes it; or
 * into `predict.onnx`.
 *
 * An ONNX file is a protobuf message: fields, each a key (number * 8 + kind of content) and a
 * content. Weights lie in ModelProto.graph (7) . initializer (5), a tensor with dims (1), data_type
 * (2), name (8) and raw_data (9); GraphProto.input (11) has a name (1), ModelProto.ir_version (1)
 * comes first. An entry of ModelProto.metadata_props (14) has a key (1) and a value (2).
 */

/** @typedef {import("./safetensors.mjs").Value} Value */
/** @typedef {import("./manifest.mjs").Repairs} Repairs */

const [GRAPH, INITIALIZER, INPUT, NAME, RAW_DATA, METADATA] = [7, 5, 11, 8, 9, 14];
const TYPES = { float32: 1, int32: 6, int64: 7, bool: 9, float16: 10, float64: 11 };
const KEY = "onnxgrad.trained";

/**
 * The fields of one message that hold bytes: [number, begin and end of the content, begin of the
 * field] of each.
 *
 * @param {Uint8Array} bytes
 * @param {number} at
 * @param {number} end
 * @returns {Generator<[number, number, number, number]>}
 */
function* fields(bytes, at, end) {
  const varint = () => {
    let value = 0;
    for (let scale = 1; ; scale *= 128) {
      const byte = bytes[at++];
      value += (byte & 127) * scale;
      if (byte < 128) return value;
    }
  };
  while (at < end) {
    const first = at;
    const key = varint();
    const kind = key % 8;
    if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const length = varint();
      yield [Math.floor(key / 8), at, at + length, first];
      at += length;
    } else throw new Error("this is not an ONNX file");
  }
}

/**
 * A tied weight goes into both of its initializers. Throws where the step has a parameter that the
 * file lacks: that needs another graph, which Python's `Trainer.export` writes.
 *
 * @param {Uint8Array} model the original file
 * @param {Map<string, Value>} weights by name
 * @param {{steps: number, manifest: {optimizer: object, repairs: Repairs}}} training how they were
 *   trained
 * @returns {Uint8Array} the file with these weights
 */
export function withWeights(model, weights, { steps, manifest: { optimizer, repairs } }) {
  const trained = new Uint8Array(model); // a copy
  const copies = copiesOf(weights, repairs);
  const missing = new Set([...weights.keys(), ...copies.keys()]);
  for (const [inModel, graphBegin, graphEnd] of fields(model, 0, model.length)) {
    if (inModel !== GRAPH) continue;
    for (const [inGraph, begin, end] of fields(model, graphBegin, graphEnd)) {
      if (inGraph !== INITIALIZER) continue;
      const name = text(model, begin, end, NAME);
      const data = copies.get(name) ?? weights.get(name)?.data;
      const [from, to] = place(model, begin, end, RAW_DATA);
      if (!data || to - from !== data.byteLength) continue;
      const { buffer, byteOffset, byteLength } = data;
      trained.set(new Uint8Array(buffer, byteOffset, byteLength), from);
      missing.delete(name);
    }
  }
  for (const name of missing) {
    throw new Error(`'${name}' lies not as raw_data in the file: export with Python's Trainer`);
  }
  return described(trained, { weights: [...weights.keys()].sort(), steps, optimizer });
}

/**
 * `predict.onnx` with its weights as initializers: a model to deploy, made from the step alone.
 * Python's `Trainer.deploy` writes the same bytes. External data stays beside the file.
 *
 * @param {Uint8Array} predict the file of the step's folder
 * @param {Map<string, Value>} weights by name, in the order of the manifest
 * @param {{steps: number}} training how many steps were taken
 * @returns {Uint8Array}
 */
export function withInitializers(predict, weights, { steps }) {
  const [begin, end, first] = place(predict, 0, predict.length, GRAPH);
  const graph = predict.subarray(begin, end);
  const read = [...fields(graph, 0, graph.length)]
    .filter(([number]) => number === INPUT)
    .map(([, from, to]) => text(graph, from, to, 1));
  const filled = [...weights].filter(([name]) => read.includes(name));
  const names = filled.map(([name]) => name);
  const tensors = filled.map(([name, value]) => field(INITIALIZER, tensor(name, value)));
  const old = predict[0] === 8 && predict[1] < 4; // up to IR 3 initializers must be inputs
  const isFilled = (/** @type {number} */ number, /** @type {Uint8Array} */ content) =>
    number === INPUT && !old && names.includes(text(content, 0, content.length, 1));
  const inside = field(GRAPH, edited(graph, INITIALIZER, tensors, isFilled));
  const model = join([predict.subarray(0, first), inside, predict.subarray(end)]);
  return described(model, { weights: names, steps });
}

/**
 * The elements of the file's initializers that are copies of a parameter, by name.
 * @type {(weights: Map<string, Value>, repairs?: Partial<Repairs>) => Map<string, Value["data"]>}
 */
function copiesOf(weights, { tied = [], untied = [] } = {}) {
  const added = untied.find(({ name }) => weights.has(name));
  if (added) {
    throw new Error(`the file lacks the parameter '${added.name}': export with Python's Trainer`);
  }
  const copies = new Map();
  for (const { name, copy, transposed } of tied) {
    const value = weights.get(name);
    if (value) copies.set(copy, transposed ? transpose(value) : value.data);
  }
  return copies;
}

/** The elements of a matrix in the order of its transpose; sizes of 1 do not count. */
function transpose(/** @type {Value} */ { data, dims }) {
  const [rows, columns = 1] = dims.filter((size) => size !== 1);
  const made = data.slice();
  for (let i = 0; i < made.length; i++) {
    made[i] = data[(i % rows) * columns + Math.floor(i / rows)];
  }
  return made;
}

/** @returns {[number, number, number]} where a field's content begins and ends, and the field begins */
function place(
  /** @type {Uint8Array} */ bytes,
  /** @type {number} */ begin,
  /** @type {number} */ end,
  /** @type {number} */ number,
) {
  const found = [...fields(bytes, begin, end)].findLast(([n]) => n === number);
  return found ? [found[1], found[2], found[3]] : [0, 0, 0];
}

/** @type {(bytes: Uint8Array, ...of: [number, number, number]) => string} */
const text = (bytes, ...of) => {
  const [from, to] = place(bytes, ...of);
  return new TextDecoder().decode(bytes.subarray(from, to));
};

/**
 * A message without the fields that `drops` names. Fields of a number are added before the first one
 * of a greater number, where protobuf writes them.
 *
 * @param {Uint8Array} message
 * @param {number} number
 * @param {Uint8Array[]} added
 * @param {(number: number, content: Uint8Array) => boolean} drops
 */
function edited(message, number, added, drops) {
  const parts = [];
  let [from, rest] = [0, added];
  for (const [each, begin, end, first] of fields(message, 0, message.length)) {
    if (each > number && rest.length) {
      parts.push(message.subarray(from, first), ...rest);
      [from, rest] = [first, []];
    }
    if (!drops(each, message.subarray(begin, end))) continue;
    parts.push(message.subarray(from, first));
    from = end;
  }
  return join([...parts, message.subarray(from), ...rest]);
}

/** The model with an entry of its metadata in place of that of an earlier training. */
function described(/** @type {Uint8Array} */ model, /** @type {object} */ training) {
  const entry = join([field(1, KEY), field(2, JSON.stringify(training))]);
  const isOld = (/** @type {number} */ number, /** @type {Uint8Array} */ content) =>
    number === METADATA && text(content, 0, content.length, 1) === KEY;
  return edited(model, METADATA, [field(METADATA, entry)], isOld);
}

/** @type {(name: string, value: Value) => Uint8Array} */
function tensor(name, { type, dims, data: { buffer, byteOffset, byteLength } }) {
  if (!(type in TYPES)) throw new Error(`'${name}' has type ${type}, which is not written here`);
  const sizes = dims.flatMap((size) => [8, ...varint(size)]);
  const head = Uint8Array.from([...sizes, 16, TYPES[/** @type {keyof TYPES} */ (type)]]);
  const raw = new Uint8Array(buffer, byteOffset, byteLength);
  return join([head, field(NAME, name), field(RAW_DATA, raw)]);
}

/** A field of bytes or text, of a number below 16. */
function field(/** @type {number} */ number, /** @type {Uint8Array | string} */ content) {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
  return join([Uint8Array.from([number * 8 + 2, ...varint(bytes.length)]), bytes]);
}

/** A whole number as protobuf writes it: seven bits a byte. */
function varint(/** @type {number} */ value) {
  const bytes = [];
  for (; value > 127; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
  return [...bytes, value];
}

function join(/** @type {Uint8Array[]} */ parts) {
  const joined = new Uint8Array(parts.reduce((sum, bytes) => sum + bytes.length, 0));
  let at = 0;
  for (const bytes of parts) {
    joined.set(bytes, at);
    at += bytes.length;
  }
  return joined;
}
