// What is not cells, side by side: recurrent states as cards, DeepSeek-V4's rings and pooled rows. The player's own
// drawings, one for each side; what differs is red.

import { Compressors } from "./compressor.js";
import { el } from "./format.js";
import { Recurrent } from "./recurrent.js";

const BETWEEN = 24;

export class States {
  constructor(view) {
    this.view = view;
    this.root = el("section", "kvc-states kvc-pair");
  }

  build() {
    const { left, right, name } = this.view;
    this.sides = [new Side(this.view, left, "kvsim reference"), new Side(this.view, right, name)];
    this.root.hidden = !left.payload.recurrent && !left.payload.dsv4;
    this.root.replaceChildren(...this.sides.map((side) => side.root));
  }

  draw(width) {
    if (this.root.hidden) return;
    const { frames } = this.view, [one, two] = this.sides;
    two.root.hidden = !frames[1];
    one.draw((width - BETWEEN) / 2, frames[0], frames[1]);
    if (!frames[1]) return;
    two.draw((width - BETWEEN) / 2, frames[1], frames[0]);
    const [a, b] = frames.map((frame) => frame.side.rec);
    if (a && b) markCards(one.recurrent, two.recurrent, a, b);
  }
}

// Red rings around the cards that differ, red text where what they say differs.
function markCards(one, two, a, b) {
  const differs = (i) => JSON.stringify([a.cells[i], depths(a, i)]) !== JSON.stringify([b.cells[i], depths(b, i)]);
  a.cells.forEach((_, i) => {
    if (!differs(i)) return;
    for (const side of [one, two]) side.cards.children[i].classList.add("kvc-apart-card");
  });
  for (const where of [".kv-lane-facts > span", ".kv-card-head", ".kv-plane", ".kv-card-foot"]) {
    const left = one.root.querySelectorAll(where), right = two.root.querySelectorAll(where);
    left.forEach((node, k) => {
      if (node.textContent === right[k]?.textContent) return;
      for (const side of [node, right[k]]) side?.classList.add("kvc-apart-text");
    });
  }
}

// How far back the sequences of cell i are to be read.
const depths = (record, i) => record.cells[i][5].map((seq) => record.rs_idx[seq] ?? 0);

// Stands for a player to the drawings: a model, and what they ask of whoever shows it.
class Side {
  constructor(view, model, title) {
    this.view = view;
    this.model = model;
    this.selected = null;
    this.recurrent = new Recurrent(this, `${title}, recurrent`);
    this.compressors = new Compressors(this, `${title}, compressors`);
    this.root = el("div", "kvc-side", [this.recurrent.root, this.compressors.root]);
  }

  get theme() { return this.view.theme; }
  get dpr() { return this.view.theme.dpr; }
  get at() { return this.view.at; }
  get sequences() { return [...new Set([...this.view.left.sequences, ...this.view.right.sequences])].sort((a, b) => a - b); }
  select() {}

  draw(width, frame, other) {
    this.recurrent.place(width);
    this.compressors.place(width);
    this.recurrent.draw(frame);
    this.compressors.draw(frame, other);
  }
}
