// The inspector: the selected cell or sequence, and what the present operation did, as text.

import { count, el, number, range, ranges, runsOf } from "./format.js";
import { keepFocus } from "./ground.js";
import { FREE, PURGE, SHARE, RELEASE, SHIFT, TURN, UNDO, WRITE } from "./model.js";
import { legend } from "./legend.js";
import { dial } from "./lens.js";
import { AWAITED } from "./lane.js";
import { MANY } from "./layout.js";
import { stepNotes } from "./hazards.js";

export class Inspector {
  constructor(player) {
    this.player = player;
    this.root = el("aside", { class: "kv-inspector", "aria-label": "details" });
  }

  draw(frame) {
    const { selected, hovered, lookedAt, model } = this.player;
    const target = hovered ?? selected ?? lookedAt;
    const parts = [];
    const many = model.total >= MANY, wide = this.player.root.classList.contains("kv-wide");
    parts.push(...stepNotes(frame.step));
    if (frame.step.why && !target) parts.push(...this._shortage(frame.step.why));
    if (target?.cell != null) parts.push(...this._cell(target, frame));
    else if (target?.seq != null) parts.push(this._sequence(target.seq, frame));
    if (many) parts.push(this._held(wide), wide ? this._holes() : null);
    if (!many || wide) parts.push(...this._operation(frame));
    if (!frame.step.why && !many && model.lanes.length) parts.push(legend(this.player));
    keepFocus(this.player.root, () => this.root.replaceChildren(...parts.filter(Boolean)));
  }

  _cell({ lane: k, cell: i }, frame) {
    const { model } = this.player;
    const lane = this.player.lanes[k], cell = lane.cell(i);
    const was = frame.lanes[k].changes.find((c) => c.cell === i);
    const title = `Cell ${number(i)}` + (model.lanes.length > 1 ? ` of ${lane.name}` : "");
    const rows = [];
    if (!cell.owner.length) rows.push(["holds", was ? `nothing now; it held position ${number(was.pos)}` : "nothing"]);
    else {
      const before = was && was.owner && was.pos !== cell.pos ? `${number(was.pos)} → ` : "";
      rows.push([cell.owner.length > 1 ? "holds" : "holds", [chips(this.player, cell.owner.slice(0, 6)),
        el("span", "", ` position ${before}`), el("b", "", number(cell.pos))]]);
      if (cell.owner.length > 1) rows.push(["shared by", count(cell.owner.length, "sequence")]);
      if (model.payload.two_d) rows.push(["x, y", `${number(model.now[k].x[i])}, ${number(model.now[k].y[i])}`]);
      rows.push(["token", cell.tok < 0 ? "none stored" : number(cell.tok)]);
      rows.push(["shift", cell.shift ? `${number(cell.shift)}, pending` : "none pending"]);
      if (cell.reuse) rows.push(["window", "out of reach: the next search may take it"]);
      if (cell.unknown) rows.push(["content", cell.unknown === AWAITED ? "not yet copied: it follows at the next decode" : "never computed: its ubatch was aborted"]);
    }
    return [section(title, table(rows), cell.shift ? this._dial(cell) : null), this._history(k, i)];
  }

  // The stored angle of a key whose shift is pending, and where it must go.
  _dial(cell) {
    const { theme, dpr } = this.player, canvas = el("canvas", { role: "img", "aria-label": "angle of the stored key" });
    canvas.width = canvas.height = 48 * dpr;
    canvas.style.width = canvas.style.height = "48px";
    const ctx = canvas.getContext("2d");
    ctx.scale(dpr, dpr);
    dial(ctx, theme.ink, 24, 24, 20, cell.pos, cell.shift);
    return el("div", "kv-dial", [canvas, el("p", "kv-quiet", "The needle is the key as stored, the dotted line where it must go; the sector between is the pending shift.")]);
  }

  _history(k, i) {
    const { model, at } = this.player;
    const entries = model.history(k, i, model.nSteps - 1);
    if (!entries.length) return section("History of this cell", el("p", "kv-quiet", "Never written in this recording."));
    const shown = around(entries, at, 9);
    const list = el("ol", "kv-history", shown.map((entry) => {
      const link = el("button", { type: "button", class: "kv-link" }, number(entry.i));
      link.addEventListener("click", () => { this.player.selected = { lane: k, cell: i }; this.player.lead(entry.i); });
      return el("li", entry.i === at ? "kv-present" : entry.i > at ? "kv-future" : "", [link, el("span", "", this._told(entry))]);
    }));
    const hidden = entries.length - shown.length;
    return section("History of this cell", list, hidden ? el("p", "kv-quiet", `${count(hidden, "more entry")}`.replace("entrys", "entries")) : null);
  }

