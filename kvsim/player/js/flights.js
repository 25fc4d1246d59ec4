// Tokens in flight: from the batch rail to their cells, and back when a ubatch fails; without cells, to their states.

import { box, drawCell, gapOf } from "./cells.js";
import { clamp, inOut, number } from "./format.js";

const FLY = 260, BETWEEN = 12, MOST_A_UBATCH = 700, MOVE = 420;

export class Flights {
  constructor(motion) {
    this.motion = motion;
  }

  // The tokens of one ubatch leave the rail one after the other. Returns when the last has landed.
  ubatch(u, start, first, asRuns, back) {
    const delay = Math.min(BETWEEN, (MOST_A_UBATCH - FLY) / Math.max(u.n, 1));
    const rail = this.motion.player.rail;
    let end = u.w.length ? start : this._intoStates(u, start, first, delay, asRuns);
    u.w.forEach(([k, runs]) => {
      if (this.motion.player.lanes[k].root.hidden) return;
      let j = 0;
      for (const run of runs) {
        if (asRuns) end = Math.max(end, this._flyRun(k, run, start + j * delay, first + j));
        for (let c = 0; c < run[1]; c++, j++) {
          if (!asRuns) end = Math.max(end, this._flyToken(u, k, run, c, start + j * delay, first + j, back));
        }
      }
    });
    const placed = first, n = u.n;
    this.motion.add(start, end - start, { draw: (p) => {
      const t = p * (end - start), landed = clamp((t - FLY) / Math.max(delay * n, 1)) * n, left = clamp(t / Math.max(delay * n, 1)) * n;
      rail.draw(placed + Math.floor(landed), Math.floor(left) - Math.floor(landed));
    }, leave: () => rail.draw(placed + n) });
    return end;
  }

  // A memory without cells: tokens fall into the states of their sequences.
  _intoStates(u, start, first, delay, asRuns) {
    const places = new Map();
    let end = start, j = 0;
    for (const [owner, n] of u.rows) {
      const [seq] = this.motion.player.model.owners[owner];
      for (let c = 0; c < n; c++, j++) {
        const token = first + j;
        if (!asRuns || c === 0) end = Math.max(end, this.motion.add(start + j * delay, FLY, { draw: (p) => this._fall(places, seq, token, p) }));
      }
    }
    return end;
  }

  _fall(places, seq, token, p) {
    const { player, ctx, origin } = this.motion;
    if (!places.has(seq)) places.set(seq, player.stage.recurrent.placeOf(seq));
    const to = places.get(seq), from = player.rail.slotAt(token), e = inOut(p);
    if (!to) return; // its first token: it has no state yet
    ctx.fillStyle = player.theme.color(seq);
    ctx.strokeStyle = player.theme.edge(seq);
    ctx.lineWidth = 1;
    box(ctx, from.x + (to.x - from.x) * e - origin.left - 4, from.y + (to.y - from.y) * e - origin.top - 4, 8, 8, 2);
    ctx.fill();
    ctx.stroke();
  }

  _flyToken(u, k, run, c, from, token, back) {
    const lane = this.motion.player.lanes[k], i = run[0] + c;
    const cell = { owner: this.motion.player.model.owners[run[3]], pos: run[2] + c, shift: 0, tok: -1 };
    if (i >= lane.rows * lane.cols) return from;
    const fly = (p) => this._flight(k, i, cell, token, p);
    if (u.ok === false) {
      this.motion.add(from, FLY, { draw: fly });
      const stays = this.motion.player.model.now[k].owner[i] === run[3] && this.motion.player.model.now[k].pos[i] === run[2] + c;
      if (stays) this.motion.tracks[this.motion.tracks.length - 1].leave = () => lane.release([i], { ring: true });
      else back.push({ landed: from + FLY, fly });
      return from + FLY;
    }
    return this.motion.add(from, FLY, { draw: fly, leave: () => lane.release([i], { ring: lane.frame.written.has(i) }) });
  }

  // A failed ubatch: its tokens rest in their cells for a moment, then the film runs backwards, twice as fast.
  rewind(back, start) {
    const turn = start + 120;
    for (const { landed, fly } of back) {
      this.motion.add(landed, turn - landed, { draw: () => fly(1) });
      this.motion.add(turn, FLY / 2, { draw: (p) => fly(1 - p) });
    }
    return turn + FLY / 2;
  }

