// The stage: lanes, lens, recurrent cards, compressors and rulers below each other; it scrolls, nothing jumps.

import { Lane } from "./lane.js";
import { Rail } from "./rail.js";
import { Lens } from "./lens.js";
import { Rulers } from "./rulers.js";
import { FailureCard } from "./failure.js";
import { Recurrent } from "./recurrent.js";
import { Compressors } from "./compressor.js";
import { GUTTER, MANY, PITCHES, PROFILE, fit, withPitch } from "./layout.js";
import { el, number } from "./format.js";
import { PURGE } from "./model.js";
import { HazardNotes } from "./hazards.js";

const HEADER = 47, COMPACT = 38, LENS = 118, NOTES = 120, MOST_HEIGHT = 12000;
const WHOLE = 512;  // so many cells are all shown where a recording grows while it is watched: then nothing jumps

export class Stage {
  constructor(player) {
    this.player = player;
    const { model } = player;
    // Lanes that the whole recording leaves empty (DeepSeek-V4 keeps none of its rows in cell tables) are not drawn.
    const hidden = new Set(model.payload.dsv4 ? ["csa", "hca", "lid", "raw.base"] : []);
    this.lanes = model.lanes.map((_, k) => new Lane(player, k));
    this.lanes.forEach((lane) => { lane.root.hidden = hidden.has(lane.spec.cache); });
    this.shown = this.lanes.filter((lane) => !lane.root.hidden);
    this.lens = new Lens(player);
    this.rulers = new Rulers(player);
    this.failure = new FailureCard(player);
    this.recurrent = new Recurrent(player);
    this.compressors = new Compressors(player);
    this.hazards = new HazardNotes();
    this.rail = new Rail(player, (this.shown[0] ?? this.recurrent).rail);
    this.scroll = el("div", "kv-stage", [this.failure.root, ...this.lanes.map((lane) => lane.root), this.compressors.root,
      this.recurrent.root, this.lens.root, this.rulers.root, this.hazards.root]);
    this.overlay = el("canvas", { class: "kv-overlay", "aria-hidden": "true" });
    this.root = el("div", "kv-stage-box", [this.scroll, this.overlay]);
    this.scroll.addEventListener("wheel", (event) => {
      if (!event.ctrlKey) return;
      event.preventDefault();
      player.zoom(event.deltaY < 0 ? 1 : -1);
    }, { passive: false });
  }

  layOut() {
    const { player } = this;
    const width = this.scroll.clientWidth - 40, height = this.scroll.clientHeight - 26 - this._notes();
    this.recurrent.place(width);
    this.compressors.place(width);
    this.rulers.place(width, 0);
    this.plan = this.shown.length ? this._plan(width - GUTTER, height) : null;
    this.shown.forEach((lane, j) => lane.place(this.plan, this.plan.rows[j], player.dpr));
    const left = height - (this.plan?.height ?? 0) - this._fixed();
    this._placeLens(width, left);
    this.rulers.place(width, left - (this.lensFloats || this.lens.root.hidden ? 0 : LENS));
  }

  // Room for what a step has to say, where it stands below the picture.
  _notes() {
    const { root, model } = this.player;
    return root.matches(".kv-narrow:not(.kv-plain, .kv-board)") && model.steps.some((step) => step.hazards || step.apart) ? NOTES : 0;
  }

  _fixed() {
    return this.shown.reduce((sum, lane) => sum + (lane.spec.n_stream > 1 ? COMPACT : HEADER), 0) + this.recurrent.height + this.compressors.height;
  }

  // The lens stands between grid and rulers where there is room, else it floats over them while it is wanted.
  _placeLens(width, left) {
    this.lens.root.hidden = !this.plan || this.plan.pw >= 24;
    this.lensFloats = left - this.rulers.least < LENS && !this.plan?.image;
    this.lens.root.classList.toggle("kv-lens-float", this.lensFloats);
    (this.lensFloats ? this.root : this.scroll).insertBefore(this.lens.root, this.lensFloats ? this.overlay : this.rulers.root);
    if (!this.lens.root.hidden) this.lens.place(this.lensFloats ? width - 24 : width);
  }

