/**
 * Runs with `npm test` in a checkout of onnxgrad: its test vectors, and onnxruntime-node from
 * `npm install --prefix scripts/examples`.
 */
import assert from "node:assert/strict";
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { test } from "node:test";
import { safetensors, Training } from "onnxgrad-step";
import { run } from "onnxgrad-step/vector";

const ort = createRequire(new URL("../../../examples/", import.meta.url))("onnxruntime-node");
const VECTORS = new URL("../../../../onnxgrad/train/test_vectors/", import.meta.url);
const folder = (/** @type {string} */ name) => (/** @type {string} */ file) =>
  readFile(new URL(`${name}/${file}`, VECTORS));

/** A file of the step with another text in its manifest. */
const changed = (/** @type {[string | RegExp, string][]} */ ...pairs) => {
  return async (/** @type {string} */ file) => {
    const bytes = await folder("full")(file);
    if (file !== "manifest.json") return bytes;
    const text = pairs.reduce((old, [from, to]) => old.replace(from, to), bytes.toString());
    return new TextEncoder().encode(text);
  };
};

const value = (/** @type {number[]} */ dims, /** @type {any} */ data) => {
  return { type: data instanceof BigInt64Array ? "int64" : "float32", dims, data };
};
const batch = (rows = 2, label = 1n) => ({
  x: value([rows, 4], new Float32Array(4 * rows).fill(0.5)),
  labels: value([rows], new BigInt64Array(rows).fill(label)),
});

for (const name of ["plain", "full"]) {
  test(`the vector ${name}`, async () => {
    const { losses, expected, error } = await run(ort, folder(name));
    assert.equal(losses.length, expected.length);
    assert.ok(error < 1e-5, `${error}`);
  });
}

test("what a client must do, the vectors notice", async () => {
  const { values, metadata } = safetensors.read(await folder("full")("vector.safetensors"));
  const other = (/** @type {string} */ name, /** @type {any} */ number) => {
    const { type, data } = /** @type {any} */ (values.get(name));
    const changed = { type, dims: [], data: data.slice().fill(number) };
    const bytes = safetensors.write(new Map([...values, [name, changed]]), metadata);
    return async (/** @type {string} */ file) =>
      file === "vector.safetensors" ? bytes : folder("full")(file);
  };
  const wrong = {
    seed: other("seed", 0n),
    rate: other("rate", 0.126),
    update: changed([/"update": "update.onnx",/, ""]),
    "micro-batches": changed([/"accumulate": 2/, '"accumulate": 1']),
    labels: changed([/"accumulate_by": "labels"/, '"accumulate_by": "batches"']),
    sums: changed([/"numerator": "loss.numerator"/, '"numerator": "loss.denominator"']),
    statistics: changed([/"next": "m.new"/, '"next": "t.new"']),
  };
  for (const [what, load] of Object.entries(wrong)) {
    const { error } = await run(ort, load);
    assert.ok(error > 1e-4, `${what}: ${error}`);
  }
});

test("another format or version is refused", async () => {
  const open = (/** @type {[string, string]} */ ...pair) => Training.open(ort, changed(pair));
  await assert.rejects(open('"version": 3', '"version": 4'), /is of version 4, 3 is read/);
  await assert.rejects(open("onnxgrad training step", "cake"), /of no training step/);
  await assert.rejects(open('"zeros": true', '"zeros": false'), /the state has no float32/);
});

test("a batch that does not fit is refused, and nothing changes", async () => {
  const training = await Training.open(ort, folder("full"));
  const before = training.save();
  const refused = (/** @type {any} */ given, /** @type {RegExp} */ message) =>
    assert.rejects(training.step(given), message);
  await refused(batch(), /a step takes 2 batches/);
  await refused([batch(), { x: batch().x }], /the batch lacks 'labels'/);
  await refused([batch(), batch(2, 3n)], /'labels' has 3, but labels go from 0 to 2/);
  await refused([batch(), batch(0)], /'x' of the batch is empty/);
  assert.deepEqual(training.save(), before);
  assert.equal(training.steps, 0);
});

test("a loss that is no number is refused, and nothing changes", async () => {
  const training = await Training.open(ort, folder("plain"));
  await training.step(batch());
  const before = training.save();
  const bad = batch();
  bad.x.data[0] = Infinity;
  await assert.rejects(training.step(bad), /step 2: the loss is NaN/);
  assert.deepEqual(training.save(), before);
});

test("it predicts without labels, and says what it lacks", async () => {
  const training = await Training.open(ort, folder("plain"));
  const { logits } = await training.predict({ x: batch(3).x });
  assert.deepEqual([...logits.dims], [3, 3]);
  await assert.rejects(training.predict({}), /the batch lacks 'x'/);
});

test("a checkpoint lacks nothing, and is of this model", async () => {
  const training = await Training.open(ort, folder("full"));
  await training.step([batch(), batch()]);
  const state = training.save();
  const { values, metadata } = safetensors.read(state);
  values.delete("w.exp_avg");
  const short = safetensors.write(values, metadata);
  assert.throws(() => training.restore(short), /no float32\[4,3\] for 'w.exp_avg'/);
  const other = await Training.open(ort, folder("plain"));
  assert.throws(() => other.restore(state), /the state is of another model/);
  assert.throws(() => training.restore(state.subarray(0, state.length - 3)), /the file ends/);
});
