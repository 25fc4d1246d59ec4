// How large a cell is drawn, and in how many columns: the largest pitch at which all lanes fit.
//
// Columns are a power of two and the same for all lanes, so equal cells of two caches stand below each
// other. Rows that the whole log never uses are folded into one line, so the layout never changes on the way.

export const PITCHES = [54, 40, 28, 24, 19, 14, 11, 8, 7, 6, 4, 3, 2, 1];
export const FOLD = 12;
export const MANY = 32768;  // from here on cells are drawn as one image
const FEW = 64;  // so few may be as large as the page is wide
export const GUTTER = 44;
export const PROFILE = 20;
export const PAD = 16;  // room around a grid for rings and the head's pin

// lanes: [{size, reach}], width of the cells' area, height for all lanes without their headers.
export function fit(lanes, width, height, dpr = 1) {
  // Numbers in every cell only help while there are few; beyond that a wide grid with textures reads better.
  const shown = Math.max(...lanes.map((lane) => Math.min(lane.size, lane.reach + 64)));
  const most = lanes.reduce((sum, lane) => sum + lane.size, 0) <= FEW ? PITCHES[0] : shown <= 512 ? 28 : 19;
  for (const pitch of PITCHES.filter((p) => p <= most && p >= 5)) {
    const plan = withPitch(lanes, pitch, width, dpr);
    if (plan && plan.height <= height) return pitch === 28 ? grown(plan, lanes, width, height, dpr) : plan;
  }
  return dense(lanes, width, height, dpr);
}

// The same columns with the largest cells for which there is room, where every cell has its number anyway.
function grown(plan, lanes, width, height, dpr) {
  for (let pitch = Math.min(40, Math.floor(width / plan.cols)); pitch > plan.pw; pitch--) {
    const larger = withPitch(lanes, pitch, width, dpr);
    if (larger?.cols === plan.cols && larger.height <= height) return larger;
  }
  return plan;
}

// A plan for a given pitch, whatever its height; null if not even 16 columns fit, of a lane that has them.
export function withPitch(lanes, pitch, width, dpr = 1) {
  const exact = Math.max(1, Math.round(pitch * dpr)) / dpr;
  const largest = Math.max(...lanes.map((lane) => lane.size));
  let cols = 1;
  while (cols * 2 * exact <= width && cols * 2 <= largest) cols *= 2;
  if (cols < 16 && cols * 2 <= largest) return null;
  const rows = lanes.map((lane) => shownRows(lane, cols, exact));
  const height = rows.reduce((sum, r) => sum + r.shown * exact + (r.folded ? FOLD + 4 : 0), 0);
  return { cols, pw: exact, ph: exact, rows, height, image: false };
}

// Very many cells: one image, cells as rectangles of whole pixels, as large as they can be.
function dense(lanes, width, height, dpr) {
  let best = null;
  for (let cols = 32; cols <= 4096; cols *= 2) {
    const pw = Math.floor((width / cols) * dpr) / dpr;
    const total = lanes.reduce((sum, lane) => sum + Math.ceil(lane.size / cols), 0);
    const ph = Math.min(Math.floor((height / total) * dpr) / dpr, 4, pw * 4);
    if (pw <= 0 || ph <= 0) continue;
    const w = Math.min(pw, 4);
    if (!best || w * ph > best.pw * best.ph) best = { cols, pw: w, ph };
  }
  best ??= { cols: 1024, pw: 1, ph: 1 };
  const rows = lanes.map((lane) => ({ shown: Math.ceil(lane.size / best.cols), folded: 0 }));
  return { ...best, rows, height: rows.reduce((sum, r) => sum + r.shown * best.ph, 0), image: true };
}

// Rows up to the last one the log ever uses, if folding the rest saves space.
function shownRows(lane, cols, pitch) {
  const all = Math.ceil(lane.size / cols);
  const used = Math.min(all, Math.max(1, Math.ceil(lane.reach / cols)) + 1);
  if (lane.unfolded || (all - used) * pitch < FOLD + 8) return { shown: all, folded: 0 };
  return { shown: used, folded: all - used };
}
