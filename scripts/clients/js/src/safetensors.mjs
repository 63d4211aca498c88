/**
 * Arrays by name in one file: 8 bytes with the length of a header (little-endian), the header as
 * JSON ({name: {dtype, shape, data_offsets: [begin, end]}, __metadata__: {key: text}}), then the
 * elements. The format is described at https://github.com/huggingface/safetensors.
 */

/**
 * @typedef {Float32Array | Float64Array | Uint16Array | Int32Array | BigInt64Array | Uint8Array
 *   } Data
 */
/**
 * An array: its type is float32, int64, ...
 * @typedef {{type: string, dims: readonly number[], data: Data}} Value
 */

/** The format's dtypes, as onnxruntime calls them, and the arrays that hold their elements. */
const KINDS = /** @type {const} */ ({
  F32: ["float32", Float32Array],
  F64: ["float64", Float64Array],
  F16: ["float16", Uint16Array], // its bits
  I32: ["int32", Int32Array],
  I64: ["int64", BigInt64Array],
  BOOL: ["bool", Uint8Array],
});

/**
 * @param {Uint8Array} bytes of a file
 * @returns {{values: Map<string, Value>, metadata: Record<string, string>}}
 */
export function read(bytes) {
  const length = Number(new DataView(bytes.buffer, bytes.byteOffset).getBigUint64(0, true));
  const header = JSON.parse(new TextDecoder().decode(bytes.subarray(8, 8 + length)));
  const { __metadata__: metadata = {}, ...entries } = header;
  const values = new Map();
  for (const [name, { dtype, shape, data_offsets }] of Object.entries(entries)) {
    if (!(dtype in KINDS)) throw new Error(`'${name}' has dtype ${dtype}, which is not read here`);
    const [type, Elements] = KINDS[/** @type {keyof KINDS} */ (dtype)];
    const [begin, end] = data_offsets;
    if (8 + length + end > bytes.length) throw new Error(`the file ends before '${name}' does`);
    const own = new Uint8Array(bytes.subarray(8 + length + begin, 8 + length + end)); // aligned
    values.set(name, { type, dims: shape, data: new Elements(own.buffer) });
  }
  return { values, metadata };
}

/** @type {(type: string, dims: readonly number[]) => Value} */
export function zeros(type, dims) {
  const kind = Object.values(KINDS).find(([known]) => known === type);
  if (!kind) throw new Error(`the type ${type} is not known here`);
  return { type, dims, data: new kind[1](dims.reduce((a, b) => a * b, 1)) };
}

/**
 * @param {Map<string, Value>} values
 * @param {Record<string, string>} metadata
 * @returns {Uint8Array}
 */
export function write(values, metadata) {
  /** @type {Record<string, object>} */
  const header = { __metadata__: metadata };
  let end = 0;
  for (const [name, { type, dims, data }] of values) {
    const dtype = Object.entries(KINDS).find(([, [known]]) => known === type)?.[0];
    if (!dtype) throw new Error(`'${name}' has type ${type}, which is not written here`);
    header[name] = { dtype, shape: dims, data_offsets: [end, (end += data.byteLength)] };
  }
  const text = new TextEncoder().encode(JSON.stringify(header));
  const length = Math.ceil(text.length / 8) * 8; // what follows is aligned; blanks fill up
  const bytes = new Uint8Array(8 + length + end).fill(32, 8, 8 + length);
  new DataView(bytes.buffer).setBigUint64(0, BigInt(length), true);
  bytes.set(text, 8);
  let at = 8 + length;
  for (const { data } of values.values()) {
    bytes.set(new Uint8Array(data.buffer, data.byteOffset, data.byteLength), at);
    at += data.byteLength;
  }
  return bytes;
}
