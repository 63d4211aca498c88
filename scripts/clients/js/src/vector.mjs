/**
 * Tests a runtime with a step whose losses are known: the folders that
 * `onnxgrad train-step --vectors` writes.
 */
import { withInitializers } from "./onnx_weights.mjs";
import { read } from "./safetensors.mjs";
import { Training } from "./step.mjs";

/** @typedef {import("./safetensors.mjs").Value} Value */

const FILE = "vector.safetensors";

/**
 * Takes the steps of a test vector, half of them after a save and a restore, evaluates, predicts and
 * deploys. Throws if the model to deploy has other bytes.
 *
 * @param {import("./step.mjs").Runtime} ort
 * @param {(file: string) => Promise<Uint8Array>} load returns a file of the vector's folder
 * @returns {Promise<{losses: number[], expected: number[], error: number}>} the losses, those that
 *   were expected, and the largest difference of a loss or an output: 1e-5 is right
 */
export async function run(ort, load) {
  const { values } = read(await load(FILE));
  const part = (/** @type {string} */ name) => {
    const found = values.get(name);
    if (!found) throw new Error(`${FILE} lacks '${name}'`);
    return found;
  };
  const batch = (/** @type {number} */ number) => {
    const entries = [...values].filter(([name]) => name.startsWith("batch."));
    return Object.fromEntries(entries.map(([name, value]) => [name.slice(6), row(value, number)]));
  };
  const [rate, seed] = [Number(part("rate").data[0]), Number(part("seed").data[0])];
  const expected = Array.from(part("losses").data, Number);
  let training = await Training.open(ort, load);
  training.seed = seed;
  const { accumulate } = training.manifest;
  const parts = (/** @type {number} */ k) =>
    Array.from({ length: accumulate }, (_, i) => batch(k * accumulate + i));
  const losses = [];
  for (let k = 0; k < expected.length; k++) {
    if (k === expected.length >> 1) {
      const state = training.save();
      training = await Training.open(ort, load);
      training.restore(state);
    }
    losses.push(await training.step(parts(k), rate));
  }
  const differences = losses.map((loss, i) => Math.abs(loss - expected[i]));
  const heldOut = values.get("held_out");
  if (heldOut) {
    const found = await training.heldOut(losses.flatMap((_, k) => parts(k)));
    differences.push(Math.abs(found - Number(heldOut.data[0])));
  }
  const outputs = await training.predict(batch(0));
  for (const [name, { data }] of values) {
    if (!name.startsWith("output.")) continue;
    const found = outputs[name.slice(7)].data;
    data.forEach((/** @type {any} */ wanted, /** @type {number} */ i) => {
      differences.push(Math.abs(Number(wanted) - Number(found[i])));
    });
  }
  const fresh = await Training.open(ort, load);
  const deployed = withInitializers(await load("predict.onnx"), fresh.weights(), fresh);
  const wanted = await load("deployed.onnx");
  if (deployed.length !== wanted.length || deployed.some((byte, i) => byte !== wanted[i])) {
    throw new Error("the model to deploy differs from deployed.onnx");
  }
  return { losses, expected, error: Math.max(...differences) };
}

/**
 * The part of an array at one place of its first axis.
 *
 * @param {Value} value
 * @param {number} index
 * @returns {Value}
 */
function row({ type, dims: [, ...dims], data }, index) {
  const size = dims.reduce((a, b) => a * b, 1);
  return { type, dims, data: data.slice(index * size, (index + 1) * size) };
}
