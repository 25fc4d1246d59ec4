// One panel of the Workload page: what is held as layers, what happened in each span of time as bars, counts as
// lines. Under the pointer the heading tells the values there instead of what they come to.

import { number } from "./format.js";

export const LEFT = 66;
export const RIGHT = 30;
export const GAP = 30;
const HEIGHTS = { area: 132, bars: 62, lines: 62 };
const TALL = 104; // lines that several simulations draw
const DASHES = [[], [6, 4], [1.5, 3], [7, 3, 1.5, 3]];
const LABEL_GAP = 12;

export const heightOf = (panel) => (panel.tall ? TALL : HEIGHTS[panel.kind]);

export function drawPanel(ctx, view, panel, top) {
  const { theme } = view, height = heightOf(panel), most = topOf(panel);
  const y = (value) => top + height - (value / most) * height;
  ctx.strokeStyle = theme.line2;
  ctx.lineWidth = 1;
  line(ctx, LEFT, top + height + 0.5, LEFT + view.inner, top + height + 0.5);
  ({ area, bars, lines })[panel.kind](ctx, view, panel, y);
  const upper = panel.limit ?? most;
  label(ctx, theme, written(upper, panel.unit), LEFT - 8, Math.max(y(upper), top + 5), "right");
  label(ctx, theme, "0", LEFT - 8, top + height - 4, "right");
  heading(ctx, view, panel, top - 10);
}

export function timeAxis(ctx, view, top) {
  const { theme, end } = view;
  let every = 10 ** Math.floor(Math.log10(end / 4));
  for (const more of [2, 2.5, 2]) if (end / every > 10) every *= more;
  for (let t = 0; t <= end * 1.0001; t += every) {
    const x = view.x(t), last = t + every > end * 1.0001;
    ctx.strokeStyle = theme.line2;
    line(ctx, x, top, x, top + 4);
    label(ctx, theme, `${number(Number(t.toPrecision(6)))}${last ? " s" : ""}`, x, top + 14, t === 0 ? "left" : "center");
  }
}

function topOf(panel) {
  if (panel.kind === "area") return panel.limit * 1.02;
  const values = panel.kind === "lines" ? panel.lines.map((one) => Math.max(...one.y))
    : panel.layers[0].y.map((_, i) => panel.layers.reduce((sum, layer) => sum + layer.y[i], 0));
  return panel.unit === "%" ? 100 : Math.max(1, ...values);
}

function area(ctx, view, panel, y) {
  const { theme } = view, xs = panel.x.map((t) => view.x(t));
  let base = panel.x.map(() => 0);
  for (const layer of panel.layers) {
    const upper = base.map((value, i) => value + layer.y[i]);
    ctx.fillStyle = toneOf(ctx, theme, layer.tone);
    ctx.beginPath();
    xs.forEach((x, i) => ctx.lineTo(x, y(upper[i])));
    for (let i = xs.length - 1; i >= 0; i--) ctx.lineTo(xs[i], y(base[i]));
    ctx.fill();
    base = upper;
  }
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1;
  path(ctx, xs, panel.used.map(y));
  ctx.setLineDash([4, 3]);
  ctx.strokeStyle = theme.ink3;
  line(ctx, LEFT, y(panel.limit), LEFT + view.inner, y(panel.limit));
  ctx.setLineDash([]);
}

function bars(ctx, view, panel, y) {
  const { theme } = view, n = panel.x.length - 1, base = new Array(n).fill(0);
  for (const layer of panel.layers) {
    ctx.fillStyle = toneOf(ctx, theme, layer.tone);
    layer.y.forEach((value, i) => {
      if (!value) return;
      const a = view.x(panel.x[i]), b = view.x(panel.x[i + 1]);
      ctx.fillRect(a, y(base[i] + value), Math.max(1, b - a - (b - a > 4 ? 1 : 0)), y(base[i]) - y(base[i] + value));
      base[i] += value;
    });
  }
}

