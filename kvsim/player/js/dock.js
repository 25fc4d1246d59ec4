// The dock: transport, speed, legend of the timeline's marks, and the timeline itself.

import { el, number } from "./format.js";
import { Timeline, sign } from "./timeline.js";

export const SPEEDS = [0.5, 1, 4, 16];

const ICONS = {
  first: "M4 3v10M13 3 6 8l7 5z", back: "M10 3 5 8l5 5", play: "M5 3l8 5-8 5z", pause: "M4.5 3h2.5v10H4.5zM9 3h2.5v10H9z",
  next: "M6 3l5 5-5 5", last: "M12 3v10M3 3l7 5-7 5z",
};

export class Dock {
  constructor(player) {
    this.player = player;
    this.timeline = new Timeline(player);
    this.play = button("play", "Play", () => player.toggle());
    this.count = el("span", "kv-count");
    this.speeds = SPEEDS.map((s) => {
      const b = el("button", { type: "button", class: "kv-speed", "aria-pressed": "false" }, `${s === 0.5 ? "½" : s}×`);
      b.addEventListener("click", () => player.setSpeed(s));
      return b;
    });
    this.marks = el("div", "kv-marks-legend");
    this.extra = el("div", "kv-extra");
    const bar = el("div", "kv-transport", [
      button("first", "First step", () => player.lead(0)), button("back", "One step back", () => player.step(-1)), this.play,
      button("next", "One step on", () => player.step(1)), button("last", "Last step", () => player.lead(player.model.nSteps - 1)),
      this.count, el("div", { class: "kv-segmented", role: "group", "aria-label": "speed" }, this.speeds), this.extra,
      el("span", "kv-space"), this.marks]);
    this.root = el("div", "kv-dock", [bar, this.timeline.root]);
  }

  place(width) {
    this.timeline.place(width);
    this._legend();
  }

  draw() {
    const { player } = this;
    const icon = player.playing ? "pause" : "play";
    if (this.icon !== icon) {
      this.icon = icon;
      this.play.replaceChildren(svg(icon));
      this.play.setAttribute("aria-label", player.playing ? "Pause" : "Play");
      this.play.classList.toggle("kv-on", player.playing);
    }
    this.count.replaceChildren(el("b", "", number(player.at)), el("span", "", ` of ${number(player.model.nSteps - 1)}`));
    this.speeds.forEach((b, i) => b.setAttribute("aria-pressed", SPEEDS[i] === player.speed));
    this.timeline.draw();
  }

  _legend() {
    const { theme, model, dpr } = this.player;
    const present = new Set(model.steps.map((s) => s.mark));
    const groups = [["decode", "decode", ["decode"]], ["edit", "edit", ["remove", "shift", "divide", "keep", "clear"]],
      ["copy", "copy", ["share", "defragment"]], ["state", "save, restore", ["save", "restore"]]];
    const items = groups.map(([kind, text, marks]) => {
      const shown = marks.filter((m) => present.has(m));
      if (!shown.length) return null;
      const width = shown.length * 13;
      const canvas = canvasOf(width, 14, dpr, (ctx) => shown.forEach((m, j) => {
        if (m === "decode") { ctx.fillStyle = theme.decode; ctx.fillRect(4, 1, 5, 12); } else sign(ctx, m, theme[kind], 6 + j * 13, 7, 3.6);
      }));
      const node = el("span", "kv-mark", [canvas, el("span", "", text)]);
      node.style.color = theme[kind];
      return node;
    });
    const bad = el("span", "kv-mark kv-bad", "✕ refused");
    const apart = model.steps.some((s) => s.apart) ? el("span", "kv-mark kv-bad", "✕ differs") : null;
    const hazard = model.steps.some((s) => s.hazards) ? el("span", "kv-mark kv-amber", "▲ hazard") : null;
    const message = model.steps.some((s) => s.means) ? el("span", "kv-mark kv-amber", "▲ message") : null;
    this.marks.replaceChildren(...[...items, model.steps.some((s) => s.bad) ? bad : null, apart, hazard, message].filter(Boolean));
  }
}

function canvasOf(width, height, dpr, draw) {
  const canvas = el("canvas");
  canvas.width = width * dpr;
  canvas.height = height * dpr;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.scale(dpr, dpr);
  draw(ctx);
  return canvas;
}

export function button(icon, label, action) {
  const node = el("button", { type: "button", class: "kv-icon", "aria-label": label, title: label }, [svg(icon)]);
  node.addEventListener("click", action);
  return node;
}

function svg(icon) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  node.setAttribute("viewBox", "0 0 16 16");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  path.setAttribute("d", ICONS[icon]);
  node.append(path);
  return node;
}
