"use strict";
// The section of the graphs: search, the drawings side by side or one at a time, details.
(() => {
  const { h, code } = report;
  const MOST = 60; // results of a search

  const pane = (drawing, name, lead) => {
    const button = (label, title, action) => h("button", { type: "button", title, "aria-label": `${title}: ${name}`, onclick: action }, label);
    const tools = h("div", { class: "tools" },
      button("+", "zoom in", () => lead(drawing).scale(1.4)),
      button("−", "zoom out", () => lead(drawing).scale(1 / 1.4)),
      button("Fit", "show all of it", () => lead(drawing).fit(0)),
      button("⤢", "as large as the window", (e) => {
        e.currentTarget.closest(".panes-and-details").classList.toggle("large");
        lead(drawing).fit();
      }));
    const hidden = drawing.model.nodes.filter((_, i) => !drawing.model.drawn(i)).length;
    const count = `${report.plural(drawing.model.nodes.length, "node")}${hidden ? `, ${report.plural(hidden, "constant")} not drawn` : ""}`;
    return h("div", { class: "pane" }, h("header", {}, h("strong", {}, name), h("span", { class: "hint" }, count), tools), drawing.svg);
  };

  // Where a text stands: in the operator, a name, the module, or a rewrite rule.
  const finder = (drawings, section) => {
    const entries = drawings.flatMap(({ model }, side) => model.nodes.map((node, i) => {
      const laws = (node.w ?? []).map((n) => section.laws[section.rewrites[n - 1][0]][0]);
      const names = node.r.filter((v) => v >= 0).map((v) => model.value(v).name);
      return { side, i, text: [node.o, node.n ?? "", ...names, model.path(node.g), ...laws].join("\n").toLowerCase() };
    }));
    return (words) => {
      const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
      return wanted.length ? entries.filter((e) => wanted.every((w) => e.text.includes(w))) : [];
    };
  };

  const search = (drawings, section, show) => {
    const find = finder(drawings, section);
    const list = h("ul", { class: "results", role: "listbox", id: "results", hidden: true });
    let rows = [];
    let at = -1;
    const choose = (i) => {
      list.hidden = true;
      show([rows[i].side, `n${rows[i].i}`]);
    };
    const point = (i) => {
      at = i;
      [...list.children].forEach((row, j) => row.setAttribute("aria-selected", j === i));
      list.children[i]?.scrollIntoView({ block: "nearest" });
    };
    const draw = () => {
      const found = find(input.value);
      rows = found.slice(0, MOST);
      list.hidden = input.value.trim() === "";
      list.replaceChildren(...rows.map(({ side, i }, row) => {
        const { model } = drawings[side];
        const node = model.nodes[i];
        return h("li", { role: "option", onclick: () => choose(row) },
          drawings.length > 1 && h("span", { class: "label" }, section.names[side]),
          h("span", { class: `op ${node.c ?? ""}` }, node.o), code(model.key(i) ?? ""));
      }), found.length === 0 ? h("li", { class: "hint" }, "nothing found") : found.length > MOST ? h("li", { class: "hint" }, `${report.number(found.length - MOST)} more`) : "");
      point(rows.length ? 0 : -1);
    };
    const keys = (e) => {
      if (e.key === "ArrowDown" && at + 1 < rows.length) point(at + 1);
      else if (e.key === "ArrowUp" && at > 0) point(at - 1);
      else if (e.key === "Enter" && at >= 0) choose(at);
      else if (e.key === "Escape") list.hidden = true;
      else return;
      e.preventDefault();
    };
    const input = h("input", {
      type: "search", placeholder: "Search operator, name, module or rule", "aria-label": "search the graphs", "aria-controls": "results",
      oninput: draw, onfocus: () => { if (input.value) list.hidden = false; }, onkeydown: keys, onblur: () => setTimeout(() => { list.hidden = true; }, 200),
    });
    return h("div", { class: "search" }, input, list);
  };

  const legend = () => h("ul", { class: "legend" }, ["removed", "added", "changed"].map((s) => h("li", { class: s }, s)));

  report.graphSection = (section) => {
    const box = h("div", { class: "panes-and-details" });
    const drawings = section.graphs.map((data, side) =>
      new report.Drawing(new report.Model(data, section.names[side]), (drawing, id) => details.box(side, id)));
    // if there is no room for two, one is shown at a time, with tabs
    const together = new report.Together(drawings);
    const lead = (drawing) => {
      together.leader = drawing;
      return drawing;
    };
    const tabs = drawings.map((_, side) => h("button", { type: "button", role: "tab", onclick: () => turn(side) }, section.names[side]));
    const panes = drawings.map((drawing, side) => pane(drawing, section.names[side], lead));
    // moves to the place that was set while the pane was hidden, else shows the whole graph
    const place = (drawing) => {
      if (!drawing.size().width || (drawing.placed && !drawing.hidden)) return;
      drawing.placed = true;
      if (drawing.hidden) drawing.center(drawing.hidden);
      else drawing.fit();
    };
    const bring = (side) => panes.forEach((p, i) => {
      p.classList.toggle("front", i === side);
      tabs[i].setAttribute("aria-selected", i === side);
      if (i === side) place(drawings[i]);
    });
    const turn = (side) => {
      const waits = drawings[side].hidden;
      bring(side);
      if (!waits && together.leader === drawings[1 - side]) together.follow(together.leader);
    };
    // one box for each side, or only one, which the other drawing follows
    const show = (...boxes) => {
      const shown = boxes.length > 1 ? boxes : together.pair(...boxes[0]);
      together.leader = shown.length > 1 ? null : drawings[shown[0][0]];
      bring(shown.at(-1)[0]);
      for (const [side, id] of shown) {
        drawings[side].placed = true;
        drawings[side].reveal(id);
      }
    };
    const details = new report.Details(section, drawings, show);
    box.append(...panes, details.element);
    const both = drawings.length > 1;
    const head = h("div", { class: "graph-bar" }, search(drawings, section, show), both && h("div", { class: "tabs", role: "tablist" }, tabs), both && legend());
    report.law = (name) => {
      const law = details.laws.findIndex(([rule]) => rule === name);
      if (law < 0) return;
      details.law(law, true);
      details.element.scrollIntoView({ block: "nearest", behavior: "smooth" });
    };
    const start = () => {
      bring(drawings.length - 1);
      drawings.forEach(place);
      const first = section.blamed || details.first();
      for (const d of drawings) d.still = true;
      if (first) details.rewrite(first, true);
      for (const d of drawings) d.still = false;
    };
    return [h("div", { class: both ? "graphs both" : "graphs" }, head, box), start];
  };
})();
