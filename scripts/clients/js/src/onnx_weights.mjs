/**
 * Trained weights into the bytes of the original ONNX file, where all else stays as it is, but for
 * an entry of its metadata that says what was trained, as Python's `Trainer.export` writes it.
 *
 * An ONNX file is a protobuf message: fields, each a key (number * 8 + kind of content) and a
 * content. Weights lie in ModelProto.graph (7) . initializer (5), with name (8) and raw_data (9);
 * an entry of ModelProto.metadata_props (14) has a key (1) and a value (2).
 */

/** @typedef {import("./safetensors.mjs").Value} Value */
/** @typedef {import("./manifest.mjs").Repairs} Repairs */

const [GRAPH, INITIALIZER, NAME, RAW_DATA, METADATA] = [7, 5, 8, 9, 14];
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
      const [from, to] = part(model, begin, end, RAW_DATA);
      if (!data || to - from !== data.byteLength) continue;
      const { buffer, byteOffset, byteLength } = data;
      trained.set(new Uint8Array(buffer, byteOffset, byteLength), from);
      missing.delete(name);
    }
  }
  for (const name of missing) {
    throw new Error(`'${name}' lies not as raw_data in the file: export with Python's Trainer`);
  }
  const said = JSON.stringify({ weights: [...weights.keys()].sort(), steps, optimizer });
  const entry = field(METADATA, join([field(1, KEY), field(2, said)]));
  return join([...withoutEntry(trained), entry]);
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

/** @returns {[number, number]} where the content of a field of a message lies */
function part(
  /** @type {Uint8Array} */ bytes,
  /** @type {number} */ begin,
  /** @type {number} */ end,
  /** @type {number} */ number,
) {
  const found = [...fields(bytes, begin, end)].findLast(([n]) => n === number);
  return found ? [found[1], found[2]] : [0, 0];
}

/** @type {(bytes: Uint8Array, ...of: [number, number, number]) => string} */
const text = (bytes, ...of) => new TextDecoder().decode(bytes.subarray(...part(bytes, ...of)));

/** The file's bytes without what an earlier training said of itself. */
function* withoutEntry(/** @type {Uint8Array} */ model) {
  let from = 0;
  for (const [number, begin, end, first] of fields(model, 0, model.length)) {
    if (number !== METADATA || text(model, begin, end, 1) !== KEY) continue;
    yield model.subarray(from, first);
    from = end;
  }
  yield model.subarray(from);
}

/** A field of bytes or text, of a number below 16. */
function field(/** @type {number} */ number, /** @type {Uint8Array | string} */ content) {
  const bytes = typeof content === "string" ? new TextEncoder().encode(content) : content;
  const head = [number * 8 + 2];
  let length = bytes.length;
  for (; length > 127; length = Math.floor(length / 128)) head.push((length % 128) + 128);
  return join([Uint8Array.from([...head, length]), bytes]);
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
