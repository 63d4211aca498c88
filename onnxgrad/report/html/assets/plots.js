"use strict";
// Plots by uPlot, in the page's colours: values with their bounds in rows, and curves.
(() => {
  const { h } = report;
  const ROW = 30;
  const MOST = 40;
  const drawn = [];

  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
  const font = "12px system-ui, -apple-system, sans-serif";

  // Redraws the plot when the colours or the width change.
  const kept = (box, make) => {
    let plot = null;
    const again = () => {
      plot?.destroy();
      plot = box.clientWidth ? make(box.clientWidth) : null;
    };
    drawn.push(again);
    return again;
  };
  report.redraw = () => drawn.forEach((again) => again());
  report.forget = () => { drawn.length = 0; };

  const axis = (more) => ({ stroke: color("muted"), grid: { stroke: color("line"), width: 1 }, ticks: { stroke: color("line"), width: 1 }, font, ...more });

  const pen = document.createElement("canvas").getContext("2d");
  const long = (text) => {
    pen.font = font;
    return pen.measureText(text).width;
  };
  const fitting = (text, room) => {
    let letters = 60;
    while (letters > 8 && long(report.short(text, letters)) > room) letters -= 1;
    return report.short(text, letters);
  };

  // Returns the lowest and the highest decade around all values.
  const decades = (rows) => {
    const seen = rows.flatMap((r) => [r.value, r.bound]).filter((v) => v > 0);
    const low = Math.floor(Math.log10(Math.min(...seen, 1)) - 0.2);
    const high = Math.ceil(Math.log10(Math.max(...seen, 1e-16)) + 0.2);
    return [10 ** low, 10 ** Math.max(high, low + 2)];
  };
  const ratios = (rows) => {
    const seen = rows.flatMap((r) => [r.low ?? r.value, r.high ?? r.value, 1]);
    const [low, high] = [Math.min(...seen), Math.max(...seen)];
    const room = Math.max(0.05, (high - low) * 0.08);
    return [Math.max(0, low - room), high + room];
  };

  // Draws one row: its bound, its value, and its spread.
  const mark = (ctx, row, x, y, dpr) => {
    const tone = color(row.ok ? "good" : x.log ? "bad" : "muted");
    ctx.lineWidth = 2 * dpr;
    if (row.bound !== undefined && row.bound !== null) {
      const end = row.bound > 0 ? x(row.bound) : x.left;
      ctx.fillStyle = color("track");
      ctx.fillRect(x.left, y - 5 * dpr, end - x.left, 10 * dpr);
      ctx.fillStyle = color("muted");
      ctx.fillRect(end - dpr, y - 9 * dpr, 2 * dpr, 18 * dpr);
    }
    ctx.strokeStyle = tone;
    if (row.low !== undefined) {
      ctx.beginPath();
      ctx.moveTo(x(row.low), y);
      ctx.lineTo(x(row.high), y);
      ctx.stroke();
    }
    ctx.beginPath();
    const zero = row.value === 0 && x.log;
    ctx.arc(row.value === null ? x.right : zero ? x.left : x(row.value), y, 5 * dpr, 0, 2 * Math.PI);
    ctx.fillStyle = zero ? color("panel") : tone;
    ctx.fill();
    ctx.stroke();
  };

  report.rowsSection = (section) => {
    const rows = section.rows.slice(0, MOST);
    const log = section.scale === "log";
    const range = log ? decades(rows) : ratios(rows);
    const said = h("p", { class: "said", "aria-live": "polite" });
    const box = h("div", { class: "plot" });
    const label = (r) => (r.check ? `${r.label} · ${r.check}` : r.label);
    const text = (v) => (v === null ? "no number" : v === 0 ? "0" : log ? v.toExponential(1) : `${Number(v.toFixed(3))}${section.unit}`);
    const say = (r) => { said.textContent = `${label(r)}: ${text(r.value)}${r.bound ? ` of ${text(r.bound)} allowed` : ""}${r.note ? `; ${r.note}` : ""}`; };
    const make = (width) => {
      const room = Math.min(0.42 * width, 320);
      const names = rows.map((r) => fitting(label(r), room));
      const dpr = devicePixelRatio;
      const hooks = {
        draw: [(u) => {
          const at = (v) => u.valToPos(v, "y", true);
          const x = Object.assign(at, { left: u.bbox.left, right: u.bbox.left + u.bbox.width, log });
          if (!log) {
            u.ctx.fillStyle = color("muted");
            u.ctx.fillRect(at(1) - dpr / 2, u.bbox.top, dpr, u.bbox.height);
          }
          rows.forEach((row, i) => mark(u.ctx, row, x, u.valToPos(i, "x", true), dpr));
        }],
        setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.idx !== undefined) say(rows[u.cursor.idx]); }],
      };
      const options = {
        width, height: rows.length * ROW + 50, hooks, legend: { show: false }, padding: [8, 16, 0, 0],
        cursor: { drag: { x: false, y: false }, points: { show: false }, x: false, y: false },
        scales: {
          x: { time: false, ori: 1, dir: -1, range: [-0.6, rows.length - 0.4] },
          y: { ori: 0, dir: 1, distr: log ? 3 : 1, range },
        },
        axes: [
          axis({ side: 3, size: Math.ceil(Math.max(...names.map(long))) + 22, gap: 12, splits: () => rows.map((_, i) => i), values: () => names, grid: { show: false }, ticks: { show: false }, stroke: color("text") }),
          axis({ side: 2, size: 32, space: width < 600 ? 36 : 60, ...(log ? { splits: () => powers(range, width), values: (u, splits) => splits.map((v) => `1e${Math.round(Math.log10(v))}`), filter: (u, splits) => splits }
            : { values: (u, splits) => splits.map((v) => `${Number(v.toFixed(3))}${section.unit}`) }) }),
        ],
        series: [{}, { stroke: "transparent", paths: () => null, points: { show: false } }],
      };
      return new uPlot(options, [rows.map((_, i) => i), rows.map((r) => r.value || (log ? range[0] : 0))], box);
    };
    say(rows[0]);
    const rest = section.rows.length - rows.length;
    const more = rest > 0 && h("p", { class: "hint" }, `The worst ${MOST}; ${report.plural(rest, "other")} lie further from their bound.`);
    return [h("figure", {}, box, said, more), kept(box, make)];
  };

  // Returns the decades with a label; not every one if there are many.
  const powers = ([low, high], width) => {
    const [first, last] = [Math.round(Math.log10(low)), Math.round(Math.log10(high))];
    const step = Math.ceil((last - first) / (width < 600 ? 4 : 9));
    return Array.from({ length: Math.floor((last - first) / step) + 1 }, (_, i) => 10 ** (first + i * step));
  };

  report.curvesSection = (section) => {
    const box = h("div", { class: "plot" });
    const said = h("p", { class: "said", "aria-live": "polite" });
    const tones = ["muted", "accent", "good"];
    const table = uPlot.join(section.curves.map((c) => [c.at, c.bytes]));
    const near = (c, at) => c.at.reduce((best, v, i) => (Math.abs(v - at) < Math.abs(c.at[best] - at) ? i : best), 0);
    const say = (at) => { said.textContent = section.curves.map((c) => [c, near(c, at)]).map(([c, i]) => `${c.label}: ${report.bytes(c.bytes[i])} at ${c.where[i]}`).join("; "); };
    const make = (width) => new uPlot({
      width, height: 260, legend: { show: false }, padding: [12, 16, 0, 0],
      cursor: { drag: { x: false, y: false }, y: false },
      hooks: { setCursor: [(u) => { if (u.cursor.idx !== null && u.cursor.idx !== undefined) say(table[0][u.cursor.idx]); }] },
      scales: { x: { time: false, range: [0, 1] }, y: { range: (u, low, high) => [0, high * 1.05] } },
      axes: [
        axis({ values: (u, splits) => splits.map((v) => `${Math.round(100 * v)} %`) }),
        axis({ size: 72, values: (u, splits) => splits.map((v) => report.bytes(v)) }),
      ],
      series: [{}, ...section.curves.map((c, i) => ({
        label: c.label, stroke: color(tones[i]), width: 2, spanGaps: true, fill: i ? `${color(tones[i])}22` : undefined, points: { show: false }, dash: i ? undefined : [6, 4],
        paths: uPlot.paths.stepped({ align: 1 }),
      }))],
    }, table, box);
    const peak = section.curves.at(-1);
    say(peak.at[peak.bytes.indexOf(Math.max(...peak.bytes))]);
    const names = h("ul", { class: "keys" }, section.curves.map((c, i) => h("li", { class: tones[i] }, c.label)));
    return [h("figure", {}, names, box, said), kept(box, make)];
  };
})();
