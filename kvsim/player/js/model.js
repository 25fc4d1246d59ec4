// The operation log as steps that can be visited in any order.
//
// The payload tells per operation what changed (kvsim/player/payload.py). `Model` keeps one working copy of every
// lane and a bounded number of keyframes; going to a step copies the nearest keyframe before it and applies
// what is missing. `frame(i)` also says, for each cell that changed in step i, what it was and in which way.

const KEYFRAME_BYTES = 64 * 1024 * 1024;

// Ways in which a cell can change.
export const WRITE = 1;  // empty before, or other content in its place
export const FREE = 2;
export const PURGE = 3;  // freed by a decode, because the window had passed
export const SHARE = 4;
export const RELEASE = 5;
export const SHIFT = 6;
export const TURN = 7;  // the key was turned to its position
export const UNDO = 8;  // freed by a decode that took a failed ubatch back
export const GONE = [FREE, PURGE, UNDO];

const REPOSITIONS = new Set(["shift", "divide"]);  // the only marks under which a position changes and the token stays

// The cells of one lane as columns. `unknown` marks rows whose computation was aborted and that stayed.
export class Cells {
  constructor(size, twoD) {
    this.size = size;
    this.owner = new Uint16Array(size);
    this.pos = new Int32Array(size).fill(-1);
    this.shift = new Int32Array(size);
    this.tok = new Int32Array(size).fill(-1);
    this.unknown = new Uint8Array(size);
    this.x = twoD ? new Int32Array(size) : null;
    this.y = twoD ? new Int32Array(size) : null;
    this.head = 0;
    this.used = 0;
    this.hasShift = false;
  }

  copyFrom(other) {
    for (const name of ["owner", "pos", "shift", "tok", "unknown", "x", "y"]) this[name]?.set(other[name]);
    this.head = other.head;
    this.used = other.used;
    this.hasShift = other.hasShift;
    return this;
  }

  // Apply one run of the payload; `old`, if given, collects what was there.
  apply(run, old) {
    const [start, n, pos, owner, shift, toks, xs, ys] = run;
    for (let k = 0; k < n; k++) {
      const i = start + k;
      if (old) old.push({ cell: i, owner: this.owner[i], pos: this.pos[i], shift: this.shift[i],
        tok: this.tok[i], unknown: this.unknown[i] });
      this.owner[i] = owner;
      if (owner === 0) {
        this.pos[i] = this.tok[i] = -1;
        this.shift[i] = this.unknown[i] = 0;
        continue;
      }
      this.pos[i] = pos + k;
      this.shift[i] = shift;
      if (toks) { this.tok[i] = toks[k]; this.unknown[i] = 0; }
      if (xs && this.x) { this.x[i] = xs[k]; this.y[i] = ys[k]; }
    }
  }
}

export class Model {
  constructor(payload) {
    this.payload = payload;
    this.steps = payload.steps;
    this.lanes = payload.lanes;
    this.owners = payload.owners;
    this.nSteps = this.steps.length;
    this.now = this._fresh();
    this.at = -1;
    this.side = { pos: {}, rec: null, extra: {} };
    const bytes = this.lanes.reduce((sum, lane) => sum + lane.size * (payload.two_d ? 23 : 15), 64);
    this._every = Math.max(16, Math.ceil((this.nSteps * bytes) / KEYFRAME_BYTES));
    this._keys = new Map();
    this._survey();
  }

  // Occupancy, highest cell ever used, sequences ever held, and n_kv: read once from the log.
  _survey() {
    const lanes = this.lanes.map(() => 0);
    this.total = this.lanes.reduce((sum, lane) => sum + lane.size, 0);
    this.occupancy = new Float32Array(this.nSteps);
    this.reach = this.lanes.map(() => 0);
    this.nKv = [];
    const last = {}, tops = [];
    const held = new Set();
    let nKv = {};
    this.steps.forEach((step, i) => {
      for (const [k, , used, , runs] of step.d ?? []) {
        lanes[k] = used;
        for (const [start, n, , owner] of runs) {
          if (!owner) continue;
          this.reach[k] = Math.max(this.reach[k], start + n);
          for (const s of this.owners[owner]) held.add(s);
        }
      }
      for (const u of step.u ?? []) {
        for (const [k, runs] of u.w) for (const [start, n] of runs) this.reach[k] = Math.max(this.reach[k], start + n);
        if (u.n_kv) nKv = { ...nKv, ...u.n_kv };
      }
      for (const cell of step.rec?.cells ?? []) for (const s of cell[5]) held.add(s);
      for (const [s, , p] of step.pos ?? []) { last[s] = p; if (p >= 0) held.add(s); }
      tops.push(Math.max(0, ...Object.values(last)));
      this.nKv.push(nKv);
      this.occupancy[i] = this.total ? lanes.reduce((a, b) => a + b, 0) / this.total : (step.rec?.used ?? 0);
    });
    // The largest position around each step: a scale that follows the recording without jumping at every step.
    this.top = tops.map((_, i) => Math.max(...tops.slice(Math.max(0, i - 8), i + 9)));
    this.hasUnseen = this.steps.some((step) => step.extra?.unseen);
    this.sequences = [...held].filter((s) => s >= 0).sort((a, b) => a - b);
  }

