// DeepSeek-V4's compressors: per sequence a ring of recent tokens, and the rows pooled from them.
//
// A ring's slot is position mod its size, slot 0 at 12 o'clock, clockwise. Full colour is the block being
// collected, pale what belongs to earlier blocks; the hand points at the slot to be written next. A pooled row is
// as wide as the tokens it stands for.

import { box } from "./cells.js";
import { el, number } from "./format.js";

const LEFT = 44, BIG = 112, SMALL = 58;

export class Compressors {
  constructor(player) {
    this.player = player;
    this.spec = player.model.payload.dsv4;
    this.facts = el("span", "kv-lane-facts");
    this.canvas = el("canvas", { class: "kv-compressor", role: "img" });
    this.root = el("section", "kv-compressors", [el("div", "kv-lane-header", [el("span", "kv-lane-name", "compressors"), this.facts]), this.canvas]);
    this.root.hidden = !this.spec;
    this.height = 0;
    if (this.spec) {
      const { csa, hca } = this.spec;
      this.facts.textContent = `csa and lid: one row for ${csa.ratio} tokens, pooled from a ring of ${csa.state_size}; hca: one row for ${hca.ratio} tokens, ring of ${hca.state_size}`;
    }
  }

  place(width) {
    if (!this.spec) return;
    const { dpr, model } = this.player;
    this.seqs = model.sequences;
    this.single = this.seqs.length === 1;
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

  draw(frame) {
    if (!this.spec) return;
    const ctx = this.canvas.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.seqs.length * this.block);
    const told = this.seqs.map((seq, r) => this._sequence(ctx, seq, frame, r * this.block));
    this.canvas.setAttribute("aria-label", told.join("; "));
  }

  _sequence(ctx, seq, frame, y) {
    const { theme } = this.player;
    const last = frame.side.pos[seq]?.[1] ?? -1;
    const size = this.single ? BIG : SMALL;
    ["csa", "hca"].forEach((part, j) => {
      const x = this.single ? LEFT + 4 + j * Math.min(480, (this.width - LEFT) / 2) : LEFT + 36 + j * (size + 12);
      this._ring(ctx, part, seq, last, x + size / 2, y + size / 2 + 4, size / 2);
      if (this.single) this._ringText(ctx, part, last, x + size + 24, y + 14);
    });
    const wrote = this._wrote(frame, seq);
    if (this.single) {
      this._rows(ctx, "csa", "csa and lid", seq, last, wrote.csa, LEFT, y + BIG + 40, this.width - LEFT - 8, 20);
      this._rows(ctx, "hca", "hca", seq, last, wrote.hca, LEFT, y + BIG + 86, this.width - LEFT - 8, 20);
    } else {
      this._chip(ctx, theme, seq, y + size / 2 + 4);
      const x = LEFT + 36 + 2 * (size + 12) + 34;
      this._rows(ctx, "csa", "csa", seq, last, wrote.csa, x, y + 14, this.width - x - 8, 15);
      this._rows(ctx, "hca", "hca", seq, last, wrote.hca, x, y + 42, this.width - x - 8, 15);
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

  // The rows of this sequence that the step completed.
  _wrote(frame, seq) {
    const found = { csa: new Set(), hca: new Set() };
    for (const u of frame.step.u ?? []) {
      for (const part of ["csa", "hca"]) for (const [stream, row] of u.rows_written?.[part] ?? []) if (stream === seq) found[part].add(row);
    }
    return found;
  }

  _ring(ctx, part, seq, last, cx, cy, r) {
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
    const hand = start + (((last + 1) % slots) * turn);
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 2;
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

  _rows(ctx, part, name, seq, last, wrote, x, y, width, height) {
    const { theme, model, at } = this.player;
    const { ratio } = this.spec[part];
    const tokens = Math.max(64, Math.ceil((model.top[at] + 2) / 64) * 64, last + 1);
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
    for (let row = 0; row < n; row++) {
      ctx.fillStyle = theme.color(seq);
      box(ctx, x + row * w, y, Math.max(w - (w > 4 ? 1.5 : 0.4), 0.5), height, w > 8 ? 3 : 0);
      ctx.fill();
    }
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 2;
    for (const row of wrote) {
      if (row >= n) continue;
      box(ctx, x + row * w, y - 1, Math.max(w - 1, 2), height + 2, 3);
      ctx.stroke();
    }
    if (w > 90) this._rowNames(ctx, n, w, ratio, seq, x, y, width, height);
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

const rowsOf = (last, ratio) => Math.floor((last + 1) / ratio);
