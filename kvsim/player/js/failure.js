// "Why it failed": what was asked for by ubatch, what was free, reclaimable and contiguous, on one scale.

import { count, el, number } from "./format.js";

export class FailureCard {
  constructor(player) {
    this.player = player;
    this.root = el("section", "kv-why");
    this.root.hidden = true;
  }

  draw(step) {
    const { why } = step;
    this.root.hidden = !why;
    if (!why) return;
    const asked = why.asked.reduce((a, b) => a + b, 0), room = why.free + why.reclaimable;
    const top = Math.max(asked, room, 1) * 1.42;
    const percent = (n) => `${(n / top) * 100}%`;
    const head = el("div", "kv-why-head", [el("b", "", "Why it failed"), el("span", "kv-secondary",
      `${count(asked, "cell")} for ${count(why.asked.length, "ubatch").replace("ubatchs", "ubatches")}, refused by `), el("b", "", why.cache),
      el("span", "kv-secondary", why.stream > 0 ? `stream ${why.stream}` : "")]);
    const limit = el("i", "kv-limit");
    limit.style.left = percent(room);
    const rows = [
      ["asked", this._asked(why, room, percent)],
      [`free in ${why.cache}`, bar(percent(why.free), `${count(why.free, "cell")} in ${count(why.holes, "hole")}`)],
      ["reclaimable", why.reclaimable ? bar(percent(why.reclaimable), `${count(why.reclaimable, "cell")} the window has passed`)
        : el("span", "kv-quiet", "0, this cache has no used cell that may be taken")],
      ["largest hole", bar(percent(why.largest[0]), `${count(why.largest[0], "cell")}, from ${number(why.largest[1])}`)],
    ];
    const body = el("div", "kv-why-body", rows.flatMap(([name, content]) => [el("span", "kv-why-name", name), el("div", "kv-why-row", [content])]));
    const scale = el("div", "kv-why-scale", [limit]);
    body.append(scale);
    this.root.replaceChildren(head, body);
  }

  _asked(why, room, percent) {
    const { theme, at, model } = this.player;
    const seqs = model.steps[at].seqs ?? [];
    let used = 0;
    const row = el("div", "kv-why-asked");
    why.asked.forEach((n, u) => {
      const fits = used + n <= room;
      const piece = el("i", fits ? "kv-piece" : "kv-piece kv-piece-bad", fits && n / room > 0.08 ? `${u ? "" : "ubatch "}${u + 1}: ${number(n)}` : "");
      piece.style.width = percent(n);
      if (fits && seqs.length === 1) { piece.style.background = theme.color(seqs[0]); piece.style.color = theme.label(seqs[0]); }
      row.append(piece);
      if (!fits && used <= room) {
        row.append(el("b", "kv-bad", `ubatch ${u + 1}: ${number(n)} wanted, ${number(room - used)} left`));
      }
      used += n;
    });
    return row;
  }
}

function bar(width, text) {
  const node = el("i", "kv-hole");
  node.style.width = width;
  return el("div", "kv-why-bar", [node, el("span", "", text)]);
}
