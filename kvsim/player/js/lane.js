// One lane: header, row numbers, and a grid of cells on two canvases (1 cells, 2 marks).
//
// The lane draws the model's present cells, except those in `held`: cells whose change is still on its way
// are drawn as they were. Motion releases them one by one.

import { GONE } from "./model.js";
import { CellImage, drawCell, gapOf } from "./cells.js";
import { drawMarks } from "./marks.js";
import { el, number } from "./format.js";
import { GUTTER, PAD, PROFILE } from "./layout.js";

export const AWAITED = 2;  // unknown for another reason than an aborted ubatch: the rows of a copy come at the next decode

// Whether a copied stream still waits for its rows.
function awaitsRows(extra, spec) {
  return (extra?.pending_copies?.[spec.cache] ?? []).some(([, to]) => to === spec.stream) ? AWAITED : 0;
}

export class Lane {
  constructor(player, k) {
    this.player = player;
    this.k = k;
    this.spec = player.model.lanes[k];
    this.held = new Map();
    this.ghosts = new Map();
    this.rings = new Set();
    this.passed = [];
    this.title = el("span", "kv-lane-name", this.spec.cache);
    this.facts = el("span", "kv-lane-facts");
    this.rail = el("canvas", "kv-rail");
    this.note = el("span", "kv-lane-note");
    this.header = el("div", "kv-lane-header", [this.title, this.note, this.facts, el("span", "kv-space"), this.rail]);
    this.gutter = el("div", { class: "kv-gutter", "aria-hidden": "true" });
    this.cellsCanvas = el("canvas", "kv-cells");
    this.marksCanvas = el("canvas", "kv-marks");
    this.grid = el("div", { class: "kv-grid", role: "grid", tabindex: "0" }, [this.cellsCanvas, this.marksCanvas]);
    this.twin = el("div", { class: "kv-sr", role: "gridcell" });
    this.grid.append(this.twin);
    this.fold = el("button", { class: "kv-fold", type: "button" });
    this.fold.addEventListener("click", () => { this.unfolded = !this.unfolded; player.layOut(); });
    this.profile = el("canvas", { class: "kv-profile", "aria-hidden": "true" });
    this.body = el("div", "kv-lane-body", [this.gutter, this.grid, this.profile]);
    this.root = el("section", `kv-lane ${this.spec.n_stream > 1 ? "kv-compact" : ""}`, [this.header, this.body, this.fold]);
    this._listen();
  }

