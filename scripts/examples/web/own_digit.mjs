/** The digit on the canvas: drawn by hand or taken from the unseen ones, learned from on demand. */
import { clear, drawable, pixelsOf, show } from "./drawing.mjs";

/**
 * @typedef {import("../digits.mjs").Digit} Digit
 * @typedef {{pixels: number[] | null, drawn: Digit[]}} Own  what is on the canvas, and what was
 *   drawn to learn from
 *
 * @param {(id: string) => any} $ the elements of the page
 * @param {Digit[]} unseen
 * @param {() => void} changed called when there is another digit on the canvas
 * @returns {Own}
 */
export function ownDigit($, unseen, changed) {
  const canvas = $("canvas");
  /** @type {Own} */
  const own = { pixels: null, drawn: [] };
  let taken = false;
  const now = (/** @type {number[] | null} */ pixels) => {
    own.pixels = pixels;
    changed();
  };
  const empty = () => {
    clear(canvas);
    taken = false;
  };

  for (let label = 0; label < 10; label++) $("label").append(new Option(String(label)));
  canvas.addEventListener("pointerdown", () => taken && empty());
  drawable(canvas, () => now(pixelsOf(canvas)));
  $("clear").addEventListener("click", () => {
    empty();
    now(null);
  });
  $("take").addEventListener("click", () => {
    const { pixels, label } = unseen[Math.floor(Math.random() * unseen.length)];
    show(canvas, pixels);
    taken = true;
    $("label").value = label;
    now(pixels);
  });
  $("teach").addEventListener("submit", (/** @type {Event} */ event) => {
    event.preventDefault();
    if (own.pixels) own.drawn.push({ pixels: own.pixels, label: Number($("label").value) });
    $("taught").textContent = `${own.drawn.length} of yours among the digits to learn`;
  });
  return own;
}
