// The agreement strip: one row per lane, one mark per operation.

import { el, number } from "./format.js";
import { penOf } from "./theme.js";

const LEFT = 170, AXIS = 22, ROW = 22;

export class Strip {
  constructor(view) {
    this.view = view;
    this.canvas = el("canvas", { role: "img" });
    this.root = el("section", "kvc-strip", [this.canvas]);
    const go = (event) => {
      const box = this.canvas.getBoundingClientRect(), i = Math.floor((event.clientX - box.left - LEFT) / this.step);
      if (i >= 0 && i < view.n) view.go(i);
    };
    this.canvas.addEventListener("pointerdown", (event) => { go(event); this.held = true; });
    this.canvas.addEventListener("pointermove", (event) => { if (this.held && event.buttons) go(event); });
  }

  draw(width) {
    const { view } = this, { theme, lanes, n } = view, { dpr } = theme;
    this.step = Math.min(18, (width - LEFT) / n);
    const height = AXIS + lanes.length * ROW + 8;
    const ctx = penOf(this.canvas, width, height, dpr);
    this._axis(ctx);
    lanes.forEach((lane, k) => this._lane(ctx, lane, AXIS + k * ROW));
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 1.5;
    ctx.beginPath();
    ctx.roundRect(LEFT + view.at * this.step - 1.5, AXIS - 4, Math.max(this.step, 4) + 2, lanes.length * ROW + 6, 4);
    ctx.stroke();
    const apart = lanes.map((lane) => `${lane.name}: ${lane.marks.includes("d") ? `differs first at ${lane.marks.indexOf("d")}` : "agrees"}`);
    this.canvas.setAttribute("aria-label", apart.join("; "));
  }

  _axis(ctx) {
    const { theme, n } = this.view;
    let every = 5;
    while (every * this.step < 60) every *= 2;
    ctx.font = `11.5px ${theme.mono}`;
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    ctx.fillStyle = theme.ink3;
    ctx.font = `13px ${theme.sans}`;
    ctx.fillText("operation", 0, 8);
    ctx.font = `11.5px ${theme.mono}`;
    ctx.textAlign = "center";
    for (let i = 0; i < n; i += every) ctx.fillText(number(i), LEFT + (i + 0.5) * this.step, 8);
  }

  _lane(ctx, lane, y) {
    const { theme, at } = this.view;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.font = `600 13.5px ${theme.sans}`;
    ctx.fillStyle = theme.ink;
    ctx.fillText(lane.name, 0, y + 8, LEFT - 8);
    const used = ctx.measureText(lane.name).width;
    ctx.font = `13px ${theme.sans}`;
    ctx.fillStyle = theme.ink3;
    if (used + 16 + ctx.measureText(lane.what).width < LEFT) ctx.fillText(lane.what, used + 8, y + 8);
    const gap = this.step > 6 ? 2 : this.step > 3 ? 1 : 0, w = this.step - gap, h = 16;
    [...lane.marks].forEach((mark, i) => {
      const x = LEFT + i * this.step;
      ctx.globalAlpha = mark === "." ? 1 : i <= at || mark === "d" ? 1 : 0.5;
      ctx.fillStyle = mark === "." ? theme.cell : mark === "d" ? theme.fail : theme.dark ? "#5b6672" : "#97a2ae";
      ctx.beginPath();
      ctx.roundRect(x, y, Math.max(w, 1), h, w > 6 ? 3 : 0);
      ctx.fill();
      ctx.globalAlpha = 1;
      if (mark === "d" && w >= 9) this._cross(ctx, x + w / 2, y + h / 2, theme.bg);
      if (mark === "h") this._hazard(ctx, x, y, w, h);
    });
  }

  _cross(ctx, x, y, color) {
    ctx.strokeStyle = color;
    ctx.lineWidth = 1.8;
    ctx.beginPath();
    for (const s of [1, -1]) { ctx.moveTo(x - 3, y - 3 * s); ctx.lineTo(x + 3, y + 3 * s); }
    ctx.stroke();
  }

  // Here the content differs from what a caller wants, and a hazard says so: an amber triangle.
  _hazard(ctx, x, y, w, h) {
    const { theme } = this.view, c = x + w / 2, r = Math.min(4.5, Math.max(2, w / 2));
    ctx.fillStyle = theme.hazard;
    ctx.beginPath();
    ctx.moveTo(c, y + h / 2 - r);
    ctx.lineTo(c + r, y + h / 2 + r);
    ctx.lineTo(c - r, y + h / 2 + r);
    ctx.fill();
  }
}
