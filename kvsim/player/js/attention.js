// The Attention page's picture: what the rows of one ubatch may read and do read, by cell and by position.

import { AttentionGrid } from "./attention-grid.js";
import { rowDetails } from "./attention-row.js";
import { count, el, number, ranges, runsOf } from "./format.js";
import { remember, themeOf } from "./ground.js";
import { Theme } from "./theme.js";

const VIEWS = new WeakMap();

export default function component({ parentElement, data }) {
  const host = parentElement.querySelector(".kv-host") ?? parentElement;
  let view = VIEWS.get(parentElement);
  if (!view) {
    view = new AttentionView(host);
    VIEWS.set(parentElement, view);
  }
  view.update(data);
  return () => {
    if (parentElement.isConnected) return;
    view.destroy();
    VIEWS.delete(parentElement);
  };
}

// A row's visible cells, columns it reads, and weights, as sets and arrays that are quick to ask.
export class Reading {
  constructor(packed) {
    Object.assign(this, packed);
    this.n = this.n_cells;
    this.width = packed.rows.length ? this._floats(packed.weights).length / packed.rows.length : this.n;
    this.weight = this._floats(packed.weights);
    this.seen = packed.mask.map((edges) => bits(edges, this.n));
    this.left = packed.chosen ? packed.chosen.map((edges) => bits(edges, this.n)) : this.seen;
    this.rowsRead = packed.compressed?.reads.map((edges) => bits(edges, this.width - this.n));
    this.top = Math.max(1, ...packed.rows.map((row) => row[0] + 1), ...packed.pos.map((p) => p + 1));
  }

  _floats(text) {
    if (this._decoded) return this._decoded;
    const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
    return (this._decoded = new Float32Array(bytes.buffer));
  }

  weightOf(row, column) { return this.weight[row * this.width + column]; }

  strongest(row) {
    let most = 0;
    for (let c = 0; c < this.width; c++) most = Math.max(most, this.weightOf(row, c));
    return most;
  }
}

function bits(edges, n) {
  const found = new Uint8Array(n);
  for (let e = 0; e < edges.length; e += 2) found.fill(1, edges[e], edges[e + 1]);
  return found;
}

class AttentionView {
  constructor(host) {
    this.number = el("span", "kv-number");
    this.call = el("span", "kv-call");
    this.say = el("p", { class: "kv-say", role: "status", "aria-live": "polite" });
    this.grids = el("div", "kva-grids");
    this.side = el("aside", { class: "kva-side", "aria-label": "details of the row" });
    this.root = el("div", { class: "kv kva", tabindex: "0", role: "application", "aria-label": "attention of one ubatch" }, [
      el("header", "kv-sentence", [this.number, el("div", "kv-said", [el("div", "kv-callline", [this.call]), this.say])]),
      el("div", "kva-main", [this.grids, this.side])]);
    host.append(this.root);
    this.host = host;
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.root);
    this.timer = setInterval(() => this._theme(), 400);
    this.root.addEventListener("keydown", (event) => this._key(event));
  }

  destroy() {
    this.observer.disconnect();
    clearInterval(this.timer);
    this.root.remove();
  }

  update(data) {
    const same = this.data?.key === data.key;
    this.data = data;
    this.reading = new Reading(JSON.parse(data.picture));
    const last = this.reading.rows.length - 1;
    this.row = Math.max(0, Math.min(last, same ? this.row : data.row ?? last));
    this.pointed = null;
    this._build();
    this._theme();
    this.draw();
  }

  _theme() {
    const theme = themeOf(this.host);
    if (this.root.dataset.theme === theme) return;
    this.root.dataset.theme = theme;
    if (this.all) this.draw();
  }

  _build() {
    const { reading } = this;
    const seqs = [...new Set(reading.rows.map((row) => reading.owners[row[1]][0]))];
    const whose = seqs.length === 1 ? `the positions of seq ${seqs[0]}` : "positions, for each row those of its own sequence";
    this.byCell = new AttentionGrid(this, "cell", "By cell", `columns are cells 0–${number(reading.n - 1)}, as the kernel sees them; the strip shows the owners`);
    this.byPosition = new AttentionGrid(this, "position", "By position", `the same rows, columns are ${whose}: causality is the staircase`);
    const all = [this.byCell, this.byPosition];
    if (reading.compressed && reading.width > reading.n) {
      const { kind, ratio } = reading.compressed;
      all.push(new AttentionGrid(this, "compressed", `Compressed rows of ${kind}`, `each stands for ${number(ratio)} positions, and is as wide; strong: read by the row`));
    }
    this.all = all;
    this.grids.replaceChildren(...all.map((grid) => grid.root));
  }

  select(row) {
    if (row === this.row) return;
    this.row = row;
    remember("row", row);
    this.draw();
  }

  point(column) {
    this.pointed = column;
    this._details();
  }

  _key(event) {
    const step = { ArrowUp: -1, ArrowDown: 1, Home: -1e6, End: 1e6 }[event.key];
    if (!step) return;
    event.preventDefault();
    this.select(Math.max(0, Math.min(this.reading.rows.length - 1, this.row + step)));
  }

  draw() {
    const width = this.root.clientWidth;
    if (!width || !this.all) return;
    this.theme = new Theme(this.root, window.devicePixelRatio || 1);
    this._words();
    this._details();
    for (const grid of this.all) grid.draw(this.grids.clientWidth - 40);
  }

  _details() {
    this.side.replaceChildren(...rowDetails(this));
  }

  _words() {
    const { reading, row, data } = this, [pos, owner] = reading.rows[row] ?? [0, 0];
    this.number.textContent = number(data.at);
    const open = data.call.indexOf("(");
    this.call.replaceChildren(el("b", "", data.call.slice(0, open)), document.createTextNode(`${data.call.slice(open)}, ubatch ${data.ubatch}: ${count(reading.rows.length, "token")} × n_kv ${number(reading.n)}`));
    const cells = [...reading.seen[row].keys()].filter((c) => reading.seen[row][c]);
    const positions = [...new Set(cells.map((c) => reading.pos[c]))].sort((a, b) => a - b);
    const runs = runsOf(cells).length;
    const one = runsOf(positions).length;
    let text = `The token at position ${number(pos)} of seq ${reading.owners[owner].join(", ")} may attend to ${number(cells.length)} of ${number(reading.n)} cells: positions ${ranges(positions)}.`;
    if (runs > 1) text += ` By cell they lie in ${number(runs)} runs; by position they are ${one === 1 ? "one" : number(one)}.`;
    const left = reading.left[row].reduce((sum, bit) => sum + bit, 0);
    if (reading.chosen && left < cells.length) text += ` The indexer leaves ${number(left)} of them.`;
    if (reading.rowsRead) text += ` Beside them it reads ${number(reading.rowsRead[row].reduce((sum, bit) => sum + bit, 0))} compressed rows.`;
    this.say.textContent = text;
  }
}
