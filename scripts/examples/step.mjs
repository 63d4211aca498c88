/**
 * A training step that `onnxgrad.train.save_step` wrote, run by any onnxruntime for JavaScript.
 *
 * The graph has no memory: what training changes goes in and comes out, and `manifest.json` says
 * which output is which input of the next step.
 *
 * @typedef {import("./manifest.mjs").Manifest} Manifest
 * @typedef {import("./manifest.mjs").Batch} Batch
 * @typedef {Record<string, any>} Tensors  onnxruntime's, by name
 * @typedef {{train: any, evaluation: any, update: any}} Sessions
 */
import { check, parse } from "./manifest.mjs";
import * as safetensors from "./safetensors.mjs";

export class Training {
  /**
   * @param {any} ort onnxruntime-node or onnxruntime-web
   * @param {(file: string) => Promise<Uint8Array>} load gives a file of the step's folder
   * @returns {Promise<Training>}
   */
  static async open(ort, load) {
    const manifest = parse(await load("manifest.json"));
    const open = async (/** @type {string | null} */ file) =>
      file ? ort.InferenceSession.create(await load(file)) : null;
    const training = new Training(ort, manifest, {
      train: await open(manifest.train),
      evaluation: await open(manifest.eval),
      update: await open(manifest.update),
    });
    training.restore(await load(manifest.state));
    return training;
  }

  /**
   * @param {any} ort
   * @param {Manifest} manifest
   * @param {Sessions} sessions
   */
  constructor(ort, manifest, sessions) {
    this.manifest = manifest;
    this.steps = 0; // taken
    this.rate = manifest.optimizer.lr ?? 1e-3; // the optimiser's own
    this._ort = ort;
    this._sessions = sessions;
    /** @type {Tensors} parameters, states and what else is carried, by the names of inputs */
    this._values = {};
  }

  /**
   * One step: the loss before it, the mean where a step takes several batches. When it is no finite
   * number, nothing changes. Steps must not overlap: wait for one before the next.
   *
   * @param {Batch | Batch[]} batch as many as `manifest.accumulate` says
   * @param {number} [rate]
   * @returns {Promise<number>}
   */
  async step(batch, rate = this.rate) {
    const batches = Array.isArray(batch) ? batch : [batch];
    const { accumulate, loss } = this.manifest;
    const number = this.steps + 1;
    if (batches.length !== accumulate) throw new Error(`a step takes ${accumulate} batches`);
    let [values, sum] = [this._values, 0];
    for (const part of batches) {
      const given = this._given(part, number, rate);
      const outputs = await run(this._sessions.train, { ...given, ...values });
      values = this._carried(values, outputs);
      sum += Number(outputs[loss].data[0]);
    }
    const mean = sum / batches.length;
    if (!Number.isFinite(mean)) throw new Error(`step ${number}: the loss is ${mean}`);
    if (this._sessions.update) {
      const given = this._given(batches[0], number, rate);
      const outputs = await run(this._sessions.update, { ...given, ...values });
      values = this._carried(values, outputs);
    }
    this._values = values;
    this.steps = number;
    return mean;
  }

  /**
   * The model's outputs and the loss with the parameters as they are now.
   *
   * @param {Batch} batch
   * @returns {Promise<Tensors>}
   */
  evaluate(batch) {
    return run(this._sessions.evaluation, { ...this._given(batch), ...this._values });
  }

  /** The trained weights as they are now, by their names in the model. */
  parameters() {
    return new Map(this._of("parameter").map(({ name }) => [name, this._values[name]]));
  }

  /** Where training stands, as a file that `restore` and Python's `Trainer.restore` read. */
  save() {
    const progress = JSON.stringify({ steps: this.steps });
    const said = JSON.stringify({ model: this.manifest.model, progress });
    return safetensors.write(new Map(Object.entries(this._values)), { onnxgrad: said });
  }

  /** Go on from what `save` gave, or begin with `state.safetensors`. */
  restore(/** @type {Uint8Array} */ bytes) {
    const { values, metadata } = safetensors.read(bytes);
    const said = JSON.parse(metadata.onnxgrad ?? "{}");
    if (said.model !== this.manifest.model) throw new Error("the state is of another model");
    /** @type {Tensors} */
    const found = {};
    for (const { name, dtype, shape } of this.manifest.inputs.filter(({ next }) => next)) {
      const value = values.get(name);
      if (value?.type !== dtype || `${value.dims}` !== `${shape}`) {
        throw new Error(`the state has no ${dtype}[${shape}] for '${name}'`);
      }
      found[name] = new this._ort.Tensor(value.type, value.data, value.dims);
    }
    this._values = found;
    this.steps = said.progress ? JSON.parse(said.progress).steps : 0;
  }

  _of = (/** @type {string} */ role) => this.manifest.inputs.filter((fed) => fed.role === role);

  /** What a graph takes beside the values that are carried; `number` of the step is from 1 on. */
  _given(/** @type {Batch} */ batch, number = 1, rate = 0) {
    check(this._of("batch"), batch);
    const { Tensor } = this._ort;
    /** @type {Tensors} */
    const feeds = {};
    for (const { name, role } of this.manifest.inputs) {
      const { type, data, dims } = batch[name] ?? {};
      if (role === "batch") feeds[name] = new Tensor(type, data, dims);
      if (role === "step") feeds[name] = new Tensor("int64", BigInt64Array.of(BigInt(number)), []);
      if (role === "learning_rate") feeds[name] = new Tensor("float32", Float32Array.of(rate), []);
    }
    return feeds;
  }

  /** The values for what comes next: an output that is the next of an input takes its place. */
  _carried(/** @type {Tensors} */ values, /** @type {Tensors} */ outputs) {
    const changed = this.manifest.inputs.filter(({ next }) => next && next in outputs);
    const news = changed.map(({ name, next }) => [name, outputs[next ?? ""]]);
    return { ...values, ...Object.fromEntries(news) };
  }
}

/** Runs a graph with those of the values that it takes. */
function run(/** @type {any} */ session, /** @type {Tensors} */ values) {
  const taken = session.inputNames.filter((/** @type {string} */ name) => name in values);
  return session.run(Object.fromEntries(taken.map((/** @type {string} */ n) => [n, values[n]])));
}
