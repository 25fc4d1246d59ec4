// The Workload page's plots: panels over the time of a simulation. Dragging over them chooses an interval.

import { drawPanel, GAP, heightOf, LEFT, RIGHT, timeAxis } from "./workload-panels.js";
import { el, number } from "./format.js";
import { themeOf } from "./ground.js";
import { penOf, Theme } from "./theme.js";

const VIEWS = new WeakMap();
const FOOT = 26, LEAST_DRAG = 4, KEY_STEP = 0.01;

export default function component({ parentElement, data, setStateValue }) {
  const host = parentElement.querySelector(".kv-host") ?? parentElement;
  let view = VIEWS.get(parentElement);
  if (!view) {
    view = new Plots(host);
    VIEWS.set(parentElement, view);
  }
  view.send = (from, to) => setStateValue("brush", { key: data.key, from, to });
  view.update(data);
  return () => {
    if (parentElement.isConnected) return;
    view.destroy();
    VIEWS.delete(parentElement);
  };
}

class Plots {
  constructor(host) {
    this.host = host;
    this.canvas = el("canvas", { role: "img" });
    this.said = el("div", { class: "kv-sr", role: "status", "aria-live": "polite" });
    this.root = el("div", { class: "kv kvw", tabindex: "0", role: "application", "aria-label": "plots over the time of the simulation" }, [this.canvas, this.said]);
    host.append(this.root);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.root);
    this.timer = setInterval(() => this._theme(), 400);
    this.canvas.addEventListener("pointerdown", (event) => this._down(event));
    this.canvas.addEventListener("pointermove", (event) => this._move(event));
    this.canvas.addEventListener("pointerup", () => this._up());
    this.canvas.addEventListener("pointercancel", () => { this.drag = null; this.brush = this.data.brush; this.draw(); });
    this.canvas.addEventListener("pointerleave", () => { if (!this.drag) { this.cursor = null; this.draw(); } });
    this.root.addEventListener("keydown", (event) => this._key(event));
  }

  destroy() {
    this.observer.disconnect();
    clearInterval(this.timer);
    this.root.remove();
  }

  update(data) {
    if (this.data && this.data.panels === data.panels && String(this.data.brush) === String(data.brush)) return;
    this.data = data;
    this.panels = JSON.parse(data.panels);
    this.end = Math.max(data.end, 1e-9);
    this.brush = data.brush;
    this.canvas.classList.toggle("kvw-brushable", data.brushable);
    const told = this.panels.map((panel) => (panel.note ? `${panel.title}: ${panel.note}` : panel.title)).join("; ");
    this.canvas.setAttribute("aria-label", told);
    this._theme();
    this.draw();
  }

  _theme() {
    const theme = themeOf(this.host);
    if (this.root.dataset.theme === theme) return;
    this.root.dataset.theme = theme;
    this.draw();
  }

  x(time) { return LEFT + (time / this.end) * this.inner; }

  time(event) {
    const at = (event.clientX - this.canvas.getBoundingClientRect().left - LEFT) / this.inner;
    return Math.max(0, Math.min(1, at)) * this.end;
  }

  // -- choosing an interval ---------------------------------------------------------------------

  _down(event) {
    if (!this.data.brushable || event.button !== 0) return;
    this.canvas.setPointerCapture(event.pointerId);
    this.drag = { from: this.time(event), x: event.clientX };
  }

  _move(event) {
    this.cursor = this.time(event);
    if (this.drag && Math.abs(event.clientX - this.drag.x) >= LEAST_DRAG) this.brush = [this.drag.from, this.cursor].sort((a, b) => a - b);
    this.draw();
  }

  _up() {
    const moved = this.drag && this.brush !== this.data.brush;
    this.drag = null;
    if (moved) this._choose();
  }

  _choose() {
    const [from, to] = this.brush.map((t) => Number(t.toPrecision(6)));
    this.data = { ...this.data, brush: this.brush };
    this.said.textContent = `Interval from ${from} to ${to} seconds`;
    this.send(from, to);
  }

  _key(event) {
    if (event.key === "Enter" && this.brush && this.data.brushable) {
      event.preventDefault();
      this._choose();
      return;
    }
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!way) return;
    event.preventDefault();
    const before = this.cursor ?? 0;
    this.cursor = Math.max(0, Math.min(this.end, before + way * KEY_STEP * this.end));
    if (event.shiftKey && this.data.brushable) {
      this.anchor ??= before;
      this.brush = [this.anchor, this.cursor].sort((a, b) => a - b);
    } else this.anchor = null;
    this.said.textContent = `${number(Math.round(this.cursor))} seconds`;
    this.draw();
  }

  // -- drawing ----------------------------------------------------------------------------------

  draw() {
    const width = this.root.clientWidth, dpr = window.devicePixelRatio || 1;
    if (width < 200 || !this.panels) return;
    this.theme = new Theme(this.root, dpr);
    this.inner = width - LEFT - RIGHT;
    const height = this.panels.reduce((sum, panel) => sum + heightOf(panel) + GAP, FOOT);
    const ctx = penOf(this.canvas, width, height, dpr);
    let top = 0;
    for (const panel of this.panels) {
      drawPanel(ctx, this, panel, top + GAP);
      top += heightOf(panel) + GAP;
    }
    timeAxis(ctx, this, top);
    this._marks(ctx, top);
  }

  _marks(ctx, bottom) {
    const { theme } = this;
    if (this.brush) {
      const [a, b] = this.brush.map((t) => this.x(t));
      ctx.globalAlpha = 0.1;
      ctx.fillStyle = theme.ink;
      ctx.fillRect(a, GAP - 4, Math.max(2, b - a), bottom - GAP + 4);
      ctx.globalAlpha = 1;
      ctx.fillRect(a - 0.75, GAP - 4, 1.5, bottom - GAP + 4);
      ctx.fillRect(Math.max(b, a + 2) - 0.75, GAP - 4, 1.5, bottom - GAP + 4);
    }
    if (this.cursor == null) return;
    ctx.fillStyle = theme.ink3;
    ctx.fillRect(this.x(this.cursor) - 0.5, GAP - 4, 1, bottom - GAP + 4);
  }
}
