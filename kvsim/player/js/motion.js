// Motion on canvas layer 3: what one step changed, shown as it happens.
//
// A step becomes tracks with a start and a length; `advance` calls each one's enter, draw and leave. Lanes hold
// the cells back as they were (`lane.held`) until a track releases them, so stopping early just releases all.

import { box, drawCell, gapOf, labelFont } from "./cells.js";
import { GONE, SHARE, RELEASE, SHIFT, TURN, WRITE } from "./model.js";
import { Flights } from "./flights.js";
import { clamp, inOut, number, out } from "./format.js";
import { dial } from "./lens.js";

const LONGEST = 1200, BETWEEN = 12, MOST_FLIGHTS = 400, STATE = 300, SLIDE = 240, TURNING = 420, SAVING = 360;

export class Motion {
  constructor(player, canvas) {
    this.player = player;
    this.canvas = canvas;
    this.ctx = canvas.getContext("2d");
    this.tracks = [];
    this.running = false;
    this.flights = new Flights(this);
  }

  place() {
    const { dpr } = this.player;
    const { width, height } = this.canvas.getBoundingClientRect();
    this.canvas.width = Math.round(width * dpr);
    this.canvas.height = Math.round(height * dpr);
    this.ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
  }

  // Begin to show how `frame` came about. `only` limits a decode to one ubatch.
  start(frame, speed, only = null) {
    this.frame = frame;
    this.tracks = [];
    this.origin = this.canvas.getBoundingClientRect();
    this.boxes = this.player.lanes.map((lane) => lane.grid.getBoundingClientRect());
    const length = frame.step.kind === "decode" ? this._decode(frame, only) : this._edit(frame);
    this.rate = speed * Math.max(1, length / LONGEST);
    this.length = length;
    this.begun = null;
    this.running = this.tracks.length > 0;
    return this.running;
  }

  // Draw the moment `now` (ms). True while something moves.
  advance(now) {
    if (!this.running) return false;
    this.begun ??= now;
    const t = (now - this.begun) * this.rate;
    this.ctx.clearRect(0, 0, this.origin.width, this.origin.height);
    for (const track of this.tracks) {
      if (t >= track.from && !track.entered) { track.entered = true; track.enter?.(); }
      if (t >= track.from && t < track.to) track.draw?.(clamp((t - track.from) / (track.to - track.from)));
      if (t >= track.to && !track.left) { track.left = true; track.leave?.(); }
    }
    const changed = this.player.lanes.filter((lane) => lane.marksDirty);
    for (const lane of changed) lane.drawMarks();
    if (changed.length) this.player.stage.drawLens(this.frame);
    if (t >= this.length) this.stop();
    return this.running;
  }

  // Everything at once: what is still held is released.
  stop() {
    if (!this.running && !this.tracks.length) return;
    this.running = false;
    for (const track of this.tracks) {
      if (!track.entered) track.enter?.();
      if (!track.left) track.leave?.();
    }
    this.tracks = [];
    this.ctx.clearRect(0, 0, this.canvas.width, this.canvas.height);
  }

  add(from, length, track) {
    this.tracks.push({ from, to: from + length, ...track });
    return from + length;
  }

  // Upper left corner of a cell on this canvas.
  at(k, i) {
    const lane = this.player.lanes[k], { x, y } = lane.at(i), frame = this.boxes[k];
    return { x: frame.left - this.origin.left + x, y: frame.top - this.origin.top + y, p: lane.pw };
  }

  // -- decode --------------------------------------------------------------------------------

  _decode(frame, only) {
    let t = this._turn(frame, 0);
    const { step } = frame;
    const flying = (u) => u.w.reduce((sum, [, runs]) => sum + runs.reduce((n, run) => n + run[1], 0), 0) || u.n;
    const tokens = (step.u ?? []).reduce((sum, u) => sum + flying(u), 0);
    let first = 0;
    const back = [];
    (step.u ?? []).forEach((u, index) => {
      if (only === null || only === index) t = this.flights.ubatch(u, t, first, tokens > MOST_FLIGHTS, back);
      first += u.n;
    });
    if (back.length) t = this.flights.rewind(back, t);
    return this._states(frame, 0, this._window(frame, this._fade(frame, t)));
  }