  // Defragmentation: one block copy after the other flies as one formation, on a low arc; the next sets off
  // when nine tenths are done. Sources turn to ghosts at once, targets are outlined.
  moves(moves, frame) {
    let start = 0, end = 0;
    for (const [k, src, dst, n] of moves) {
      const lane = this.motion.player.lanes[k];
      if (lane.root.hidden) continue;
      const cells = Array.from({ length: n }, (_, j) => j).filter((j) => Math.max(src, dst) + j < lane.rows * lane.cols);
      const held = new Map(frame.lanes[k].changes.map((c) => [c.cell, c]));
      end = this.motion.add(start, MOVE, {
        enter: () => { lane.release(cells.map((j) => src + j), { ghost: true }); lane.drawMarks(); },
        draw: (p) => cells.forEach((j) => this._moved(k, src + j, dst + j, held.get(src + j), p)),
        leave: () => { lane.release(cells.map((j) => dst + j), { ring: true }); lane.drawMarks(); },
      });
      start = end - MOVE * 0.1;
    }
    return end;
  }

  _moved(k, from, to, was, p) {
    if (!was) return;
    const { player, ctx } = this.motion, { theme, model } = player;
    const a = this.motion.at(k, from), b = this.motion.at(k, to), e = inOut(p), gap = gapOf(a.p), s = a.p - gap;
    const lift = Math.sin(Math.PI * e) * Math.min(40, 10 + Math.abs(b.x - a.x) * 0.06);
    target(ctx, theme, b.x + gap / 2, b.y + gap / 2, s);
    ctx.save();
    ctx.shadowColor = "rgba(10,14,20,0.35)";
    ctx.shadowBlur = 6;
    ctx.shadowOffsetY = 2;
    drawCell(ctx, theme, a.x + (b.x - a.x) * e + gap / 2, a.y + (b.y - a.y) * e - lift + gap / 2, s, a.p,
      { ...was, owner: model.owners[was.owner] }, a.p >= 18 ? number(was.pos) : "");
    ctx.restore();
  }

  // A token on its way from the rail to its cell.
  _flight(k, i, cell, token, p) {
    const { theme } = this.motion.player, ctx = this.motion.ctx;
    const slot = this.motion.player.rail.slotAt(token), { x, y, p: pitch } = this.motion.at(k, i);
    const gap = gapOf(pitch), s = pitch - gap, e = inOut(p);
    const x0 = slot.x - this.motion.origin.left, y0 = slot.y - this.motion.origin.top;
    const x1 = x + pitch / 2, y1 = y + pitch / 2;
    const cx = x0 + (x1 - x0) * e, cy = y0 + (y1 - y0) * e - Math.sin(Math.PI * e) * Math.min(34, Math.abs(x1 - x0) * 0.08);
    const size = 7 + (s - 7) * clamp(e * 1.4);
    const seq = cell.owner[0];
    if (pitch >= 14 && e > 0.05 && e < 1) {
      ctx.strokeStyle = theme.alpha(seq, 0.5);
      ctx.lineWidth = 1;
      ctx.beginPath();
      ctx.moveTo(cx - (x1 - x0) * 0.12, cy - (y1 - y0) * 0.12);
      ctx.lineTo(cx, cy);
      ctx.stroke();
      if (e > 0.4) target(ctx, theme, x + gap / 2, y + gap / 2, s);
    }
    ctx.save();
    ctx.shadowColor = "rgba(10,14,20,0.35)";
    ctx.shadowBlur = 6;
    ctx.shadowOffsetY = 2;
    drawCell(ctx, theme, cx - size / 2, cy - size / 2, size, Math.min(pitch, size + 2), cell, size >= 16 && pitch >= 18 ? number(cell.pos) : "");
    ctx.restore();
  }

  // Very many tokens: a run flies as one block, row by row of the grid.
  _flyRun(k, run, from, token) {
    const lane = this.motion.player.lanes[k], { theme, model } = this.motion.player, ctx = this.motion.ctx;
    const owner = model.owners[run[3]], cells = Array.from({ length: run[1] }, (_, c) => run[0] + c);
    return this.motion.add(from, FLY, {
      draw: (p) => {
        const slot = this.motion.player.rail.slotAt(token), e = inOut(p), { x, y } = this.motion.at(k, run[0]);
        const w = Math.min(run[1], lane.cols - (run[0] % lane.cols)) * lane.pw, h = Math.max(lane.ph, 3);
        const x0 = slot.x - this.motion.origin.left, y0 = slot.y - this.motion.origin.top;
        ctx.fillStyle = theme.alpha(owner[0] ?? 0, 0.85);
        ctx.fillRect(x0 + (x - x0) * e, y0 + (y - y0) * e, 8 + (w - 8) * e, 3 + (h - 3) * e);
      },
      leave: () => lane.release(cells, { ring: true }),
    });
  }
}

function target(ctx, theme, x, y, s) {
  ctx.strokeStyle = theme.ink3;
  ctx.lineWidth = 1;
  ctx.setLineDash([3, 2]);
  box(ctx, x + 0.5, y + 0.5, s - 1, s - 1, 4);
  ctx.stroke();
  ctx.setLineDash([]);
}
