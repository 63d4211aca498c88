/**
 * Trained weights into the bytes of the original ONNX file, where all else stays as it is.
 *
 * An ONNX file is a protobuf message: fields, each a key (number * 8 + kind of content) and a
 * content. Weights lie in ModelProto.graph (7) . initializer (5), with name (8) and raw_data (9).
 *
 * @typedef {import("./safetensors.mjs").Value} Value
 */

const GRAPH = 7;
const INITIALIZER = 5;
const NAME = 8;
const RAW_DATA = 9;

/**
 * The fields of one message that hold bytes: [number, begin, end] of each.
 *
 * @param {Uint8Array} bytes
 * @param {number} at
 * @param {number} end
 * @returns {Generator<[number, number, number]>}
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
    const key = varint();
    const kind = key % 8;
    if (kind === 0) varint();
    else if (kind === 1) at += 8;
    else if (kind === 5) at += 4;
    else if (kind === 2) {
      const length = varint();
      yield [Math.floor(key / 8), at, at + length];
      at += length;
    } else throw new Error("this is no ONNX file");
  }
}

/**
 * @param {Uint8Array} model the original file
 * @param {Map<string, Value>} weights by name
 * @returns {Uint8Array} the file with these weights
 */
export function withWeights(model, weights) {
  const trained = new Uint8Array(model); // a copy
  const missing = new Set(weights.keys());
  for (const [inModel, graphBegin, graphEnd] of fields(model, 0, model.length)) {
    if (inModel !== GRAPH) continue;
    for (const [inGraph, begin, end] of fields(model, graphBegin, graphEnd)) {
      if (inGraph !== INITIALIZER) continue;
      const parts = new Map([...fields(model, begin, end)].map(([n, ...place]) => [n, place]));
      const name = new TextDecoder().decode(model.subarray(...(parts.get(NAME) ?? [0, 0])));
      const value = weights.get(name);
      const [from, to] = parts.get(RAW_DATA) ?? [0, 0];
      if (!value || to - from !== value.data.byteLength) continue;
      const { buffer, byteOffset, byteLength } = value.data;
      trained.set(new Uint8Array(buffer, byteOffset, byteLength), from);
      missing.delete(name);
    }
  }
  for (const name of missing) {
    throw new Error(`'${name}' lies not as raw_data in the file: export with Python's Trainer`);
  }
  return trained;
}
