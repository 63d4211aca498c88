/** `manifest.json` of a training step; `onnxgrad help step-format` describes each key. */

/** @typedef {import("./safetensors.mjs").Value} Value */
/**
 * The arrays of a batch by name.
 * @typedef {Record<string, Value>} Batch
 */
/**
 * An input of the graphs.
 * @typedef {{
 *   name: string, dtype: string, shape?: (number | string)[], next?: string, of?: string,
 *   classes?: number, ignored?: number, zeros?: true,
 * }} Fed
 */
/**
 * @typedef {"batch" | "parameter" | "statistic" | "state" | "average" | "accumulated" | "counted"
 *   | "scaling" | "step" | "learning_rate" | "seed"} Role
 */
/**
 * Initializers that are copies of a parameter, and parameters that the file lacks.
 * @typedef {{
 *   tied: {name: string, copy: string, transposed: boolean}[], untied: {name: string}[],
 * }} Repairs
 */
/**
 * @typedef {{
 *   format: string, version: number, inputs: Partial<Record<Role, Fed[]>>, loss: string,
 *   metrics: string[], optimizer: {name: string, lr?: number}, model: string, train: string,
 *   eval: string, predict?: string, state: string, update?: string, accumulate: number,
 *   accumulate_by?: "labels" | "batches", divisor?: string,
 *   sums: {numerator: string, denominator?: string}[],
 *   gradient_norm?: string, loss_scaling?: object, repairs: Repairs,
 * }} Manifest
 */

const FORMAT = "onnxgrad training step";
const VERSION = 3;

/**
 * @param {Uint8Array} bytes
 * @returns {Manifest}
 */
export function parse(bytes) {
  const manifest = JSON.parse(new TextDecoder().decode(bytes));
  if (manifest.format !== FORMAT) throw new Error("manifest.json is of no training step");
  if (manifest.version !== VERSION) {
    throw new Error(`manifest.json is of version ${manifest.version}, ${VERSION} is read here`);
  }
  return manifest;
}

/**
 * The inputs of these roles.
 *
 * @param {Manifest} manifest
 * @param {Role[]} roles
 */
export const ofRole = ({ inputs }, ...roles) => roles.flatMap((role) => inputs[role] ?? []);

/**
 * The inputs that a trained model consists of: parameters and running statistics.
 *
 * @param {Manifest} manifest
 */
export const ofModel = (manifest) => ofRole(manifest, "parameter", "statistic");

/**
 * The inputs that an output of one step is the next value of.
 *
 * @param {Manifest} manifest
 */
export const carried = ({ inputs }) => Object.values(inputs).flat().filter(({ next }) => next);

/**
 * Throws if the loss or the norm of the gradients is not finite; loss scaling leaves out
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
 * @param {Manifest} manifest
 * @param {Batch} batch
 */
export function check(manifest, batch) {
  for (const { name, classes, ignored } of ofRole(manifest, "batch")) {
    if (!batch[name]) throw new Error(`the batch lacks '${name}'`);
    if (batch[name].dims.includes(0)) throw new Error(`'${name}' of the batch is empty`);
    if (classes === undefined) continue;
    for (const label of batch[name].data) {
      if (Number(label) === ignored || (label >= 0 && label < classes)) continue;
      throw new Error(`'${name}' has ${label}, but labels go from 0 to ${classes - 1}`);
    }
  }
}
