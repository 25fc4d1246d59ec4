// Reference and subject side by side: the same lanes, in the same rows and columns, differing cells ringed.

import { box, drawCell, gapOf, radiusOf } from "./cells.js";
import { count, el, number } from "./format.js";
import { fit, GUTTER } from "./layout.js";
import { pin } from "./marks.js";

const BETWEEN = 24, ABOVE = 10, BELOW = 6, TALL = 330;

export class SideBySide {
  constructor(view) {
    this.view = view;
    this.root = el("section", "kvc-grids");
  }

  // Rows for the lanes that either side ever uses.
  build() {
    const { left, right, name } = this.view;
    this.rows = left.lanes.map((spec, k) => ({ spec, k })).filter(({ k }) => left.reach[k] > 0 || right.reach[k] > 0);
    for (const row of this.rows) {
      const title = row.spec.n_stream > 1 ? `${row.spec.cache}, stream ${row.spec.stream}` : row.spec.cache;
      row.sides = [new Side(this.view, `kvsim reference, ${title}`), new Side(this.view, `${name}, ${title}`)];
    }
    this.root.replaceChildren(...this.rows.map((row) => el("div", "kvc-pair", row.sides.map((side) => side.root))));
    this.root.hidden = !this.rows.length;
  }

  draw(width) {
    if (!this.rows.length) return;
    const { left, right, reached, theme } = this.view;
    const lanes = this.rows.map(({ spec, k }) => ({ size: spec.size, reach: Math.max(left.reach[k], right.reach[k]) }));
    const plan = fit(lanes, (width - BETWEEN) / 2 - GUTTER, TALL, theme.dpr);
    this.rows.forEach(({ k, sides }, r) => {
      const apart = reached ? this._apart(left.now[k], right.now[k]) : new Set();
      const rows = plan.rows[r].shown;
      sides[0].draw(left, left.now[k], null, plan, rows, apart);
      if (reached) sides[1].draw(right, right.now[k], left.now[k], plan, rows, apart);
      else sides[1].ended();
    });
  }

  // Cells in which the two sides hold different things.
  _apart(a, b) {
    const { left, right } = this.view, found = new Set();
    for (let i = 0; i < a.size; i++) {
      const same = a.pos[i] === b.pos[i] && a.shift[i] === b.shift[i] && a.tok[i] === b.tok[i]
        && left.owners[a.owner[i]].join() === right.owners[b.owner[i]].join();
      if (!same) found.add(i);
    }
    return found;
  }
}

// A heading of one side: its name in full as a title, and facts; those that differ from the other side's are red.
export function heading(title) {
  const facts = el("span", "kv-lane-facts");
  const root = el("div", "kv-lane-header", [el("span", { class: "kv-lane-name", title }, title), facts]);
  const tell = (told) => facts.replaceChildren(...told.map(([text, apart]) => el("span", apart ? "kv-bad" : "", text)));
  return { root, tell };
}

// One lane of one side.
class Side {
  constructor(view, title) {
    this.view = view;
    this.title = title;
    this.heading = heading(title);
    this.canvas = el("canvas", { role: "img" });
    this.root = el("div", "kvc-side", [this.heading.root, this.canvas]);
  }

  ended() {
    this.heading.tell([["has ended", true]]);
    this.canvas.hidden = true;
  }

  draw(model, cells, against, plan, rows, apart) {
    const { theme } = this.view, { dpr } = theme;
    this.canvas.hidden = false;
    const width = GUTTER + plan.cols * plan.pw + 4, height = ABOVE + rows * plan.ph + BELOW;
    this.canvas.width = Math.round(width * dpr);
    this.canvas.height = Math.round(height * dpr);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
    const ctx = this.canvas.getContext("2d");
    ctx.setTransform(dpr, 0, 0, dpr, 0, ABOVE * dpr);
    this._facts(cells, against, apart);
    this._cells(ctx, model, cells, plan, rows, apart);
  }

  _facts(cells, against, apart) {
    const facts = [[`${number(cells.used)} used`, against && cells.used !== against.used], [`head ${number(cells.head)}`, against && cells.head !== against.head]];
    if (apart.size) facts.push([count(apart.size, "cell") + (apart.size === 1 ? " differs" : " differ"), !!against]);
    this.heading.tell(facts);
    this.canvas.setAttribute("aria-label", `${this.title}: ${facts.map(([text]) => text).join(", ")}`);
  }

  _cells(ctx, model, cells, plan, rows, apart) {
    const { theme } = this.view, gap = gapOf(plan.pw), n = Math.min(rows * plan.cols, cells.size);
    const at = (i) => [GUTTER + (i % plan.cols) * plan.pw, Math.floor(i / plan.cols) * plan.ph];
    ctx.font = `11.5px ${theme.mono}`;
    ctx.fillStyle = theme.ink3;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    for (let row = 0; row < rows; row += Math.max(1, Math.ceil(14 / plan.ph))) ctx.fillText(number(row * plan.cols), GUTTER - 9, (row + 0.5) * plan.ph);
    for (let i = 0; i < n; i++) {
      const owner = model.owners[cells.owner[i]], cell = { owner, pos: cells.pos[i], shift: cells.shift[i], tok: cells.tok[i] };
      const [x, y] = at(i);
      if (plan.image) {
        ctx.fillStyle = owner.length ? theme.color(owner[0]) : theme.cell;
        ctx.fillRect(x, y, plan.pw, plan.ph);
      } else drawCell(ctx, theme, x + gap / 2, y + gap / 2, plan.pw - gap, plan.pw, cell, label(cells, i, plan, apart));
    }
    for (const i of apart) if (i < n) ring(ctx, theme, ...at(i), plan);
    const head = Math.min(cells.head, n), last = head === n;
    const [x, y] = at(last ? head - 1 : head);
    pin(ctx, theme, last ? x + plan.pw : x, y, plan.ph, plan.pw);
  }
}

function label(cells, i, plan, apart) {
  if (plan.pw < 18 || cells.owner[i] === 0) return "";
  const start = i % plan.cols === 0 || cells.pos[i - 1] !== cells.pos[i] - 1 || cells.owner[i - 1] !== cells.owner[i];
  return plan.pw >= 24 || start || cells.pos[i] % 8 === 0 || apart.has(i) ? String(cells.pos[i]).replace("-", "−") : "";
}

// A red ring with a gap inside.
function ring(ctx, theme, x, y, plan) {
  const r = radiusOf(plan.pw), thin = plan.pw < 8;
  if (!thin) {
    ctx.strokeStyle = theme.bg;
    ctx.lineWidth = 1.5;
    box(ctx, x + 1.8, y + 1.8, plan.pw - 3.6, plan.ph - 3.6, r);
    ctx.stroke();
  }
  ctx.strokeStyle = theme.fail;
  ctx.lineWidth = thin ? 1 : 2;
  box(ctx, x + 0.3, y + 0.3, plan.pw - 0.6, plan.ph - 0.6, r + 1);
  ctx.stroke();
}
