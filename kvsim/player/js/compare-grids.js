// Reference and subject side by side: the same lanes, in the same rows and columns, differing cells ringed.

import { box, drawCell, gapOf, radiusOf } from "./cells.js";
import { el, number } from "./format.js";
import { fit, GUTTER } from "./layout.js";
import { pin } from "./marks.js";

const HEAD = 30, BETWEEN = 24, BELOW = 14, TALL = 330;

export class SideBySide {
  constructor(view) {
    this.view = view;
    this.canvas = el("canvas", { role: "img", "aria-label": "cells of reference and subject" });
    this.root = el("section", "kvc-grids", [this.canvas]);
  }

  draw(width) {
    const { view } = this, { theme, left, right } = view, { dpr } = theme;
    const half = (width - BETWEEN) / 2;
    const shown = left.lanes.map((_, k) => k).filter((k) => left.reach[k] > 0 || right.reach[k] > 0);
    const lanes = shown.map((k) => ({ size: left.lanes[k].size, reach: Math.max(left.reach[k], right.reach[k]) }));
    if (!lanes.length) { this.root.hidden = true; return; }
    this.root.hidden = false;
    const plan = fit(lanes, half - GUTTER, TALL, dpr);
    const height = plan.rows.reduce((sum, rows) => sum + HEAD + rows.shown * plan.ph + BELOW, 0);
    this.canvas.width = Math.round(width * dpr);
    this.canvas.height = Math.round(height * dpr);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.clearRect(0, 0, width, height);
    left.frame(view.at);
    if (view.reached) right.frame(view.at);
    let y = 0;
    shown.forEach((k, row) => {
      this._lane(ctx, k, plan, plan.rows[row].shown, y, half);
      y += HEAD + plan.rows[row].shown * plan.ph + BELOW;
    });
  }

  _lane(ctx, k, plan, rows, y, half) {
    const { left, right, name, reached } = this.view, spec = left.lanes[k];
    const title = spec.n_stream > 1 ? `${spec.cache}, stream ${spec.stream}` : spec.cache;
    const apart = reached ? this._apart(left.now[k], right.now[k]) : new Set();
    const one = { model: left, other: right, cells: left.now[k], against: reached ? right.now[k] : null };
    this._side(ctx, one, `kvsim reference, ${title}`, plan, rows, 0, y, apart);
    const two = { model: right, other: left, cells: right.now[k], against: left.now[k], red: true };
    if (reached) this._side(ctx, two, `${name}, ${title}`, plan, rows, half + BETWEEN, y, apart);
    else this._missing(ctx, half + BETWEEN, y, `${name} has ended`);
  }

  // Cells in which the two sides hold different things.
  _apart(a, b) {
    const { left, right } = this.view, found = new Set();
    for (let i = 0; i < a.size; i++) {
      const same = a.pos[i] === b.pos[i] && a.shift[i] === b.shift[i] && a.tok[i] === b.tok[i]
        && left.owners[a.owner[i]].join() === right.owners[b.owner[i]].join();
      if (!same) found.add(i);
    }
    return found;
  }

  _side(ctx, { model, cells, against, red }, title, plan, rows, x, y, apart) {
    const { theme } = this.view;
    this._head(ctx, title, cells, against, red, x, y);
    const top = y + HEAD, x0 = x + GUTTER, gap = gapOf(plan.pw), n = Math.min(rows * plan.cols, cells.size);
    ctx.font = `11.5px ${theme.mono}`;
    ctx.fillStyle = theme.ink3;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (let row = 0; row < rows; row += Math.max(1, Math.ceil(14 / plan.ph))) ctx.fillText(number(row * plan.cols), x0 - 9, top + (row + 0.5) * plan.ph);
    for (let i = 0; i < n; i++) {
      const owner = model.owners[cells.owner[i]], cell = { owner, pos: cells.pos[i], shift: cells.shift[i], tok: cells.tok[i] };
      const cx = x0 + (i % plan.cols) * plan.pw, cy = top + Math.floor(i / plan.cols) * plan.ph;
      if (plan.image) {
        ctx.fillStyle = owner.length ? theme.color(owner[0]) : theme.cell;
        ctx.fillRect(cx, cy, plan.pw, plan.ph);
      } else drawCell(ctx, theme, cx + gap / 2, cy + gap / 2, plan.pw - gap, plan.pw, cell, this._label(cells, i, plan, apart));
    }
    for (const i of apart) if (i < n) this._ring(ctx, x0 + (i % plan.cols) * plan.pw, top + Math.floor(i / plan.cols) * plan.ph, plan);
    const head = Math.min(cells.head, n), last = head === n;
    const at = last ? head - 1 : head;
    pin(ctx, theme, x0 + (at % plan.cols + (last ? 1 : 0)) * plan.pw, top + Math.floor(at / plan.cols) * plan.ph, plan.ph, plan.pw);
  }

  _label(cells, i, plan, apart) {
    if (plan.pw < 18 || cells.owner[i] === 0) return "";
    const start = i % plan.cols === 0 || cells.pos[i - 1] !== cells.pos[i] - 1 || cells.owner[i - 1] !== cells.owner[i];
    return plan.pw >= 24 || start || cells.pos[i] % 8 === 0 || apart.has(i) ? String(cells.pos[i]).replace("-", "−") : "";
  }

  // A red ring with a gap inside.
  _ring(ctx, x, y, plan) {
    const { theme } = this.view, r = radiusOf(plan.pw), thin = plan.pw < 8;
    if (!thin) {
      ctx.strokeStyle = theme.bg;
      ctx.lineWidth = 1.5;
      box(ctx, x + 1.8, y + 1.8, plan.pw - 3.6, plan.ph - 3.6, r);
      ctx.stroke();
    }
    ctx.strokeStyle = theme.fail;
    ctx.lineWidth = thin ? 1 : 2;
    box(ctx, x + 0.3, y + 0.3, plan.pw - 0.6, plan.ph - 0.6, r + 1);
    ctx.stroke();
  }

  _head(ctx, title, cells, against, red, x, y) {
    const { theme } = this.view;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.font = `600 13.5px ${theme.sans}`;
    ctx.fillStyle = theme.ink;
    ctx.fillText(title, x, y + 9);
    let at = x + ctx.measureText(title).width + 14;
    for (const [value, what, other] of [[cells.used, "used", against?.used], [cells.head, "head", against?.head]]) {
      const apart = red && value !== other;
      ctx.font = `${apart ? 600 : 400} 12.5px ${theme.sans}`;
      ctx.fillStyle = apart ? theme.fail : theme.ink2;
      const text = what === "used" ? `${number(value)} used` : `head ${number(value)}`;
      ctx.fillText(text, at, y + 9);
      at += ctx.measureText(text).width + 12;
    }
  }

  _missing(ctx, x, y, text) {
    const { theme } = this.view;
    ctx.font = `13px ${theme.sans}`;
    ctx.fillStyle = theme.fail;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillText(text, x, y + 9);
  }
}
