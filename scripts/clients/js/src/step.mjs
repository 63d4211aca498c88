/**
 * A training step that `onnxgrad.train.save_step` wrote, run by any onnxruntime for JavaScript.
 *
 * What training changes goes in and comes out; `manifest.json` says which output is which input of
 * the next step.
 */

/** @typedef {import("./manifest.mjs").Manifest} Manifest */
/** @typedef {import("./manifest.mjs").Batch} Batch */
/** @typedef {import("./safetensors.mjs").Value} Value */
/** @typedef {"train" | "update" | "eval" | "predict"} Graph */
/**
 * A tensor of onnxruntime.
 * @typedef {{data: any, dims: readonly number[], type: string}} Tensor
 */
/**
 * Tensors by name.
 * @typedef {Record<string, Tensor>} Tensors
 */
/** @typedef {{inputNames: readonly string[], run(feeds: any): Promise<any>}} Session */
/**
 * What onnxruntime-node and onnxruntime-web export.
 * @typedef {{
 *   InferenceSession: {create(bytes: any, options?: any): Promise<Session>},
 *   Tensor: new (type: any, data: any, dims?: readonly number[]) => any,
 * }} Runtime
 */
import { carried, check, checkFinite, ofModel, ofRole, parse } from "./manifest.mjs";
import * as safetensors from "./safetensors.mjs";

export class Training {
  /** @type {Runtime} */ #ort;
  /** @type {(graph: Graph) => Promise<Session>} */ #open;
  /** @type {Partial<Record<Graph, Promise<Session>>>} */ #sessions = {};
  /** @type {Tensors} parameters, states and what else is carried, by the names of inputs */
  #values = {};

  /**
   * Opens a step, at its first values.
   *
   * @param {Runtime} ort
   * @param {(file: string) => Promise<Uint8Array>} load returns a file of the step's folder
   * @param {object} [options] of onnxruntime's sessions
   */
  static async open(ort, load, options) {
    const manifest = parse(await load("manifest.json"));
    const training = new Training(ort, manifest, async (graph) => {
      const file = manifest[graph];
      if (!file) throw new Error(`the step has no graph '${graph}'`);
      return ort.InferenceSession.create(await load(file), options);
    });
    await training.#session("train");
    training.restore(await load(manifest.state));
    return training;
  }

  /**
   * @param {Runtime} ort
   * @param {Manifest} manifest
   * @param {(graph: Graph) => Promise<Session>} open is called once for each graph that is run
   */
  constructor(ort, manifest, open) {
    this.manifest = manifest;
    /** Steps that were taken. */
    this.steps = 0;
    /** The run's seed: Dropout draws by it. */
    this.seed = 0;
    /** The learning rate of steps that are given none: the optimiser's own. */
    this.rate = manifest.optimizer.lr ?? 1e-3;
    this.#ort = ort;
    this.#open = open;
  }

