// The player: mount(parent, payload, options) builds it into any element or shadow root.
//
// options: at (first step), theme ("light" | "dark" | "auto"), onAt(step) called when the step changes,
// height (CSS length). board: the page around has things of its own beside and above the stage, for which it says
// --kvs-left, --kvs-top and --kvs-right. plain: neither dock nor inspector. onPick(cells): a click picks a cell
// instead of selecting it, as [lane, cell] in order. Returns {player, update(payload, options), extend(payload),
// destroy()}.

import { Model } from "./model.js";
import { Theme } from "./theme.js";
import { SentenceBar } from "./sentence.js";
import { Stage } from "./stage.js";
import { Dock, SPEEDS } from "./dock.js";
import { Inspector } from "./inspector.js";
import { OpList } from "./oplist.js";
import { Motion } from "./motion.js";
import { askStep, helpTable, onKey } from "./keyboard.js";
import { MANY } from "./layout.js";
import { Picks } from "./picks.js";
import { isTrouble } from "./hazards.js";
import { el } from "./format.js";
import { frameOnTab, keepFocus } from "./ground.js";

const LABELS = ["position", "sequence", "token", "shift"];
const DWELL = 420, QUIET_STEP = 600, FAST_STEP = 60;

export class Player {
  constructor(parent, payload, options = {}) {
    Object.assign(this, { options, speed: 1, playing: false, labelMode: 0, selected: null, hovered: null, lookedAt: null, cursor: null,
      focus: null, phase: null, pitch: null, dpr: window.devicePixelRatio || 1, frames: 0 });
    this.quiet = window.matchMedia("(prefers-reduced-motion: reduce)");
    this.root = el("div", { class: "kv", tabindex: "0", role: "application", "aria-label": "player of a recording" });
    if (options.height) this.root.style.setProperty("--kv-height", options.height);
    this.root.classList.toggle("kv-board", !!options.board);
    this.root.classList.toggle("kv-plain", !!options.plain);
    this.picks = new Picks(this);
    parent.append(this.root);
    this._build(payload);
    this.root.addEventListener("keydown", (event) => onKey(this, event));
    frameOnTab(this.root);
    this.observer = new ResizeObserver(() => this.layOut());
    this.observer.observe(this.root);
    document.fonts?.addEventListener("loadingdone", this._fonts = () => this.layOut());
    this.first = options.at ?? 0;
    this.layOut(); // where there is no room yet (a frame that is still to be laid out), the observer comes back
  }

  _build(payload) {
    this.model = new Model(payload);
    this.motion?.stop();
    this.frame = null;
    this.at = -1;
    this.sentence = new SentenceBar(this);
    this.ops = new OpList(this);
    this.inspector = new Inspector(this);
    this.stage = new Stage(this);
    this.dock = new Dock(this);
    this.tabs = ["Details", "Operations"].map((name, i) => {
      const tab = el("button", { type: "button", class: "kv-tab", role: "tab", "aria-selected": i === 0 }, name);
      tab.addEventListener("click", () => this._tab(i));
      return tab;
    });
    this.side = el("div", "kv-side", [el("div", { class: "kv-tabs", role: "tablist" }, this.tabs), this.inspector.root]);
    this.drawer = el("button", { type: "button", class: "kv-button kv-drawer-toggle", "aria-expanded": "false" }, "Details");
    this.drawer.addEventListener("click", () => {
      const open = this.root.classList.toggle("kv-drawer-open");
      this.drawer.setAttribute("aria-expanded", open);
    });
    this.main = el("div", "kv-main", [this.ops.root, this.stage.root, this.side, this.drawer]);
    const parts = [this.sentence.root, this.main, this.dock.root, this.sentence.polite, this.sentence.loud];
    keepFocus(this.root, () => this.root.replaceChildren(...parts));
    this.motion = new Motion(this, this.stage.overlay);
  }

  get lanes() { return this.stage.lanes; }
  get rail() { return this.stage.rail; }
  get rulers() { return this.stage.rulers; }
  get lens() { return this.stage.lens; }
  get labels() { return LABELS[this.labelMode]; }

  // Another recording, or the same one: keeps speed and labels.
  update(payload, options = {}) {
    this.picks.clear();
    if (payload && payload !== this.model.payload) {
      this.pause();
      this.selected = this.hovered = this.lookedAt = this.cursor = this.focus = this.pitch = null;
      this._build(payload);
      this.first = options.at ?? 0;
      this.layOut();
    }
    if (options.theme) this.setTheme(options.theme);
  }

  // More of the same recording, which is still being read: stays at its step and plays on.
  extend(payload) {
    const { at, playing, selected, focus, pitch } = this;
    this.pause();
    this.hovered = this.lookedAt = this.cursor = null;
    this._build(payload);
    Object.assign(this, { selected, focus, pitch, first: at });
    this.layOut();
    if (playing) this.play();
  }

