"use strict";
// One graph on the screen: draws its layout, moves, zooms, and handles clicks on boxes.
(() => {
  const { svg, PAD, TITLE } = report;
  const SIGNS = { added: "+", removed: "−", changed: "~" };

  // The path runs through the midpoints between the points, so that its bends are smooth.
  const curve = (points) => {
    const at = ({ x, y }) => `${x.toFixed(1)},${y.toFixed(1)}`;
    const middle = (p, q) => ({ x: (p.x + q.x) / 2, y: (p.y + q.y) / 2 });
    let path = `M${at(points[0])}`;
    for (let i = 1; i < points.length - 1; i += 1) path += `Q${at(points[i])} ${at(middle(points[i], points[i + 1]))}`;
    return `${path}L${at(points[points.length - 1])}`;
  };

  class Drawing {
    constructor(model, picked) {
      this.model = model;
      this.layout = new report.Layout(model);
      this.open = model.opened(64);
      this.selected = null;
      this.picked = picked;
      this.stage = svg("g");
      this.svg = svg("svg", { class: "graph", role: "group", "aria-label": `graph ${model.side}` }, this.stage);
      this.zoom = d3.zoom().scaleExtent([0.03, 3]).on("zoom", (e) => {
        this.stage.setAttribute("transform", e.transform);
        this.moved?.();
      });
      // the wheel scrolls the page until the graph was clicked, then it zooms until the pointer leaves
      this.zoom.filter((e) => !e.button && (e.type !== "wheel" || this.active || e.ctrlKey));
      d3.select(this.svg).call(this.zoom).on("dblclick.zoom", null);
      this.svg.addEventListener("pointerdown", () => { this.active = true; });
      this.svg.addEventListener("pointerleave", () => { this.active = false; });
      this.svg.addEventListener("click", (e) => this._clicked(e));
      this.draw();
    }

    draw() {
      const laid = this.layout.of(0, this.open);
      this.laid = laid;
      this.places = new Map();
      this.paths = [];
      this.elements = new Map();
      this._named = null;
      this.stage.replaceChildren(this._group(laid, 0, 0));
      this.mark();
    }

    _group(laid, left, top) {
      const lines = laid.edges.map((e) => {
        const path = svg("path", { class: "edge", d: curve(e.points) });
        this.paths.push([path, e.values]);
        return path;
      });
      return svg("g", {}, lines, laid.boxes.map((b) => this._box(b, left, top)));
    }

    _box(b, left, top) {
      this.places.set(b.id, { x: left + b.x, y: top + b.y, w: b.w, h: b.h });
      const kind = { n: "node", g: b.child ? "open" : "closed", v: "input", o: "output" }[b.id[0]];
      const status = kind === "node" ? this.model.nodes[Number(b.id.slice(1))].c : undefined;
      // a closed group whose nodes share a state looks as they do
      const state = kind === "closed" ? this.model.stateOf(Number(b.id.slice(1))) : status;
      const parts = [svg("rect", { width: b.w, height: b.h, rx: b.id[0] === "v" || b.id[0] === "o" ? b.h / 2 : 7 })];
      const middle = b.w / 2;
      if (b.child) {
        parts.push(svg("text", { class: "title", x: 34, y: 20 }, b.title), svg("text", { class: "sign", x: 16, y: 21 }, "−"));
        const inside = this._group(b.child, left + b.x + (b.w - b.child.w) / 2, top + b.y + TITLE);
        inside.setAttribute("transform", `translate(${(b.w - b.child.w) / 2},${TITLE})`);
        parts.push(inside);
      } else {
        parts.push(svg("text", { class: "title", x: middle, y: b.sub ? 19 : 20 }, b.title));
        if (b.sub) parts.push(svg("text", { class: "sub", x: middle, y: 34 }, b.sub));
        if (kind === "closed") parts.push(svg("text", { class: "sign", x: 15, y: 20 }, "+"), this._shares(b));
        if (status) parts.push(svg("text", { class: "sign", x: 11, y: 20 }, SIGNS[status]));
      }
      const element = svg("g", { class: `box ${kind} ${state ?? ""}`, transform: `translate(${b.x},${b.y})`, "data-id": b.id }, parts);
      this.elements.set(b.id, element);
      return element;
    }

    // Draws the changed share of a closed group as a bar along its lower edge.
    _shares(b) {
      const group = this.model.groups[Number(b.id.slice(1))];
      let x = 8;
      const full = b.w - 16;
      const bars = ["removed", "added", "changed"].filter((s) => group.counts[s]).map((s) => {
        const w = Math.max(3, (full * group.counts[s]) / group.nodes);
        const bar = svg("rect", { class: `share ${s}`, x, y: b.h - 5, width: w, height: 3, rx: 1.5 });
        x += w;
        return bar;
      });
      return svg("g", {}, bars);
    }

    _clicked(event) {
      const element = event.target.closest?.(".box");
      if (!element) return;
      const id = element.dataset.id;
      if (id[0] === "g") this.toggle(Number(id.slice(1)));
      this.pick(id);
    }

    pick(id) {
      this.selected = id;
      this.mark();
      this.picked(this, id);
    }

    // Opens or closes a group; the clicked box stays in place on the screen.
    toggle(group) {
      const before = this.places.get(`g${group}`);
      if (this.open.has(group)) this.open.delete(group);
      else this.open.add(group);
      this.draw();
      this.toggled?.(group);
      const after = this.places.get(`g${group}`);
      if (!before || !after) return;
      const t = d3.zoomTransform(this.svg);
      const middle = (p) => p.x + p.w / 2;
      this.move(d3.zoomIdentity.translate(t.x + t.k * (middle(before) - middle(after)), t.y + t.k * (before.y - after.y)).scale(t.k), 0);
    }

    size() {
      return this.svg.getBoundingClientRect();
    }

    // Returns the places of boxes by names that other versions of the model share.
    named() {
      this._named ??= new Map([...this.places].filter(([id]) => !this.elements.get(id).classList.contains("open")).map(([id, place]) => [this.model.name(id), place]));
      return this._named;
    }

    // Shows one node and opens the groups around it; a hidden drawing does so when it is shown.
    reveal(id) {
      if (id[0] === "n" && !this.model.drawn(Number(id.slice(1)))) {
        const reader = this.model.nodes[Number(id.slice(1))].r.flatMap((v) => this.model.readers.get(v) ?? [])[0];
        if (reader !== undefined) this.reveal(`n${reader}`);
        this.pick(id);
        return;
      }
      if (id[0] === "n") for (const g of this.model.chain(this.model.nodes[Number(id.slice(1))].g)) this.open.add(g);
      else if (id[0] === "g") for (const g of this.model.chain(this.model.groups[Number(id.slice(1))].outer)) this.open.add(g);
      this.draw();
      this.center(id);
      this.pick(id);
    }

    // Centres a box; a hidden drawing does so when it is shown.
    center(id) {
      const p = this.places.get(id);
      const { width, height } = this.size();
      this.hidden = width ? null : id;
      const k = Math.min(1, Math.max(0.6, d3.zoomTransform(this.svg).k));
      if (p && width) this.move(d3.zoomIdentity.translate(width / 2 - k * (p.x + p.w / 2), height / 2 - k * (p.y + p.h / 2)).scale(k));
    }

    move(transform, duration = 250) {
      const still = duration === 0 || this.still || matchMedia("(prefers-reduced-motion: reduce)").matches;
      const target = d3.select(this.svg);
      if (still) target.call(this.zoom.transform, transform);
      else target.transition().duration(duration).call(this.zoom.transform, transform);
    }

    // Shows the whole graph, or its upper end if the whole would be too small to read.
    fit(least = 0.72) {
      const { width, height } = this.size();
      const whole = Math.min(1, (width - 2 * PAD) / this.laid.w, (height - 2 * PAD) / this.laid.h);
      const k = Math.max(whole, Math.min(least, 1));
      const y = this.laid.h * k > height - 2 * PAD ? PAD : (height - this.laid.h * k) / 2;
      const inputs = this.laid.boxes.filter((b) => b.id[0] === "v");
      const middle = inputs.reduce((sum, b) => sum + b.x + b.w / 2, 0) / inputs.length;
      const from = this.laid.w * k > width && inputs.length ? middle : this.laid.w / 2;
      this.move(d3.zoomIdentity.translate(width / 2 - from * k, y).scale(k), 0);
    }

    scale(factor) {
      d3.select(this.svg).transition().duration(150).call(this.zoom.scaleBy, factor);
    }

    // Marks the selected box, and the lines of its operands and results.
    mark() {
      for (const [id, element] of this.elements) element.classList.toggle("selected", id === this.selected);
      const node = this.selected?.[0] === "n" ? this.model.nodes[Number(this.selected.slice(1))] : null;
      const end = this.selected && "vo".includes(this.selected[0]) ? this.selected : null;
      const own = end === null ? [] : end.endsWith("s") ? this.model.ends(end[0]) : [Number(end.slice(1))];
      const near = new Set(node ? [...node.i, ...node.r] : own);
      for (const [path, values] of this.paths) path.classList.toggle("near", near.size > 0 && [...values].some((v) => near.has(v)));
    }
  }

  report.Drawing = Drawing;
})();