  /**
   * One step: the loss before it, the mean of several batches, by their labels if the manifest says
   * so. If it is not finite, nothing changes. Steps must not overlap: wait for one before the next.
   *
   * @param {Batch | Batch[]} batch as many as `manifest.accumulate` says
   * @param {number} [rate]
   * @returns {Promise<number>}
   */
  async step(batch, rate = this.rate) {
    const batches = Array.isArray(batch) ? batch : [batch];
    const [number, { accumulate, loss, divisor = "" }] = [this.steps + 1, this.manifest];
    const byLabels = this.manifest.accumulate_by === "labels";
    if (batches.length !== accumulate) throw new Error(`a step takes ${accumulate} batches`);
    /** @type {[Tensors, Tensors, Tensors, number, number]} */
    let [values, outputs, feeds, sum, total] = [this.#values, {}, {}, 0, 0];
    for (const [i, part] of batches.entries()) {
      feeds = this.#given(part, number, rate, this.steps * accumulate + i + 1);
      outputs = await this.#run("train", { ...feeds, ...values });
      values = this.#carried(values, outputs);
      const weight = byLabels ? Number(outputs[divisor].data[0]) : 1;
      sum += weight * Number(outputs[loss].data[0]);
      total += weight;
    }
    if (this.manifest.update) {
      outputs = await this.#run("update", { ...feeds, ...values });
      values = this.#carried(values, outputs);
    }
    const mean = sum / (total || 1);
    checkFinite(this.manifest, number, mean, outputs);
    this.#values = values;
    this.steps = number;
    return mean;
  }

  /**
   * @param {Batch} batch
   * @returns {Promise<Tensors>} the model's outputs, the loss and its sums, with the weights as they
   *   are now
   */
  async evaluate(batch) {
    check(this.manifest, batch);
    return this.#run("eval", { ...this.#batch(batch), ...this.#values });
  }

  /**
   * The loss over all batches together, whatever their sizes and however many of their labels are
   * ignored; NaN if no label counts.
   *
   * @param {Iterable<Batch> | AsyncIterable<Batch>} batches
   * @returns {Promise<number>}
   */
  async heldOut(batches) {
    const { sums } = this.manifest;
    const found = sums.map(() => [0, 0]);
    let read = false;
    for await (const batch of batches) {
      const outputs = await this.evaluate(batch);
      read = true;
      for (const [i, { numerator, denominator }] of sums.entries()) {
        found[i][0] += Number(outputs[numerator].data[0]);
        if (denominator) found[i][1] += Number(outputs[denominator].data[0]);
      }
    }
    if (!read) throw new Error("the held-out data has no batches");
    return found.reduce((a, [n, d], i) => a + (sums[i].denominator ? n / d : n), 0);
  }

  /**
   * @param {Batch} inputs without labels
   * @returns {Promise<Tensors>} the model's outputs, with the weights as they are now
   */
  predict(inputs) {
    return this.#run("predict", { ...this.#batch(inputs), ...this.#values });
  }

  /** The trained weights and running statistics as they are now, by their names in the model. */
  weights() {
    return new Map(ofModel(this.manifest).map(({ name }) => [name, this.#values[name]]));
  }

  /** `weights`, with the averages that the step keeps in place of the trained weights. */
  averaged() {
    const averages = ofRole(this.manifest, "average");
    if (!averages.length) throw new Error("the step keeps no average: build it with --average");
    const found = this.weights();
    for (const { name, of = "", dtype } of averages) {
      const { type } = /** @type {Tensor} */ (found.get(of));
      if (type !== dtype) {
        throw new Error(`'${of}' is ${type}, its average ${dtype}: export with Python's Trainer`);
      }
      found.set(of, this.#values[name]);
    }
    return found;
  }

  /**
   * The weights as they are now, by the inputs that keep those of the beginning of a round of
   * federated training (FedProx): a part of each batch of the round.
   *
   * @returns {Batch}
   */
  anchors() {
    const held = ofRole(this.manifest, "batch").filter(({ of }) => of);
    return Object.fromEntries(held.map(({ name, of = "" }) => [name, this.#values[of]]));
  }

  /** Where training stands, as a file that `restore` and Python's `Trainer.restore` read. */
  save() {
    const progress = JSON.stringify({ steps: this.steps, seed: this.seed });
    const said = JSON.stringify({ model: this.manifest.model, progress });
    return safetensors.write(new Map(Object.entries(this.#values)), { onnxgrad: said });
  }

  /**
   * Go on from what `save` gave, or begin with `state.safetensors`, which has no zeros.
   *
   * @param {Uint8Array} bytes
   */
  restore(bytes) {
    const { values, metadata } = safetensors.read(bytes);
    const said = JSON.parse(metadata.onnxgrad ?? "{}");
    if (said.model !== this.manifest.model) throw new Error("the state is of another model");
    const { steps = 0, seed = 0, micro = 0 } = JSON.parse(said.progress ?? "{}");
    if (micro) throw new Error("the state stands between the batches of one step");
    /** @type {Tensors} */
    const found = {};
    for (const { name, dtype, shape: sizes = [], zeros } of carried(this.manifest)) {
      const shape = sizes.map(Number);
      const first = zeros && !said.progress ? safetensors.zeros(dtype, shape) : undefined;
      const value = values.get(name) ?? first;
      if (value?.type !== dtype || `${value.dims}` !== `${shape}`) {
        throw new Error(`the state has no ${dtype}[${shape}] for '${name}'`);
      }
      found[name] = new this.#ort.Tensor(value.type, value.data, value.dims);
    }
    this.#values = found;
    Object.assign(this, { steps, seed });
  }

  /** What a graph takes beside what is carried; steps and batches are counted from 1 on. */
  #given(/** @type {Batch} */ batch, step = 1, rate = 0, part = 1) {
    check(this.manifest, batch);
    const { Tensor } = this.#ort;
    const whole = (/** @type {bigint} */ n) => new Tensor("int64", BigInt64Array.of(n), []);
    const feeds = this.#batch(batch);
    for (const { name } of ofRole(this.manifest, "step")) feeds[name] = whole(BigInt(step));
    for (const { name } of ofRole(this.manifest, "seed")) {
      feeds[name] = whole((BigInt(this.seed) << 32n) + BigInt(part));
    }
    for (const { name, dtype } of ofRole(this.manifest, "learning_rate")) {
      feeds[name] = new Tensor(dtype, [rate], []);
    }
    return feeds;
  }

  /** @returns {Tensors} */
  #batch(/** @type {Batch} */ batch) {
    const tensors = Object.entries(batch).map(([name, { type, data, dims }]) => {
      return [name, new this.#ort.Tensor(type, data, dims)];
    });
    return Object.fromEntries(tensors);
  }

  /** The values for what comes next: an output that is the next of an input takes its place. */
  #carried(/** @type {Tensors} */ values, /** @type {Tensors} */ outputs) {
    const changed = { ...values };
    for (const { name, next = "" } of carried(this.manifest)) {
      if (next in outputs) changed[name] = outputs[next];
    }
    return changed;
  }

  #session(/** @type {Graph} */ graph) {
    return (this.#sessions[graph] ??= this.#open(graph));
  }

  /**
   * Runs a graph with those of the values that it takes.
   *
   * @param {Graph} graph
   * @param {Tensors} values
   * @returns {Promise<Tensors>}
   */
  async #run(graph, values) {
    const session = await this.#session(graph);
    const missing = session.inputNames.find((name) => !(name in values));
    if (missing) throw new Error(`the batch lacks '${missing}'`);
    return session.run(Object.fromEntries(session.inputNames.map((name) => [name, values[name]])));
  }
}