  // What one step did to this cell, in a few words.
  _told({ step, wrote, was, now, kind }) {
    const { owners } = this.player.model;
    const ids = owners[now.owner].join(", "), holds = `seq ${ids}, position ${number(now.pos)}`;
    switch (kind) {
      case FREE: return step.mark === "defragment" ? "moved away" : `freed by ${step.short}`;
      case PURGE: return wrote ? "written, then purged" : "purged: the window had passed";
      case UNDO: return wrote ? "written and rolled back" : "removed by a rollback";
      case SHARE: return `shared with seq ${owners[now.owner].filter((s) => !owners[was.owner].includes(s)).join(", ")}, now seq ${ids}`;
      case RELEASE: return `let go by seq ${owners[was.owner].filter((s) => !owners[now.owner].includes(s)).join(", ")}, now seq ${ids}`;
      case SHIFT: return `position becomes ${number(now.pos)}`;
      case TURN: return `key turned to position ${number(now.pos)}`;
      case WRITE: return `${written(step, was)}: ${holds}`;
      default: return !now.owner ? (step.bad ? "written and rolled back" : "written, then purged")
        : step.kind === "decode" ? "written again" : "written again by a restore";
    }
  }

  _sequence(seq, frame) {
    const { model, rulers } = this.player;
    const row = rulers._row(seq, frame);
    const rows = row.parts.flatMap((part, c) => {
      if (!part) return [];
      const name = rulers.caches.length > 1 ? rulers.caches[c] : "positions";
      const spans = part.segments.reduce((all, s) => {
        const last = all[all.length - 1];
        if (last && s.from === last[1] + 1) last[1] = s.to; else all.push([s.from, s.to]);
        return all;
      }, []);
      const text = part.n ? `${spans.slice(0, 3).map(([a, b]) => range(a, b)).join(", ")}${spans.length > 3 ? ", …" : ""}, ${count(part.n, "cell")}` : "nothing";
      return [[name, text]];
    });
    const [low, high] = frame.side.pos[seq] ?? [-1, -1];
    rows.push(["reported", low < 0 ? "empty" : `min ${number(low)}, max ${number(high)}`]);
    if (high >= 0) rows.push(["next token", number(high + 1)]);
    const focus = el("button", { type: "button", class: "kv-button" }, this.player.focus === seq ? "Show all sequences" : "Show only this one");
    focus.addEventListener("click", () => this.player.focusOn(this.player.focus === seq ? null : seq));
    return section([chips(this.player, [seq])], table(rows), focus);
  }

  _operation(frame) {
    const { step } = frame;
    const parts = [];
    if (step.u?.length) parts.push(section("Batch of this step", table(this._batchRows(step))));
    const effects = this._effects(frame);
    if (effects.length) parts.push(section(`What operation ${number(frame.i)} changed`, table(effects)));
    const windows = frame.lanes.flatMap((lane, k) => (lane.reuse ? [this._windowCells(k, lane)] : []));
    if (windows.length === 1) parts.push(windows[0]);
    return parts;
  }

  _batchRows(step) {
    const split = step.u.map((u) => u.n);
    const sizes = split.length > 5 ? `${split.length} ubatches of ${range(Math.min(...split), Math.max(...split))}` : split.join(" + ");
    const rows = [["tokens", `${number(step.n)}, ${count(step.seqs.length, "sequence")}`], ["split", `${step.u[0].split}: ${sizes}`]];
    const last = step.u[step.u.length - 1].n_kv ?? {};
    const sizesKv = [...new Set(Object.values(last))];
    if (sizesKv.length) rows.push(["n_kv", sizesKv.length === 1 ? number(sizesKv[0]) : Object.entries(last).map(([c, n]) => `${c} ${number(n)}`).join(", ")]);
    if (step.graph) rows.push(["graph", step.graph]);
    return rows;
  }

  _effects(frame) {
    const { model } = this.player;
    const words = { [FREE]: "freed", [PURGE]: "purged", [UNDO]: "rolled back", [SHARE]: "shared", [RELEASE]: "let go", [SHIFT]: "shifted", [TURN]: "keys turned" };
    const rows = [];
    frame.lanes.forEach((lane, k) => {
      const name = model.lanes.length > 1 ? ` in ${this.player.lanes[k].name}` : "";
      if (lane.written.size) rows.push([`written${name}`, cellsOf([...lane.written])]);
      const over = lane.changes.filter((c) => c.kind === WRITE && c.owner).map((c) => c.cell);
      if (over.length) rows.push([`overwritten${name}`, cellsOf(over)]);
      for (const kind of [FREE, PURGE, UNDO, SHARE, RELEASE, SHIFT, TURN]) {
        const cells = lane.changes.filter((c) => c.kind === kind).map((c) => c.cell);
        if (cells.length) rows.push([`${words[kind]}${name}`, cellsOf(cells)]);
      }
      const head = model.now[k].head;
      if (head !== lane.head) rows.push([`head${name}`, `${number(lane.head)} → ${number(head)}`]);
    });
    return rows.length > 10 ? [...rows.slice(0, 9), ["…", `${number(rows.length - 9)} more`]] : rows;
  }

  _windowCells(k, lane) {
    const { model } = this.player;
    if (model.isUnseen(k)) return null;
    const { owner, size } = model.now[k];
    let reach = 0, reusable = 0, shared = 0, empty = 0;
    for (let i = 0; i < size; i++) {
      if (!owner[i]) empty++;
      else if (lane.reuse[i]) reusable++;
      else if (model.owners[owner[i]].length > 1) shared++;
      else reach++;
    }
    return section("Window cells", table([["in reach", number(reach)], ["reusable", number(reusable)],
      ["shared", `${number(shared)}, never reused`], ["empty", number(empty)]]));
  }

