/**
 * The page: trains with the step in `../step` (or `?step=FOLDER`), shows the losses and what the
 * network says, and saves what it learned.
 */
// @ts-ignore: this file of the package brings no types
import * as ort from "../node_modules/onnxruntime-web/dist/ort.wasm.min.mjs";
import { Training, withWeights } from "../node_modules/onnxgrad-step/src/index.mjs";
import { batchOf, chosen, likeliest, parse, probabilities } from "../digits.mjs";
import { draw } from "./chart.mjs";
import { load, save } from "./files.mjs";
import { ownDigit } from "./own_digit.mjs";
import { showClasses, showSamples } from "./predictions.mjs";

const $ = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const folder = new URLSearchParams(location.search).get("step") ?? "../step";
const SHOWN = 54; // unseen digits in the grid
const OWN = 8; // drawn digits in a batch, at most

/** @type {number[]} the loss of each step */
export const losses = [];
let wanted = false; // whether training shall go on
let ended = Promise.resolve(); // when nothing changes the values any more
/** @type {Training} */
let training;
/** @type {ReturnType<typeof parse>} */
let digits;
/** @type {ReturnType<typeof ownDigit>} */
let own;

/** A file of the step. */
const ofStep = (/** @type {string} */ file) => load(`${folder}/${file}`);

/** @param {string} text */
function say(text, error = false) {
  $("status").textContent = text;
  $("status").className = error ? "error" : "";
}

/** Does something, and shows why where it fails. */
function tell(/** @type {(event: Event) => unknown} */ act) {
  return async (/** @type {Event} */ event) => {
    event.preventDefault();
    try {
      await act(event);
    } catch (error) {
      wanted = false;
      say(/** @type {Error} */ (error).message, true);
    }
  };
}

/** The next of the data set; drawn digits take the first places. */
function nextBatch() {
  const rows = chosen(digits.training, training.steps);
  const count = Math.min(own.drawn.length, OWN);
  const first = training.steps * count;
  for (let i = 0; i < count; i++) rows[i] = own.drawn[(first + i) % own.drawn.length];
  return batchOf(rows);
}

async function train() {
  if (!wanted) return; // any more
  const [rate, last] = [$("rate").valueAsNumber, training.steps + $("steps").valueAsNumber];
  if (!Number.isFinite(rate + last)) throw new Error("steps and learning rate must be numbers");
  $("train").textContent = "Pause";
  say("Training …");
  try {
    while (wanted && training.steps < last) {
      const pause = performance.now() + 30; // milliseconds, then the page draws
      do losses.push(await training.step(nextBatch(), rate));
      while (wanted && training.steps < last && performance.now() < pause);
      await showAll(last);
      await new Promise((resolve) => setTimeout(resolve));
    }
    say(`${training.steps} steps are done.`);
  } finally {
    wanted = false;
    $("train").textContent = "Train";
  }
}

async function showAll(last = training.steps || $("steps").valueAsNumber) {
  draw($("chart"), losses, training.steps - losses.length + 1, last);
  $("step").textContent = training.steps;
  $("loss").textContent = losses.at(-1)?.toFixed(4) ?? "–";
  const rows = probabilities((await training.predict(batchOf(digits.heldOut))).logits);
  const right = rows.filter((row, i) => likeliest(row) === digits.heldOut[i].label).length;
  $("right").textContent = `${((100 * right) / rows.length).toFixed(1)} %`;
  showSamples($("samples"), digits.heldOut.slice(0, SHOWN), rows);
  await showOwn();
}

async function showOwn() {
  const { pixels } = own;
  const outputs = pixels && (await training.predict(batchOf([{ pixels, label: 0 }])));
  showClasses($("classes"), outputs && probabilities(outputs.logits)[0]);
  $("add").disabled = !pixels;
}

/** Does something when all that was begun before has ended. */
const next = (/** @type {() => Promise<void>} */ act) => (ended = ended.catch(() => {}).then(act));

/** @param {Uint8Array} state */
function startFrom(state) {
  wanted = false;
  return next(async () => {
    training.restore(state);
    losses.length = 0;
    await showAll();
    say(training.steps ? `Goes on from step ${training.steps}.` : "Ready.");
  });
}

/** @type {Record<string, (event: any) => unknown>} what each button does */
const actions = {
  train: () => (wanted = !wanted) && next(train),
  again: async () => startFrom(await ofStep(training.manifest.state)),
  "save-state": () => save(training.save(), "state.safetensors"),
  "save-model": async () => {
    const model = await ofStep("digits.onnx");
    save(withWeights(model, training.weights(), training), "trained.onnx");
  },
  "open-state": async ({ target }) => {
    await startFrom(new Uint8Array(await target.files[0].arrayBuffer()));
  },
};

const main = tell(async () => {
  ort.env.wasm.numThreads = 1; // more would need headers that a plain server does not send
  digits = parse(await (await fetch("../digits.txt")).text());
  training = await Training.open(ort, ofStep);
  $("rate").value = training.rate;
  own = ownDigit($, digits.heldOut, () => tell(showOwn)(new Event("drawn")));
  await showAll();
  for (const [id, act] of Object.entries(actions)) {
    $(id).addEventListener(id === "open-state" ? "change" : "click", tell(act));
    $(id).disabled = false;
  }
  $("take").disabled = false;
  addEventListener("resize", tell(() => showAll()));
  const { name } = training.manifest.optimizer;
  say(`Ready: ${name}, ${digits.training.length} digits to learn from.`);
});
await main(new Event("load"));
