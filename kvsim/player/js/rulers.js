// Positions: one row per sequence, its bars on one scale. The other order of the same cells.

import { box } from "./cells.js";
import { el, number } from "./format.js";
import { GONE, SHIFT } from "./model.js";

const LEFT = 78, NOTE = 150, AXIS = 24;

export class Rulers {
  constructor(player) {
    this.player = player;
    this.what = el("span", "kv-secondary");
    this.canvas = el("canvas", { class: "kv-rulers", role: "img" });
    this.root = el("section", "kv-positions", [
      el("div", "kv-lane-header", [el("span", "kv-lane-name", "Positions"), this.what]), this.canvas]);
    this.canvas.addEventListener("click", (event) => {
      const row = Math.floor((event.clientY - this.canvas.getBoundingClientRect().top - AXIS) / this.pitch);
      if (row >= 0 && row < this.seqs.length) player.select({ seq: this.seqs[row] });
    });
  }

  // Caches with cells of their own, in lane order; each gets a bar. Rows share `room` as far as they can.
  place(width, room) {
    const { model, dpr } = this.player;
    this.caches = [...new Set(model.lanes.map((lane) => lane.cache))].filter((cache) =>
      model.lanes.some((lane, k) => lane.cache === cache && (model.reach[k] > 0 || (model.hasUnseen && this._tells(k)))));
    this.seqs = model.sequences;
    this.root.hidden = this.seqs.length === 0 || !this.caches.length;
    this.bar = this.caches.length > 1 ? 6 : 12;
    const windowed = model.lanes.some((lane) => lane.swa_type);
    const bars = Math.max(1, this.caches.length) * (this.bar + 2);
    const least = bars + (windowed ? 7 : 5), most = Math.max(27, least);
    this.pitch = Math.max(least, Math.min(most, Math.floor((room - AXIS - 34) / Math.max(1, this.seqs.length))));
    this.width = width;
    this.height = this.root.hidden ? 0 : AXIS + this.seqs.length * this.pitch + 6;
    this.least = this.root.hidden ? 0 : AXIS + this.seqs.length * least + 34;
    this.canvas.width = width * dpr;
    this.canvas.height = this.height * dpr;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
    const names = this.caches.length > 1 ? `bars from above: ${this.caches.join(", ")}` : "what each sequence can attend to";
    this.what.textContent = model.hasUnseen && !model.reach.some((reach) => reach) ? "first and last of each sequence" : windowed ? `${names}; the bracket is what the next token can see` : names;
  }

  // `slide` in 0..1 moves the bars of shifted positions from where they were; null when at rest.
  draw(frame, slide = null) {
    if (this.root.hidden) return;
    const { theme } = this.player;
    const ctx = this.canvas.getContext("2d");
    ctx.clearRect(0, 0, this.width, this.height);
    const rows = this.seqs.map((seq) => this._row(seq, frame));
    const scale = this._scale(rows);
    this._axis(ctx, theme, scale);
    const touched = rows.filter((row) => row.touched).length;
    for (const row of rows) row.strong = row.parts.some((p) => p?.ghosts.length || p?.delta) || (row.touched && touched === 1);
    rows.forEach((row, r) => this._drawRow(ctx, theme, row, AXIS + r * this.pitch, scale, slide));
    this.canvas.setAttribute("aria-label", rows.map((row) => `seq ${row.seq}: ${row.note}`).join("; "));
  }

  // What one sequence holds in each cache: segments, ghosts, ends and note.
  _row(seq, frame) {
    const { model } = this.player;
    const parts = this.caches.map((cache) => {
      const k = model.laneOf(cache, seq);
      return k < 0 ? null : { k, ...this._segments(k, seq, frame.lanes[k]) };
    });
    const touched = parts.some((p) => p?.touched);
    return { seq, parts, touched, note: this._note(seq, parts, frame) };
  }

  // Whether the position ranges of a log are those of this lane: of the window cache, where there is one.
  _tells(k) {
    const { lanes } = this.player.model;
    return lanes.some((lane) => lane.swa_type) ? !!lanes[k].swa_type : lanes[k].cache === lanes[0].cache;
  }

