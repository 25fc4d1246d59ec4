// The Compare page: which lanes agree at which operation, the cells of reference and subject side by side, and
// what differs.

import { SideBySide } from "./compare-grids.js";
import { Strip } from "./compare-strip.js";
import { count, el, number } from "./format.js";
import { remember, themeOf } from "./ground.js";
import { Model } from "./model.js";
import { Theme } from "./theme.js";

const VIEWS = new WeakMap();

export default function component({ parentElement, data }) {
  const host = parentElement.querySelector(".kv-host") ?? parentElement;
  let view = VIEWS.get(parentElement);
  if (!view) {
    view = new CompareView(host);
    VIEWS.set(parentElement, view);
  }
  view.update(data);
  return () => {
    if (parentElement.isConnected) return;
    view.destroy();
    VIEWS.delete(parentElement);
  };
}

class CompareView {
  constructor(host) {
    this.host = host;
    this.number = el("span", "kv-number");
    this.call = el("span", "kv-call");
    this.verdict = el("span", "kv-verdict");
    this.say = el("p", { class: "kv-say", role: "status", "aria-live": "polite" });
    const button = (text, title, act) => {
      const made = el("button", { type: "button", class: "kv-button", title }, text);
      made.addEventListener("click", act);
      return made;
    };
    this.buttons = el("div", "kvc-buttons", [
      button("Previous", "Previous difference", () => this.jump(-1)),
      button("First difference", "D", () => this.first()),
      button("Next", "Next difference, d", () => this.jump(1))]);
    this.buttons.children[1].classList.add("kvc-main");
    this.strip = new Strip(this);
    this.grids = new SideBySide(this);
    this.cards = el("div", "kvc-cards");
    this.root = el("div", { class: "kv kvc", tabindex: "0", role: "application", "aria-label": "comparison of lanes" }, [
      el("header", "kv-sentence", [this.number, el("div", "kv-said", [el("div", "kv-callline", [this.call, this.verdict]), this.say]), el("span", "kv-space"), this.buttons]),
      el("div", "kvc-body", [this.strip.root, this.grids.root, this.cards])]);
    host.append(this.root);
    this.observer = new ResizeObserver(() => this.draw());
    this.observer.observe(this.root);
    this.timer = setInterval(() => this._theme(), 400);
    this.root.addEventListener("keydown", (event) => this._key(event));
  }

  destroy() {
    this.observer.disconnect();
    clearInterval(this.timer);
    this.root.remove();
  }

  update(data) {
    if (this.data?.key === data.key) return;
    this.data = data;
    const comparison = JSON.parse(data.comparison);
    Object.assign(this, comparison);
    this.left = new Model(comparison.reference);
    this.right = new Model(comparison.subject ?? comparison.reference);
    this.n = this.left.nSteps;
    this.apart = [...Array(this.n).keys()].filter((i) => this.differs[i]);
    if (comparison.ended !== null) this.apart.push(comparison.ended);
    this.at = Math.max(0, Math.min(this.n - 1, data.at ?? this.apart[0] ?? this._fullest()));
    this._theme();
    this.draw();
  }

  // Where most is held: what to show if nothing differs.
  _fullest() {
    const { occupancy } = this.left;
    return occupancy.indexOf(Math.max(...occupancy));
  }

  _theme() {
    const theme = themeOf(this.host);
    if (this.root.dataset.theme === theme) return;
    this.root.dataset.theme = theme;
    this.draw();
  }

  go(i) {
    this.at = Math.max(0, Math.min(this.n - 1, i));
    remember("at", this.at);
    this.draw();
  }

  first() { if (this.apart.length) this.go(this.apart[0]); }

  jump(direction) {
    const found = direction > 0 ? this.apart.find((i) => i > this.at) : [...this.apart].reverse().find((i) => i < this.at);
    if (found !== undefined) this.go(found);
  }

  _key(event) {
    const act = { ArrowLeft: () => this.go(this.at - 1), ArrowRight: () => this.go(this.at + 1), Home: () => this.go(0),
      End: () => this.go(this.n - 1), d: () => this.jump(1), D: () => this.first() }[event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  draw() {
    const width = this.root.clientWidth - 40;
    if (width < 100 || !this.left) return;
    this.theme = new Theme(this.root, window.devicePixelRatio || 1);
    this._words();
    this.strip.draw(width);
    this.grids.draw(width);
    this.cards.replaceChildren(this._whatDiffers(), this._compared());
  }

  // Whether the subject has come as far as this step.
  get reached() { return this.at < this.right.nSteps; }

  _words() {
    const step = this.left.steps[this.at], found = this.differs[this.at];
    this.number.textContent = number(this.at);
    const open = step.call.indexOf("(");
    this.call.replaceChildren(el("b", "", step.call.slice(0, open)), document.createTextNode(step.call.slice(open)));
    this.verdict.textContent = step.ret;
    this.verdict.hidden = !step.ret;
    this.root.querySelector(".kv-sentence").classList.toggle("kv-failed", !!found || !this.reached);
    this.say.textContent = this._sentence(step, found);
    this.buttons.hidden = !this.apart.length;
  }

  _sentence(step, found) {
    const first = this.apart[0] === this.at;
    const before = first && this.at > 0 ? `; operations 0–${number(this.at - 1)} agree` : "";
    const met = this.hazards[this.at];
    const hazard = met ? ` Hazard met: ${met.map((id) => id.replaceAll("-", " ")).join(", ")}.` : "";
    const said = `${step.say}${hazard}`;
    if (found) return `${first ? "First difference" : "Differs"}, in ${count(found.n, "field")}${before}. The reference: ${said}`;
    if (this.ended === this.at) return `${first ? "First difference" : "Differs"}: the subject goes no further${before}. The reference: ${said}`;
    if (!this.reached) return `The subject has ended before. The reference: ${said}`;
    return `All agree. ${said}`;
  }

  _whatDiffers() {
    const found = this.differs[this.at];
    const head = (note) => el("div", "kvc-head", [el("b", "", "What differs"), el("span", "kv-secondary", note)]);
    if (this.ended === this.at || (!this.reached && this.end)) {
      return el("section", "kvc-card", [head("the subject ended"), el("p", "kvc-end", this.end)]);
    }
    if (!found) return el("section", "kvc-card", [head(this.apart.length ? "nothing at this operation" : "nothing in this recording; a campaign looks for what it takes")]);
    const rows = found.rows.map(([field, a, b]) => el("tr", "", [el("td", "", field), el("td", "", a), el("td", "kv-bad", b)]));
    const table = el("table", "kvc-table", [
      el("thead", "", [el("tr", "", ["field", "reference", this.name].map((h) => el("th", "", h)))]), el("tbody", "", rows)]);
    return el("section", "kvc-card", [head(count(found.n, "field")), table]);
  }

  _compared() {
    const apart = new Set(this.differs[this.at]?.kinds ?? []);
    const items = this.kinds.map((kind, k) => el("li", apart.has(k) ? "kvc-apart" : "", [el("i", "", apart.has(k) ? "✕" : "✓"), el("span", "", kind)]));
    const broken = this.ended === this.at;
    items.push(el("li", broken ? "kvc-apart" : "", [el("i", "", broken ? "✕" : "✓"), el("span", "", "content and invariants, by the ledger")]));
    return el("section", "kvc-card", [el("div", "kvc-head", [el("b", "", "Compared at every operation")]), el("ul", "kvc-list", items)]);
  }
}
