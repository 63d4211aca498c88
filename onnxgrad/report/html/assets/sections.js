"use strict";
// The verdict, the figures and the tables.
(() => {
  const { h, code, number } = report;
  const ROWS = 30;
  const ICONS = { good: "✓", bad: "✗", unsure: "?", plain: "·", more: "▴" };

  const percent = (share) => `${share > 0 ? "+" : "−"}${Math.abs(share)} %`;

  report.summary = ({ title, what, verdict, cards }) => h("header", { class: `summary ${verdict.tone}` },
    h("p", { class: "what" }, `onnxgrad ${what}`),
    h("h1", {}, code(title)),
    h("p", { class: "verdict" }, h("span", { class: "icon", "aria-hidden": "true" }, ICONS[verdict.tone]), h("strong", {}, verdict.word), h("span", {}, verdict.text)),
    verdict.notes.length > 0 && h("ul", { class: "notes" }, verdict.notes.map(([text, tone]) => h("li", { class: tone }, text))),
    h("dl", { class: "cards" }, cards.map((c) => h("div", { class: `card ${c.tone}` },
      h("dt", {}, c.label),
      h("dd", {}, h("strong", {}, c.value), c.share !== undefined && h("span", { class: "share" }, percent(c.share))),
      c.note && h("dd", { class: "note" }, c.note)))));

  const cell = (value) => (typeof value === "string" ? value : value.map(([text, style]) => h("span", { class: style }, text)));

  const table = (columns, rows, draw) => {
    const body = h("tbody");
    report.more(rows, ROWS, draw, body);
    const more = body.querySelector("button.more");
    const head = columns.length > 0 && h("thead", {}, h("tr", {}, columns.map(([name, right]) => h("th", { class: right ? "number" : "" }, name))));
    // a narrow window shows rows with text behind their first column as lists of labelled values
    const stack = columns.length > 2 && columns.slice(1).some(([, right]) => !right);
    const made = h("div", { class: "scroll" }, h("table", { class: stack ? "stack" : "" }, head, body));
    // a button is not a row, so it is placed below the table
    return more ? rowsBelow(made, body, more) : made;
  };
  const rowsBelow = (made, body, more) => {
    const below = h("div", {}, made, more);
    more.addEventListener("click", () => {
      const again = body.querySelector("button.more");
      if (again) below.append(again);
    });
    return below;
  };

  report.tableSection = ({ columns, rows }) => [table(columns, rows, (row) => h("tr", {}, row.map((value, i) =>
    h("td", { class: columns[i]?.[1] ? "number" : "", "data-label": columns[i]?.[0] ?? "" }, cell(value)))))];

  report.passesSection = ({ rows, idle }) => {
    const said = ([rule, count]) => [code(rule), count > 1 ? ` ×${number(count)}` : ""];
    const opens = report.law; // a graph of this report shows the rule's places
    const law = (one) => (opens ? h("button", { type: "button", class: "chip", title: "its equation and places", onclick: () => opens(one[0]) }, said(one)) : h("span", { class: "chip" }, said(one)));
    const draw = ([name, firings, laws]) => h("tr", {}, h("td", {}, code(name)), h("td", { class: "number" }, number(firings)), h("td", { class: "chips" }, laws.map(law)));
    const quiet = idle.length > 0 && h("details", {}, h("summary", {}, `${number(idle.length)} other passes found nothing to do`), h("p", { class: "hint" }, idle.join(", ")));
    return [h("div", {}, rows.length ? table([["pass", false], ["rewrites", true], ["by rule", false]], rows, draw) : h("p", {}, "Nothing to rewrite."), quiet)];
  };

  // Returns counts before and after as bars, one over the other.
  report.operatorsSection = ({ rows }) => {
    const most = Math.max(...rows.flatMap(([, a, b]) => [a, b]), 1);
    const bar = (count, kind) => {
      const made = h("span", { class: `bar ${kind}` });
      made.style.width = `${(100 * count) / most}%`;
      return made;
    };
    const draw = ([op, a, b]) => h("tr", {}, h("td", {}, code(op)), h("td", { class: "number" }, number(a)), h("td", { class: "number" }, number(b)),
      h("td", { class: `number ${b < a ? "green" : b > a ? "yellow" : "dim"}` }, a === b ? "=" : `${b > a ? "+" : "−"}${number(Math.abs(b - a))}`),
      h("td", { class: "bars", "aria-hidden": "true" }, bar(a, "before"), bar(b, "after")));
    return [table([["operator", false], ["before", true], ["after", true], ["change", true], ["", false]], rows, draw)];
  };

  // Groups of up to `open` lines are open.
  report.listSection = ({ groups, open = 12 }) => [h("div", { class: "lists" }, groups.map(([name, lines, tone]) => h("details", { open: lines.length <= open },
    h("summary", {}, name, h("span", { class: "count" }, number(lines.length))),
    report.more(lines, ROWS, (line) => h("li", { class: tone }, code(line)), h("ul", { class: "lines" })))))];
})();