  // A sequence in a lane whose cells are unknown: its range, if that is told.
  _range(k, seq) {
    const [low, high] = (this._tells(k) && this.player.model.side.pos[seq]) || [-1, -1];
    const segments = low < 0 ? [] : [{ from: low, to: high, ids: [seq] }];
    return { segments, ghosts: [], delta: 0, twice: 0, n: low < 0 ? 0 : high - low + 1, touched: false, low, high, ranged: true };
  }

  _segments(k, seq, lane) {
    const { model } = this.player;
    if (model.isUnseen(k)) return this._range(k, seq);
    const { owner, pos, size } = model.now[k];
    const mine = model.owners.map((ids) => ids.includes(seq));
    const held = [];
    for (let i = 0; i < size; i++) if (mine[owner[i]]) held.push(i);
    held.sort((a, b) => pos[a] - pos[b]);
    const segments = [];
    let twice = 0;
    for (let j = 0; j < held.length; j++) {
      const i = held[j], p = pos[i], last = segments[segments.length - 1];
      if (j && pos[held[j - 1]] === p) { twice++; continue; }
      const look = { owner: owner[i], reuse: !!lane.reuse?.[i], unknown: !!model.now[k].unknown[i] };
      const same = last && p === last.to + 1 && last.owner === look.owner && last.reuse === look.reuse && last.unknown === look.unknown;
      if (same) last.to = p;
      else segments.push({ from: p, to: p, ...look });
    }
    const gone = lane.changes.filter((c) => mine[c.owner] && !mine[owner[c.cell]] && GONE.includes(c.kind));
    const ghosts = gone.map((c) => c.pos).sort((a, b) => a - b);
    const moved = lane.changes.find((c) => c.kind === SHIFT && mine[c.owner]);
    const delta = moved ? pos[moved.cell] - moved.pos : 0;
    const wrote = [...lane.written].some((i) => mine[owner[i]]);
    return { segments, ghosts, delta, twice, n: held.length, touched: gone.length > 0 || !!moved || wrote,
      low: held.length ? pos[held[0]] : -1, high: held.length ? pos[held[held.length - 1]] : -1 };
  }

  _note(seq, parts, frame) {
    const part = [...parts].reverse().find((p) => p) ?? null;
    const main = parts.find((p) => p && p.n) ?? part;
    if (!main || parts.every((p) => !p || !p.n)) {
      return parts.some((p) => p?.ghosts.length) ? "nothing left" : "empty";
    }
    const [low, high] = frame.side.pos[seq] ?? [main.low, main.high];
    const [low0, high0] = frame.side0.pos[seq] ?? [-1, -1];
    const ends = low < 0 ? span(main.low, main.high) : span(low, high);
    const tokens = parts.filter(Boolean).length === 1 && !main.ranged ? `, ${number(main.n)} token${main.n === 1 ? "" : "s"}` : "";
    if (main.twice) return `${ends}, ${number(main.twice)} held twice`;
    if (low0 >= 0 && (low > low0 || high < high0) && low >= 0) return `${ends}, was ${span(low0, high0)}`;
    return ends + tokens;
  }

  // One scale for all; it covers the steps before and after too, so that bars don't jump.
  _scale(rows) {
    const { model, at } = this.player;
    let top = Math.max(8, model.top[at] + 2);
    for (const row of rows) for (const p of row.parts) {
      if (p) top = Math.max(top, p.high + 2, p.high - p.delta + 1, ...p.ghosts.slice(-1).map((g) => g + 1));
    }
    const room = this.width - LEFT - NOTE;
    const raw = (top / room) * 64;
    const step = [4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768].find((s) => s >= raw) ?? 65536;
    const end = Math.ceil(top / step) * step;
    return { step, end, x: (p) => LEFT + (p / end) * room };
  }

  _axis(ctx, theme, scale) {
    ctx.font = `11px ${theme.mono}`;
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    for (let p = 0; p <= scale.end; p += scale.step) {
      const x = Math.round(scale.x(p)) + 0.5;
      ctx.strokeStyle = theme.line;
      ctx.lineWidth = 1;
      ctx.beginPath();
      ctx.moveTo(x, AXIS - 6);
      ctx.lineTo(x, this.height);
      ctx.stroke();
      ctx.fillStyle = theme.ink3;
      ctx.fillText(number(p), x, 8);
    }
  }

