// The sentence bar: number, call, verdict and what happened, for the eye and for screen readers.

import { el, number } from "./format.js";

export class SentenceBar {
  constructor(player) {
    this.player = player;
    this.number = el("span", "kv-number");
    this.call = el("span", "kv-call");
    this.verdict = el("span", "kv-verdict");
    this.say = el("p", "kv-say");
    this.root = el("header", "kv-sentence", [this.number, el("div", "kv-said", [el("div", "kv-callline", [this.call, this.verdict]), this.say])]);
    this.polite = el("div", { class: "kv-sr", role: "status", "aria-live": "polite" });
    this.loud = el("div", { class: "kv-sr", role: "alert", "aria-live": "assertive" });
  }

  // Say step `i`, or only its ubatch `phase`.
  show(i, step, phase) {
    const { playing, speed } = this.player;
    this.number.textContent = number(i);
    const open = step.call.indexOf("(");
    this.call.replaceChildren(el("b", "", step.call.slice(0, open)), document.createTextNode(step.call.slice(open)));
    this.verdict.textContent = step.ret;
    this.verdict.hidden = !step.ret;
    this.verdict.classList.toggle("kv-bad", !!step.bad);
    this.say.textContent = phase === null ? step.say : step.say_u[phase];
    // Above 4x the ground does not change colour: it would flash.
    this.root.classList.toggle("kv-failed", !!step.bad && !(playing && speed > 4));
    this._announce(`${i}: ${this.say.textContent}`, step.bad);
  }

  // At most one announcement a second while playing.
  _announce(text, bad) {
    const now = performance.now();
    if (this.player.playing && now - (this._said ?? 0) < 1000) return;
    this._said = now;
    (bad ? this.loud : this.polite).textContent = text;
  }
}
