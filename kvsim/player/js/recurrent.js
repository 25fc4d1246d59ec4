// Recurrent cells as cards: one sequence's whole state each, its planes as rows, the plane read next in colour.

import { el, number } from "./format.js";
import { chips } from "./inspector.js";

export class Recurrent {
  constructor(player, title = "recurrent") {
    this.player = player;
    this.spec = player.model.payload.recurrent;
    this.rail = el("canvas", "kv-rail");
    this.facts = el("span", "kv-lane-facts");
    this.cards = el("div", "kv-cards");
    this.root = el("section", "kv-recurrent", [el("div", "kv-lane-header", [el("span", { class: "kv-lane-name", title }, title), this.facts,
      el("span", "kv-space"), player.model.lanes.length ? null : this.rail]), this.cards]);
    this.root.hidden = !this.spec;
    this.height = 0;
  }

  place(width) {
    if (!this.spec) return;
    const planes = this.spec.n_rs_seq + 1;
    const columns = Math.max(1, Math.floor((width - 44) / 225));
    this.height = Math.ceil(this.spec.size / columns) * (planes * 28 + 62) + 46;
  }

  // While a step is `moving`, what was shown stays until `change`.
  draw(frame, moving = false) {
    if (!this.spec || (moving && this.cards.childElementCount)) return;
    const now = frame.side.rec, before = frame.side0.rec;
    if (!now) return;
    const facts = [[number(now.used), ` of ${number(now.size)} cells`], ["head ", number(now.head)],
      ["", this.spec.n_rs_seq ? `one cell is one sequence's whole state; planes 1 to ${this.spec.n_rs_seq} are the states that many tokens ago` : "one cell is one sequence's whole state"]];
    this.facts.replaceChildren(...facts.map((f) => el("span", "", f.map((t) => el(/^[\d,−]+$/.test(t) ? "b" : "span", "", t)))));
    this.facts.title = this.facts.textContent;
    const tails = new Map();
    now.cells.forEach(([seq, , , , tail]) => { if (tail >= 0) tails.set(tail, [...(tails.get(tail) ?? []), seq]); });
    this.cards.replaceChildren(...now.cells.map((cell) => this._card(cell, before?.cells[cell[0]], now, before, tails.get(cell[0]) ?? [], frame)));
  }

  // Show the frame, and return what has gone from one place to another, to be slid there: [{node, dx, dy}]. A state
  // that went to another card takes its pointer with it; within a card the pointer moves alone.
  change(frame) {
    const before = this._places();
    this.draw(frame);
    const moved = [];
    for (const [key, { node, card, x, y }] of this._places()) {
      const from = before.get(key), within = /^(pointer|state)/.test(key);
      if (from && (within ? from.card === card && from.y !== y : from.card !== card)) moved.push({ node, dx: from.x - x, dy: from.y - y });
    }
    return moved;
  }

  // Where a step makes a state appear, go or change its place.
  moves(frame) { return !!this.spec && frame.side.rec !== frame.side0.rec; }

  // Where tails, pointers and states are drawn, by what they are.
  _places() {
    const origin = this.root.getBoundingClientRect(), found = new Map();
    [...this.cards.children].forEach((box, card) => {
      for (const node of box.querySelectorAll("[data-key]")) {
        const { left, top } = node.getBoundingClientRect();
        found.set(node.dataset.key, { node, card, x: left - origin.left, y: top - origin.top });
      }
    });
    return found;
  }

  // The cards of the sequences that a test of ids accepts.
  cardsOf(accepts) {
    const cells = this.player.model.side.rec?.cells ?? [];
    return [...this.cards.children].filter((_, i) => accepts(cells[i][5])).map((box) => box.firstChild);
  }

  // Middle of the plane that is read next for a sequence, in client coordinates; null if it has no state.
  placeOf(seq) {
    const box = this.cards.querySelector(`[data-key="pointer ${seq}"]`)?.parentElement.getBoundingClientRect();
    return box ? { x: box.left + box.width / 2, y: box.top + box.height / 2 } : null;
  }

