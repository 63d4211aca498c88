/**
 * Trains on digits in Node.js with a step that make_digits.py wrote.
 *
 *     node scripts/examples/node/train.mjs [FOLDER] [--steps 200] [--rate RATE] [--from STATE]
 *         [--log FILE] [--save STATE] [--model OUT.onnx]
 *
 * --rate: the optimiser's own where left out. --log: the losses as JSON lines. --save: where
 * training stands, which --from takes up again. --model: digits.onnx with the trained weights.
 */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { fileURLToPath } from "node:url";
import { parseArgs } from "node:util";
import { Training, withWeights } from "onnxgrad-step";
import * as ort from "onnxruntime-node";
import { batchOf, chosen, likeliest, parse, probabilities } from "../digits.mjs";

const here = (/** @type {string} */ path) => fileURLToPath(new URL(path, import.meta.url));

async function main() {
  const text = /** @type {const} */ ({ type: "string" });
  const { values: options, positionals } = parseArgs({
    allowPositionals: true,
    options: { steps: text, rate: text, from: text, log: text, save: text, model: text },
  });
  const folder = positionals[0] ?? here("../step");
  const load = (/** @type {string} */ file) => readFile(join(folder, file));
  const training = await Training.open(ort, load);
  if (options.from) training.restore(await readFile(options.from));

  const digits = parse(await readFile(here("../digits.txt"), "utf8"));
  const [last, rate] = [Number(options.steps ?? 200), Number(options.rate ?? training.rate)];
  const log = [];
  while (training.steps < last) {
    const batch = batchOf(chosen(digits.training, training.steps));
    const loss = await training.step(batch, rate);
    log.push(JSON.stringify({ step: training.steps, loss, rate }));
    if (training.steps % 20 === 0) console.log(`step ${training.steps}: loss ${loss.toFixed(4)}`);
  }

  const { logits } = await training.predict(batchOf(digits.heldOut));
  const rows = probabilities(logits);
  const right = rows.filter((row, i) => likeliest(row) === digits.heldOut[i].label).length;
  console.log(`right on ${right} of ${rows.length} digits that were held out`);

  if (options.log) await writeFile(options.log, log.map((line) => `${line}\n`).join(""));
  if (options.save) await writeFile(options.save, training.save());
  if (options.model) {
    const trained = withWeights(await load("digits.onnx"), training.weights(), training);
    await writeFile(options.model, trained);
  }
}

main().catch((error) => {
  console.error(`train.mjs: ${error.message}`);
  process.exitCode = 1;
});