  // -- everything else -----------------------------------------------------------------------

  _edit(frame) {
    let t = this.flights.moves(frame.step.moves ?? [], frame);
    t = this._fade(frame, t);
    t = this._roll(frame, t > 0 ? t - 60 : 0);
    t = this._turn(frame, t);
    t = this._copy(frame, t);
    t = this._read(frame, t);
    return this._states(frame, t, this._window(frame, this._wave(frame, t)));
  }

  // Rings of compressors turn from `start` on; recurrent states change once all cells have, at `end`: pointers slide to
  // other planes, tails and states to other cards.
  _states(frame, start, end) {
    const { recurrent, compressors } = this.player.stage;
    let last = end;
    if (compressors.moves(frame)) {
      last = Math.max(end, this.add(start, Math.max(STATE, end - start), {
        draw: (p) => compressors.draw(frame, null, inOut(p)), leave: () => compressors.draw(frame) }));
    }
    if (!recurrent.moves(frame)) return last;
    let moved = [];
    return Math.max(last, this.add(end, SLIDE, {
      enter: () => { moved = recurrent.change(frame); for (const { node } of moved) node.classList.add("kv-sliding"); },
      draw: (p) => { for (const { node, dx, dy } of moved) node.style.transform = `translate(${dx * (1 - inOut(p))}px, ${dy * (1 - inOut(p))}px)`; },
      leave: () => { for (const { node } of moved) { node.style.transform = ""; node.classList.remove("kv-sliding"); } },
    }));
  }

  // Freed cells fade to ghosts.
  _fade(frame, start) {
    const { theme, model, lanes } = this.player;
    const gone = lanes.flatMap((lane, k) => frame.lanes[k].changes.filter((c) => GONE.includes(c.kind))
      .map((c) => ({ lane, k, c: { ...c, reuse: frame.lanes[k].reuse0?.[c.cell] } })));
    if (!gone.length) return start;
    const few = gone.length <= 1500;
    return this.add(start, 180, {
      enter: () => lanes.forEach((lane, k) => {
        const cells = gone.filter((g) => g.k === k).map((g) => g.c.cell);
        if (cells.length) { lane.release(cells, { ghost: true }); lane.drawMarks(); }
      }),
      draw: (p) => {
        if (!few) return;
        this.ctx.globalAlpha = 1 - out(p);
        for (const { lane, k, c } of gone) {
          if (c.cell >= lane.rows * lane.cols) continue;
          const { x, y, p: pitch } = this.at(k, c.cell), gap = gapOf(pitch);
          drawCell(this.ctx, theme, x + gap / 2, y + gap / 2, pitch - gap, pitch, { ...c, owner: model.owners[c.owner] }, "");
        }
        this.ctx.globalAlpha = 1;
      },
    });
  }

  // Positions roll like an odometer, in the direction of the shift; the rulers slide meanwhile.
  _roll(frame, start) {
    const { lanes, rulers } = this.player;
    let end = start;
    lanes.forEach((lane, k) => {
      const moved = frame.lanes[k].changes.filter((c) => c.kind === SHIFT && c.cell < lane.rows * lane.cols);
      const delay = Math.min(BETWEEN, 400 / Math.max(moved.length, 1));
      moved.forEach((c, j) => {
        const labelled = lane.pw >= 18 && (lane.pw >= 24 || c.pos % 8 === 0);
        end = Math.max(end, this.add(start + j * delay, labelled ? 320 : 1, {
          draw: labelled ? (p) => this._odometer(lane, k, c, out(p)) : null,
          leave: () => lane.release([c.cell]),
        }));
      });
    });
    if (end > start) this.add(start, end - start, { draw: (p) => rulers.draw(frame, inOut(p)), leave: () => rulers.draw(frame) });
    return end;
  }

