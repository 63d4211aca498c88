/**
 * What `manifest.json` says of a training step; `onnxgrad/train/manifest.py` describes each field.
 *
 * @typedef {import("./safetensors.mjs").Value} Value
 * @typedef {Record<string, Value>} Batch
 * @typedef {{name: string, role: string, dtype: string, shape: (number | string | null)[] | null,
 *   next: string | null, of: string | null, classes: number | null, ignored: number | null
 *   }} Fed  an input
 * @typedef {{tied: {name: string, copy: string, transposed: boolean}[], untied: {name: string}[]
 *   }} Repairs  initializers that are copies of a parameter, and parameters that the file lacks
 * @typedef {{format: string, version: number, inputs: Fed[], loss: string, metrics: string[],
 *   optimizer: {name: string, lr?: number}, model: string, train: string, eval: string,
 *   state: string, update: string | null, accumulate: number, gradient_norm: string | null,
 *   loss_scaling: object | null, repairs: Repairs}} Manifest
 */

const FORMAT = "onnxgrad training step";
const VERSION = 1; // the newest that is read here

/**
 * @param {Uint8Array} bytes
 * @returns {Manifest}
 */
export function parse(bytes) {
  const manifest = JSON.parse(new TextDecoder().decode(bytes));
  if (manifest.format !== FORMAT) throw new Error("manifest.json is of no training step");
  if (!(manifest.version <= VERSION)) {
    throw new Error(`manifest.json is of version ${manifest.version}, ${VERSION} is read here`);
  }
  return manifest;
}

/**
 * The inputs that a trained model consists of: parameters, and states that are their own, which are
 * running statistics.
 *
 * @param {Manifest} manifest
 */
export function ofModel({ inputs }) {
  return inputs.filter(({ name, role, of }) => role === "parameter" || of === name);
}

/**
 * Throws where the loss is no finite number, or the norm of the gradients; loss scaling leaves out
 * an update with such gradients by itself.
 *
 * @param {Manifest} manifest
 * @param {number} number of the step
 * @param {number} loss
 * @param {Record<string, any>} outputs of the file that updates
 */
export function checkFinite(manifest, number, loss, outputs) {
  if (!Number.isFinite(loss)) throw new Error(`step ${number}: the loss is ${loss}`);
  if (!manifest.gradient_norm || manifest.loss_scaling) return;
  const norm = Number(outputs[manifest.gradient_norm].data[0]);
  if (!Number.isFinite(norm)) throw new Error(`step ${number}: the gradients' norm is ${norm}`);
}

/**
 * Throws where a batch lacks an input, or a label is none of the classes.
 *
 * @param {Fed[]} inputs
 * @param {Batch} batch
 */
export function check(inputs, batch) {
  for (const { name, role, classes, ignored } of inputs) {
    if (role !== "batch") continue;
    if (!batch[name]) throw new Error(`the batch lacks '${name}'`);
    if (classes === null) continue;
    for (const label of batch[name].data) {
      if (Number(label) === ignored || (label >= 0 && label < classes)) continue;
      throw new Error(`'${name}' has ${label}, but labels go from 0 to ${classes - 1}`);
    }
  }
}
