/** Training steps of onnxgrad in JavaScript, with onnxruntime-node or onnxruntime-web. */

/** @typedef {import("./manifest.mjs").Manifest} Manifest */
/** @typedef {import("./manifest.mjs").Fed} Fed */
/** @typedef {import("./manifest.mjs").Batch} Batch */
/** @typedef {import("./safetensors.mjs").Value} Value */
/** @typedef {import("./step.mjs").Runtime} Runtime */
/** @typedef {import("./step.mjs").Tensor} Tensor */
/** @typedef {import("./step.mjs").Tensors} Tensors */
export { withInitializers, withWeights } from "./onnx_weights.mjs";
export * as safetensors from "./safetensors.mjs";
export { Training } from "./step.mjs";
