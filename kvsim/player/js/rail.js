// The batch rail at the right end of a lane's header: the tokens of the batch in ubatch groups.
// Pale when placed, outlined while flying, solid while waiting. Tokens start their flight here.

import { box } from "./cells.js";

const HEIGHT = 20;

export class Rail {
  constructor(player, canvas) {
    this.player = player;
    this.canvas = canvas;
    this.slots = [];
  }

  // Lay out the tokens of a step in at most `room` pixels.
  show(step, room) {
    const { dpr } = this.player;
    this.step = step;
    this.groups = (step.u ?? []).map((u) => ({ n: u.n, rows: u.rows, ok: u.ok !== false }));
    const n = this.groups.reduce((sum, g) => sum + g.n, 0);
    this.canvas.hidden = n === 0 || room < 120;
    if (this.canvas.hidden) { this.slots = []; return; }
    const single = n <= 72 && n * 9 + this.groups.length * 24 < room;
    const labels = single ? this.groups.length * (this.groups.length > 1 ? 52 : 0) + 44 : 0;
    const width = Math.min(room, single ? n * 9 + labels + 12 : Math.min(room, 300));
    this.canvas.width = width * dpr;
    this.canvas.height = HEIGHT * dpr;
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${HEIGHT}px`;
    this.canvas.getContext("2d").setTransform(dpr, 0, 0, dpr, 0, 0);
    this.title = this.groups.length > 1 ? `${n} tokens in ${this.groups.length} ubatches` : `${n} tokens`;
    this.canvas.title = this.title;
    this._place(single, width, n);
    this.draw(null);
  }

  _place(single, width, n) {
    this.slots = [];
    const gap = this.groups.length > 24 ? 1 : 4;
    const unit = single ? 9 : (width - gap * (this.groups.length - 1)) / Math.max(n, 1);
    let x = 0;
    this.labels = [];
    this.groups.forEach((group, u) => {
      if (single && this.groups.length > 1) {
        const room = u ? 48 : 88;
        this.labels.push({ u, x: x + room - 6, text: `${u ? "" : "ubatch "}${u + 1}: ${group.n}` });
        x += room;
      }
      const owners = group.rows.flatMap(([owner, k]) => Array(k).fill(owner));
      owners.forEach((owner) => { this.slots.push({ u, x, w: single ? 7 : unit, owner }); x += unit; });
      x += gap;
    });
  }

  // `placed`: how many tokens have left the rail and landed, `flying`: how many are under way; null: all landed.
  draw(placed, flying = 0) {
    if (this.canvas.hidden) return;
    const { theme, model } = this.player;
    const ctx = this.canvas.getContext("2d");
    ctx.clearRect(0, 0, this.canvas.width, HEIGHT);
    const landed = placed ?? this.slots.length;
    this.slots.forEach((slot, k) => {
      const seq = model.owners[slot.owner][0] ?? 0;
      const single = slot.w >= 5;
      const state = k < landed ? "placed" : k < landed + flying ? "flying" : "waiting";
      ctx.fillStyle = state === "waiting" ? theme.color(seq) : theme.alpha(seq, state === "placed" ? 0.3 : 0.12);
      box(ctx, slot.x, HEIGHT / 2 - 3.5, single ? 7 : slot.w + 0.3, 7, single ? 2 : 0);
      ctx.fill();
      if (state === "flying" && single) {
        ctx.strokeStyle = theme.edge(seq);
        ctx.lineWidth = 1;
        box(ctx, slot.x + 0.5, HEIGHT / 2 - 3, 6, 6, 2);
        ctx.stroke();
      }
    });
    const current = this.slots[Math.min(landed + flying, this.slots.length) - 1]?.u ?? 0;
    for (const { u, x, text } of this.labels) {
      ctx.font = `${u === current && placed !== null ? 600 : 400} 12px ${theme.sans}`;
      ctx.fillStyle = u === current && placed !== null ? theme.ink : theme.ink3;
      ctx.textAlign = "right";
      ctx.textBaseline = "middle";
      ctx.fillText(text, x, HEIGHT / 2 + 0.5);
    }
  }

  // Middle of token k, in client coordinates.
  slotAt(k) {
    const frame = this.canvas.getBoundingClientRect(), slot = this.slots[Math.min(k, this.slots.length - 1)];
    return slot ? { x: frame.left + slot.x + slot.w / 2, y: frame.top + HEIGHT / 2 } : { x: frame.right, y: frame.top };
  }
}