  // What a replay has to say per step: {step: {hazards, graph}}. It may come after the recording is shown.
  note(notes) {
    const entries = Object.entries(notes ?? {});
    if (!entries.length || this.noted === notes) return;
    this.noted = notes;
    for (const [i, note] of entries) if (this.model.steps[i]) Object.assign(this.model.steps[i], note);
    if (!this.frame) return; // where there is no room yet, all is drawn once there is some
    this.stage.layOut(); // they may need room
    this.dock.place(this.dock.root.clientWidth - 40);
    this.stage.hazards.draw(this.frame.step);
    this.draw();
  }

  destroy() {
    this.pause();
    this.motion.stop();
    cancelAnimationFrame(this._loop);
    this.observer.disconnect();
    document.fonts?.removeEventListener("loadingdone", this._fonts);
    this.root.remove();
  }

  setTheme(theme) {
    const dark = theme === "dark" || (theme === "auto" && window.matchMedia("(prefers-color-scheme: dark)").matches);
    if (this.root.dataset.theme === (dark ? "dark" : "light")) return;
    this.root.dataset.theme = dark ? "dark" : "light";
    if (this.theme) this.layOut();
  }

  // -- size and place ------------------------------------------------------------------------

  layOut() {
    const { board, plain } = this.options;
    const around = getComputedStyle(this.main);
    const width = this.root.clientWidth - parseFloat(around.paddingLeft) - parseFloat(around.paddingRight);
    if (!this.root.clientWidth || this._laying) return;
    this._laying = true;
    this.dpr = window.devicePixelRatio || 1;
    if (!this.root.dataset.theme) this.setTheme(this.options.theme ?? "auto");
    this.theme = new Theme(this.root, this.dpr);
    const wide = width >= 1500 && !board && !plain;
    this.root.classList.toggle("kv-wide", wide);
    this.root.classList.toggle("kv-narrow", width < 1100);
    this.root.classList.toggle("kv-many", this.model.total >= MANY);
    if (wide && this.ops.root.parentElement !== this.main) { this.main.prepend(this.ops.root); this._tab(0); }
    if (!wide && this.ops.root.parentElement === this.main) this.side.append(this.ops.root);
    if (!wide) this._tab(this.tabShown ?? 0);
    this.stage.layOut();
    this.dock.place(this.dock.root.clientWidth - 40);
    this.motion.stop();
    this.motion.place();
    if (this.frame) this.draw();
    this._laying = false;
    if (!this.frame) this.go(this.first);
  }

  _tab(i) {
    this.tabShown = i;
    this.tabs.forEach((tab, t) => tab.setAttribute("aria-selected", t === i));
    const wide = this.root.classList.contains("kv-wide");
    this.inspector.root.hidden = !wide && i === 1;
    this.ops.root.hidden = !wide && i === 0;
    this.ops.draw();
  }

  zoom(direction) {
    this.stage.zoom(direction);
    this.layOut();
  }

  // -- going ---------------------------------------------------------------------------------

  // Show step i. With `animate`, show how it came about.
  go(i, { animate = false } = {}) {
    this.lookedAt = null;
    const to = Math.max(0, Math.min(this.model.nSteps - 1, i));
    this.motion.stop();
    this.phase = null;
    this.at = to;
    this.frame = this.model.frame(to);
    const moving = animate && !this.quiet.matches && this.speed < 16 && !document.hidden;
    this.stage.show(this.frame, moving);
    this._words();
    this.options.onAt?.(to);
    if (moving && this.motion.start(this.frame, this.speed)) this._run();
    else if (moving) this._settle();
  }

  // Someone leads the player to step i: it stays there, even if it was playing.
  lead(i) {
    this.pause();
    this.go(i);
  }

  step(direction) {
    this.pause();
    if (this.phase !== null) { this.go(this.at); if (direction < 0) return; }
    const to = this.at + direction;
    if (to >= 0 && to < this.model.nSteps) this.go(to, { animate: direction > 0 });
  }

  // Step by ubatch within a decode: the cells of later ubatches are still as they were.
  ubatch(direction) {
    this.pause();
    const n = this.frame.step.u?.length ?? 0;
    const now = this.phase ?? (direction > 0 ? n : n - 1);
    const to = this.phase === null && direction < 0 ? n - 2 : now + direction;
    if (to >= n - 0 || n === 0) {
      if (direction > 0 && this.at + 1 < this.model.nSteps) { this.go(this.at + 1); if (this.frame.step.u?.length > 1) this._phase(0, true); }
      return;
    }
    if (to < 0) { this.go(Math.max(0, this.at - 1)); return; }
    if (to === n - 1) { this.go(this.at); return; }
    this._phase(to, direction > 0);
  }

  _phase(u, animate) {
    this.motion.stop();
    this.phase = u;
    this.stage.show(this.frame, true);
    this.stage.showUbatches(this.frame, animate ? u - 1 : u);
    this._words();
    if (animate && !this.quiet.matches && this.motion.start(this.frame, this.speed, u)) this._run();
    else this.stage.showUbatches(this.frame, u);
  }

