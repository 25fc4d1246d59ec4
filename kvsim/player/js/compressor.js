// DeepSeek-V4's compressors: per sequence a ring of recent tokens, and the rows pooled from them.
//
// A ring's slot is position mod its size, slot 0 at 12 o'clock, clockwise. Full colour is the block being
// collected, pale what belongs to earlier blocks; the hand points at the slot to be written next. A pooled row is
// as wide as the tokens it stands for.

import { box } from "./cells.js";
import { clamp, el, number, out } from "./format.js";

const LEFT = 44, BIG = 112, SMALL = 58, WIDE = 760;
const FILL = 0.7;  // share of a motion in which the rings fill; in the rest the last row drops to its place

export class Compressors {
  constructor(player, title = "compressors") {
    this.player = player;
    this.spec = player.model.payload.dsv4;
    this.facts = el("span", "kv-lane-facts");
    this.canvas = el("canvas", { class: "kv-compressor", role: "img" });
    this.root = el("section", "kv-compressors", [el("div", "kv-lane-header", [el("span", { class: "kv-lane-name", title }, title), this.facts]), this.canvas]);
    this.root.hidden = !this.spec;
    this.height = 0;
    if (this.spec) {
      const { csa, hca } = this.spec;
      this.facts.title = this.facts.textContent = `csa and lid: one row for ${csa.ratio} tokens, pooled from a ring of ${csa.state_size}; hca: one row for ${hca.ratio} tokens, ring of ${hca.state_size}`;
    }
  }

