// Cells on canvas layer 1: as shapes with textures and labels, or, when there are very many, as one image.

import { rgb } from "./theme.js";

export const gapOf = (pitch) => (pitch >= 20 ? 2 : pitch >= 5 ? 1 : 0);
export const radiusOf = (pitch) => (pitch >= 40 ? 5 : pitch >= 24 ? 4 : pitch >= 18 ? 3 : pitch >= 11 ? 2 : pitch >= 8 ? 1 : 0);

// What stands in a cell: {owner: [ids], pos, shift, tok, reuse, unknown}. Drawn at (x, y), side `s`.
export function drawCell(ctx, theme, x, y, s, pitch, cell, label) {
  const r = radiusOf(pitch);
  if (!cell.owner.length) {
    fillBox(ctx, x, y, s, s, r, theme.cell);
    return;
  }
  const [first] = cell.owner;
  const shared = cell.owner.length > 1;
  fillBox(ctx, x, y, s, s, r, cellFill(ctx, theme, cell, pitch));
  if (pitch >= 11) {
    ctx.strokeStyle = theme.edge(first);
    ctx.lineWidth = 1;
    box(ctx, x + 0.5, y + 0.5, s - 1, s - 1, Math.max(r - 0.5, 0));
    ctx.stroke();
  }
  if (first >= 12 && pitch >= 11 && !shared) secondRound(ctx, theme, x, y, s, r);
  if (label) drawLabel(ctx, theme, x, y, s, pitch, cell, label);
  if (cell.shift && pitch >= 9) shiftCorner(ctx, theme, x, y, s, pitch);
}

export function cellFill(ctx, theme, cell, pitch) {
  const [first] = cell.owner;
  if (cell.unknown) return pitch >= 5 ? theme.dots(ctx, first, pitch) : theme.alpha(first, 0.38);
  if (cell.owner.length > 1 && pitch >= 5) return theme.bands(ctx, cell.owner, pitch);
  if (cell.reuse) return pitch >= 8 ? theme.hatch(ctx, first, pitch) : theme.alpha(first, 0.35);
  return theme.color(first);
}

export function box(ctx, x, y, w, h, r) {
  ctx.beginPath();
  if (r > 0) ctx.roundRect(x, y, w, h, r);
  else ctx.rect(x, y, w, h);
}

function fillBox(ctx, x, y, w, h, r, fill) {
  ctx.fillStyle = fill;
  if (r > 0) { box(ctx, x, y, w, h, r); ctx.fill(); } else ctx.fillRect(x, y, w, h);
}

// Sequences from the 13th on share colours with the first twelve: an inset line tells them apart.
function secondRound(ctx, theme, x, y, s, r) {
  ctx.strokeStyle = theme.bg;
  ctx.lineWidth = 2;
  box(ctx, x + 3, y + 3, s - 6, s - 6, Math.max(r - 2, 0));
  ctx.stroke();
}

function shiftCorner(ctx, theme, x, y, s, pitch) {
  const size = pitch >= 24 ? 8 : pitch >= 18 ? 6 : 5;
  for (const [color, d] of [[theme.bg, size + 1.5], [theme.ink, size]]) {
    ctx.fillStyle = color;
    ctx.beginPath();
    ctx.moveTo(x + s - d, y);
    ctx.lineTo(x + s, y);
    ctx.lineTo(x + s, y + d);
    ctx.fill();
  }
}

export function labelFont(theme, pitch) {
  return `600 ${pitch >= 40 ? 14 : pitch >= 24 ? 11.5 : 9.5}px ${theme.mono}`;
}

function drawLabel(ctx, theme, x, y, s, pitch, cell, text) {
  ctx.font = labelFont(theme, pitch);
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  const cx = x + s / 2, cy = y + s / 2 + 0.5;
  const onPlate = cell.owner.length > 1 || cell.unknown;
  if (onPlate) {
    const w = Math.min(ctx.measureText(text).width + 5, s - 2), h = pitch >= 24 ? 15 : 12;
    ctx.fillStyle = theme.bg;
    box(ctx, cx - w / 2, cy - h / 2 - 0.5, w, h, 3);
    ctx.fill();
  }
  ctx.fillStyle = onPlate ? theme.ink : cell.reuse ? theme.ink2 : theme.label(cell.owner[0]);
  ctx.fillText(text, cx, cy, s - 2);
}

// All cells of a lane as one image of `cols` columns, one pixel a cell; the caller scales it.
// `cellAt(i)` is only asked for cells in `exceptions` (those whose change is still on its way).
export class CellImage {
  constructor(size, cols) {
    this.cols = cols;
    this.rows = Math.ceil(size / cols);
    this.size = size;
    this.canvas = document.createElement("canvas");
    this.canvas.width = cols;
    this.canvas.height = this.rows;
    this.ctx = this.canvas.getContext("2d");
    this.image = this.ctx.createImageData(cols, this.rows);
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  // Paint from the columns `owner` (ids of owner sets) and `reuse`; `dim(ids)` tells which owner sets are paled.
  paint(theme, owners, cells, reuse, exceptions, dim) {
    const { cols, size, pixels } = this;
    const table = this._palette(theme, owners, dim);
    for (let i = 0; i < size; i++) {
      const o = cells.owner[i];
      const colors = table[o];
      const many = colors.length;
      pixels[i] = many === 1 ? (reuse && reuse[i] ? table.pale[o] : colors[0])
        : colors[(((i % cols) + Math.floor(i / cols)) >> 2) % many];
    }
    for (const [i, was] of exceptions) pixels[i] = table[was.owner][0];
    this.ctx.putImageData(this.image, 0, 0);
  }

  _palette(theme, owners, dim) {
    const key = `${theme.bg} ${owners.length} ${dim ? owners.map(dim) : ""}`;
    if (this._key !== key) {
      const ground = rgb(theme.cell);
      const pack = ([r, g, b]) => (255 << 24) | (b << 16) | (g << 8) | r;
      const mix = (c, t) => c.map((v, i) => Math.round(v * t + ground[i] * (1 - t)));
      this._table = owners.map((ids) => (ids.length
        ? ids.map((s) => pack(mix(rgb(theme.color(s)), dim?.(ids) ? 0.25 : 1))) : [pack(ground)]));
      this._table.pale = owners.map((ids) => pack(ids.length ? mix(rgb(theme.color(ids[0])), 0.35) : ground));
      this._key = key;
    }
    return this._table;
  }
}
