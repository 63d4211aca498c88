// The search of the site: every word typed must stand in a section; headings count more than text.
// INDEX (index.js) has one row per section: [address, page, heading, text].
"use strict";
const field = document.getElementById("search");
const found = document.getElementById("found");
const menu = document.querySelector("nav details");
const SHOWN = 12, AROUND = 60;

if (matchMedia("(max-width: 50rem)").matches) menu.open = false;

function score([, page, heading, text], words) {
  let sum = 0;
  for (const word of words) {
    const inText = text.toLowerCase().split(word).length - 1;
    const inHeading = `${page} ${heading}`.toLowerCase().includes(word) ? 20 : 0;
    if (!inText && !inHeading) return 0;
    sum += Math.min(inText, 5) + inHeading;
  }
  return sum;
}

function excerpt(text, word) {
  const at = Math.max(text.toLowerCase().indexOf(word), 0);
  const from = Math.max(at - AROUND, 0);
  return (from ? "... " : "") + text.slice(from, at + 2 * AROUND);
}

function show() {
  const words = field.value.toLowerCase().split(/\s+/).filter(Boolean);
  const rows = words.length
    ? INDEX.map((row) => [score(row, words), row]).filter(([s]) => s).sort((a, b) => b[0] - a[0])
    : [];
  found.replaceChildren(...rows.slice(0, SHOWN).map(([, [address, page, heading, text]]) => {
    const item = document.createElement("li");
    const link = document.createElement("a");
    link.href = address;
    link.textContent = page === heading ? page : `${page}: ${heading}`;
    const words_around = document.createElement("small");
    words_around.textContent = excerpt(text, words[0]);
    item.append(link, words_around);
    return item;
  }));
  if (words.length && !rows.length) found.textContent = "Nothing found.";
}

field.addEventListener("input", show);
