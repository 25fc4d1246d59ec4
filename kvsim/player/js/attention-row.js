// The inspector of the Attention page: the selected row, why cells are masked, what weighs most.

import { el, number, ranges } from "./format.js";

const STRONGEST = 8;

export function rowDetails(view) {
  const { reading, row } = view;
  const parts = [rowSection(view), maskedSection(view)];
  if (view.pointed) parts.unshift(pointedSection(view));
  if (reading.block) parts.push(blockSection(view));
  if (reading.compressed) parts.push(compressedSection(view));
  parts.push(weightSection(view, row));
  return parts;
}

function rowSection(view) {
  const { reading, row } = view, [pos, owner, tok, cell] = reading.rows[row], ids = reading.owners[owner];
  const seen = where(reading.seen[row]), left = where(reading.left[row]);
  const shared = seen.filter((c) => reading.owners[reading.owner[c]].length > 1);
  const others = [...new Set(shared.flatMap((c) => reading.owners[reading.owner[c]]))].filter((s) => s !== ids[0]);
  return section(`Row ${number(row)}`, [
    ["query", [...chips(view, ids), el("span", "", " position "), el("b", "", number(pos))]],
    ["token", tok < 0 ? "an embedding" : number(tok)],
    ["written to", cell < 0 ? "no cell of this cache" : `cell ${number(cell)}`],
    ["may see", `${number(seen.length)} cells`],
    reading.chosen ? ["reads", `${number(left.length)} of them, which the indexer chose`] : null,
    shared.length ? ["of these shared", `${number(shared.length)}, with seq ${others.slice(0, 6).join(", ")}`] : null,
  ]);
}

// For every masked cell the first reason that holds.
export function reasons(reading, row) {
  const [pos, owner] = reading.rows[row], seq = reading.owners[owner][0];
  const found = { empty: 0, other: 0, later: 0, window: 0, indexer: 0 };
  for (let c = 0; c < reading.n; c++) {
    const ids = reading.owners[reading.owner[c]];
    if (reading.seen[row][c]) found.indexer += reading.left[row][c] ? 0 : 1;
    else if (!ids.length) found.empty++;
    else if (!ids.includes(seq)) found.other++;
    else if (reading.pos[c] > pos) found.later++;
    else found.window++;
  }
  return found;
}

function maskedSection(view) {
  const { reading, row } = view, found = reasons(reading, row);
  const rows = [["empty", found.empty], ["another sequence", found.other], ["a later position", found.later],
    ["out of the window", reading.window ? found.window : null]];
  if (reading.chosen) rows.push(["not chosen by the indexer", found.indexer]);
  return section("Why a cell is not read", rows.map(([name, n]) => [name, n === null ? "no window" : number(n)]), "kv-right");
}

function blockSection(view) {
  const { reading, row } = view;
  const blocks = [...new Set(where(reading.left[row]).map((c) => Math.floor(reading.pos[c] / reading.block)))].sort((a, b) => a - b);
  return section("Blocks", [["positions in each", number(reading.block)], ["chosen", ranges(blocks)]]);
}

function compressedSection(view) {
  const { reading, row } = view, { kind, ratio, overlap } = reading.compressed;
  const complete = Math.floor((reading.rows[row][0] + 1) / ratio), read = where(reading.rowsRead[row]);
  return section(`Compressed rows of ${kind}`, [
    ["complete", number(complete)],
    ["read", read.length ? ranges(read) : "none"],
    complete ? ["row 0", `stands for positions 0–${number(ratio - 1)}`] : null,
    complete ? [`row ${number(complete - 1)}`, spanOf(complete - 1, ratio, overlap)] : null,
  ]);
}

const spanOf = (r, ratio, overlap) =>
  `stands for positions ${number(r * ratio)}–${number((r + 1) * ratio - 1)}${overlap && r ? `, and heard ${number((r - 1) * ratio)}–${number(r * ratio - 1)}` : ""}`;

function pointedSection(view) {
  const { reading, row, pointed } = view;
  if (pointed.cell === undefined) {
    const { ratio, overlap, kind } = reading.compressed;
    return section(`Row ${number(pointed.row)} of ${kind}`, [["tokens", spanOf(pointed.row, ratio, overlap)],
      ["weight", weight(reading.weightOf(row, reading.n + pointed.row))]]);
  }
  const c = pointed.cell, ids = reading.owners[reading.owner[c]];
  return section(`Cell ${number(c)}`, ids.length ? [
    ["holds", [...chips(view, ids.slice(0, 4)), el("span", "", ` position ${number(reading.pos[c])}`)]],
    ["for this row", reading.left[row][c] ? "read" : reading.seen[row][c] ? "not chosen by the indexer" : "masked"],
    ["weight", weight(reading.weightOf(row, c))]] : [["holds", "nothing"]]);
}

function weightSection(view, row) {
  const { reading } = view;
  const columns = Array.from({ length: reading.width }, (_, c) => c).filter((c) => reading.weightOf(row, c) > 0);
  columns.sort((a, b) => reading.weightOf(row, b) - reading.weightOf(row, a));
  const most = reading.weightOf(row, columns[0]) || 1;
  const list = el("ol", "kva-weights", columns.slice(0, STRONGEST).map((c) => {
    const w = reading.weightOf(row, c), bar = el("i", "");
    bar.style.width = `${Math.max(1, (w / most) * 100)}%`;
    const name = c < reading.n ? `position ${number(reading.pos[c])}` : `row ${number(c - reading.n)} of ${reading.compressed.kind}`;
    return el("li", "", [el("span", "", name), el("span", "kva-bar", [bar]), el("span", "", weight(w))]);
  }));
  const rest = columns.slice(STRONGEST).reduce((sum, c) => sum + reading.weightOf(row, c), 0);
  return el("div", "kv-section", [el("h3", "", `Weighs most${view.data.heads ? `, ${view.data.heads}` : ""}`), list,
    columns.length > STRONGEST ? el("p", "kv-quiet", `${weight(rest)} in ${number(columns.length - STRONGEST)} more`) : null]);
}

const weight = (w) => (w >= 0.0995 ? w.toFixed(2) : w >= 0.00095 ? w.toFixed(3) : w > 0 ? w.toExponential(0).replace("-", "−") : "0");

const where = (mask) => [...mask.keys()].filter((c) => mask[c]);

function chips(view, ids) {
  return ids.flatMap((s) => {
    const chip = el("i", "kv-chip");
    chip.style.background = view.theme.color(s);
    chip.style.borderColor = view.theme.edge(s);
    return [chip, el("span", "", ` seq ${s} `)];
  });
}

function section(title, rows, kind = "") {
  const cells = rows.filter(Boolean).flatMap(([name, value]) => [el("dt", "", name), el("dd", "", value)]);
  return el("div", "kv-section", [el("h3", "", title), el("dl", `kv-table ${kind}`, cells)]);
}