  _odometer(lane, k, was, p) {
    const { theme, model } = this.player, ctx = this.ctx;
    const { x, y, p: pitch } = this.at(k, was.cell), gap = gapOf(pitch), s = pitch - gap;
    const owner = model.owners[model.now[k].owner[was.cell]], now = model.now[k].pos[was.cell];
    const d = now > was.pos ? -1 : 1;
    drawCell(ctx, theme, x + gap / 2, y + gap / 2, s, pitch, { owner, pos: now, shift: 1, tok: 0 }, "");
    ctx.save();
    box(ctx, x + gap / 2, y + gap / 2, s, s, 3);
    ctx.clip();
    ctx.font = labelFont(theme, pitch);
    ctx.textAlign = "center";
    ctx.textBaseline = "middle";
    ctx.fillStyle = owner.length > 1 ? theme.ink : theme.label(owner[0]);
    ctx.fillText(number(was.pos), x + pitch / 2, y + pitch / 2 + d * p * s, s);
    ctx.fillText(number(now), x + pitch / 2, y + pitch / 2 - d * (1 - p) * s, s);
    ctx.restore();
  }

  // Before a decode the pending keys turn: where there is room each cell shows its dial, else the corners lift off.
  _turn(frame, start) {
    const { lanes, model, lens } = this.player;
    const turned = lanes.flatMap((lane, k) => frame.lanes[k].changes.filter((c) => c.kind === TURN && c.shift && !lane.root.hidden)
      .map((c) => ({ lane, k, c, owner: model.owners[c.owner] })));
    if (!turned.length) return start;
    const shown = turned.filter(({ lane, c }) => lane.pw >= 9 && c.cell < lane.rows * lane.cols).slice(0, 800);
    return this.add(start, TURNING, {
      draw: (p) => {
        lens.turn = inOut(p);
        this.player.stage.drawLens(frame);
        for (const one of shown) if (one.lane.pw >= 18) this._dial(one, inOut(p)); else this._liftCorner(one, p);
      },
      leave: () => { lens.turn = 0; for (const { lane, c } of turned) lane.release([c.cell]); },
    });
  }

  _dial({ k, c, owner }, turn) {
    const { ctx } = this, { theme } = this.player, { x, y, p: pitch } = this.at(k, c.cell), gap = gapOf(pitch);
    drawCell(ctx, theme, x + gap / 2, y + gap / 2, pitch - gap, pitch, { ...c, owner, shift: 0 }, "");
    ctx.fillStyle = theme.bg;
    ctx.beginPath();
    ctx.arc(x + pitch / 2, y + pitch / 2, pitch * 0.38, 0, 2 * Math.PI);
    ctx.fill();
    dial(ctx, theme.ink, x + pitch / 2, y + pitch / 2, pitch * 0.34, c.pos, c.shift, turn);
  }

  _liftCorner({ k, c }, p) {
    const { ctx } = this, { x, y, p: pitch } = this.at(k, c.cell), size = 5, top = y - out(p) * pitch * 0.3;
    ctx.globalAlpha = 1 - p;
    ctx.fillStyle = this.player.theme.ink;
    ctx.beginPath();
    ctx.moveTo(x + pitch - gapOf(pitch) / 2 - size, top);
    ctx.lineTo(x + pitch - gapOf(pitch) / 2, top);
    ctx.lineTo(x + pitch - gapOf(pitch) / 2, top + size);
    ctx.fill();
    ctx.globalAlpha = 1;
  }

  // Cells that the window has passed fade to the hatch of what may be reused.
  _window(frame, start) {
    const { lanes, theme, model } = this.player;
    const passed = lanes.flatMap((lane, k) => lane.passed.map((i) => ({ lane, k, was: lane.held.get(i), i })));
    if (!passed.length) return start;
    const shown = passed.length > 1500 ? [] : passed.filter(({ lane, i }) => !lane.image && i < lane.rows * lane.cols);
    return this.add(start, 160, {
      enter: () => lanes.forEach((lane) => lane.release(lane.passed)),
      draw: (p) => {
        this.ctx.globalAlpha = 1 - out(p);
        for (const { lane, k, was, i } of shown) {
          const { x, y, p: pitch } = this.at(k, i), gap = gapOf(pitch);
          drawCell(this.ctx, theme, x + gap / 2, y + gap / 2, pitch - gap, pitch, { ...was, owner: model.owners[was.owner] }, lane.pw >= 24 ? number(was.pos) : "");
        }
        this.ctx.globalAlpha = 1;
      },
    });
  }

