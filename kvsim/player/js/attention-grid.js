// One grid of the Attention page: query rows against cells, positions, or compressed rows on the scale of positions.

import { el, number } from "./format.js";
import { penOf } from "./theme.js";

const GUTTER = 44, STRIP = 12, AXIS = 20;

export class AttentionGrid {
  // kind: "cell", "position" or "compressed".
  constructor(view, kind, title, what) {
    Object.assign(this, { view, kind });
    this.canvas = el("canvas", { role: "img" });
    this.root = el("section", "kva-grid", [
      el("div", "kva-head", [el("b", "", title), el("span", { class: "kv-secondary", title: what }, what)]), this.canvas]);
    this.canvas.addEventListener("click", (event) => { const at = this._hit(event); if (at) view.select(at.row); });
    this.canvas.addEventListener("pointermove", (event) => view.point(this._hit(event)?.column ?? null));
    this.canvas.addEventListener("pointerleave", () => view.point(null));
  }

  get columns() { return this.kind === "cell" ? this.view.reading.n : this.view.reading.top; }

  _hit(event) {
    const box = this.canvas.getBoundingClientRect(), { rows } = this.view.reading;
    const row = Math.floor((event.clientY - box.top - this.top) / this.high);
    const x = Math.floor(((event.clientX - box.left - GUTTER) / this.width) * this.columns);
    if (row < 0 || row >= rows.length || x < 0 || x >= this.columns) return null;
    return { row, column: this._columnAt(row, x) };
  }

  // What is looked at there: a cell ({cell}) or a compressed row ({row}).
  _columnAt(row, x) {
    const { reading } = this.view;
    if (this.kind === "cell") return { cell: x };
    if (this.kind === "compressed") return { row: Math.floor(x / reading.compressed.ratio) };
    const cell = this._cellsOf(row).get(x);
    return cell === undefined ? null : { cell };
  }

  // Position -> cell, of the row's own sequence.
  _cellsOf(row) {
    const { reading } = this.view, seq = reading.owners[reading.rows[row][1]][0];
    this._maps ??= new Map();
    if (!this._maps.has(seq)) {
      const map = new Map();
      reading.pos.forEach((p, c) => { if (p >= 0 && reading.owners[reading.owner[c]].includes(seq)) map.set(p, c); });
      this._maps.set(seq, map);
    }
    return this._maps.get(seq);
  }

  draw(width) {
    const { view } = this, { reading, theme } = view, { dpr } = theme;
    const n = reading.rows.length;
    this.width = width - GUTTER;
    this.high = Math.max(4, Math.min(18, Math.floor((this.kind === "compressed" ? 120 : 190) / n)));
    this.top = this.kind === "cell" ? STRIP + 6 : 7;
    const height = this.top + n * this.high + AXIS + 2;
    const ctx = penOf(this.canvas, width, height, dpr);
    if (this.kind === "cell") this._owners(ctx);
    for (let row = 0; row < n; row++) this._row(ctx, row);
    this._blocks(ctx);
    this._labels(ctx);
    this._axis(ctx);
    this._frame(ctx);
    this.canvas.setAttribute("aria-label", `${n} rows by ${this.kind}; row ${view.row} is selected`);
  }

  x(column) { return GUTTER + Math.round((column / this.columns) * this.width * this.view.theme.dpr) / this.view.theme.dpr; }

  _owners(ctx) {
    const { reading, theme } = this.view;
    for (let a = 0; a < reading.n;) {
      let b = a + 1;
      while (b < reading.n && reading.owner[b] === reading.owner[a]) b++;
      const ids = reading.owners[reading.owner[a]];
      ctx.fillStyle = !ids.length ? theme.cell : ids.length > 1 ? theme.bands(ctx, ids, 14) : theme.color(ids[0]);
      ctx.fillRect(this.x(a), 0, this.x(b) - this.x(a), STRIP);
      a = b;
    }
  }

  _row(ctx, row) {
    const { theme, reading } = this.view, y = this.top + row * this.high, h = this.high - 1;
    ctx.fillStyle = theme.cell;
    ctx.fillRect(GUTTER, y, this.width, h);
    const strongest = this.view.data.mode === "scores" ? reading.strongest(row) || 1 : 0;
    if (this.kind === "cell") for (let c = 0; c < reading.n; c++) if (reading.seen[row][c]) this._cell(ctx, row, c, c, y, h, strongest);
    if (this.kind === "position") for (const [p, c] of this._cellsOf(row)) if (reading.seen[row][c]) this._cell(ctx, row, c, p, y, h, strongest);
    if (this.kind === "compressed") this._rows(ctx, row, y, h, strongest);
  }

