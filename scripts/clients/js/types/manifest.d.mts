/**
 * @param {Uint8Array} bytes
 * @returns {Manifest}
 */
export function parse(bytes: Uint8Array): Manifest;
/**
 * Throws if the loss or the norm of the gradients is not finite; loss scaling leaves out
 * an update with such gradients by itself.
 *
 * @param {Manifest} manifest
 * @param {number} number of the step
 * @param {number} loss
 * @param {Record<string, any>} outputs of the file that updates
 */
export function checkFinite(manifest: Manifest, number: number, loss: number, outputs: Record<string, any>): void;
/**
 * Throws where a batch lacks an input, or a label is none of the classes.
 *
 * @param {Manifest} manifest
 * @param {Batch} batch
 */
export function check(manifest: Manifest, batch: Batch): void;
export function ofRole({ inputs }: Manifest, ...roles: Role[]): Fed[];
export function ofModel(manifest: Manifest): Fed[];
export function carried({ inputs }: Manifest): Fed[];
export type Value = import("./safetensors.mjs").Value;
/**
 * The arrays of a batch by name.
 */
export type Batch = Record<string, Value>;
/**
 * An input of the graphs.
 */
export type Fed = {
    name: string;
    dtype: string;
    shape?: (number | string)[];
    next?: string;
    of?: string;
    classes?: number;
    ignored?: number;
    zeros?: true;
};
export type Role = "batch" | "parameter" | "statistic" | "state" | "average" | "accumulated" | "counted" | "scaling" | "step" | "learning_rate" | "seed";
/**
 * Initializers that are copies of a parameter, and parameters that the file lacks.
 */
export type Repairs = {
    tied: {
        name: string;
        copy: string;
        transposed: boolean;
    }[];
    untied: {
        name: string;
    }[];
};
export type Manifest = {
    format: string;
    version: number;
    inputs: Partial<Record<Role, Fed[]>>;
    loss: string;
    metrics: string[];
    optimizer: {
        name: string;
        lr?: number;
    };
    model: string;
    train: string;
    eval: string;
    predict?: string;
    state: string;
    update?: string;
    accumulate: number;
    accumulate_by?: "labels" | "batches";
    divisor?: string;
    sums: {
        numerator: string;
        denominator?: string;
    }[];
    gradient_norm?: string;
    loss_scaling?: object;
    repairs: Repairs;
};
