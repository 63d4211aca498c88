"use strict";
// A graph of the data, with the queries of a drawing: the producer and readers of a value, the members
// of a group, and the lines that a group shows between its members.
(() => {
  const COMPUTED = 0;
  const ENDS = 8; // inputs, or outputs, that are drawn one by one

  class Model {
    constructor(data, side) {
      this.data = data;
      this.side = side;
      this.nodes = data.nodes;
      this.groups = data.groups.map(([outer, title], id) => ({ id, outer, title, members: [], nodes: 0, counts: {} }));
      this.producer = new Map();
      this.readers = new Map();
      this.edges = this.groups.map(() => new Map());
      this._members();
      this._values();
      this._lines();
    }

    // Groups in the order of the graph, each among the members of the one around it.
    _members() {
      const placed = new Set([0]);
      const place = (id) => {
        if (placed.has(id)) return;
        placed.add(id);
        const { outer } = this.groups[id];
        place(outer);
        this.groups[outer].members.push(`g${id}`);
      };
      this.nodes.forEach((node, i) => {
        place(node.g);
        if (this.drawn(i)) this.groups[node.g].members.push(`n${i}`);
        for (const id of this.chain(node.g)) {
          const group = this.groups[id];
          group.nodes += 1;
          if (node.c) group.counts[node.c] = (group.counts[node.c] ?? 0) + 1;
        }
      });
      this.groups[0].members.unshift(...new Set(this.data.inputs.map((v) => this.end("v", v))));
      this.groups[0].members.push(...new Set(this.data.outputs.map((v) => this.end("o", v))));
    }

    // Returns the state that all nodes of a group share, if there is one.
    stateOf(group) {
      const { counts, nodes } = this.groups[group];
      return Object.keys(counts).find((state) => counts[state] === nodes);
    }

    // Returns the box of an input or output; many of them share one box.
    end(kind, v) {
      return this.ends(kind).length > ENDS ? `${kind}s` : `${kind}${v}`;
    }

    ends(kind) {
      return kind === "v" ? this.data.inputs : this.data.outputs;
    }

    // Constants are listed in the details of their readers: as boxes they would hide everything else.
    drawn(i) {
      return this.nodes[i].o !== "Constant" || this.data.outputs.includes(this.nodes[i].r[0]);
    }

    _values() {
      this.nodes.forEach((node, i) => {
        for (const v of node.r) if (v >= 0) this.producer.set(v, i);
        for (const v of [...node.i, ...(node.k ?? [])]) {
          if (v < 0) continue;
          if (!this.readers.has(v)) this.readers.set(v, []);
          this.readers.get(v).push(i);
        }
      });
    }

    _lines() {
      const inputs = new Set(this.data.inputs);
      for (const [v, readers] of this.readers) {
        const by = this.producer.get(v);
        const from = by !== undefined ? (this.drawn(by) ? `n${by}` : null) : inputs.has(v) ? this.end("v", v) : null;
        if (from !== null) for (const r of readers) this._line(from, by === undefined ? 0 : this.nodes[by].g, `n${r}`, this.nodes[r].g, v);
      }
      for (const v of this.data.outputs) {
        const by = this.producer.get(v);
        const from = by !== undefined ? `n${by}` : inputs.has(v) ? this.end("v", v) : null;
        if (from !== null) this._line(from, by === undefined ? 0 : this.nodes[by].g, this.end("o", v), 0, v);
      }
    }

    // Adds a value that one member passes to another: a line in the group that contains both, and in
    // each group inside it a line from the upper edge or to the lower edge.
    _line(from, fromGroup, to, toGroup, value) {
      const a = this.chain(fromGroup);
      const b = this.chain(toGroup);
      let common = 0;
      while (common + 1 < a.length && common + 1 < b.length && a[common + 1] === b[common + 1]) common += 1;
      const member = (chain, depth, leaf) => (depth + 1 < chain.length ? `g${chain[depth + 1]}` : leaf);
      this._join(a[common], member(a, common, from), member(b, common, to), value);
      for (let d = common + 1; d < a.length; d += 1) this._join(a[d], member(a, d, from), "out", value);
      for (let d = common + 1; d < b.length; d += 1) this._join(b[d], "in", member(b, d, to), value);
    }

    _join(group, from, to, value) {
      const key = `${from}>${to}`;
      const known = this.edges[group].get(key);
      if (known) known.values.add(value);
      else this.edges[group].set(key, { from, to, values: new Set([value]) });
    }

    // Returns the groups around a box, outermost first, its own last.
    chain(id) {
      const found = [];
      for (let at = id; at >= 0; at = this.groups[at].outer) found.unshift(at);
      return found;
    }

    path(id) {
      return this.chain(id).map((g) => this.groups[g].title).filter(Boolean).join(" / ");
    }

    value(v) {
      const [name, type, kind] = this.data.values[v];
      return { name, type, computed: kind === COMPUTED, constant: kind === 2 };
    }

    // Returns the name that identifies a node in another version of the model.
    key(i) {
      const first = this.nodes[i].r.find((v) => v >= 0);
      return first === undefined ? null : this.data.values[first][0];
    }

    // Returns the name of a box that both versions share.
    name(id) {
      const at = Number(id.slice(1));
      if (id[0] === "n") return `n ${this.key(at)}`;
      if (id[0] === "g") return `g ${this.path(at)}`;
      return id.endsWith("s") ? id : `${id[0]} ${this.data.values[at][0]}`;
    }

    // Returns the group of a path, or -1.
    group(path) {
      return this.groups.findIndex(({ id }) => this.path(id) === path);
    }

    find(key) {
      this._keys ??= new Map(this.nodes.map((_, i) => [this.key(i), i]));
      return this._keys.get(key);
    }

    // Returns the groups to open at the start: the outermost first, as long as there are few boxes.
    opened(most) {
      const open = new Set([0]);
      let boxes = this.groups[0].members.length;
      let level = [0];
      while (level.length) {
        const inner = level.flatMap((g) => this.groups[g].members.filter((m) => m[0] === "g").map((m) => Number(m.slice(1))));
        const added = inner.reduce((sum, g) => sum + this.groups[g].members.length, 0);
        if (boxes + added > most) break;
        for (const g of inner) open.add(g);
        boxes += added;
        level = inner;
      }
      return open;
    }
  }

  report.Model = Model;
})();