  // The largest cells with which lanes and rulers stay in sight; at least half the stage is for the lanes.
  _plan(width, height) {
    const { dpr, model } = this.player;
    const lanes = this.shown.map((lane) => ({ size: lane.spec.size, reach: model.reach[lane.k],
      unfolded: lane.unfolded || (this.player.root.matches(".kv-board, .kv-plain") && model.total <= WHOLE) }));
    if (this.pitch) {
      const plan = withPitch(lanes, this.pitch, width, dpr);
      if (plan && plan.height <= MOST_HEIGHT) return plan;
    }
    if (model.total >= MANY) return fit(lanes, width - 12 - PROFILE - 8, height - this._fixed() - LENS, dpr);
    const many = model.total >= 4096, streams = this.shown.length > 3;
    const least = height * (streams ? 0.75 : many ? 0.9 : 0.46);
    return fit(lanes, width, Math.max(height - this._fixed() - (many ? 0 : this.rulers.least), least), dpr);
  }

  // One step larger (1) or smaller (−1), or as large as fits (null).
  zoom(direction) {
    if (direction === null || !this.plan) { this.pitch = null; return; }
    const now = PITCHES.findIndex((p) => p <= this.plan.pw);
    const next = PITCHES[Math.max(0, Math.min(PITCHES.length - 1, now - direction))];
    if (next >= 5) this.pitch = next;
  }

  show(frame, moving) {
    for (const lane of this.shown) {
      lane.headShown = moving ? frame.lanes[lane.k].head : null;
      lane.wanted = null;
    }
    this._wanted(frame);
    for (const lane of this.shown) { lane.show(frame, { moving }); this._facts(lane, frame); }
    this._rail(frame, moving);
    this.failure.draw(frame.step);
    this.recurrent.draw(frame, moving);
    this.compressors.draw(frame, null, moving ? 0 : 1);
    this.drawLens(frame);
    if (!moving) this.rulers.draw(frame);
  }

  // Cells of ubatches up to `u` as they are, the others as they were.
  showUbatches(frame, u) {
    frame.step.u.slice(0, u + 1).forEach((ubatch) => ubatch.w.forEach(([k, runs]) => {
      for (const [start, n] of runs) {
        this.lanes[k].release(Array.from({ length: n }, (_, j) => start + j), { ring: ubatch.ok !== false });
      }
    }));
    const placed = frame.step.u.slice(0, u + 1).reduce((sum, x) => sum + x.n, 0);
    this.rail.draw(placed);
    this.shown.forEach((lane) => lane.drawMarks());
  }

  rest(frame) {
    for (const lane of this.shown) {
      lane.headShown = null;
      const left = [...lane.held.keys()];
      if (left.length) lane.release(left);
      lane.rings = new Set(frame.lanes[lane.k].written);
      lane.drawMarks();
    }
    this.rail.draw(null);
    this.recurrent.draw(frame);
    this.compressors.draw(frame);
    this.drawLens(frame);
    this.rulers.draw(frame);
  }

  draw(frame) {
    for (const lane of this.shown) { lane.draw(); this._facts(lane, frame); }
    this._rail(frame, false);
    this.failure.draw(frame.step);
    this.recurrent.draw(frame);
    this.compressors.draw(frame);
    this.drawLens(frame);
    this.rulers.draw(frame);
  }

  drawLens(frame) {
    const { hovered, selected } = this.player;
    if (this.lens.root.hidden || !this.shown.length) return;
    // A floating lens covers the rulers, so it stays only as long as the pointer does.
    const pointed = hovered ?? (selected?.cell != null && !this.lensFloats ? selected : null);
    this.lens.root.classList.toggle("kv-lens-away", this.lensFloats && !pointed);
    if (this.lensFloats && !pointed) return;
    const target = pointed ?? this._interesting(frame);
    const lane = this.lanes[target.lane];
    this.lens.draw(lane.root.hidden ? this.shown[0] : lane, target.cell);
  }

