// The timeline: one mark per operation, coloured by kind and outcome; occupancy behind; the playhead.

import { el, number } from "./format.js";

const HEIGHT = 66, AXIS = 36;

export class Timeline {
  constructor(player) {
    this.player = player;
    this.canvas = el("canvas", { class: "kv-timeline", role: "slider", tabindex: "-1", "aria-label": "operation" });
    this.tip = el("div", "kv-tip");
    this.tip.hidden = true;
    this.root = el("div", "kv-timeline-box", [this.canvas, this.tip]);
    this.hovered = null;
    const drag = (event) => { if (event.buttons & 1) player.go(this.stepAt(event)); };
    this.canvas.addEventListener("pointerdown", (event) => { this.canvas.setPointerCapture(event.pointerId); player.lead(this.stepAt(event)); });
    this.canvas.addEventListener("pointermove", (event) => { drag(event); this._hover(this.stepAt(event), event); });
    this.canvas.addEventListener("pointerleave", () => this._hover(null));
  }

  place(width) {
    const { dpr, model } = this.player;
    this.width = width;
    this.canvas.width = width * dpr;
    this.canvas.height = HEIGHT * dpr;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    this.canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
    this.unit = Math.min(28, (width - 16) / Math.max(model.nSteps, 1));
    this.binned = this.unit < 3;
    this.still = null;
  }

  x(i) { return 8 + (i + 0.5) * this.unit; }

  stepAt(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    return Math.max(0, Math.min(this.player.model.nSteps - 1, Math.floor((x - 8) / this.unit)));
  }

  draw() {
    const { model, theme, at, dpr } = this.player;
    const ctx = this.canvas.getContext("2d");
    const key = `${this.width} ${theme.bg}`;
    if (this.still?.key !== key) this.still = { key, full: this._paint(theme, 1) };
    const split = this.x(at) + this.unit / 2;
    ctx.clearRect(0, 0, this.width, HEIGHT);
    ctx.drawImage(this.still.full, 0, 0, split * dpr, HEIGHT * dpr, 0, 0, split, HEIGHT);
    ctx.globalAlpha = 0.55;
    ctx.drawImage(this.still.full, split * dpr, 0, this.width * dpr - split * dpr, HEIGHT * dpr, split, 0, this.width - split, HEIGHT);
    ctx.globalAlpha = 1;
    if (this.hovered != null && this.hovered !== at) {
      ctx.fillStyle = theme.ink3;
      ctx.fillRect(Math.round(this.x(this.hovered)) - 0.5, 4, 1, AXIS + 4);
    }
    playhead(ctx, theme, this.x(at));
    this.canvas.setAttribute("aria-valuemin", 0);
    this.canvas.setAttribute("aria-valuemax", model.nSteps - 1);
    this.canvas.setAttribute("aria-valuenow", at);
    this.canvas.setAttribute("aria-valuetext", `${at}: ${model.steps[at].call}`);
  }

  _paint(theme) {
    const { dpr, model } = this.player;
    const canvas = document.createElement("canvas");
    canvas.width = this.width * dpr;
    canvas.height = HEIGHT * dpr;
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    this._occupancy(ctx, theme);
    ctx.fillStyle = theme.line2;
    ctx.fillRect(0, AXIS - 0.5, this.width, 1);
    if (this.binned) this._bins(ctx, theme);
    else model.steps.forEach((step, i) => mark(ctx, theme, step, this.x(i), this.unit));
    this._numbers(ctx, theme);
    return canvas;
  }

  _occupancy(ctx, theme) {
    const { model } = this.player;
    const top = Math.max(...model.occupancy, 1e-9);
    ctx.fillStyle = theme.cell;
    ctx.beginPath();
    ctx.moveTo(this.x(0) - this.unit / 2, AXIS);
    model.occupancy.forEach((value, i) => {
      const y = AXIS - (value / top) * (AXIS - 6);
      ctx.lineTo(this.x(i) - this.unit / 2, y);
      ctx.lineTo(this.x(i) + this.unit / 2, y);
    });
    ctx.lineTo(this.x(model.nSteps - 1) + this.unit / 2, AXIS);
    ctx.fill();
  }

  // More operations than marks fit: each bin shows its tallest decode, and any failure or hazard.
  _bins(ctx, theme) {
    const { model } = this.player;
    const bins = Math.floor((this.width - 16) / 3), per = model.nSteps / bins;
    for (let b = 0; b < bins; b++) {
      const steps = model.steps.slice(Math.floor(b * per), Math.max(Math.floor((b + 1) * per), Math.floor(b * per) + 1));
      const x = 8 + (b + 0.5) * 3;
      const decodes = steps.filter((s) => s.kind === "decode" && !s.bad);
      const tall = Math.max(0, ...decodes.map((s) => s.n ?? 0));
      if (tall) bar(ctx, theme, tall, x, 2, false);
      else if (steps.length) { ctx.fillStyle = theme[steps[0].kind]; ctx.fillRect(x - 1, AXIS - 8, 2, 2); }
      if (steps.some((s) => s.bad || s.apart)) cross(ctx, theme, x);
      if (steps.some((s) => s.hazards || s.means)) warning(ctx, theme, x, steps.some((s) => s.bad || s.apart));
    }
  }