  // Cells by sequence; with very many cells this is what one looks for.
  _held(wide) {
    const { model, theme } = this.player;
    const counts = new Map(model.sequences.map((s) => [s, 0]));
    const byOwner = new Array(model.owners.length).fill(0);
    for (const cells of model.now) for (let i = 0; i < cells.size; i++) byOwner[cells.owner[i]]++;
    let shared = 0;
    byOwner.forEach((n, o) => {
      for (const s of model.owners[o]) counts.set(s, (counts.get(s) ?? 0) + n);
      if (model.owners[o].length > 1) shared += n;
    });
    const most = Math.max(1, ...counts.values());
    const rows = [...counts].slice(0, 40).flatMap(([s, n]) => {
      const chip = el("i", "kv-chip"), fill = el("i", "kv-fill");
      chip.style.background = fill.style.background = theme.color(s);
      chip.style.borderColor = theme.edge(s);
      fill.style.width = wide ? `${(n / most) * 100}%` : "0";
      return [chip, el("span", "", String(s)), fill, el("span", "kv-n", number(n))];
    });
    return section("Held cells", el("div", "kv-held", rows), table([["free", number(byOwner[0])], ["shared", number(shared)]]));
  }

  // Free space by length of hole.
  _holes() {
    const { model } = this.player;
    const bins = new Map();
    for (const { owner, size } of model.now) {
      for (let i = 0; i < size; i++) {
        if (owner[i]) continue;
        let n = 1;
        while (i + n < size && !owner[i + n]) n++;
        i += n;
        const bin = Math.floor(Math.log2(n));
        const [holes, cells] = bins.get(bin) ?? [0, 0];
        bins.set(bin, [holes + 1, cells + n]);
      }
    }
    const rows = [...bins].sort((a, b) => a[0] - b[0]).map(([bin, [holes, cells]]) =>
      [range(2 ** bin, 2 ** (bin + 1) - 1), `${count(holes, "hole")}, ${count(cells, "cell")}`]);
    return section("Free space by length of hole", rows.length ? table(rows) : el("p", "kv-quiet", "No cell is free."));
  }

  _shortage(why) {
    const { theme, model } = this.player;
    const most = Math.max(...why.holders.map(([, n]) => n), 1);
    const bars = why.holders.slice(0, 8).map(([ids, n]) => {
      const bar = el("i", "kv-bar");
      bar.style.width = `${Math.max(3, (n / most) * 120)}px`;
      bar.style.background = ids.length > 1
        ? `repeating-linear-gradient(45deg, ${ids.map((s, j) => `${theme.color(s)} ${j * 4}px ${(j + 1) * 4}px`).join(", ")})` : theme.color(ids[0]);
      return [`seq ${ids.join(", ")}`, [bar, el("span", "", ` ${number(n)}`)]];
    });
    const name = model.lanes.length > 1 ? `the ${why.cache} cells` : "the cells";
    return [
      section("What would have worked", table(why.remedies, "kv-right"),
        el("p", "kv-quiet", `A slot need not be contiguous, so the largest hole (${number(why.largest[0])}) does not matter here.`)),
      section("After the failure", table([["cells", "unchanged in every cache"]])),
      section(`Who holds ${name}`, table(bars)),
    ];
  }
}

export function section(title, ...children) {
  return el("section", "kv-section", [el("h3", "", title), ...children]);
}

export function table(rows, cls = "") {
  return el("dl", `kv-table ${cls}`, rows.flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]));
}

export function chips(player, ids) {
  return el("span", "kv-chips", ids.flatMap((s) => {
    const chip = el("i", "kv-chip");
    chip.style.background = player.theme.color(s);
    chip.style.borderColor = player.theme.edge(s);
    return [chip, el("span", "", `seq ${s}`)];
  }));
}

// How a cell came to hold something else.
function written(step, was) {
  if (step.mark === "share") return was.owner ? "overwritten by a copy" : "copied";
  if (step.mark === "restore") return "restored";
  if (step.mark === "defragment") return "moved here";
  return was.owner ? "overwritten" : "written";
}

// "cell 8", "8 cells: 9–12 and 35–37", "24 cells between 3 and 200".
function cellsOf(cells) {
  cells.sort((a, b) => a - b);
  const runs = runsOf(cells);
  if (cells.length === 1) return `cell ${number(cells[0])}`;
  const n = count(cells.length, "cell");
  return runs.length > 4 ? `${n} between ${number(cells[0])} and ${number(cells[cells.length - 1])}` : `${n}: ${ranges(cells)}`;
}

// At most `most` entries, those around the present step.
function around(entries, at, most) {
  const here = entries.findIndex((e) => e.i >= at);
  const start = Math.max(0, Math.min((here < 0 ? entries.length : here) - most + 3, entries.length - most));
  return entries.slice(start, start + most);
}
