// The hazards of a step below the picture, where the inspector is not in sight.

import { el } from "./format.js";

export function hazardNote({ title, text, consistent }) {
  return el("section", "kv-hazard", [el("h3", "", `▲ Hazard: ${title}`), text ? el("p", "", text) : null,
    consistent ? el("p", "kv-quiet", `consistent would be: ${consistent}`) : null]);
}

export class HazardNotes {
  constructor() {
    this.root = el("div", "kv-stage-hazards");
  }

  draw(step) {
    this.root.replaceChildren(...(step.hazards ?? []).map(hazardNote));
  }
}
