// Marks on canvas layer 2: rings of what was written, ghosts of what was freed, head, n_kv, selection.

import { box, gapOf, labelFont, radiusOf } from "./cells.js";
import { number } from "./format.js";
import { PAD } from "./layout.js";

export function drawMarks(lane, ctx) {
  const { theme } = lane.player;
  ctx.clearRect(-PAD, -PAD, lane.cols * lane.pw + 2 * PAD, lane.rows * lane.ph + 2 * PAD);
  for (const [i, was] of lane.ghosts) ghost(lane, ctx, theme, i, was);
  if (lane.image) imageRings(lane, ctx, theme);
  else for (const i of lane.rings) ring(lane, ctx, theme, i);
  if (lane.wanted) for (const i of lane.wanted) wanted(lane, ctx, theme, i);
  endOfKv(lane, ctx, theme);
  for (const [i, n] of lane.player.picks.of(lane.k)) picked(lane, ctx, theme, i, n);
  head(lane, ctx, theme);
  pointed(lane, ctx, theme);
}

// A picked or previewed cell: a dashed ring in ink, and the number of a pick.
function picked(lane, ctx, theme, i, n) {
  if (!shown(lane, i)) return;
  const { x, y } = lane.at(i), p = lane.pw, w = p < 14 ? 1 : 2;
  if (n) {
    ctx.fillStyle = theme.bg;
    box(ctx, x + 1, y + 1, p - 2, p - 2, radiusOf(p));
    ctx.globalAlpha = 0.82;
    ctx.fill();
    ctx.globalAlpha = 1;
  }
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = w;
  ctx.setLineDash(p < 14 ? [2, 1] : [4, 2.5]);
  box(ctx, x + w / 2, y + w / 2, p - w, p - w, radiusOf(p));
  ctx.stroke();
  ctx.setLineDash([]);
  if (!n || p < 14) return;
  ctx.font = `600 ${Math.min(18, p * 0.45)}px ${theme.sans}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillStyle = theme.ink;
  ctx.fillText(String(n), x + p / 2, y + p / 2 + 0.5);
}

function shown(lane, i) {
  return i < lane.rows * lane.cols;
}

function ring(lane, ctx, theme, i) {
  if (!shown(lane, i)) return;
  const { x, y } = lane.at(i), p = lane.pw, w = p < 20 ? 1.5 : 2;
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = p < 8 ? 1 : w;
  const out = p < 8 ? 0.5 : 0;
  box(ctx, x + out, y + out, p - 2 * out - (p < 8 ? gapOf(p) : 0), p - 2 * out - (p < 8 ? gapOf(p) : 0), radiusOf(p) + 1);
  ctx.stroke();
}

// Rings too small to draw one by one: an outline around each run within its row.
function imageRings(lane, ctx, theme) {
  const cells = [...lane.rings].sort((a, b) => a - b);
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 1;
  for (let a = 0; a < cells.length;) {
    let b = a;
    while (b + 1 < cells.length && cells[b + 1] === cells[b] + 1 && cells[b + 1] % lane.cols) b++;
    const { x, y } = lane.at(cells[a]);
    ctx.strokeRect(x - 0.5, y - 0.5, (b - a + 1) * lane.pw + 1, lane.ph + 1);
    a = b + 1;
  }
}

export function ghost(lane, ctx, theme, i, was, alpha = 1) {
  if (!shown(lane, i) || lane.pw < 5) return;
  const { x, y } = lane.at(i), gap = gapOf(lane.pw), s = lane.pw - gap, r = radiusOf(lane.pw);
  const seq = lane.player.model.owners[was.owner]?.[0] ?? 0;
  ctx.save();
  ctx.globalAlpha = alpha;
  ctx.fillStyle = theme.bg;
  box(ctx, x + gap / 2, y + gap / 2, s, s, r);
  ctx.fill();
  ctx.fillStyle = theme.alpha(seq, theme.dark ? 0.16 : 0.1);
  ctx.fill();
  ctx.lineWidth = 1;
  const large = lane.pw >= 24;
  ctx.strokeStyle = large ? theme.edge(seq) : theme.alpha(seq, theme.dark ? 0.5 : 0.4);
  ctx.setLineDash(large ? [3, 2] : []);
  box(ctx, x + gap / 2 + 0.5, y + gap / 2 + 0.5, s - 1, s - 1, r);
  ctx.stroke();
  if (large) struck(ctx, theme, x + lane.pw / 2, y + lane.ph / 2, was.pos, lane.pw);
  ctx.restore();
}

function struck(ctx, theme, x, y, pos, pitch) {
  ctx.setLineDash([]);
  ctx.font = labelFont(theme, pitch);
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.fillStyle = ctx.strokeStyle = theme.ink3;
  ctx.fillText(String(pos), x, y + 0.5);
  const half = ctx.measureText(String(pos)).width / 2 + 2;
  ctx.beginPath();
  ctx.moveTo(x - half, y);
  ctx.lineTo(x + half, y);
  ctx.stroke();
}

// A cell that a refused batch found before it failed: outlined in the sequence's colour.
function wanted(lane, ctx, theme, i) {
  if (!shown(lane, i)) return;
  const { x, y } = lane.at(i), gap = gapOf(lane.pw), s = lane.pw - gap;
  ctx.strokeStyle = theme.edge(lane.wantedBy ?? 0);
  ctx.lineWidth = lane.pw < 8 ? 1 : 1.5;
  box(ctx, x + gap / 2 + 0.75, y + gap / 2 + 0.75, s - 1.5, s - 1.5, radiusOf(lane.pw));
  ctx.stroke();
}

// Where the next search for a slot begins.
function head(lane, ctx, theme) {
  const at = lane.headShown ?? lane.player.model.now[lane.k].head;
  const last = at >= lane.spec.size || at >= lane.rows * lane.cols;
  if (at > lane.rows * lane.cols || lane.player.model.isUntold(lane.k)) return;
  const { x, y } = last ? lane.at(at - 1) : lane.at(at);
  pin(ctx, theme, last ? x + lane.pw : x, y, lane.ph, lane.pw);
}

export function pin(ctx, theme, x, y, height, pitch) {
  const w = pitch >= 11 ? 5 : 4, h = pitch >= 11 ? 7 : 6;
  ctx.fillStyle = theme.bg;
  ctx.fillRect(x - 2, y - 2, 4, height + 3);
  ctx.beginPath();
  ctx.moveTo(x - w - 1.8, y - h - 1.6);
  ctx.lineTo(x + w + 1.8, y - h - 1.6);
  ctx.lineTo(x, y + 2);
  ctx.fill();
  ctx.fillStyle = theme.ink;
  ctx.fillRect(x - 1, y - 2, 2, height + 2);
  ctx.beginPath();
  ctx.moveTo(x - w, y - h);
  ctx.lineTo(x + w, y - h);
  ctx.lineTo(x, y);
  ctx.fill();
}

function endOfKv(lane, ctx, theme) {
  const n = lane.player.nKv()[lane.spec.cache];
  const row = n / lane.cols;
  if (!n || n >= lane.spec.size || row >= lane.rows || lane.image) return;
  const y = Math.ceil(row) * lane.ph - 0.5, width = lane.cols * lane.pw;
  ctx.strokeStyle = theme.ink3;
  ctx.lineWidth = 1;
  ctx.setLineDash([4, 3]);
  ctx.beginPath();
  ctx.moveTo(0, y);
  ctx.lineTo(width, y);
  ctx.stroke();
  ctx.setLineDash([]);
  const text = `n_kv ${number(n)}`;
  ctx.font = `500 11px ${theme.sans}`;
  const w = ctx.measureText(text).width + 10;
  ctx.fillStyle = theme.bg;
  ctx.fillRect(width - w - 4, y - 8, w, 16);
  ctx.fillStyle = theme.ink2;
  ctx.textAlign = "left";
  ctx.textBaseline = "middle";
  ctx.fillText(text, width - w + 1, y + 0.5);
}

function pointed(lane, ctx, theme) {
  const { hovered, selected } = lane.player;
  if (hovered?.lane === lane.k) outline(lane, ctx, theme, hovered.cell, false);
  if (selected?.lane === lane.k) outline(lane, ctx, theme, selected.cell, true);
}

function outline(lane, ctx, theme, i, double) {
  if (!shown(lane, i)) return;
  const { x, y } = lane.at(i), big = lane.pw >= 8, r = radiusOf(lane.pw);
  const [w, h] = big ? [lane.pw, lane.ph] : [Math.max(lane.pw, 6), Math.max(lane.ph, 6)];
  if (double) {
    ctx.strokeStyle = theme.bg;
    ctx.lineWidth = 4;
    box(ctx, x - 0.5, y - 0.5, w + 1, h + 1, r + 1);
    ctx.stroke();
  }
  ctx.strokeStyle = theme.ink;
  ctx.lineWidth = 2;
  const out = double ? 2 : 0.5;
  box(ctx, x - out, y - out, w + 2 * out, h + 2 * out, r + out);
  ctx.stroke();
}
