"use strict";
// The details beside the graph: the rewrites by rule, or the facts about the clicked box.
(() => {
  const { h, code, number, plural } = report;
  const WORDS = { added: "new", removed: "gone", changed: "changed" };
  const PLACES = 40;

  class Details {
    // `show([side, id], ...)` scrolls to these boxes of the drawings.
    constructor(section, drawings, show) {
      this.section = section;
      this.drawings = drawings;
      this.show = show;
      this.laws = section.laws ?? [];
      this.rewrites = section.rewrites ?? [];
      this.element = h("aside", { class: "details", "aria-label": "details", "aria-live": "polite" });
      this._places = new Map();
      drawings.forEach((drawing, side) => drawing.model.nodes.forEach((node, i) => {
        for (const n of node.w ?? []) {
          if (!this._places.has(n)) this._places.set(n, []);
          this._places.get(n).push([side, i]);
        }
      }));
      this.overview();
    }

    _fill(title, back, ...parts) {
      const home = back && h("button", { type: "button", class: "back", onclick: () => this.overview() }, "← overview");
      this.element.replaceChildren(...[home, h("h3", {}, title), ...parts.flat(Infinity)].filter(Boolean));
      this.element.scrollTop = 0;
    }

    overview() {
      const counts = this.laws.map((_, i) => [i, 0]);
      for (const [law] of this.rewrites) counts[law][1] += 1;
      counts.sort((a, b) => b[1] - a[1]);
      if (!counts.length) {
        this._fill("Details", false, h("p", { class: "hint" }, "Click a box: a group opens, a node shows its operands and results."));
        return;
      }
      const rows = counts.map(([law, count]) => h("li", {},
        h("button", { type: "button", class: "row", onclick: () => this.law(law, true) }, code(this.laws[law][0]), h("span", { class: "count" }, number(count)))));
      this._fill(plural(this.rewrites.length, "rewrite"), false,
        h("p", { class: "hint" }, "By rewrite rule. Click a rule to see where it applied, or a box of the graph."), h("ul", { class: "rows" }, rows));
    }

    // Returns the first rewrite that either graph shows, or 0.
    first(law) {
      return 1 + this.rewrites.findIndex(([of], i) => (law === undefined || of === law) && this._places.has(i + 1));
    }

    // Shows one rule with its places; with `go` the graphs move to the first place.
    law(law, go = false) {
      const [rule, pass, text] = this.laws[law];
      if (go && this.first(law)) this.show(...this._first(this._places.get(this.first(law))));
      const places = this.rewrites.map((r, i) => [r, i + 1]).filter(([r]) => r[0] === law);
      const list = h("ul", { class: "rows" });
      report.more(places, PLACES, ([r, n]) => h("li", {},
        h("button", { type: "button", class: "row", onclick: () => this.rewrite(n, true) }, h("span", { class: "count" }, `${number(n)}`), code(r[1]))), list);
      this._fill(code(rule), true, this._law(text), h("p", { class: "hint" }, `pass ${pass}, ${plural(places.length, "time")}`), list);
    }

    // Shows one rewrite: its rule, place and proof; with `go` the graphs move to the place.
    rewrite(n, go) {
      const [law, where, proof] = this.rewrites[n - 1];
      const [rule, pass, text] = this.laws[law];
      const places = this._places.get(n) ?? [];
      if (go && places.length) this.show(...this._first(places));
      const links = places.map(([side, i]) => this._link(side, i, this.section.names[side]));
      this._fill(`Rewrite ${number(n)}`, true,
        this._fact("rule", h("button", { type: "button", class: "link", onclick: () => this.law(law, true) }, code(rule)), ` of pass ${pass}`),
        this._law(text),
        this._fact("place", code(where)),
        this._fact("proof", proof || this.section.whole || "none: the model was not verified"),
        links.length > 0 && this._fact("in the graph", h("ul", { class: "links" }, links.slice(0, 12).map((l) => h("li", {}, l)))),
        places.length === 0 && h("p", { class: "hint" }, "Other rewrites took its nodes away, before and after."));
    }

    _first(places) {
      return [0, 1].map((side) => places.find(([s]) => s === side)).filter(Boolean).map(([side, i]) => [side, `n${i}`]);
    }

    _law(text) {
      return text && h("blockquote", { class: "law" }, text);
    }

    _fact(name, ...values) {
      return h("div", { class: "fact" }, h("span", { class: "label" }, name), h("div", {}, values));
    }

    _link(side, i, prefix = "") {
      const { model } = this.drawings[side];
      const label = [prefix && h("span", { class: "label" }, `${prefix} `), `${model.nodes[i].o} `, code(model.key(i) ?? "")];
      return h("button", { type: "button", class: "link", onclick: () => this.show([side, `n${i}`]) }, label);
    }

    box(side, id) {
      const at = Number(id.slice(1));
      if (id[0] === "n") this._node(side, at);
      else if (id[0] === "g") this._group(side, at);
      else if (id.endsWith("s")) this._ends(side, id[0]);
      else this._value(side, at);
    }

    _ends(side, kind) {
      const values = this.drawings[side].model.ends(kind);
      const list = h("ul", { class: "rows" });
      report.more(values, PLACES, (v) => h("li", {}, h("button", { type: "button", class: "row", onclick: () => this._value(side, v) }, code(this.drawings[side].model.value(v).name))), list);
      this._fill(report.plural(values.length, kind === "v" ? "input" : "output"), true, list);
    }

    _node(side, i) {
      const { model } = this.drawings[side];
      const node = model.nodes[i];
      const other = this.drawings.length > 1 ? this.drawings[1 - side].model.find(model.key(i)) : undefined;
      const facts = [
        node.c && h("p", { class: `status ${node.c}` }, this._became(node)),
        this._fact("results", this._values(model, side, node.r)),
        node.i.length > 0 && this._fact("operands", this._values(model, side, node.i)),
        node.a && this._fact("attributes", code(node.a)),
        node.n && this._fact("node", code(node.n)),
        model.path(node.g) && this._fact("in", code(model.path(node.g))),
        node.m && this._fact("made by", code(node.m)),
        node.s && this._fact("source", code(node.s)),
        other !== undefined && this._fact("also", this._link(1 - side, other, this.section.names[1 - side])),
      ];
      const numbers = node.w ?? [];
      if (numbers.length) {
        facts.push(h("h4", {}, plural(numbers.length, "rewrite")));
        facts.push(report.more(numbers, 8, (n) => this._rewritten(n), h("ul", { class: "rewrites" })));
      }
      this._fill(node.o, true, facts);
    }

    _became(node) {
      return node.c === "removed" && !node.w && this.rewrites.length ? "gone: nothing reads it any more" : WORDS[node.c];
    }

    _rewritten(n) {
      const [law, where, proof] = this.rewrites[n - 1];
      const [rule, pass, text] = this.laws[law];
      return h("li", {},
        h("button", { type: "button", class: "link", onclick: () => this.rewrite(n, false) }, `${number(n)} `, code(rule)),
        h("span", { class: "hint" }, ` pass ${pass}`), this._law(text), code(where),
        h("p", { class: "hint" }, `proof ${proof || this.section.whole || "none: the model was not verified"}`));
    }

    _values(model, side, values) {
      return h("ul", { class: "values" }, values.filter((v) => v >= 0).slice(0, 24).map((v) => {
        const { name, type, constant } = model.value(v);
        const by = model.producer.get(v);
        const label = [code(name), h("span", { class: "type" }, ` ${type}${constant ? " const" : ""}`)];
        return h("li", {}, by === undefined ? label : h("button", { type: "button", class: "link", onclick: () => this.show([side, `n${by}`]) }, label));
      }), values.length > 24 && h("li", { class: "hint" }, `and ${number(values.length - 24)} more`));
    }

    _group(side, g) {
      const { model } = this.drawings[side];
      const inside = model.nodes.map((n, i) => [n, i]).filter(([n]) => model.chain(n.g).includes(g));
      const ops = new Map();
      const numbers = new Set();
      for (const [n] of inside) {
        ops.set(n.o, (ops.get(n.o) ?? 0) + 1);
        for (const w of n.w ?? []) numbers.add(w);
      }
      const laws = new Map();
      for (const n of numbers) laws.set(this.rewrites[n - 1][0], (laws.get(this.rewrites[n - 1][0]) ?? 0) + 1);
      const most = (map) => [...map].sort((a, b) => b[1] - a[1]);
      const counts = Object.entries(model.groups[g].counts).map(([word, count]) => h("span", { class: `status ${word}` }, `${number(count)} ${WORDS[word]}`));
      this._fill(code(model.path(g) || "graph"), true,
        h("p", {}, plural(inside.length, "node"), " ", counts),
        h("ul", { class: "rows" }, most(ops).slice(0, 14).map(([op, count]) => h("li", {}, h("span", { class: "row" }, code(op), h("span", { class: "count" }, number(count)))))),
        laws.size > 0 && h("h4", {}, "Rewrites here"),
        laws.size > 0 && h("ul", { class: "rows" }, most(laws).map(([law, count]) => h("li", {},
          h("button", { type: "button", class: "row", onclick: () => this.law(law, true) }, code(this.laws[law][0]), h("span", { class: "count" }, number(count)))))));
    }

    _value(side, v) {
      const { model } = this.drawings[side];
      const { name, type } = model.value(v);
      const readers = (model.readers.get(v) ?? []).slice(0, 24).map((i) => h("li", {}, this._link(side, i)));
      const by = model.producer.get(v);
      this._fill(code(name), true, this._fact("type", code(type)),
        by !== undefined && this._fact("computed by", this._link(side, by)),
        readers.length > 0 && this._fact("read by", h("ul", { class: "links" }, readers)));
    }
  }

  report.Details = Details;
})();