  _fresh() {
    return this.lanes.map((lane) => new Cells(lane.size, this.payload.two_d));
  }

  // Make `now` and `side` the memory after step i.
  seek(i) {
    if (i === this.at) return;
    if (i < this.at) this._restore(i);
    while (this.at < i) this._advance(null);
  }

  _restore(i) {
    let best = -1;
    for (const key of this._keys.keys()) if (key <= i && key > best) best = key;
    if (best < 0) {
      this.now = this._fresh();
      this.side = { pos: {}, rec: null, extra: {} };
    } else {
      const key = this._keys.get(best);
      this.now.forEach((cells, k) => cells.copyFrom(key.lanes[k]));
      this.side = { ...key.side };
    }
    this.at = best;
  }

  // Apply the next step; `old[k]`, if given, collects what the changed cells of lane k held.
  _advance(old) {
    const step = this.steps[this.at + 1];
    for (const [k, head, used, hasShift, runs] of step.d ?? []) {
      const cells = this.now[k];
      for (const run of runs) cells.apply(run, old?.[k]);
      cells.head = head;
      cells.used = used;
      cells.hasShift = !!hasShift;
    }
    for (const u of step.u ?? []) this._markUnknown(u);
    if (step.pos) {
      this.side.pos = { ...this.side.pos };
      for (const [seq, low, high] of step.pos) this.side.pos[seq] = [low, high];
    }
    if (step.rec) this.side.rec = step.rec;
    if (step.extra) this.side.extra = step.extra;
    this.at += 1;
    if (this.at % this._every === 0 && !this._keys.has(this.at)) {
      const lanes = this.now.map((cells, k) => new Cells(this.lanes[k].size, this.payload.two_d).copyFrom(cells));
      this._keys.set(this.at, { lanes, side: { ...this.side } });
    }
  }

  _markUnknown(u) {
    for (const [k, runs] of u.w) {
      const cells = this.now[k];
      for (const [start, n, pos, owner] of runs) {
        for (let j = 0; j < n; j++) {
          const i = start + j;
          if (cells.owner[i] === owner && cells.pos[i] === pos + j) cells.unknown[i] = u.ok === false ? 1 : 0;
        }
      }
    }
  }

  // Step i with what it changed: per lane {changes, written, head0, used0, ...}; `now` is the memory after it.
  frame(i) {
    if (i > 0) this.seek(i - 1);
    else this._restore(-1);
    const before = this.now.map((c) => ({ head: c.head, used: c.used, hasShift: c.hasShift }));
    const side0 = { ...this.side };
    const reuse0 = this.lanes.map((_, k) => (this.lanes[k].swa_type ? this.reusable(k) : null));
    const old = this.lanes.map(() => []);
    this._advance(old);
    const step = this.steps[i];
    const written = this._written(step);
    const lanes = this.lanes.map((spec, k) => {
      const changes = old[k].map((was) => ({ ...was, kind: this._kind(k, was, written[k], step) }));
      for (const change of changes) if (change.kind === WRITE) written[k].add(change.cell);
      return { ...before[k], written: written[k], changes, reuse0: reuse0[k], reuse: spec.swa_type ? this.reusable(k) : null };
    });
    return { i, step, lanes, side0, side: this.side };
  }

  // Per lane, the cells this step says it wrote and that are held after it, whether or not they changed.
  _written(step) {
    const sets = this.lanes.map(() => new Set());
    for (const u of step.u ?? []) {
      if (u.ok === false) continue;
      for (const [k, runs] of u.w) for (const [start, n] of runs) for (let j = 0; j < n; j++) sets[k].add(start + j);
    }
    for (const [k, , dst, n] of step.moves ?? []) for (let j = 0; j < n; j++) sets[k].add(dst + j);
    for (const [k, spans] of step.written ?? []) for (const [start, n] of spans) for (let j = 0; j < n; j++) sets[k].add(start + j);
    sets.forEach((set, k) => { for (const i of set) if (!this.now[k].owner[i]) set.delete(i); });
    return sets;
  }

