// The Attention page's picture: what the rows of one ubatch may read and do read, by cell and by position.

import { AttentionGrid } from "./attention-grid.js";
import { rowDetails } from "./attention-row.js";
import { count, el, number, ranges, runsOf } from "./format.js";
import { remember } from "./ground.js";
import { View, place } from "./view.js";

export default function component(given) { return place(AttentionView, given); }

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

class AttentionView extends View {
  constructor(host) {
    super(host, "kva", "attention of one ubatch");
    this.grids = el("div", "kva-grids");
    this.side = el("aside", { class: "kva-side", "aria-label": "details of the row" });
    this.root.append(el("div", "kva-main", [this.grids, this.side]));
  }

  update(data) {
    const same = this.data?.key === data.key;
    this.data = data;
    this.reading = new Reading(JSON.parse(data.picture));
    const last = this.reading.rows.length - 1;
    this.row = Math.max(0, Math.min(last, same ? this.row : data.row ?? last));
    this.pointed = null;
    this._build();
    this.redraw();
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
    this.redraw();
  }

  point(column) {
    this.pointed = column;
    this._details();
  }

  keys() {
    const last = this.reading.rows.length - 1, to = (row) => () => this.select(Math.max(0, Math.min(last, row)));
    return { ArrowUp: to(this.row - 1), ArrowDown: to(this.row + 1), Home: to(0), End: to(last) };
  }

  draw() {
    this._words();
    this._details();
    for (const grid of this.all) grid.draw(this.grids.clientWidth - 40);
  }

  _details() {
    this.side.replaceChildren(...rowDetails(this));
  }

  _words() {
    const { reading, row, data } = this, [pos, owner] = reading.rows[row] ?? [0, 0];
    const cells = [...reading.seen[row].keys()].filter((c) => reading.seen[row][c]);
    const positions = [...new Set(cells.map((c) => reading.pos[c]))].sort((a, b) => a - b);
    const runs = runsOf(cells).length;
    const one = runsOf(positions).length;
    let text = `The token at position ${number(pos)} of seq ${reading.owners[owner].join(", ")} may attend to ${number(cells.length)} of ${number(reading.n)} cells: positions ${ranges(positions)}.`;
    if (runs > 1) text += ` By cell they lie in ${number(runs)} runs; by position they are ${one === 1 ? "one" : number(one)}.`;
    const left = reading.left[row].reduce((sum, bit) => sum + bit, 0);
    if (reading.chosen && left < cells.length) text += ` The indexer leaves ${number(left)} of them.`;
    if (reading.rowsRead) text += ` Beside them it reads ${number(reading.rowsRead[row].reduce((sum, bit) => sum + bit, 0))} compressed rows.`;
    this.tell(data.at, `${data.call}, ubatch ${data.ubatch}: ${count(reading.rows.length, "token")} × n_kv ${number(reading.n)}`, "", text);
  }
}
