/** What the network says, as bars for one digit and as a grid for many. */
import { likeliest } from "../digits.mjs";
import { show } from "./drawing.mjs";

/**
 * @typedef {import("../digits.mjs").Digit} Digit
 *
 * @param {string} name of an element
 * @param {Partial<HTMLElement>} [properties]
 * @param {(Node | string)[]} children
 */
function make(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/**
 * How probable each class is; nothing where there is no digit.
 *
 * @param {HTMLElement} list
 * @param {number[] | null} row
 */
export function showClasses(list, row) {
  const items = Array.from({ length: 10 }, (_, label) => {
    const percent = row ? `${(100 * row[label]).toFixed(0)} %` : "–";
    const filled = make("i");
    filled.style.width = row ? percent.replace(" ", "") : "0";
    const bar = make("span", { className: "bar" }, filled);
    const best = row && likeliest(row) === label;
    const said = make("span", { className: "percent" }, percent);
    return make("li", { className: best ? "best" : "" }, String(label), bar, said);
  });
  list.replaceChildren(...items);
}

/**
 * Digits with what the network takes them for.
 *
 * @param {HTMLElement} list
 * @param {Digit[]} digits
 * @param {number[][]} rows of probabilities
 */
export function showSamples(list, digits, rows) {
  if (!list.children.length) {
    list.append(...digits.map(({ pixels }) => {
      const canvas = /** @type {HTMLCanvasElement} */ (make("canvas", { ariaHidden: "true" }));
      Object.assign(canvas, { width: 8, height: 8 });
      show(canvas, pixels);
      return make("li", {}, canvas, make("span"));
    }));
  }
  for (const [i, item] of [...list.children].entries()) {
    const [said, label] = [likeliest(rows[i]), digits[i].label];
    const right = said === label;
    item.className = right ? "" : "wrong";
    const text = /** @type {HTMLElement} */ (item.lastChild);
    text.textContent = right ? `${said}` : `${said} ✗`;
    text.title = right ? `a ${label}` : `a ${label}, taken for a ${said}`;
    item.ariaLabel = text.title;
  }
}
