// The lens: large cells around the pointer or the selection, with position, token and the key's angle.

import { box, cellFill } from "./cells.js";
import { el, number } from "./format.js";
import { GUTTER } from "./layout.js";

const PITCH = 62, SIZE = 56, HEIGHT = 70;

export class Lens {
  constructor(player) {
    this.player = player;
    this.turn = 0; // how far pending keys have turned, in 0..1 (motion)
    this.what = el("span", "kv-secondary");
    this.canvas = el("canvas", { class: "kv-lens", "aria-hidden": "true" });
    this.canvas.style.marginLeft = `${GUTTER - 4}px`;
    this.root = el("section", "kv-lens-box", [
      el("div", "kv-lane-header", [el("span", "kv-lane-name", "Lens"), this.what]), this.canvas]);
    this.canvas.addEventListener("click", (event) => {
      const i = this.first + Math.floor((event.clientX - this.canvas.getBoundingClientRect().left - 4) / PITCH);
      if (this.lane && i < this.lane.spec.size) player.select({ lane: this.lane.k, cell: i });
    });
  }

  place(width) {
    const { dpr } = this.player;
    this.n = Math.max(4, Math.floor((width - GUTTER) / PITCH));
    const w = this.n * PITCH + 8;
    this.canvas.width = w * dpr;
    this.canvas.height = (HEIGHT + 8) * dpr;
    this.canvas.style.width = `${w}px`;
    this.canvas.style.height = `${HEIGHT + 8}px`;
    this.canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 4 * dpr, 4 * dpr);
  }

  // Show the cells around `cell` of `lane`.
  draw(lane, cell) {
    this.lane = lane;
    const size = lane.spec.size;
    this.first = Math.max(0, Math.min(size - this.n, cell - Math.floor(this.n / 2)));
    const last = Math.min(size, this.first + this.n) - 1;
    this.what.textContent = `cells ${number(this.first)}–${number(last)} of ${lane.name}: position, token, and the angle of the key while a shift is pending`;
    const ctx = this.canvas.getContext("2d");
    ctx.clearRect(-4, -4, this.n * PITCH + 8, HEIGHT + 8);
    for (let i = this.first; i <= last; i++) this._cell(ctx, lane, i, (i - this.first) * PITCH);
  }

  _cell(ctx, lane, i, x) {
    const { theme, selected, hovered, model } = this.player;
    const cell = lane.cell(i), full = HEIGHT - 2;
    ctx.fillStyle = theme.cell;
    if (cell.owner.length) ctx.fillStyle = cellFill(ctx, theme, cell, 54);
    box(ctx, x, 0, SIZE, full, 5);
    ctx.fill();
    if (cell.owner.length) this._inside(ctx, theme, cell, x, full);
    else this._empty(ctx, theme, lane, i, x, full);
    const isRing = lane.rings.has(i), isSelected = selected?.lane === lane.k && selected.cell === i;
    if (isRing || isSelected || (hovered?.lane === lane.k && hovered.cell === i)) {
      ctx.strokeStyle = theme.ink;
      ctx.lineWidth = 2;
      box(ctx, x - 2, -2, SIZE + 4, full + 4, 7);
      ctx.stroke();
      if (isSelected) {
        ctx.strokeStyle = theme.bg;
        box(ctx, x, 0, SIZE, full, 5);
        ctx.stroke();
      }
    }
    if (model.now[lane.k].head === i) {
      ctx.fillStyle = theme.ink;
      ctx.fillRect(x - 4, -4, 2, full + 8);
    }
  }

  _empty(ctx, theme, lane, i, x, full) {
    const was = lane.ghosts.get(i);
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillStyle = theme.ink3;
    if (was) {
      ctx.strokeStyle = theme.edge(this.player.model.owners[was.owner]?.[0] ?? 0);
      ctx.lineWidth = 1;
      ctx.setLineDash([3, 2]);
      box(ctx, x + 0.5, 0.5, SIZE - 1, full - 1, 5);
      ctx.stroke();
      ctx.setLineDash([]);
      ctx.font = `600 15px ${theme.mono}`;
      ctx.fillText(number(was.pos), x + SIZE / 2, 22);
      const half = ctx.measureText(number(was.pos)).width / 2 + 3;
      ctx.fillRect(x + SIZE / 2 - half, 21, half * 2, 1);
      ctx.font = `500 11px ${theme.sans}`;
      ctx.fillText("freed", x + SIZE / 2, 48);
    } else {
      ctx.font = `11px ${theme.mono}`;
      ctx.fillText(number(i), x + SIZE / 2, full - 12);
    }
  }

  _inside(ctx, theme, cell, x, full) {
    const plate = cell.owner.length > 1 || cell.unknown || cell.reuse;
    const [first] = cell.owner;
    ctx.strokeStyle = theme.edge(first);
    ctx.lineWidth = 1;
    box(ctx, x + 0.5, 0.5, SIZE - 1, full - 1, 5);
    ctx.stroke();
    if (plate) {
      ctx.fillStyle = theme.bg;
      box(ctx, x + 7, 7, SIZE - 14, full - 14, 4);
      ctx.fill();
    }
    const ink = plate ? theme.ink : theme.label(first);
    ctx.fillStyle = ink;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.font = `600 15px ${theme.mono}`;
    ctx.fillText(number(cell.pos), x + SIZE / 2, cell.shift ? 14 : 21, SIZE - 14);
    if (cell.shift) {
      dial(ctx, ink, x + SIZE / 2, 44, 14, cell.pos, cell.shift, this.turn);
      this._corner(ctx, theme, x);
    } else {
      ctx.font = `500 11.5px ${theme.sans}`;
      const ids = cell.owner.length > 4 ? `+${cell.owner.length - 4}` : "";
      ctx.fillText(cell.tok < 0 ? "no token" : `tok ${number(cell.tok)}`, x + SIZE / 2, 45, SIZE - 14);
      if (ids) ctx.fillText(ids, x + SIZE / 2, 58);
    }
  }

  _corner(ctx, theme, x) {
    ctx.fillStyle = theme.ink;
    ctx.beginPath();
    ctx.moveTo(x + SIZE - 9, 0);
    ctx.lineTo(x + SIZE, 0);
    ctx.lineTo(x + SIZE, 9);
    ctx.fill();
  }
}

// The angle of a stored key: needle as stored, dotted where it must go, the sector between is pending.
// One position is drawn as 1/24 of a turn.
export function dial(ctx, ink, x, y, r, pos, shift, turn = 0) {
  const angle = (p) => (p / 24) * 2 * Math.PI - Math.PI / 2;
  const stored = angle(pos - shift * (1 - turn)), target = angle(pos);
  ctx.strokeStyle = ctx.fillStyle = ink;
  ctx.globalAlpha = 0.25;
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.arc(x, y, r - 2, stored, target, shift < 0);
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.arc(x, y, r, 0, 2 * Math.PI);
  ctx.stroke();
  ctx.setLineDash([1.5, 2]);
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(x + Math.cos(target) * r, y + Math.sin(target) * r);
  ctx.stroke();
  ctx.setLineDash([]);
  ctx.lineWidth = 2;
  ctx.beginPath();
  ctx.moveTo(x, y);
  ctx.lineTo(x + Math.cos(stored) * r, y + Math.sin(stored) * r);
  ctx.stroke();
}
