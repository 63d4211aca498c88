"use strict";
// Moves two drawings together: the box in the middle of one is moved to the middle of the other.
(() => {
  class Together {
    constructor(drawings) {
      this.drawings = drawings;
      this.leader = null; // the drawing that the other follows; null while both are being placed
      for (const drawing of drawings) {
        const lead = () => { this.leader = drawing; };
        for (const kind of ["pointerdown", "wheel"]) drawing.svg.addEventListener(kind, lead, { capture: true, passive: true });
        drawing.moved = () => { if (this.leader === drawing) this.follow(drawing); };
        drawing.toggled = (group) => this._toggled(drawing, group);
      }
    }

    // Returns a node, preceded by its counterpart if the other drawing has one.
    pair(side, id) {
      const [mine, other] = [this.drawings[side], this.drawings[1 - side]];
      const same = id[0] === "n" && other?.model.find(mine.model.key(Number(id.slice(1))));
      return typeof same === "number" ? [[1 - side, `n${same}`], [side, id]] : [[side, id]];
    }

    // Moves the other drawing to the same place, if the two have a box in common there.
    follow(drawing) {
      const other = this._other(drawing);
      const { width, height } = other?.size() ?? {}; // both have the same size when they are shown
      if (!width) return;
      const t = d3.zoomTransform(drawing.svg);
      const at = t.invert([width / 2, height / 2]);
      const near = this._nearest(drawing, other, at);
      if (!near) return;
      const [mine, theirs] = near;
      const x = theirs.x + theirs.w / 2 + at[0] - mine.x - mine.w / 2;
      const y = theirs.y + theirs.h / 2 + at[1] - mine.y - mine.h / 2;
      other.move(d3.zoomIdentity.translate(width / 2 - t.k * x, height / 2 - t.k * y).scale(t.k), 0);
    }

    // Returns the box that both drawings have and that is nearest to a point of one.
    _nearest(drawing, other, [x, y]) {
      let best = null;
      let least = Infinity;
      for (const [name, mine] of drawing.named()) {
        const theirs = other.named().get(name);
        const far = theirs ? Math.hypot(mine.x + mine.w / 2 - x, mine.y + mine.h / 2 - y) : Infinity;
        if (far < least) [best, least] = [[mine, theirs], far];
      }
      return best;
    }

    // Opens the same group, with the groups around it, or closes it, in the other drawing.
    _toggled(drawing, group) {
      const other = this._other(drawing);
      const same = other?.model.group(drawing.model.path(group));
      this.leader = drawing;
      if (!(same > 0)) return;
      if (!drawing.open.has(group)) other.open.delete(same);
      else for (const g of other.model.chain(same)) other.open.add(g);
      other.draw();
    }

    _other(drawing) {
      return this.drawings.find((d) => d !== drawing);
    }
  }

  report.Together = Together;
})();
