export class Training {
    /**
     * Opens a step, at its first values.
     *
     * @param {Runtime} ort
     * @param {(file: string) => Promise<Uint8Array>} load returns a file of the step's folder
     * @param {object} [options] of onnxruntime's sessions
     */
    static open(ort: Runtime, load: (file: string) => Promise<Uint8Array>, options?: object): Promise<Training>;
    /**
     * @param {Runtime} ort
     * @param {Manifest} manifest
     * @param {(graph: Graph) => Promise<Session>} open is called once for each graph that is run
     */
    constructor(ort: Runtime, manifest: Manifest, open: (graph: Graph) => Promise<Session>);
    manifest: import("./manifest.mjs").Manifest;
    /** Steps that were taken. */
    steps: number;
    /** The run's seed: Dropout draws by it. */
    seed: number;
    /** The learning rate of steps that are given none: the optimiser's own. */
    rate: number;
    /**
     * One step: the loss before it, the mean of several batches, by their labels if the manifest says
     * so. If it is not finite, nothing changes. Steps must not overlap: wait for one before the next.
     *
     * @param {Batch | Batch[]} batch as many as `manifest.accumulate` says
     * @param {number} [rate]
     * @returns {Promise<number>}
     */
    step(batch: Batch | Batch[], rate?: number): Promise<number>;
    /**
     * @param {Batch} batch
     * @returns {Promise<Tensors>} the model's outputs, the loss and its sums, with the weights as they
     *   are now
     */
    evaluate(batch: Batch): Promise<Tensors>;
    /**
     * The loss over all batches together, whatever their sizes and however many of their labels are
     * ignored; NaN if no label counts.
     *
     * @param {Iterable<Batch> | AsyncIterable<Batch>} batches
     * @returns {Promise<number>}
     */
    heldOut(batches: Iterable<Batch> | AsyncIterable<Batch>): Promise<number>;
    /**
     * @param {Batch} inputs without labels
     * @returns {Promise<Tensors>} the model's outputs, with the weights as they are now
     */
    predict(inputs: Batch): Promise<Tensors>;
    /** The trained weights and running statistics as they are now, by their names in the model. */
    weights(): Map<string, Tensor>;
    /** `weights`, with the averages that the step keeps in place of the trained weights. */
    averaged(): Map<string, Tensor>;
    /**
     * The weights as they are now, by the inputs that keep those of the beginning of a round of
     * federated training (FedProx): a part of each batch of the round.
     *
     * @returns {Batch}
     */
    anchors(): Batch;
    /** Where training stands, as a file that `restore` and Python's `Trainer.restore` read. */
    save(): Uint8Array<ArrayBufferLike>;
    /**
     * Go on from what `save` gave, or begin with `state.safetensors`, which has no zeros.
     *
     * @param {Uint8Array} bytes
     */
    restore(bytes: Uint8Array): void;
    #private;
}
export type Manifest = import("./manifest.mjs").Manifest;
export type Batch = import("./manifest.mjs").Batch;
export type Value = import("./safetensors.mjs").Value;
export type Graph = "train" | "update" | "eval" | "predict";
/**
 * A tensor of onnxruntime.
 */
export type Tensor = {
    data: any;
    dims: readonly number[];
    type: string;
};
/**
 * Tensors by name.
 */
export type Tensors = Record<string, Tensor>;
export type Session = {
    inputNames: readonly string[];
    run(feeds: any): Promise<any>;
};
/**
 * What onnxruntime-node and onnxruntime-web export.
 */
export type Runtime = {
    InferenceSession: {
        create(bytes: any, options?: any): Promise<Session>;
    };
    Tensor: new (type: any, data: any, dims?: readonly number[]) => any;
};
