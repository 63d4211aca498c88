/** The loss over the steps, as SVG. */

const MARGIN = { left: 36, right: 8, top: 10, bottom: 22 };

/**
 * @param {string} name
 * @param {Record<string, string | number>} attributes
 * @param {string} [text]
 */
function element(name, attributes, text) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, String(value));
  if (text !== undefined) made.textContent = text;
  return made;
}

/** A distance of 1, 2 or 5 times a power of ten that parts `range` into three to eight. */
const distance = (/** @type {number} */ range) => {
  const power = 10 ** Math.floor(Math.log10(range / 3));
  return power * ([5, 2].find((times) => range / (times * power) >= 3) ?? 1);
};

/** The mean over recent steps, exponentially weighted; the first ones count as much as they can. */
function smooth(/** @type {number[]} */ values, keep = 0.8) {
  let [sum, weight] = [0, 0];
  return values.map((value) => {
    [sum, weight] = [keep * sum + value, keep * weight + 1];
    return sum / weight;
  });
}

/**
 * @param {SVGSVGElement} svg
 * @param {number[]} losses
 * @param {number} first the step of the first of them
 * @param {number} end the last step that the axis has room for
 */
export function draw(svg, losses, first, end) {
  const [width, height] = [svg.clientWidth || 600, svg.clientHeight || 230];
  const top = losses.reduce((a, b) => Math.max(a, b), losses.length ? 0.1 : 2.4) * 1.05;
  const last = Math.max(end, first + losses.length - 1, first + 1);
  const x = (/** @type {number} */ step) =>
    MARGIN.left + ((step - first) / (last - first)) * (width - MARGIN.left - MARGIN.right);
  const y = (/** @type {number} */ loss) =>
    height - MARGIN.bottom - (loss / top) * (height - MARGIN.top - MARGIN.bottom);
  const line = (/** @type {number[]} */ values) =>
    values.map((v, i) => `${i ? "L" : "M"}${x(first + i).toFixed(1)} ${y(v).toFixed(1)}`).join("");

  const parts = [];
  const apart = distance(top);
  for (let i = 0; i * apart <= top; i++) {
    const [at, label] = [y(i * apart), String(Number((i * apart).toPrecision(3)))];
    parts.push(element("line", { x1: MARGIN.left, x2: width - MARGIN.right, y1: at, y2: at }));
    parts.push(element("text", { x: MARGIN.left - 6, y: at + 4, "text-anchor": "end" }, label));
  }
  const ticks = Math.max(1, distance(last - first));
  for (let step = Math.ceil(first / ticks) * ticks; step <= last; step += ticks) {
    const anchor = step > last - ticks / 4 ? "end" : "middle";
    parts.push(element("text", { x: x(step), y: height - 4, "text-anchor": anchor }, `${step}`));
  }
  parts.push(element("path", { class: "raw", d: line(losses) }));
  parts.push(element("path", { class: "smooth", d: line(smooth(losses)) }));
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.replaceChildren(...parts);
}