function lines(ctx, view, panel, y) {
  const { theme } = view;
  panel.lines.forEach((one) => {
    ctx.strokeStyle = toneOf(ctx, theme, one.tone);
    ctx.lineWidth = 1.5;
    ctx.setLineDash(DASHES[one.dash % DASHES.length]);
    path(ctx, one.x.map((t) => view.x(t)), one.y.map(y));
    if (panel.tall) label(ctx, theme, one.name, view.x(one.x.at(-1)) + 6, y(one.y.at(-1)), "left");
  });
  ctx.setLineDash([]);
}

// The title, what it comes to (or the values under the pointer), and what the tones mean.
function heading(ctx, view, panel, y) {
  const { theme } = view;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.font = `600 13px ${theme.sans}`;
  ctx.fillStyle = theme.ink;
  ctx.fillText(panel.title, LEFT, y);
  let x = LEFT + ctx.measureText(panel.title).width + LABEL_GAP;
  ctx.font = `12.5px ${theme.sans}`;
  ctx.fillStyle = theme.ink2;
  const note = view.cursor == null ? panel.note : valuesAt(panel, view.cursor);
  ctx.fillText(note, x, y);
  x += ctx.measureText(note).width;
  keys(ctx, view, panel, x + LABEL_GAP, y);
}

function keys(ctx, view, panel, from, y) {
  const { theme } = view, shown = panel.lines ?? (panel.layers.length > 1 && panel.kind === "bars" ? panel.layers : []);
  const width = (one) => ctx.measureText(one.name).width + 22 + LABEL_GAP;
  let x = LEFT + view.inner - shown.reduce((sum, one) => sum + width(one), -LABEL_GAP);
  if (x < from) return;
  for (const one of shown) {
    ctx.fillStyle = ctx.strokeStyle = toneOf(ctx, theme, one.tone);
    if (panel.kind === "bars") ctx.fillRect(x, y - 5, 10, 10);
    else {
      ctx.lineWidth = 1.5;
      ctx.setLineDash(DASHES[one.dash % DASHES.length]);
      line(ctx, x, y, x + 16, y);
      ctx.setLineDash([]);
    }
    ctx.fillStyle = theme.ink2;
    ctx.fillText(one.name, x + (panel.kind === "bars" ? 15 : 20), y);
    x += width(one);
  }
}

function valuesAt(panel, time) {
  const at = (xs) => Math.max(0, xs.findLastIndex((t) => t <= time));
  const when = `${time >= 100 ? number(Math.round(time)) : time.toFixed(1)} s:`;
  if (panel.kind === "area") return `${when} ${number(panel.used[at(panel.x)])} used of ${number(panel.limit)}`;
  const told = panel.kind === "lines" ? panel.lines.map((one) => [one.name, one.y[at(one.x)]])
    : panel.layers.map((layer) => [layer.name, layer.y[Math.min(at(panel.x), layer.y.length - 1)]]);
  return `${when} ${told.map(([name, value]) => `${name} ${written(value, panel.unit)}`).join(", ")}`;
}

const written = (value, unit) => (unit === "%" ? `${Math.round(value)} %` : number(Math.round(value)));

function toneOf(ctx, theme, tone) {
  const [kind, seq, pale] = tone.split(":");
  if (kind !== "seq") return theme[tone];
  return pale ? theme.hatch(ctx, Number(seq), 14) : theme.color(Number(seq));
}

function label(ctx, theme, text, x, y, align) {
  ctx.font = `11.5px ${theme.mono}`;
  ctx.textAlign = align;
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.ink3;
  ctx.fillText(text, x, y);
}

function line(ctx, x0, y0, x1, y1) {
  ctx.beginPath();
  ctx.moveTo(x0, y0);
  ctx.lineTo(x1, y1);
  ctx.stroke();
}

function path(ctx, xs, ys) {
  ctx.beginPath();
  xs.forEach((x, i) => ctx.lineTo(x, ys[i]));
  ctx.stroke();
}
