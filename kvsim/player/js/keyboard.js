// Keys of the player. They act while it has focus; arrows inside a grid move over cells.

import { el } from "./format.js";

export const KEYS = [
  ["space", "play, pause"], ["← →", "step"], ["shift ← →", "ubatch"], ["home, end", "first, last step"],
  [", .", "slower, faster"], ["[ ]", "previous, next failure, hazard or message"], ["tab, arrows in the grid", "move over cells; enter selects"],
  ["l", "label: position, sequence, token, shift"], ["1 – 9", "focus part or stream; 0 fits"], ["+ −", "larger, smaller cells"],
  ["f", "only the selected sequence"], ["g", "go to operation"], ["esc", "leave selection, lens, menu"], ["?", "this table"],
];

export function onKey(player, event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const action = event.target.classList?.contains("kv-grid") ? inGrid(player, event) ?? anywhere(player, event) : anywhere(player, event);
  if (!action) return;
  event.preventDefault();
  event.stopPropagation();
  action();
}

function anywhere(player, event) {
  const { key, shiftKey } = event;
  if (/^[1-9]$/.test(key)) return () => player.focusLane(Number(key) - 1);
  return {
    " ": () => player.toggle(),
    ArrowRight: () => (shiftKey ? player.ubatch(1) : player.step(1)),
    ArrowLeft: () => (shiftKey ? player.ubatch(-1) : player.step(-1)),
    Home: () => player.lead(0),
    End: () => player.lead(player.model.nSteps - 1),
    ",": () => player.faster(-1),
    ".": () => player.faster(1),
    "]": () => player.nextTrouble(1),
    "[": () => player.nextTrouble(-1),
    l: () => player.nextLabel(),
    0: () => player.zoom(null),
    "+": () => player.zoom(1),
    "-": () => player.zoom(-1),
    f: () => player.toggleFocus(),
    g: () => player.askStep(),
    Escape: () => player.escape(),
    "?": () => player.help(),
  }[key];
}

function inGrid(player, event) {
  const lane = player.lanes.find((l) => l.grid === event.target);
  const cell = player.cursor?.lane === lane.k ? player.cursor.cell : 0;
  const to = { ArrowRight: cell + 1, ArrowLeft: cell - 1, ArrowDown: cell + lane.cols, ArrowUp: cell - lane.cols }[event.key];
  if (event.shiftKey) return null;
  if (to !== undefined) return () => player.moveCursor(lane, Math.max(0, Math.min(lane.spec.size - 1, to)));
  if (event.key === "Enter") return () => player.select({ lane: lane.k, cell });
  return null;
}

export function helpTable() {
  return el("div", { class: "kv-help", role: "region", "aria-label": "Keyboard" }, [
    el("h3", "", "Keyboard"), el("dl", "kv-table", KEYS.flatMap(([key, does]) => [el("dt", "", key), el("dd", "", does)]))]);
}

// A field beside the count: type a number, enter goes there.
export function askStep(player) {
  const input = el("input", { class: "kv-goto", inputmode: "numeric", "aria-label": "go to operation", placeholder: "operation" });
  input.addEventListener("keydown", (event) => {
    event.stopPropagation();
    if (!["Enter", "Escape"].includes(event.key)) return;
    if (event.key === "Enter" && /^\d+$/.test(input.value)) player.lead(Number(input.value));
    player.root.focus();
  });
  input.addEventListener("blur", () => input.remove()); // and only then: to remove it while it has the focus is an error
  player.dock.count.after(input);
  input.focus();
}