  // A visible cell: in the mode "mask" as seen, "scores" as strong as its weight, "indexer" pale unless chosen.
  _cell(ctx, row, cell, column, y, h, strongest) {
    const { theme, reading, data } = this.view, here = row === this.view.row;
    const chosen = reading.left[row][cell];
    const share = data.mode === "scores" ? Math.sqrt(reading.weightOf(row, cell) / strongest)
      : data.mode === "indexer" && !chosen ? 0.22 : here ? 1 : 0.66;
    const x0 = this.x(column), x1 = this.x(column + 1), gap = x1 - x0 > 2.5 ? 1 : 0;
    ctx.globalAlpha = Math.max(share, 0.03);
    const ids = reading.owners[reading.owner[cell]];
    ctx.fillStyle = this.kind === "cell" ? (here ? theme.ink : theme.decode)
      : ids.length > 1 ? theme.bands(ctx, ids, x1 - x0 > 8 ? 14 : 9) : theme.color(ids[0]);
    ctx.fillRect(x0, y, x1 - x0 - gap, h);
    ctx.globalAlpha = 1;
    if (data.mode === "indexer" && chosen && h >= 6) {
      ctx.fillStyle = theme.ink;
      ctx.fillRect(x0, y + h - 2, x1 - x0 - gap, 2);
    }
  }

  // Compressed rows as wide as the positions they stand for.
  _rows(ctx, row, y, h, strongest) {
    const { theme, reading, data } = this.view, { ratio } = reading.compressed;
    const complete = Math.floor((reading.rows[row][0] + 1) / ratio);
    for (let r = 0; r < complete; r++) {
      const reads = reading.rowsRead[row][r];
      const share = data.mode === "scores" ? Math.sqrt(reading.weightOf(row, reading.n + r) / strongest) : reads ? (row === this.view.row ? 1 : 0.66) : 0.16;
      const x0 = this.x(r * ratio), x1 = this.x(Math.min((r + 1) * ratio, this.columns));
      ctx.globalAlpha = Math.max(share, 0.03);
      ctx.fillStyle = row === this.view.row ? theme.ink : theme.decode;
      ctx.fillRect(x0, y, x1 - x0 - 1, h);
      ctx.globalAlpha = 1;
    }
  }

  // Blocks of positions that the selected row's indexer chose.
  _blocks(ctx) {
    const { reading, theme, row } = this.view, size = reading.block;
    if (!size || this.kind !== "position") return;
    const chosen = new Set();
    reading.left[row].forEach((bit, c) => { if (bit) chosen.add(Math.floor(reading.pos[c] / size)); });
    ctx.fillStyle = theme.ink;
    const y = this.top + reading.rows.length * this.high;
    for (const b of chosen) {
      const x0 = this.x(b * size), x1 = this.x(Math.min((b + 1) * size, this.columns));
      ctx.fillRect(x0, y, x1 - x0 - 2, 3);
    }
  }

  _labels(ctx) {
    const { reading, theme, row: selected } = this.view;
    const every = Math.max(1, Math.ceil(16 / this.high));
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    reading.rows.forEach(([pos], row) => {
      const here = row === selected;
      if (!here && (row % every || Math.abs(row - selected) * this.high < 13)) return;
      ctx.font = `${here ? 600 : 400} 11.5px ${theme.mono}`;
      ctx.fillStyle = here ? theme.ink : theme.ink3;
      ctx.fillText(number(pos), GUTTER - 9, this.top + (row + 0.5) * this.high);
    });
  }

  _axis(ctx) {
    const { theme } = this.view, y = this.top + this.view.reading.rows.length * this.high + AXIS / 2 + 2;
    let step = 1;
    while ((step / this.columns) * this.width < 56) step *= 2;
    ctx.font = `11.5px ${theme.mono}`;
    ctx.fillStyle = theme.ink3;
    for (let c = 0; c <= this.columns; c += step) {
      const middle = this.kind === "cell" || c >= this.columns ? this.x(c) : (this.x(c) + this.x(c + 1)) / 2;
      ctx.textAlign = c === 0 && this.kind === "cell" ? "left" : c >= this.columns ? "right" : "center";
      ctx.fillText(number(c), middle, y);
    }
  }

  _frame(ctx) {
    const { theme, row } = this.view;
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(GUTTER - 1.5, this.top + row * this.high - 1.5, this.width + 2, this.high + 2);
  }
}
