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
export type Value = import("./safetensors.mjs").Value;
export type Repairs = import("./manifest.mjs").Repairs;
