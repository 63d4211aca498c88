"use strict";
// The positions of boxes and lines. Each open group is laid out separately with dagre, and is one box
// in the group around it, so that a click moves little and only visible parts of a graph cost time.
(() => {
  const PAD = 14;
  const TITLE = 30;
  const FONT = '600 13px system-ui, -apple-system, "Segoe UI", sans-serif';
  const SMALL = '11px system-ui, -apple-system, "Segoe UI", sans-serif';
  const pen = document.createElement("canvas").getContext("2d");

  const width = (text, font) => {
    pen.font = font;
    return pen.measureText(text).width;
  };

  // Returns the text of a box (a title and a line below it) and its size.
  const labels = (model, id) => {
    const number = Number(id.slice(1));
    if (id[0] === "n") {
      const node = model.nodes[number];
      const first = node.r.find((v) => v >= 0);
      const type = first === undefined ? "" : model.value(first).type;
      return { title: report.short(node.o, 30), sub: type === "?" ? "" : report.short(type, 30) };
    }
    if (id[0] === "g") {
      const group = model.groups[number];
      return { title: report.short(group.title, 34), sub: report.plural(group.nodes, "node") };
    }
    if (id.endsWith("s")) return { title: report.plural(model.ends(id[0]).length, id[0] === "v" ? "input" : "output"), sub: "" };
    const { name, type } = model.value(number);
    return { title: report.short(name, 30), sub: report.short(type, 30) };
  };

  const box = (model, id) => {
    const { title, sub } = labels(model, id);
    const room = { g: 56, n: 44 }[id[0]] ?? 30;
    const w = Math.max(width(title, FONT), width(sub, SMALL), 36) + room;
    return { id, title, sub, w: Math.ceil(w), h: sub ? 44 : 30 };
  };

  // Lines from outside begin below the title; lines to the outside end at the lower edge.
  const ended = (e, points, height) => {
    const begin = e.from === "in" ? [{ x: points[0].x, y: -4 }] : [];
    const end = e.to === "out" ? [{ x: points[points.length - 1].x, y: height + PAD }] : [];
    return [...begin, ...points, ...end];
  };

  class Layout {
    constructor(model) {
      this.model = model;
      this._known = new Map();
      this._boxes = new Map();
    }

    // The group's boxes and lines with the groups of `open` drawn inside.
    of(group, open) {
      const inner = this.model.groups[group].members.filter((m) => m[0] === "g").map((m) => Number(m.slice(1)));
      const children = new Map(inner.filter((g) => open.has(g)).map((g) => [`g${g}`, this.of(g, open)]));
      const state = [...children].map(([id, child]) => `${id}(${child.state})`).join();
      const known = this._known.get(group);
      if (known?.state === state) return known;
      const made = { ...this._laid(group, children), state, group };
      this._known.set(group, made);
      return made;
    }

    _box(id) {
      if (!this._boxes.has(id)) this._boxes.set(id, box(this.model, id));
      return this._boxes.get(id);
    }

    _laid(group, children) {
      const graph = new dagre.graphlib.Graph();
      graph.setGraph({ rankdir: "TB", nodesep: 22, edgesep: 12, ranksep: 34 });
      const members = this.model.groups[group].members;
      for (const id of members) {
        const child = children.get(id);
        const title = child && this._box(id).w;
        const size = child
          ? { width: Math.max(child.w + 2 * PAD, title), height: child.h + TITLE + PAD }
          : { width: this._box(id).w, height: this._box(id).h };
        graph.setNode(id, size);
      }
      const lines = [...this.model.edges[group].values()].filter((e) => e.from !== e.to);
      for (const end of ["in", "out"]) {
        if (lines.some((e) => e.from === end || e.to === end)) graph.setNode(end, { width: 1, height: 1 });
      }
      for (const e of lines) graph.setEdge(e.from, e.to, {});
      dagre.layout(graph);
      const boxes = members.map((id) => {
        const { x, y, width: w, height: h } = graph.node(id);
        return { ...this._box(id), x: x - w / 2, y: y - h / 2, w, h, child: children.get(id) };
      });
      const { width: w, height: h } = graph.graph();
      const edges = lines.map((e) => ({ ...e, points: ended(e, graph.edge(e.from, e.to).points, h) }));
      return { boxes, edges, w: Number.isFinite(w) ? w : 0, h: Number.isFinite(h) ? h : 0 };
    }
  }

  report.Layout = Layout;
  report.PAD = PAD;
  report.TITLE = TITLE;
})();
