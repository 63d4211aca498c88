"use strict";
// Functions that all scripts share: elements made of text, never markup, and numbers as words.
const report = {};

// Returns an element. Attributes are given by name, `on...` are listeners, children are elements or text.
report.h = (tag, attributes = {}, ...children) => report.fill(document.createElement(tag), attributes, children);

report.svg = (tag, attributes = {}, ...children) =>
  report.fill(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

report.fill = (element, attributes, children) => {
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children.flat(Infinity).filter((c) => c !== null && c !== undefined && c !== false));
  return element;
};

// Text of a model: it keeps its own writing direction and may wrap anywhere.
report.code = (text, attributes = {}) => report.h("code", { class: "name", dir: "auto", ...attributes }, text);

report.number = (value) => value.toLocaleString("en-US");

report.plural = (count, word) => `${report.number(count)} ${word}${count === 1 ? "" : "s"}`;

report.bytes = (size) => {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let value = size;
  while (value >= 999.5 && units.length > 1) {
    value /= 1000;
    units.shift();
  }
  return `${units[0] === "B" || value >= 99.95 ? Math.round(value) : Number(value.toPrecision(3))} ${units[0]}`;
};

// The middle is left out, because names differ at their ends.
report.short = (text, most) => {
  const letters = Array.from(text);
  if (letters.length <= most) return text;
  const tail = Math.floor((most - 1) * 0.6);
  return `${letters.slice(0, most - 1 - tail).join("")}…${letters.slice(-tail).join("")}`;
};

// Returns a list that shows its beginning, and more on demand.
report.more = (items, shown, draw, container) => {
  let count = 0;
  const button = report.h("button", { type: "button", class: "more", onclick: () => grow() });
  const grow = () => {
    button.remove();
    for (const item of items.slice(count, count + shown)) container.append(draw(item));
    count = Math.min(count + shown, items.length);
    if (count < items.length) {
      button.textContent = `${report.number(items.length - count)} more`;
      container.append(button);
    }
  };
  grow();
  return container;
};