  _kind(k, was, written, step) {
    const cells = this.now[k], i = was.cell;
    const now = { cell: i, owner: cells.owner[i], pos: cells.pos[i], tok: cells.tok[i] };
    return written.has(i) && now.owner ? WRITE : this.kindOf(k, was, now, step);
  }

  // How a cell of lane k that holds `now` and held `was` has changed in `step`.
  kindOf(k, was, now, step) {
    const decode = step.kind === "decode";
    if (!now.owner) return !decode ? FREE : this._undone(k, was, step) ? UNDO : PURGE;
    if (!was.owner || now.tok !== was.tok || (now.pos !== was.pos && !REPOSITIONS.has(step.mark))) return WRITE;
    if (now.owner !== was.owner) {
      const had = this.owners[was.owner];
      return had.every((s) => this.owners[now.owner].includes(s)) ? SHARE : RELEASE;
    }
    if (now.pos !== was.pos) return SHIFT;
    return decode ? TURN : WRITE;
  }

  // Whether a failed ubatch wrote this cell, or a cell before it of the same sequence: its rollback removes both.
  _undone(k, was, step) {
    const seqs = this.owners[was.owner];
    return (step.u ?? []).some((u) => u.ok === false && u.w.some(([lane, runs]) => lane === k && runs.some(([start, n, pos, owner]) =>
      (was.cell >= start && was.cell < start + n) || (was.pos >= pos && this.owners[owner].some((s) => seqs.includes(s))))));
  }

  // Which held cells of lane k a slot search may take: one owner, out of its window (as kvsim.changes has it).
  reusable(k) {
    const { n_swa: window, swa_type: type } = this.lanes[k];
    const { owner, pos, size } = this.now[k];
    const last = new Map();
    for (let i = 0; i < size; i++) if (owner[i] && pos[i] > (last.get(owner[i]) ?? -1)) last.set(owner[i], pos[i]);
    const lastOf = new Map();
    for (const [o, p] of last) for (const s of this.owners[o]) lastOf.set(s, Math.max(p, lastOf.get(s) ?? -1));
    const next = new Map();
    for (const o of last.keys()) if (this.owners[o].length === 1) next.set(o, lastOf.get(this.owners[o][0]) + 1);
    const result = new Uint8Array(size);
    for (let i = 0; i < size; i++) {
      const query = next.get(owner[i]);
      if (query !== undefined && masked(type, window, pos[i], query)) result[i] = 1;
    }
    return result;
  }

  // Every step that touched a cell, oldest first: what it held then, and how it changed (0: written again).
  history(k, cell, upto) {
    const found = [];
    const inside = ([start, n]) => cell >= start && cell < start + n;
    let was = { cell, owner: 0, pos: -1, tok: -1 };
    for (let i = 0; i <= upto; i++) {
      const step = this.steps[i];
      const run = step.d?.find(([lane]) => lane === k)?.[4].find(inside);
      const wrote = (step.u ?? []).some((u) => u.w.some(([lane, runs]) => lane === k && runs.some(inside)));
      const restored = (step.written ?? []).some(([lane, spans]) => lane === k && spans.some(inside));
      if (!run && !wrote && !restored) continue;
      const now = run ? runCell(run, cell, was) : was;
      const again = !run || (restored && now.owner === was.owner && now.pos === was.pos);
      const written = now.owner && (wrote || restored);
      found.push({ i, step, wrote, was, now, kind: again ? 0 : written ? WRITE : this.kindOf(k, was, now, step) });
      was = now;
    }
    return found;
  }

  // Whether the cells of lane k are unknown now: the log that this is from does not print them.
  isUnseen(k) {
    const { cache, stream } = this.lanes[k];
    return (this.side.extra?.unseen?.[cache] ?? []).includes(stream);
  }

  // Whether not even the count and the head of lane k are known: the log has not printed it yet.
  isUntold(k) { return this.isUnseen(k) && !this.now[k].used; }

  // The lane of `cache` that holds sequence `seq`: the only one, or that sequence's stream.
  laneOf(cache, seq) {
    return this.lanes.findIndex((lane) => lane.cache === cache && (lane.n_stream === 1 || lane.stream === seq));
  }
}

// What a run of the payload puts into a cell that held `was`.
function runCell([start, , pos, owner, , toks], cell, was) {
  const j = cell - start;
  return owner ? { cell, owner, pos: pos + j, tok: toks ? toks[j] : was.tok } : { cell, owner: 0, pos: -1, tok: -1 };
}

// Whether a query no longer sees a key under this kind of window.
export function masked(type, window, key, query) {
  if (type === 1) return query - key >= window;
  if (type === 2) return key < Math.floor(query / window) * window;
  if (type === 3) return Math.abs(query - key) > Math.floor(window / 2);
  return false;
}
