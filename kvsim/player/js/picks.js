// Cells somebody picked: a prediction in order, with its numbers, or a preview of what an act would change.

export class Picks {
  constructor(player) {
    this.player = player;
    this.limit = Infinity;
    this.cells = [];
    this.outlined = new Map();
  }

  clear() {
    this.cells = [];
    this.outlined = new Map();
  }

  // Outline cells without numbers: [[lane, [cells]], ...].
  outline(lanes) {
    this.outlined = new Map((lanes ?? []).map(([k, cells]) => [k, cells]));
    this._draw();
  }

  toggle(lane, cell) {
    const at = this.cells.findIndex(([k, i]) => k === lane && i === cell);
    if (at >= 0) this.cells.splice(at, 1);
    else if (this.cells.length < this.limit) this.cells.push([lane, cell]);
    this._draw();
    this.player.options.onPick?.(this.cells.map((pick) => [...pick]));
  }

  // What is to be marked in lane k, as [cell, number]; a preview holds for the last step only.
  of(k) {
    const picked = this.cells.map(([lane, i], n) => [lane, i, n + 1]).filter(([lane]) => lane === k).map(([, i, n]) => [i, n]);
    const { at, model } = this.player;
    return at < model.nSteps - 1 ? picked : [...(this.outlined.get(k) ?? []).map((i) => [i, 0]), ...picked];
  }

  _draw() {
    for (const lane of this.player.stage.shown) if (lane.cols) lane.drawMarks();
  }
}
