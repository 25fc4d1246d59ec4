// DeepSeek-V4's compressors: placeholder until the plan is packed.
import { el } from "./format.js";

export class Compressors {
  constructor(player) {
    this.player = player;
    this.root = el("section", "kv-compressors");
    this.root.hidden = true;
    this.height = 0;
  }
  place() {}
  draw() {}
}
