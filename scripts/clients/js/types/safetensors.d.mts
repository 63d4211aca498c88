/**
 * @param {Uint8Array} bytes of a file
 * @returns {{values: Map<string, Value>, metadata: Record<string, string>}}
 */
export function read(bytes: Uint8Array): {
    values: Map<string, Value>;
    metadata: Record<string, string>;
};
export function zeros(type: string, dims: readonly number[]): Value;
/**
 * @param {Map<string, Value>} values
 * @param {Record<string, string>} metadata
 * @returns {Uint8Array}
 */
export function write(values: Map<string, Value>, metadata: Record<string, string>): Uint8Array;
export type Data = Float32Array | Float64Array | Uint16Array | Int32Array | BigInt64Array | Uint8Array;
/**
 * An array: its type is float32, int64, ...
 */
export type Value = {
    type: string;
    dims: readonly number[];
    data: Data;
};
