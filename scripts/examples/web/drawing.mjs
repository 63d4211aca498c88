/** Drawing by hand, and what a network sees of it. */

const BRUSH = 30; // pixels of 280
const READ = { willReadFrequently: true };

/**
 * Lets people draw on a canvas.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {() => void} changed called after each stroke's movement
 */
export function drawable(canvas, changed) {
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d", READ));
  Object.assign(context, { lineWidth: BRUSH, lineCap: "round", lineJoin: "round" });
  /** @type {[number, number] | null} */
  let from = null;
  const place = (/** @type {PointerEvent} */ event) => {
    const scale = canvas.width / canvas.clientWidth;
    return /** @type {[number, number]} */ ([event.offsetX * scale, event.offsetY * scale]);
  };
  const lineTo = (/** @type {[number, number]} */ to) => {
    context.beginPath();
    context.moveTo(...(from ?? to));
    context.lineTo(...to);
    context.stroke();
    from = to;
    changed();
  };
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    lineTo(place(event));
  });
  canvas.addEventListener("pointermove", (event) => from && lineTo(place(event)));
  for (const end of ["pointerup", "pointercancel"]) {
    canvas.addEventListener(end, () => (from = null));
  }
}

/** Empties a canvas. */
export function clear(/** @type {HTMLCanvasElement} */ canvas) {
  canvas.getContext("2d")?.clearRect(0, 0, canvas.width, canvas.height);
}

/**
 * Shows 8x8 pixels on a canvas of any size.
 *
 * @param {HTMLCanvasElement} canvas
 * @param {number[]} pixels from 0 to 1
 */
export function show(canvas, pixels) {
  const small = new OffscreenCanvas(8, 8);
  const image = new ImageData(8, 8);
  for (const [i, ink] of pixels.entries()) image.data[4 * i + 3] = 255 * ink;
  small.getContext("2d")?.putImageData(image, 0, 0);
  const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
  clear(canvas);
  context.imageSmoothingEnabled = false;
  context.drawImage(small, 0, 0, canvas.width, canvas.height);
}

/**
 * What was drawn, as the data set was made: cut out, 32x32 of ink or paper, counted in 4x4 blocks.
 *
 * @param {HTMLCanvasElement} canvas
 * @returns {number[] | null} 64 pixels from 0 to 1, or null where nothing was drawn
 */
export function pixelsOf(canvas) {
  const ink = alphas(canvas.getContext("2d"), canvas.width);
  const at = ink.flatMap((alpha, i) => (alpha > 127 ? [i] : []));
  if (!at.length) return null;
  const [xs, ys] = [at.map((i) => i % canvas.width), at.map((i) => Math.floor(i / canvas.width))];
  const [left, right] = extent(xs);
  const [top, bottom] = extent(ys);
  const side = Math.max(right - left, bottom - top);
  const context = new OffscreenCanvas(32, 32).getContext("2d", READ);
  if (!context) return null;
  const [x, y] = [(left + right - side) / 2, (top + bottom - side) / 2];
  context.drawImage(canvas, x, y, side, side, 0, 0, 32, 32);
  const pixels = new Array(64).fill(0);
  for (const [i, alpha] of alphas(context, 32).entries()) {
    if (alpha > 127) pixels[8 * (i >> 7) + ((i >> 2) & 7)] += 1 / 16;
  }
  return pixels;
}

/** The smallest of some numbers, and one more than the largest. */
function extent(/** @type {number[]} */ values) {
  const sorted = [...values].sort((a, b) => a - b);
  return [sorted[0], sorted[sorted.length - 1] + 1];
}

/**
 * How much ink there is at each place, from 0 to 255.
 *
 * @param {CanvasRenderingContext2D | OffscreenCanvasRenderingContext2D | null} context
 * @param {number} side
 */
function alphas(context, side) {
  const { data } = /** @type {CanvasRenderingContext2D} */ (context).getImageData(0, 0, side, side);
  return Array.from({ length: side * side }, (_, i) => data[4 * i + 3]);
}