  place(width) {
    if (!this.spec) return;
    const { dpr, model } = this.player;
    this.seqs = this.player.sequences ?? model.sequences;
    this.single = this.seqs.length === 1 && width >= WIDE;
    this.width = width;
    this.block = this.single ? BIG + 112 : SMALL + 14;
    const inner = Math.max(1, this.seqs.length) * this.block;
    this.canvas.width = width * dpr;
    this.canvas.height = inner * dpr;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${inner}px`;
    this.canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
    this.height = inner + 47;
  }

  // The rings and rows of a frame. progress in 0..1: how far the step has come (motion). against: the frame of
  // another side; what differs from it is red.
  draw(frame, against = null, progress = 1) {
    if (!this.spec) return;
    const ctx = this.canvas.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.seqs.length * this.block);
    const told = this.seqs.map((seq, r) => this._sequence(ctx, { seq, ...this._held(frame, seq, progress), other: against && this._held(against, seq, 1) }, r * this.block));
    this.canvas.setAttribute("aria-label", told.join("; "));
  }

  // Whether a step moves any ring.
  moves(frame) {
    return !!this.spec && this.seqs.some((seq) => lastOf(frame.side0, seq) !== lastOf(frame.side, seq));
  }

  // What a sequence has come to: its last token, where the hand stands between tokens, and per part the rows that the
  // step wrote with how far each has dropped.
  _held(frame, seq, progress) {
    const from = lastOf(frame.side0, seq), to = lastOf(frame.side, seq);
    const reached = from + (to - from) * clamp(progress / FILL);
    const begun = (token) => (to > from ? (FILL * (token - from)) / (to - from) : 0);
    const wrote = { csa: new Map(), hca: new Map() };
    for (const u of frame.step.u ?? []) {
      for (const part of ["csa", "hca"]) for (const [stream, row] of u.rows_written?.[part] ?? []) {
        const end = (row + 1) * this.spec[part].ratio - 1;
        if (stream === seq) wrote[part].set(row, progress === 1 ? 1 : clamp((progress - begun(end)) / (1 - FILL)));
      }
    }
    return { last: Math.floor(reached + 1e-9), reached, wrote };
  }

  _sequence(ctx, held, y) {
    const { theme } = this.player;
    const { seq, last } = held;
    const size = this.single ? BIG : SMALL;
    ["csa", "hca"].forEach((part, j) => {
      const x = this.single ? LEFT + 4 + j * Math.min(480, (this.width - LEFT) / 2) : LEFT + 36 + j * (size + 12);
      this._ring(ctx, part, held, x + size / 2, y + size / 2 + 4, size / 2);
      if (this.single) this._ringText(ctx, part, last, x + size + 24, y + 14);
    });
    if (this.single) {
      this._rows(ctx, "csa", "csa and lid", held, LEFT, y + BIG + 40, this.width - LEFT - 8, 20);
      this._rows(ctx, "hca", "hca", held, LEFT, y + BIG + 86, this.width - LEFT - 8, 20);
    } else {
      this._chip(ctx, theme, seq, y + size / 2 + 4);
      const x = LEFT + 36 + 2 * (size + 12) + 34;
      this._rows(ctx, "csa", "csa", held, x, y + 14, this.width - x - 8, 15);
      this._rows(ctx, "hca", "hca", held, x, y + 42, this.width - x - 8, 15);
    }
    const { csa, hca } = this.spec;
    return `seq ${seq}: ${rowsOf(last, csa.ratio)} csa rows, ${rowsOf(last, hca.ratio)} hca rows`;
  }

  _chip(ctx, theme, seq, middle) {
    ctx.fillStyle = theme.color(seq);
    box(ctx, 0, middle - 6, 12, 12, 3);
    ctx.fill();
    ctx.fillStyle = theme.ink;
    ctx.font = `500 13px ${theme.sans}`;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.fillText(`seq ${seq}`, 18, middle);
  }

  _ring(ctx, part, { seq, last, reached, other }, cx, cy, r) {
    const { theme } = this.player;
    const { ratio, state_size: slots } = this.spec[part];
    const inner = r * 0.55, turn = (2 * Math.PI) / slots, start = -Math.PI / 2;
    const block = last < 0 ? 0 : Math.floor(last / ratio) * ratio;
    for (let s = 0; s < slots; s++) {
      const p = last - ((((last - s) % slots) + slots) % slots);
      const gap = slots <= 16 ? 0.03 : 0.006;
      ctx.beginPath();
      ctx.arc(cx, cy, r, start + s * turn + gap, start + (s + 1) * turn - gap);
      ctx.arc(cx, cy, inner, start + (s + 1) * turn - gap, start + s * turn + gap, true);
      ctx.closePath();
      ctx.fillStyle = last < 0 || p < 0 ? theme.cell : p >= block ? theme.color(seq) : theme.alpha(seq, 0.32);
      ctx.fill();
      if (slots <= 16 && this.single && p >= 0) {
        const a = start + (s + 0.5) * turn, m = (r + inner) / 2;
        ctx.font = `600 11px ${theme.mono}`;
        ctx.textAlign = "center";
        ctx.textBaseline = "middle";
        ctx.fillStyle = p >= block ? theme.label(seq) : theme.ink;
        ctx.fillText(number(p), cx + Math.cos(a) * m, cy + Math.sin(a) * m);
      }
    }
    const hand = start + (((reached + 1) % slots) * turn);
    ctx.lineWidth = 2;
    if (other && other.last !== last) {
      ctx.strokeStyle = theme.fail;
      ctx.beginPath();
      ctx.arc(cx, cy, r + 2.5, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.strokeStyle = theme.ink;
    ctx.beginPath();
    ctx.moveTo(cx + Math.cos(hand) * inner * 0.98, cy + Math.sin(hand) * inner * 0.98);
    ctx.lineTo(cx + Math.cos(hand) * (r + 4), cy + Math.sin(hand) * (r + 4));
    ctx.stroke();
    const n = last < 0 ? 0 : (last % ratio) + 1;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillStyle = theme.ink;
    ctx.font = `600 ${this.single ? 16 : 12}px ${theme.sans}`;
    ctx.fillText(number(n), cx, cy - (this.single ? 7 : 5));
    ctx.fillStyle = theme.ink2;
    ctx.font = `400 ${this.single ? 12 : 9.5}px ${theme.sans}`;
    ctx.fillText(`of ${ratio}`, cx, cy + (this.single ? 10 : 7));
  }

  _ringText(ctx, part, last, x, y) {
    const { theme } = this.player;
    const { ratio, state_size: slots } = this.spec[part];
    const block = last < 0 ? 0 : Math.floor(last / ratio) * ratio;
    const lines = [[`${part} ring`, `600 14px ${theme.sans}`, theme.ink], [`${slots} slots, slot = position mod ${slots}`, `400 12.5px ${theme.sans}`, theme.ink2],
      [last < 0 ? "nothing collected" : `${number(block)}–${number(last)} count towards row ${number(block / ratio)}`, `400 12.5px ${theme.sans}`, theme.ink2],
      [last < 0 ? "" : (last + 1) % ratio === 0 ? "the block is complete: its row is written" : `${number(ratio - ((last + 1) % ratio))} more complete it`, `400 12.5px ${theme.sans}`, theme.ink2]];
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    lines.forEach(([text, font, color], j) => { ctx.font = font; ctx.fillStyle = color; ctx.fillText(text, x, y + j * 20 + (j > 1 ? 6 : 0)); });
  }

  _rows(ctx, part, name, { seq, last, wrote, other }, x, y, width, height) {
    const { theme, model, at } = this.player;
    const { ratio } = this.spec[part];
    const tokens = Math.max(64, Math.ceil((model.top[at] + 2) / 64) * 64, last + 1, (other?.last ?? 0) + 1);
    const unit = Math.min(4.85, width / tokens), w = unit * ratio, n = rowsOf(last, ratio);
    ctx.textBaseline = "middle";
    ctx.textAlign = this.single ? "left" : "right";
    ctx.fillStyle = theme.ink;
    ctx.font = `600 ${this.single ? 14 : 12}px ${theme.sans}`;
    if (this.single) {
      ctx.fillText(name, 0, y - 13);
      ctx.font = `400 12.5px ${theme.sans}`;
      ctx.fillStyle = theme.ink2;
      ctx.fillText(`${number(n)} ${n === 1 ? "row" : "rows"}; row = position ÷ ${ratio}`, x + 64, y - 13);
    } else ctx.fillText(name, x - 8, y + height / 2);
    ctx.fillStyle = theme.cell;
    box(ctx, x, y, Math.min(width, tokens * unit), height, 3);
    ctx.fill();
    ctx.fillStyle = theme.color(seq);
    for (let row = 0; row < n; row++) {
      const come = out(wrote[part].get(row) ?? 1);
      ctx.globalAlpha = come;
      box(ctx, x + row * w, y - (1 - come) * height, Math.max(w - (w > 4 ? 1.5 : 0.4), 0.5), height, w > 8 ? 3 : 0);
      ctx.fill();
    }
    ctx.globalAlpha = 1;
    const ringed = (row, color) => {
      ctx.strokeStyle = color;
      ctx.lineWidth = 2;
      box(ctx, x + row * w, y - 1, Math.max(w - 1, 2), height + 2, 3);
      ctx.stroke();
    };
    for (const [row, come] of wrote[part]) if (row < n && come === 1) ringed(row, theme.ink);
    if (other) for (const row of this._apart(part, n, wrote, other)) ringed(row, theme.fail);
    if (w > 90) this._rowNames(ctx, n, w, ratio, seq, x, y, width, height);
  }

  // Rows that only one side has, or that only one side wrote in this step.
  _apart(part, n, wrote, other) {
    const m = rowsOf(other.last, this.spec[part].ratio), found = new Set();
    for (let row = Math.min(n, m); row < Math.max(n, m); row++) found.add(row);
    for (const [a, b] of [[wrote, other.wrote], [other.wrote, wrote]]) for (const row of a[part].keys()) if (!b[part].has(row)) found.add(row);
    return found;
  }

  _rowNames(ctx, n, w, ratio, seq, x, y, width, height) {
    const { theme } = this.player;
    ctx.font = `500 12px ${theme.sans}`;
    ctx.textAlign = "left";
    for (let row = 0; row <= n && (row + 1) * w <= width + w / 2; row++) {
      ctx.fillStyle = row < n ? theme.label(seq) : theme.ink2;
      ctx.fillText(row < n ? `row ${row}: ${number(row * ratio)}–${number((row + 1) * ratio - 1)}` : `row ${row}: written at ${number((row + 1) * ratio - 1)}`, x + row * w + 8, y + height / 2 + 0.5, w - 12);
    }
  }
}

const lastOf = (side, seq) => side.pos[seq]?.[1] ?? -1;
const rowsOf = (last, ratio) => Math.floor((last + 1) / ratio);