  // The part of the layout's plan that concerns this lane.
  place(plan, rows, dpr) {
    const { cols, pw, ph } = plan;
    Object.assign(this, { cols, pw, ph, rows: rows.shown, folded: rows.folded, dpr, image: plan.image });
    const width = cols * pw, height = rows.shown * ph;
    for (const canvas of [this.cellsCanvas, this.marksCanvas]) {
      canvas.width = Math.round((width + 2 * PAD) * dpr);
      canvas.height = Math.round((height + 2 * PAD) * dpr);
      canvas.style.width = `${width + 2 * PAD}px`;
      canvas.style.height = `${height + 2 * PAD}px`;
      canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, PAD * dpr, PAD * dpr);
    }
    this.grid.style.width = `${width}px`;
    this.grid.style.height = `${height}px`;
    this.grid.setAttribute("aria-rowcount", Math.ceil(this.spec.size / cols));
    this.grid.setAttribute("aria-colcount", cols);
    this.grid.setAttribute("aria-label", `${this.name}, ${number(this.spec.size)} cells`);
    this.profile.hidden = !this.image;
    if (this.image) {
      this.profile.width = PROFILE * dpr;
      this.profile.height = height * dpr;
      this.profile.style.width = `${PROFILE}px`;
      this.profile.style.height = `${height}px`;
    }
    this.imageOf = this.image ? new CellImage(this.spec.size, cols) : null;
    this._rowNumbers();
    this.fold.hidden = !rows.folded;
    this.fold.style.marginLeft = `${GUTTER}px`;
    this.fold.style.width = `${width}px`;
    const from = rows.shown * cols;
    this.fold.textContent = `${number(from)}–${number(this.spec.size - 1)} folded: ${number(this.spec.size - from)} cells${this.player.model.hasUnseen ? "" : ", never used here"}`;
  }

  get name() {
    return this.spec.n_stream > 1 ? `${this.spec.cache}, stream ${this.spec.stream}` : this.spec.cache;
  }

  _rowNumbers() {
    const every = Math.max(1, Math.ceil(14 / this.ph), this.image ? Math.ceil(this.rows / 8) : 1);
    const marks = [];
    for (let row = 0; row < this.rows; row += every) {
      const mark = el("span", "", number(row * this.cols));
      mark.style.top = `${row * this.ph + (this.image ? 0 : this.ph / 2)}px`;
      marks.push(mark);
    }
    this.gutter.replaceChildren(...marks);
    this.gutter.style.height = `${this.rows * this.ph}px`;
  }

  // Show a frame: forget the last step's marks, set this one's. Cells still on their way are in `held`.
  show(frame, { moving }) {
    const lane = frame.lanes[this.k];
    this.frame = lane;
    this.awaits = awaitsRows(frame.side.extra, this.spec);
    this.held.clear();
    this.ghosts.clear();
    this.rings = moving ? new Set() : new Set(lane.written);
    for (const change of lane.changes) {
      if (moving) this.held.set(change.cell, { ...change, reuse: lane.reuse0?.[change.cell] });
      else if (GONE.includes(change.kind)) this.ghosts.set(change.cell, change);
    }
    this.passed = moving ? this._passed(lane) : [];
    for (const i of this.passed) this.held.set(i, { ...this._content(i), cell: i, reuse: 0 });
    this.draw();
  }

  // Cells that hold what they held and have fallen out of the window.
  _passed({ reuse, reuse0 }) {
    const found = [];
    for (let i = 0; i < (reuse?.length ?? 0); i++) if (reuse[i] && !reuse0[i] && !this.held.has(i)) found.push(i);
    return found;
  }

  // What a cell holds, as columns.
  _content(i) {
    const cells = this.player.model.now[this.k];
    return { owner: cells.owner[i], pos: cells.pos[i], shift: cells.shift[i], tok: cells.tok[i], unknown: cells.unknown[i] || this.awaits };
  }

  // What is to be drawn in a cell now.
  cell(i) {
    const from = this.held.get(i) ?? { ...this._content(i), reuse: this.frame?.reuse?.[i] };
    return { ...from, owner: this.player.model.owners[from.owner] };
  }

  // Let the change of these cells be seen.
  release(cells, { ghost = false, ring = false } = {}) {
    for (const i of cells) {
      const was = this.held.get(i);
      this.held.delete(i);
      if (ghost && was) this.ghosts.set(i, was);
      if (ring) this.rings.add(i);
      if (!this.image) this.drawOne(i);
    }
    if (this.image) this.draw();
    this.marksDirty = true;
  }

  at(i) {
    return { x: (i % this.cols) * this.pw, y: Math.floor(i / this.cols) * this.ph };
  }

  draw() {
    const ctx = this.cellsCanvas.getContext("2d");
    ctx.clearRect(-PAD, -PAD, this.cols * this.pw + 2 * PAD, this.rows * this.ph + 2 * PAD);
    if (this.image) {
      const { theme, model } = this.player;
      this.imageOf.paint(theme, model.owners, model.now[this.k], this.frame?.reuse, this.held, this.player.dims());
      ctx.imageSmoothingEnabled = false;
      ctx.drawImage(this.imageOf.canvas, 0, 0, this.cols * this.pw, this.rows * this.ph);
      this._drawProfile(theme, model.now[this.k].owner);
    } else {
      const n = Math.min(this.rows * this.cols, this.spec.size);
      for (let i = 0; i < n; i++) this._paint(ctx, i);
    }
    this.drawMarks();
  }

  // How full each row is, beside a grid whose cells are too small to count.
  _drawProfile(theme, owner) {
    const ctx = this.profile.getContext("2d"), { dpr, cols, rows, ph } = this;
    ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
    ctx.fillStyle = theme.cell;
    ctx.fillRect(0, 0, PROFILE, rows * ph);
    ctx.fillStyle = theme.decode;
    for (let row = 0; row < rows; row++) {
      let used = 0;
      for (let i = row * cols; i < Math.min((row + 1) * cols, owner.length); i++) if (owner[i]) used++;
      ctx.fillRect(0, row * ph, (used / cols) * PROFILE, ph);
    }
  }

  drawOne(i) {
    if (i >= this.rows * this.cols) return;
    const ctx = this.cellsCanvas.getContext("2d"), { x, y } = this.at(i);
    ctx.clearRect(x, y, this.pw, this.ph);
    this._paint(ctx, i);
  }

  _paint(ctx, i) {
    const { theme } = this.player;
    const { x, y } = this.at(i), gap = gapOf(this.pw), cell = this.cell(i);
    const dim = cell.owner.length && this.player.dims()?.(cell.owner);
    if (dim) ctx.globalAlpha = 0.25;
    drawCell(ctx, theme, x + gap / 2, y + gap / 2, this.pw - gap, this.pw, cell, this._label(i, cell));
    if (dim) ctx.globalAlpha = 1;
  }

  _label(i, cell) {
    if (this.pw < 18 || !cell.owner.length) return "";
    const plated = cell.owner.length > 1 && cell.pos > 99 && this.pw < 40;
    if ((this.pw < 24 || plated) && !this._labelled(i, cell)) return "";
    return labelText(this.player.labels, cell);
  }

  // At middle sizes: at the start of a run, at every eighth position, and where something was written now.
  _labelled(i, cell) {
    if (cell.pos % 8 === 0 || this.rings.has(i)) return true;
    const before = i % this.cols ? this.cell(i - 1) : null;
    return !before || before.owner.join() !== cell.owner.join() || before.pos !== cell.pos - 1;
  }

  drawMarks() {
    this.marksDirty = false;
    drawMarks(this, this.marksCanvas.getContext("2d"));
  }

  // Cell under a pointer event, -1 if there is none.
  hit(event) {
    const box = this.grid.getBoundingClientRect();
    const col = Math.floor((event.clientX - box.left) / this.pw), row = Math.floor((event.clientY - box.top) / this.ph);
    const i = row * this.cols + col;
    return col >= 0 && col < this.cols && row >= 0 && i < Math.min(this.spec.size, this.rows * this.cols) ? i : -1;
  }

  _listen() {
    const { player, k } = this;
    this.grid.addEventListener("pointermove", (event) => player.hover(k, this.hit(event)));
    this.grid.addEventListener("pointerleave", () => player.hover(k, -1));
    this.grid.addEventListener("click", (event) => { const i = this.hit(event); if (i >= 0) player.select({ lane: k, cell: i }); });
    this.grid.addEventListener("focus", () => this.tell());
  }

  // The text twin of the focused cell, for screen readers.
  tell() {
    const { player } = this;
    const i = player.cursor?.lane === this.k ? player.cursor.cell : 0;
    this.twin.textContent = describe(this.cell(i), i);
    this.twin.setAttribute("aria-rowindex", Math.floor(i / this.cols) + 1);
    this.twin.setAttribute("aria-colindex", (i % this.cols) + 1);
  }
}

export function labelText(mode, cell) {
  if (mode === "sequence") return cell.owner.slice(0, 2).join("·") + (cell.owner.length > 2 ? "+" : "");
  if (mode === "token") return cell.tok < 0 ? "" : String(cell.tok);
  if (mode === "shift") return cell.shift ? number(cell.shift) : "";
  return String(cell.pos).replace("-", "−");
}

export function describe(cell, i) {
  if (!cell.owner.length) return `cell ${number(i)}, empty`;
  const seqs = cell.owner.length > 1 ? `shared by seq ${cell.owner.join(", ")}` : `seq ${cell.owner[0]}`;
  return [`cell ${number(i)}`, seqs, `position ${number(cell.pos)}`,
    cell.shift ? `shift ${number(cell.shift)} pending` : "", cell.reuse ? "out of the window, reusable" : "",
    cell.unknown ? (cell.unknown === AWAITED ? "rows not yet copied" : "never computed") : ""].filter(Boolean).join(", ");
}