  // Where to look when nothing is pointed at: the first cell this step changed, else the head.
  _interesting(frame) {
    for (const lane of this.shown) {
      const { written, changes } = frame.lanes[lane.k];
      if (written.size) return { lane: lane.k, cell: Math.min(...[...written].slice(0, 4096)) };
      if (changes.length) return { lane: lane.k, cell: changes[0].cell };
    }
    const [lane] = this.shown;
    return { lane: lane.k, cell: Math.min(this.player.model.now[lane.k].head, lane.spec.size - 1) };
  }

  _rail(frame, moving) {
    const first = this.shown[0] ?? this.recurrent;
    const room = this.scroll.clientWidth - 40 - 380;
    this.rail.show(frame.step, Math.min(room, (first.cols ?? 64) * (first.pw ?? 14) - 330));
    if (moving) this.rail.draw(0);
  }

  // The free cells a refused decode found before it ran out.
  _wanted(frame) {
    const { why, seqs } = frame.step;
    if (!why) return;
    const lane = this.shown.find((l) => l.spec.cache === why.cache && l.spec.stream === why.stream);
    if (!lane) return;
    const { owner, size } = this.player.model.now[lane.k], reuse = frame.lanes[lane.k].reuse;
    lane.wanted = Array.from({ length: size }, (_, i) => i).filter((i) => !owner[i] || reuse?.[i]);
    lane.wantedBy = seqs?.[0] ?? 0;
  }

  _facts(lane, frame) {
    const { model } = this.player;
    const { spec, k } = lane, now = model.now[k], was = frame.lanes[k];
    const changes = was.changes;
    const unseen = model.isUnseen(k), untold = model.isUntold(k);
    const facts = untold ? [] : [[number(now.used), ` of ${number(spec.size)} used`]];
    const nKv = this.player.nKv()[spec.cache], nKv0 = model.nKv[frame.i - 1]?.[spec.cache];
    if (nKv) facts.push(["n_kv ", nKv0 && nKv0 !== nKv ? `${number(nKv0)} → ` : "", number(nKv)]);
    if (!untold) facts.push(["head ", was.head !== now.head ? `${number(was.head)} → ` : "", number(now.head)]);
    let pending = 0;
    if (now.hasShift) for (let i = 0; i < spec.size; i++) if (now.shift[i]) pending++;
    if (pending) facts.push([number(pending), ` shift${pending === 1 ? "" : "s"} pending`]);
    const purged = changes.filter((c) => c.kind === PURGE).length;
    if (purged) facts.push([number(purged), " purged now"]);
    const copies = frame.side.extra?.pending_copies?.[spec.cache]?.filter(([, to]) => to === spec.stream || spec.n_stream === 1);
    if (copies?.length) facts.push(["", `copy from stream ${copies.map(([from]) => from).join(", ")} pending`]);
    const stale = spec.cache === "idx" ? staleOf(frame.side.extra, spec) : [];
    if (stale.length) facts.push(["", stalePools(stale)]);
    if (lane === this.shown[0] && frame.step.graph?.includes("rebuilt")) facts.push(["", `graph ${frame.step.graph.replace(/^.*; /, "")}`]);
    if (spec.swa_type) facts.push(["window ", number(spec.n_swa)]);
    lane.root.classList.toggle("kv-unseen", unseen);
    if (unseen) facts.push(["", untold ? `the log has not shown its ${number(spec.size)} cells yet` : "the log does not show which cells"]);
    lane.facts.replaceChildren(...facts.map((fact) => el("span", "", fact.map((text) => el(/^[\d,−]+$/.test(text) ? "b" : "span", "", text)))));
    const { why } = frame.step;
    const refused = why && why.cache === spec.cache && why.stream === spec.stream;
    lane.title.textContent = lane.name;
    lane.note.textContent = refused ? "refused" : why ? "not asked" : "";
    lane.note.className = `kv-lane-note ${refused ? "kv-bad" : ""}`;
  }
}

// Pooled index keys that the next decode computes again: [sequence, first position] each.
function staleOf(extra, spec) {
  return (extra?.idx_stale ?? []).filter(([seq]) => spec.n_stream === 1 || seq === spec.stream);
}

function stalePools(stale) {
  if (stale.length > 2) return `pools of ${stale.length} sequences stale`;
  return `pools stale: ${stale.map(([seq, pos]) => `seq ${seq} from ${number(pos)}`).join(", ")}`;
}