  toggle() { if (this.playing) this.pause(); else this.play(); }

  play() {
    if (this.at >= this.model.nSteps - 1) this.go(0);
    this.playing = true;
    this._next = performance.now();
    this.dock.draw();
    this._run();
  }

  pause() {
    if (!this.playing) return;
    this.playing = false;
    this.dock.draw();
  }

  setSpeed(speed) {
    this.speed = speed;
    this.dock.draw();
  }

  faster(direction) {
    this.setSpeed(SPEEDS[Math.max(0, Math.min(SPEEDS.length - 1, SPEEDS.indexOf(this.speed) + direction))]);
  }

  nextTrouble(direction) {
    for (let i = this.at + direction; i >= 0 && i < this.model.nSteps; i += direction) {
      if (isTrouble(this.model.steps[i])) { this.lead(i); return; }
    }
  }

  // One loop for motion and play; it ends when nothing moves.
  _run() {
    if (this._looping) return;
    this._looping = true;
    const turn = (now) => {
      this.frames += 1;
      const moved = this.motion.running;
      if (moved && !this.motion.advance(now)) this._settle(now);
      if (this.playing && !this.motion.running && now >= this._next) this._playOn(now);
      this._looping = this.playing || this.motion.running;
      if (this._looping) this._loop = requestAnimationFrame(turn);
    };
    this._loop = requestAnimationFrame(turn);
  }

  _playOn(now) {
    if (this.at + 1 >= this.model.nSteps) { this.pause(); return; }
    const still = this.quiet.matches ? QUIET_STEP : this.speed >= 16 ? FAST_STEP : DWELL / this.speed;
    this._next = now + still;
    this.go(this.at + 1, { animate: true });
  }

  // Motion has ended: everything as it is at rest.
  _settle(now = performance.now()) {
    if (this.phase === null) this.stage.rest(this.frame);
    this._next = now + DWELL / this.speed;
  }

  _words() {
    this.sentence.show(this.at, this.frame.step, this.phase);
    this.stage.hazards.draw(this.frame.step);
    this.inspector.draw(this.frame);
    this.dock.draw();
    this.ops.draw();
  }

  draw() {
    this.stage.draw(this.frame);
    this.inspector.draw(this.frame);
    this.dock.draw();
    this.ops.draw();
  }

  // -- looking closer ------------------------------------------------------------------------

  hover(k, i) {
    const before = this.hovered;
    const now = i < 0 ? null : { lane: k, cell: i };
    if (before?.lane === now?.lane && before?.cell === now?.cell) return;
    this.hovered = now;
    this.lookedAt = now ? null : before; // its details stay, so that the pointer can go to their links
    this._look(before, now);
  }

  select(target) {
    if (this.options.onPick && target?.cell != null) { this.picks.toggle(target.lane, target.cell); return; }
    const before = this.selected;
    this.selected = target;
    if (target?.cell != null) this.cursor = { ...target };
    this._look(before, target);
    if (this.tabShown === 1 && !this.root.classList.contains("kv-wide")) this._tab(0);
  }

  moveCursor(lane, cell) {
    this.cursor = { lane: lane.k, cell };
    lane.tell();
    this.hover(lane.k, cell);
  }

  _look(before, now) {
    for (const k of new Set([before?.lane, now?.lane])) if (k != null) this.lanes[k].drawMarks();
    this.stage.drawLens(this.frame);
    if (this._looking) return;
    this._looking = requestAnimationFrame(() => { this._looking = null; this.inspector.draw(this.frame); });
  }

  focusOn(seq) {
    this.focus = seq;
    this.draw();
  }

  toggleFocus() {
    const cell = this.selected?.cell != null ? this.lanes[this.selected.lane].cell(this.selected.cell) : null;
    this.focusOn(this.focus !== null ? null : this.selected?.seq ?? cell?.owner[0] ?? this.frame.step.seqs?.[0] ?? null);
  }

  // Which owner sets are paled, null if none.
  dims() { return this.focus === null ? null : (ids) => !ids.includes(this.focus); }

  nKv() { return this.model.nKv[this.at] ?? {}; }

  nextLabel() {
    this.labelMode = (this.labelMode + 1) % LABELS.length;
    this.draw();
  }

  focusLane(k) {
    const lane = this.lanes[k];
    if (!lane) return;
    lane.root.scrollIntoView({ block: "nearest" });
    lane.grid.focus({ preventScroll: true });
  }

  askStep() { askStep(this); }

  escape() {
    if (this._help) { this.help(); return; }
    this.hovered = this.lookedAt = null;
    if (this.focus !== null) this.focusOn(null);
    this.select(null);
    this.draw();
  }

  help() {
    if (this._help) { this._help.remove(); this._help = null; return; }
    this._help = helpTable();
    this.main.append(this._help);
  }
}

export function mount(parent, payload, options = {}) {
  const player = new Player(parent, payload, options);
  return { player, update: (next, more) => player.update(next, more), extend: (more) => player.extend(more), destroy: () => player.destroy() };
}
