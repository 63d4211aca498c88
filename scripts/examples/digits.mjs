/**
 * The digits of `digits.txt`: a line is a label and 64 pixels from 0 (paper) to g (16, ink).
 *
 * @typedef {{pixels: number[], label: number}} Digit  pixels from 0 to 1, row by row
 * @typedef {import("onnxgrad-step").Batch} Batch
 */

const TRAINED_ON = 1500; // the digits after them are held out

/**
 * @param {string} text
 * @returns {{training: Digit[], heldOut: Digit[]}}
 */
export function parse(text) {
  const lines = text.split("\n").filter((line) => line && !line.startsWith("#"));
  const digits = lines.map((line) => {
    const [label, image] = line.split(" ");
    return { label: Number(label), pixels: [...image].map((c) => parseInt(c, 17) / 16) };
  });
  return { training: digits.slice(0, TRAINED_ON), heldOut: digits.slice(TRAINED_ON) };
}

/**
 * The inputs of the step: `x`, float32[N, 64], and `labels`, int64[N].
 *
 * @param {Digit[]} digits
 * @returns {Batch}
 */
export function batchOf(digits) {
  const x = Float32Array.from(digits.flatMap(({ pixels }) => pixels));
  const labels = BigInt64Array.from(digits, ({ label }) => BigInt(label));
  return {
    x: { type: "float32", dims: [digits.length, 64], data: x },
    labels: { type: "int64", dims: [digits.length], data: labels },
  };
}

/**
 * The digits of batch `number`, from 0 on: the next `size` in their order, round and round.
 *
 * @param {Digit[]} digits
 * @param {number} number
 */
export function chosen(digits, number, size = 32) {
  return Array.from({ length: size }, (_, i) => digits[(number * size + i) % digits.length]);
}

/**
 * The probability of each class, by rows of `logits`, float32[N, 10].
 *
 * @param {{data: Float32Array, dims: readonly number[]}} logits
 * @returns {number[][]}
 */
export function probabilities({ data, dims }) {
  return Array.from({ length: dims[0] }, (_, n) => {
    const row = [...data.subarray(n * dims[1], (n + 1) * dims[1])];
    const powers = row.map((value) => Math.exp(value - Math.max(...row)));
    const sum = powers.reduce((a, b) => a + b);
    return powers.map((power) => power / sum);
  });
}

/**
 * The class that is most probable.
 *
 * @param {number[]} row
 */
export const likeliest = (row) => row.indexOf(Math.max(...row));
