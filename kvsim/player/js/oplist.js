// The list of operations. Only the rows in sight exist, so ten thousand operations cost what thirty do.

import { el, number } from "./format.js";
import { keepFocus } from "./ground.js";
import { isTrouble } from "./hazards.js";

const ROW = 26;

export class OpList {
  constructor(player) {
    this.player = player;
    this.inner = el("div", "kv-ops-inner");
    this.scroll = el("div", { class: "kv-ops-scroll", tabindex: "-1" }, [this.inner]);
    this.find = el("input", { class: "kv-find", type: "search", placeholder: "Find an operation", "aria-label": "Find an operation" });
    this.root = el("nav", { class: "kv-ops", "aria-label": "Operations" }, [
      el("div", "kv-ops-head", [el("h3", "", "Operations"), this.find]), this.scroll]);
    this.scroll.addEventListener("scroll", () => this._fill());
    this.find.addEventListener("input", () => { this._filter(); this.draw(); });
    this.find.addEventListener("keydown", (event) => event.stopPropagation());
    this.inner.addEventListener("click", (event) => {
      const row = event.target.closest("[data-step]");
      if (row) player.lead(Number(row.dataset.step));
    });
    this._filter();
  }

  _filter() {
    const words = this.find.value.trim().toLowerCase();
    const { steps } = this.player.model;
    this.shown = steps.map((_, i) => i).filter((i) => !words
      || `${i} ${steps[i].call} ${steps[i].ret} ${steps[i].say}`.toLowerCase().includes(words));
    this.inner.style.height = `${this.shown.length * ROW}px`;
  }

  draw() {
    if (!this.root.isConnected || !this.scroll.clientHeight) return;
    const row = this.shown.indexOf(this.player.at);
    if (row >= 0) {
      const top = row * ROW, { scrollTop, clientHeight } = this.scroll;
      if (top < scrollTop + ROW || top > scrollTop + clientHeight - 3 * ROW) this.scroll.scrollTop = top - clientHeight / 2 + ROW;
    }
    this._fill();
  }

  _fill() {
    const { model, at } = this.player;
    const first = Math.max(0, Math.floor(this.scroll.scrollTop / ROW) - 4);
    const last = Math.min(this.shown.length, first + Math.ceil(this.scroll.clientHeight / ROW) + 8);
    const rows = [];
    for (let r = first; r < last; r++) {
      const i = this.shown[r], step = model.steps[i];
      const cls = ["kv-op", i === at ? "kv-op-now" : "", i > at ? "kv-op-later" : ""].join(" ");
      const row = el("button", { type: "button", class: cls, "data-step": i, tabindex: "-1", title: step.call }, [
        el("span", "kv-op-i", number(i)), el("span", "kv-op-call", step.short),
        step.bad ? el("span", "kv-op-bad", `✕ ${step.ret.split(" ")[0].replace(/^false|,/g, "")}`) : isTrouble(step) ? el("span", "kv-op-hazard", "▲") : null]);
      row.style.top = `${r * ROW}px`;
      rows.push(row);
    }
    keepFocus(this.player.root, () => this.inner.replaceChildren(...rows));
  }
}