  // A copy to another stream: a pale copy of the source row glides to the other lane.
  _copy(frame, start) {
    const { lanes, model } = this.player;
    const { args: pair } = frame.step, copies = frame.side.extra.pending_copies;
    if (frame.step.mark !== "share" || !copies || copies === frame.side0.extra.pending_copies) return start;
    let end = start;
    for (const [cache, pairs] of Object.entries(copies)) {
      const [from, to] = pairs[pairs.length - 1] ?? pair ?? [];
      const a = lanes.findIndex((l) => l.spec.cache === cache && l.spec.stream === from);
      const b = lanes.findIndex((l) => l.spec.cache === cache && l.spec.stream === to);
      if (a < 0 || b < 0 || !model.lanes[a]) continue;
      end = Math.max(end, this.add(start, 360, { draw: (p) => {
        const s = this.at(a, 0), d = this.at(b, 0), e = inOut(p), lane = lanes[a];
        this.ctx.globalAlpha = 0.55 * (1 - p * 0.4);
        const w = lane.cellsCanvas.clientWidth, h = lane.cellsCanvas.clientHeight;
        this.ctx.drawImage(lane.cellsCanvas, s.x - 16 + (d.x - s.x) * e, s.y - 16 + (d.y - s.y) * e, w, h);
        this.ctx.globalAlpha = 1;
      } }));
    }
    return end;
  }

  // What is saved changes nothing: a ring runs over its cells, and its states light up.
  _read(frame, start) {
    const { step } = frame, { lanes, model, theme, stage } = this.player;
    if (step.mark !== "save" || step.bad) return start;
    const saved = (ids) => (step.seqs ? ids.includes(step.seqs[0]) : ids.length > 0);
    const cells = lanes.flatMap((lane, k) => (lane.root.hidden || lane.image ? [] : Array.from(model.now[k].owner.subarray(0, lane.rows * lane.cols).entries())
      .filter(([, owner]) => saved(model.owners[owner])).map(([i]) => ({ k, i }))));
    const cards = stage.recurrent.cardsOf(saved);
    if (!cells.length && !cards.length) return start;
    const light = (on) => { for (const card of cards) card.classList.toggle("kv-card-selected", on); };
    return this.add(start, SAVING, {
      enter: () => light(true),
      draw: (p) => {
        this.ctx.strokeStyle = theme.ink;
        this.ctx.lineWidth = 2;
        for (const [j, { k, i }] of cells.entries()) {
          const { x, y, p: pitch } = this.at(k, i);
          this.ctx.globalAlpha = Math.sin(Math.PI * clamp(p * 2 - j / cells.length));
          box(this.ctx, x, y, pitch, pitch, 3);
          this.ctx.stroke();
        }
        this.ctx.globalAlpha = 1;
      },
      leave: () => light(false),
    });
  }

  // What is shared, let go or written in place appears along its run, left to right.
  _wave(frame, start) {
    let end = start;
    this.player.lanes.forEach((lane, k) => {
      const cells = frame.lanes[k].changes.filter((c) => [SHARE, RELEASE, WRITE].includes(c.kind)).map((c) => c.cell).sort((a, b) => a - b);
      const again = [...frame.lanes[k].written].filter((i) => !lane.held.has(i));
      if (!cells.length && !again.length) return;
      let done = 0;
      const reveal = (p) => {
        const upto = Math.ceil(p * cells.length);
        if (upto <= done) return;
        const part = cells.slice(done, upto);
        done = upto;
        for (const i of part) lane.release([i], { ring: frame.lanes[k].written.has(i) });
        lane.drawMarks();
      };
      end = Math.max(end, this.add(start, 220, { draw: reveal, leave: () => { reveal(1); again.forEach((i) => lane.rings.add(i)); lane.drawMarks(); } }));
    });
    return end;
  }
}
