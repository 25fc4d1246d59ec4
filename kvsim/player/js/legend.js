// "Reading the picture": the encodings that occur in this recording, drawn by the code that draws cells.

import { drawCell } from "./cells.js";
import { AWAITED } from "./lane.js";
import { pin } from "./marks.js";
import { el } from "./format.js";

const SIZE = 22;

export function legend(player) {
  const { model, theme } = player;
  const seqs = model.sequences.length ? model.sequences : [0];
  const one = seqs[Math.min(1, seqs.length - 1)];
  const cell = (owner, more = {}) => ({ owner, pos: 0, shift: 0, tok: 0, ...more });
  const items = [["one owner", (c) => paint(c, cell([seqs[0]]))]];
  if (seqs.length > 1) items.push(["shared by two", (c) => paint(c, cell([seqs[0], one]))]);
  items.push(["written now", (c) => { paint(c, cell([one])); ring(c); }]);
  items.push(["freed now", (c) => dashed(c, one)]);
  if (model.lanes.some((lane) => lane.swa_type)) items.push(["reusable, window", (c) => paint(c, cell([one], { reuse: true }))]);
  items.push(["shift pending", (c) => paint(c, cell([seqs[0]], { shift: 1 }))]);
  items.push(["head", (c) => { paint(c, cell([])); pin(c, theme, 1, 2, SIZE - 6, 28); }]);
  items.push(["empty", (c) => paint(c, cell([]))]);
  if (model.steps.some((s) => s.u?.some((u) => u.ok === false))) items.push(["never computed", (c) => paint(c, cell([one], { unknown: 1 }))]);
  if (model.steps.some((s) => s.extra?.pending_copies)) items.push(["not yet copied", (c) => paint(c, cell([one], { unknown: AWAITED }))]);

  function paint(ctx, what) { drawCell(ctx, theme, 2, 2, SIZE - 6, 28, what, ""); }
  function ring(ctx) {
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 2;
    ctx.beginPath();
    ctx.roundRect(1, 1, SIZE - 4, SIZE - 4, 5);
    ctx.stroke();
  }
  function dashed(ctx, seq) {
    ctx.fillStyle = theme.alpha(seq, 0.1);
    ctx.strokeStyle = theme.edge(seq);
    ctx.setLineDash([3, 2]);
    ctx.beginPath();
    ctx.roundRect(2.5, 2.5, SIZE - 7, SIZE - 7, 4);
    ctx.fill();
    ctx.stroke();
    ctx.setLineDash([]);
  }

  const rows = items.map(([text, draw]) => {
    const canvas = el("canvas");
    canvas.width = canvas.height = SIZE * player.dpr;
    canvas.style.width = canvas.style.height = `${SIZE}px`;
    const ctx = canvas.getContext("2d");
    ctx.scale(player.dpr, player.dpr);
    draw(ctx);
    return el("span", "kv-legend-item", [canvas, el("span", "", text)]);
  });
  return el("section", "kv-section", [el("h3", "", "Reading the picture"), el("div", "kv-legend", rows)]);
}
