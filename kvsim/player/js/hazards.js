// What a step has to say beside its sentence: where it differs from the reference, the hazards it met, and what a
// message in a log means. It stands in the inspector, and below the picture where the inspector is not in sight.

import { el } from "./format.js";

function hazardNote({ title, text, consistent }) {
  return el("section", "kv-hazard", [el("h3", "", `▲ Hazard: ${title}`), text ? el("p", "", text) : null,
    consistent ? el("p", "kv-quiet", `consistent would be: ${consistent}`) : null]);
}

function meaning({ cause, see, remedy }) {
  const line = (label, text) => el("p", "", [el("b", "", `${label}: `), el("span", "", text)]);
  return el("section", "kv-hazard kv-meaning", [line("Cause", cause), line("To see it", see), line("What to do", remedy)]);
}

// Both sides of every field that differs; without fields, what the tester says.
function apartNote({ title, text, sides, rows = [], more }) {
  const side = (i, text) => el("p", i ? "" : "kv-apart-here", [el("b", "", `${sides[i]}: `), el("span", "", text)]);
  return el("section", "kv-hazard kv-apart", [el("h3", "", `✕ ${title}`), text ? el("p", "", text) : null,
    ...rows.flatMap(([where, ...both]) => [el("p", "kv-apart-where", where), ...both.map((text, i) => side(i, text))]),
    more ? el("p", "kv-quiet", `and ${more} more`) : null]);
}

export function stepNotes(step) {
  return [...(step.apart ? [apartNote(step.apart)] : []), ...(step.hazards ?? []).map(hazardNote), ...(step.means ? [meaning(step.means)] : [])];
}

// Whether a step is one to look at: it failed, differs, met a hazard, or is a message that has a meaning.
export function isTrouble(step) {
  return !!(step.bad || step.apart || step.hazards || step.means);
}

export class HazardNotes {
  constructor() {
    this.root = el("div", "kv-stage-hazards");
  }

  draw(step) {
    this.root.replaceChildren(...stepNotes(step));
  }
}
