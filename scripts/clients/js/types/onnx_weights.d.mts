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
export function withWeights(model: Uint8Array, weights: Map<string, Value>, { steps, manifest: { optimizer, repairs } }: {
    steps: number;
    manifest: {
        optimizer: object;
        repairs: Repairs;
    };
}): Uint8Array;
/**
 * `predict.onnx` with its weights as initializers: a model to deploy, made from the step alone.
 * Python's `Trainer.deploy` writes the same bytes. External data stays beside the file.
 *
 * @param {Uint8Array} predict the file of the step's folder
 * @param {Map<string, Value>} weights by name, in the order of the manifest
 * @param {{steps: number}} training how many steps were taken
 * @returns {Uint8Array}
 */
export function withInitializers(predict: Uint8Array, weights: Map<string, Value>, { steps }: {
    steps: number;
}): Uint8Array;
export type Value = import("./safetensors.mjs").Value;
export type Repairs = import("./manifest.mjs").Repairs;
