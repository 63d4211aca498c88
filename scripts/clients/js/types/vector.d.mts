/**
 * Takes the steps of a test vector, half of them after a save and a restore, evaluates, predicts and
 * deploys. Throws if the model to deploy has other bytes.
 *
 * @param {import("./step.mjs").Runtime} ort
 * @param {(file: string) => Promise<Uint8Array>} load returns a file of the vector's folder
 * @returns {Promise<{losses: number[], expected: number[], error: number}>} the losses, those that
 *   were expected, and the largest difference of a loss or an output: 1e-5 is right
 */
export function run(ort: import("./step.mjs").Runtime, load: (file: string) => Promise<Uint8Array>): Promise<{
    losses: number[];
    expected: number[];
    error: number;
}>;
export type Value = import("./safetensors.mjs").Value;