  _numbers(ctx, theme) {
    const n = this.player.model.nSteps;
    const every = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000, 50000, 100000, 500000]
      .find((e) => e * this.unit >= 60) ?? 1e6;
    ctx.font = `11px ${theme.mono}`;
    ctx.fillStyle = theme.ink3;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (let i = 0; i < n; i += every) ctx.fillText(number(i), Math.max(this.x(i), 8), HEIGHT - 7);
  }

  _hover(i, event) {
    if (this.hovered === i) return;
    this.hovered = i;
    this.tip.hidden = i == null;
    if (i != null) {
      const step = this.player.model.steps[i];
      this.tip.replaceChildren(el("b", "", `${number(i)}  ${step.call}`), el("span", "", step.say));
      const x = this.x(i), wide = Math.min(420, this.width - 16);
      this.tip.style.width = `${wide}px`;
      this.tip.style.left = `${Math.max(0, Math.min(this.width - wide, x - wide / 2))}px`;
    }
    this.draw();
  }
}

function playhead(ctx, theme, at) {
  const x = Math.round(at);
  ctx.fillStyle = theme.ink;
  box5(ctx, x);
  ctx.fillRect(x - 1, 6, 2, AXIS + 4);
}

function box5(ctx, x) {
  ctx.beginPath();
  ctx.roundRect(x - 5, 0, 10, 7, 1.5);
  ctx.fill();
  ctx.beginPath();
  ctx.moveTo(x - 5, 6);
  ctx.lineTo(x + 5, 6);
  ctx.lineTo(x, 11);
  ctx.fill();
}

function bar(ctx, theme, n, x, w, failed) {
  const h = Math.min(AXIS - 8, 3 + 2.7 * Math.log2(n + 1));
  if (failed) {
    ctx.strokeStyle = theme.fail;
    ctx.lineWidth = 1;
    ctx.strokeRect(x - w / 2 + 0.5, AXIS - h + 0.5, w - 1, h - 0.5);
  } else {
    ctx.fillStyle = theme.decode;
    ctx.fillRect(x - w / 2, AXIS - h, w, h);
  }
}

function cross(ctx, theme, x) {
  ctx.strokeStyle = theme.fail;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  for (const d of [-1, 1]) { ctx.moveTo(x - 2.7, AXIS + 7 - 2.7 * d); ctx.lineTo(x + 2.7, AXIS + 7 + 2.7 * d); }
  ctx.stroke();
}

function warning(ctx, theme, x, below) {
  ctx.fillStyle = theme.hazard;
  const y = AXIS + (below ? 13 : 4);
  ctx.beginPath();
  ctx.moveTo(x - 3.5, y + 6);
  ctx.lineTo(x + 3.5, y + 6);
  ctx.lineTo(x, y);
  ctx.fill();
}

// One operation: its sign on the axis, its outcome below.
function mark(ctx, theme, step, x, unit) {
  const w = Math.max(2, Math.min(8, unit * 0.55));
  if (step.kind === "decode" && step.n) bar(ctx, theme, step.n, x, w, step.bad);
  else sign(ctx, step.mark, step.bad ? theme.fail : theme[step.kind], x, AXIS - 6, Math.min(4, Math.max(1.5, unit * 0.3)));
  if (step.bad || step.apart) cross(ctx, theme, x);
  if (step.hazards || step.means) warning(ctx, theme, x, step.bad || step.apart);
}

// The sign of an operation, centred at (x, y), about 2s wide. The legend uses the same.
export function sign(ctx, kind, color, x, y, s) {
  ctx.strokeStyle = ctx.fillStyle = color;
  ctx.lineWidth = 1.5;
  ctx.beginPath();
  const line = (...p) => { ctx.moveTo(x + p[0] * s, y + p[1] * s); for (let i = 2; i < p.length; i += 2) ctx.lineTo(x + p[i] * s, y + p[i + 1] * s); };
  const strokes = {
    remove: () => line(-1, 0, 1, 0),
    shift: () => { line(-1.2, 0, 1.2, 0); line(0.3, -0.8, 1.2, 0, 0.3, 0.8); },
    divide: () => { line(-1, 0, 1, 0); ctx.rect(x - 0.5, y - s - 0.5, 1, 1); ctx.rect(x - 0.5, y + s - 0.5, 1, 1); },
    keep: () => ctx.arc(x, y, s * 0.9, 0, 7),
    clear: () => { ctx.arc(x, y, s * 0.9, 0, 7); line(-0.8, 0.9, 0.8, -0.9); },
    share: () => { ctx.rect(x - s, y - s, s * 1.2, s * 1.2); ctx.rect(x - s * 0.1, y - s * 0.1, s * 1.1, s * 1.1); },
    defragment: () => { for (const d of [-0.8, 0, 0.8]) line(d, -0.9, d, 0.9); },
    read: () => { line(-0.8, -0.5, 0.8, -0.5); line(-0.8, 0.5, 0.8, 0.5); },
    init: () => ctx.arc(x, y, s * 0.4, 0, 7),
    decode: () => line(-0.6, 0, 0.6, 0),
  };
  if (kind === "save" || kind === "restore") {
    const d = kind === "save" ? 1 : -1;
    line(-1, -0.7 * d, 1, -0.7 * d, 0, 0.8 * d);
    ctx.fill();
  } else {
    (strokes[kind] ?? strokes.read)();
    ctx.stroke();
  }
}
