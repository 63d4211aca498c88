/**
 * A training step that `onnxgrad.train.save_step` wrote, run by any onnxruntime for JavaScript.
 *
 * What training changes goes in and comes out; `manifest.json` says which output is which input of
 * the next step.
 *
 * @typedef {import("./manifest.mjs").Manifest} Manifest
 * @typedef {import("./manifest.mjs").Batch} Batch
 * @typedef {Record<string, any>} Tensors  onnxruntime's, by name
 */
import { carried, check, checkFinite, ofModel, ofRole, parse } from "./manifest.mjs";
import * as safetensors from "./safetensors.mjs";

export class Training {
  /**
   * @param {any} ort onnxruntime-node or onnxruntime-web
   * @param {(file: string) => Promise<Uint8Array>} load gives a file of the step's folder
   */
  static async open(ort, load) {
    const manifest = parse(await load("manifest.json"));
    const open = async (/** @type {string | undefined} */ file) =>
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
   * @param {{train: any, evaluation: any, update: any}} sessions
   */
  constructor(ort, manifest, sessions) {
    this.manifest = manifest;
    this.steps = 0; // taken
    this.seed = 0; // of what is drawn in the steps: Dropout
    this.rate = manifest.optimizer.lr ?? 1e-3; // the optimiser's own
    this._ort = ort;
    this._sessions = sessions;
    /** @type {Tensors} parameters, states and what else is carried, by the names of inputs */
    this._values = {};
  }

  /**
   * One step: the loss before it, the mean of several batches. When it is no finite number, nothing
   * changes. Steps must not overlap: wait for one before the next.
   *
   * @param {Batch | Batch[]} batch as many as `manifest.accumulate` says
   * @param {number} [rate]
   * @returns {Promise<number>}
   */
  async step(batch, rate = this.rate) {
    const batches = Array.isArray(batch) ? batch : [batch];
    const [number, { accumulate, loss }] = [this.steps + 1, this.manifest];
    if (batches.length !== accumulate) throw new Error(`a step takes ${accumulate} batches`);
    /** @type {[Tensors, Tensors, Tensors, number]} */
    let [values, outputs, feeds, sum] = [this._values, {}, {}, 0];
    for (const [i, part] of batches.entries()) {
      feeds = this._given(part, number, rate, this.steps * accumulate + i + 1);
      outputs = await run(this._sessions.train, { ...feeds, ...values });
      values = this._carried(values, outputs);
      sum += Number(outputs[loss].data[0]);
    }
    if (this._sessions.update) {
      outputs = await run(this._sessions.update, { ...feeds, ...values });
      values = this._carried(values, outputs);
    }
    const mean = sum / accumulate;
    checkFinite(this.manifest, number, mean, outputs);
    this._values = values;
    this.steps = number;
    return mean;
  }

  /**
   * @param {Batch} batch
   * @returns {Promise<Tensors>} the model's outputs and the loss, with the weights as they are now
   */
  evaluate(batch) {
    return run(this._sessions.evaluation, { ...this._given(batch), ...this._values });
  }

  /** The trained weights and running statistics as they are now, by their names in the model. */
  weights() {
    return new Map(ofModel(this.manifest).map(({ name }) => [name, this._values[name]]));
  }

  /** Where training stands, as a file that `restore` and Python's `Trainer.restore` read. */
  save() {
    const progress = JSON.stringify({ steps: this.steps, seed: this.seed });
    const said = JSON.stringify({ model: this.manifest.model, progress });
    return safetensors.write(new Map(Object.entries(this._values)), { onnxgrad: said });
  }

  /** Go on from what `save` gave, or begin with `state.safetensors`, which has no zeros. */
  restore(/** @type {Uint8Array} */ bytes) {
    const { values, metadata } = safetensors.read(bytes);
    const said = JSON.parse(metadata.onnxgrad ?? "{}");
    if (said.model !== this.manifest.model) throw new Error("the state is of another model");
    const { steps = 0, seed = 0, micro = 0 } = JSON.parse(said.progress ?? "{}");
    if (micro) throw new Error("the state stands between the batches of one step");
    /** @type {Tensors} */
    const found = {};
    for (const { name, dtype, shape, zeros } of carried(this.manifest)) {
      const begins = zeros && !said.progress;
      const value = values.get(name) ?? (begins && safetensors.zeros(dtype, shape));
      if (value?.type !== dtype || `${value.dims}` !== `${shape}`) {
        throw new Error(`the state has no ${dtype}[${shape}] for '${name}'`);
      }
      found[name] = new this._ort.Tensor(value.type, value.data, value.dims);
    }
    this._values = found;
    Object.assign(this, { steps, seed });
  }

  /** What a graph takes beside what is carried; steps and batches are counted from 1 on. */
  _given(/** @type {Batch} */ batch, step = 1, rate = 0, part = 1) {
    check(this.manifest, batch);
    const { Tensor } = this._ort;
    const whole = (/** @type {bigint} */ n) => new Tensor("int64", BigInt64Array.of(n), []);
    /** @type {Tensors} */
    const feeds = {};
    for (const { name } of ofRole(this.manifest, "batch")) {
      const { type, data, dims } = batch[name];
      feeds[name] = new Tensor(type, data, dims);
    }
    for (const { name } of ofRole(this.manifest, "step")) feeds[name] = whole(BigInt(step));
    for (const { name } of ofRole(this.manifest, "seed")) {
      feeds[name] = whole((BigInt(this.seed) << 32n) + BigInt(part));
    }
    for (const { name, dtype } of ofRole(this.manifest, "learning_rate")) {
      feeds[name] = new Tensor(dtype, [rate], []);
    }
    return feeds;
  }

  /** The values for what comes next: an output that is the next of an input takes its place. */
  _carried(/** @type {Tensors} */ values, /** @type {Tensors} */ outputs) {
    const changed = { ...values };
    for (const { name, next = "" } of carried(this.manifest)) {
      if (next in outputs) changed[name] = outputs[next];
    }
    return changed;
  }
}

/** Runs a graph with those of the values that it takes. */
function run(/** @type {any} */ session, /** @type {Tensors} */ values) {
  const taken = Object.entries(values).filter(([name]) => session.inputNames.includes(name));
  return session.run(Object.fromEntries(taken));
}
