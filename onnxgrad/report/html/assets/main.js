"use strict";
// Builds the page from its data: each report has a summary and sections; one report is shown.
(() => {
  const { h } = report;
  const data = JSON.parse(document.getElementById("data").textContent);
  const page = document.getElementById("page");
  const draw = {
    graph: report.graphSection, rows: report.rowsSection, curves: report.curvesSection, table: report.tableSection,
    passes: report.passesSection, operators: report.operatorsSection, list: report.listSection,
  };

  // The sections are added to the page first, because some drawings need their size.
  const show = (shown) => {
    report.forget();
    report.law = null;
    const starts = [];
    const sections = shown.sections.map((section) => {
      const [element, start] = draw[section.kind](section);
      if (start) starts.push(start);
      return h("section", { class: `of-${section.kind}` }, h("h2", {}, section.title), section.note && h("p", { class: "hint" }, section.note), element);
    });
    page.replaceChildren(report.summary(shown), ...choice(shown), ...sections, footer());
    for (const start of starts) start();
  };

  // For several models: buttons in the given order, the worst first, below the verdict.
  const choice = (shown) => (data.reports.length < 2 ? [] : [h("nav", { class: "models", "aria-label": "models" }, data.reports.map((r) =>
    h("button", { type: "button", class: r.verdict.tone, "aria-current": r === shown ? "page" : false, onclick: () => show(r) },
      h("span", { class: "dot", "aria-hidden": "true" }), report.code(r.title), h("span", { class: "hint" }, r.verdict.word))))]);

  const footer = () => h("footer", {}, h("p", {}, `onnxgrad ${data.version}`), h("details", {}, h("summary", {}, "Libraries in this page, and their licences"),
    data.licenses.map(([name, text]) => [h("h3", {}, name), h("pre", {}, text)])));

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => report.redraw());
  let width = innerWidth;
  let waiting = 0;
  addEventListener("resize", () => {
    if (innerWidth === width) return;
    width = innerWidth;
    clearTimeout(waiting);
    waiting = setTimeout(report.redraw, 100);
  });
  if (data.reports.length) show(data.reports[0]);
  document.documentElement.dataset.ready = "yes";
})();