  _card([i, pos, src, , , seqs], was, now, before, tailOf, frame) {
    const { theme, selected } = this.player;
    const changed = was && (was[1] !== pos || was[5].join() !== seqs.join());
    const depth = seqs.length ? now.rs_idx[seqs[0]] ?? 0 : 0;
    const fresh = seqs.length ? this._lastTokens(seqs[0], frame) : 0;
    const planes = Array.from({ length: this.spec.n_rs_seq + 1 }, (_, p) => this._plane(p, depth, pos, seqs, fresh, theme));
    const card = el("div", { class: `kv-card ${changed ? "kv-card-now" : ""} ${seqs.length ? "" : "kv-card-empty"}` }, [
      el("div", "kv-card-head", [el("span", "kv-secondary", `cell ${number(i)}`), seqs.length ? this._owners(seqs) : el("span", "kv-quiet", was?.[5].length ? "let go now" : "empty")]),
      ...planes]);
    const rolled = depth ? `, rolled back ${number(depth)}` : "";
    const moved = src >= 0 && src !== i && seqs.length ? `, state from cell ${number(src)}` : "";
    const tails = tailOf.map((seq, j) => el("span", { class: "kv-tail", "data-key": `tail ${seq}` }, `${j ? ", " : "tail of seq "}${seq}`));
    const foot = [...tails, tailOf.length ? el("span", "", `${rolled}${moved}`) : null];
    const node = el("figure", "kv-card-box", [card, el("figcaption", changed ? "kv-card-foot kv-present" : "kv-card-foot", foot)]);
    if (seqs.length) card.addEventListener("click", () => this.player.select({ seq: seqs[0] }));
    if (selected?.seq != null && seqs.includes(selected.seq)) card.classList.add("kv-card-selected");
    return node;
  }

  _owners(seqs) {
    const shown = chips(this.player, seqs.slice(0, 4));
    shown.dataset.key = `owner ${seqs.join()}`;
    return shown;
  }

  // How many tokens of a sequence its last ubatch had: older planes are stale.
  _lastTokens(seq, frame) {
    const { model } = this.player;
    for (let i = frame.i; i >= 0 && i > frame.i - 500; i--) {
      const { u } = model.steps[i];
      for (let k = (u?.length ?? 0) - 1; k >= 0; k--) {
        const n = u[k].rows.reduce((sum, [owner, m]) => sum + (model.owners[owner].includes(seq) ? m : 0), 0);
        if (n) return n;
      }
    }
    return 0;
  }

  _plane(p, depth, pos, seqs, fresh, theme) {
    const held = seqs.length > 0;
    const read = held && p === depth, dropped = held && p < depth;
    const text = !held ? "" : read ? `after ${number(pos)}` : dropped ? "dropped" : p - depth > fresh ? "stale" : `after ${number(pos - p + depth)}`;
    const state = el("span", "", text);
    if (held && text.startsWith("after")) state.dataset.key = `state ${seqs[0]} ${text}`;
    const plane = el("div", `kv-plane ${read ? "kv-plane-read" : dropped ? "kv-plane-dropped" : "kv-plane-old"}`, [el("span", "", `plane ${p}`), state,
      read ? el("i", { class: "kv-pointer", "data-key": `pointer ${seqs[0]}` }) : null]);
    if (read) {
      plane.dataset.key = `bar ${seqs[0]}`;
      plane.style.background = seqs.length > 1
        ? `repeating-linear-gradient(45deg, ${seqs.slice(0, 4).map((s, j) => `${theme.color(s)} ${j * 6}px ${(j + 1) * 6}px`).join(", ")})` : theme.color(seqs[0]);
      plane.style.color = seqs.length > 1 ? theme.ink : theme.label(seqs[0]);
      if (seqs.length > 1) plane.classList.add("kv-plated");
      plane.style.borderColor = theme.edge(seqs[0]);
    } else if (dropped) plane.style.borderColor = theme.edge(seqs[0]);
    return plane;
  }
}