  _drawRow(ctx, theme, row, y, scale, slide) {
    const { focus } = this.player;
    const middle = y + this.pitch / 2 - 1;
    ctx.globalAlpha = focus != null && focus !== row.seq ? 0.25 : 1;
    ctx.fillStyle = theme.color(row.seq);
    box(ctx, 0, middle - 6, 12, 12, 3);
    ctx.fill();
    ctx.strokeStyle = theme.edge(row.seq);
    ctx.lineWidth = 1;
    box(ctx, 0.5, middle - 5.5, 11, 11, 2.5);
    ctx.stroke();
    ctx.fillStyle = theme.ink;
    ctx.textAlign = "left";
    ctx.textBaseline = "middle";
    ctx.font = `${row.strong ? 600 : 500} 13px ${theme.sans}`;
    ctx.fillText(`seq ${row.seq}`, 18, middle + 0.5);
    const bars = row.parts.length * (this.bar + 2) - 2;
    row.parts.forEach((part, c) => {
      if (part) this._drawPart(ctx, theme, row.seq, part, middle - bars / 2 + c * (this.bar + 2), scale, slide);
    });
    ctx.fillStyle = row.strong ? theme.ink : theme.ink3;
    ctx.font = `${row.strong ? 600 : 400} 12px ${theme.sans}`;
    ctx.textAlign = "left";
    ctx.fillText(row.note, this.width - NOTE + 14, middle + 0.5, NOTE - 14);
    ctx.globalAlpha = 1;
  }

  _drawPart(ctx, theme, seq, part, y, scale, slide) {
    const { model } = this.player;
    const shift = slide == null ? 0 : -part.delta * (1 - slide);
    for (const [from, to] of spans(part.ghosts)) {
      ctx.fillStyle = theme.alpha(seq, 0.1);
      ctx.strokeStyle = theme.edge(seq);
      ctx.lineWidth = 1;
      ctx.setLineDash([3, 2]);
      const x0 = scale.x(from), x1 = scale.x(to + 1);
      box(ctx, x0 + 0.5, y + 0.5, Math.max(x1 - x0 - 1, 1), this.bar - 1, 2);
      ctx.fill();
      ctx.stroke();
      ctx.setLineDash([]);
    }
    for (const s of part.segments) {
      const x0 = scale.x(s.from + shift), x1 = scale.x(s.to + 1 + shift);
      const ids = s.ids ?? model.owners[s.owner];
      ctx.fillStyle = s.unknown ? theme.dots(ctx, seq, 14) : ids.length > 1 ? theme.bands(ctx, ids, 14)
        : s.reuse ? theme.hatch(ctx, seq, 14) : theme.color(seq);
      box(ctx, x0, y, Math.max(x1 - x0 - (x1 - x0 > 3 ? 0.5 : 0), 1), this.bar, 2);
      ctx.fill();
      if (ids.length === 1 && !s.unknown) {
        ctx.strokeStyle = theme.edge(seq);
        ctx.lineWidth = 0.5;
        ctx.stroke();
      }
    }
    this._bracket(ctx, theme, part, y + this.bar + 2, scale);
  }

  // What the next token of the sequence can see of a windowed part.
  _bracket(ctx, theme, part, y, scale) {
    const { swa_type: type, n_swa: window } = this.player.model.lanes[part.k];
    if (!type || part.high < 0) return;
    const next = part.high + 1;
    const from = type === 2 ? Math.floor(next / window) * window : type === 3 ? next - Math.floor(window / 2) : next - window + 1;
    const x0 = Math.round(scale.x(Math.max(0, from))) + 0.5, x1 = Math.round(scale.x(next)) - 0.5;
    if (x1 <= x0) return;
    ctx.strokeStyle = theme.ink;
    ctx.lineWidth = 1;
    ctx.beginPath();
    ctx.moveTo(x0, y - 2);
    ctx.lineTo(x0, y + 1.5);
    ctx.lineTo(x1, y + 1.5);
    ctx.lineTo(x1, y - 2);
    ctx.stroke();
  }
}

// The first and the last of some positions, "0" if they are one.
const span = (low, high) => (low === high ? number(low) : `${number(low)}–${number(high)}`);

function spans(sorted) {
  const found = [];
  for (const p of sorted) {
    const last = found[found.length - 1];
    if (last && p <= last[1] + 1) last[1] = p;
    else found.push([p, p]);
  }
  return found;
}
