// The Compare page: which lanes agree at which operation, the cells of reference and subject side by side, and
// what differs.

import { SideBySide } from "./compare-grids.js";
import { States } from "./compare-states.js";
import { Strip } from "./compare-strip.js";
import { count, el, number } from "./format.js";
import { remember } from "./ground.js";
import { Model } from "./model.js";
import { View, place } from "./view.js";

export default function component(given) { return place(CompareView, given); }

class CompareView extends View {
  constructor(host) {
    const buttons = el("div", "kvc-buttons");
    super(host, "kvc", "comparison of lanes", [el("span", "kv-space"), buttons]);
    this.buttons = buttons;
    const button = (text, title, act) => {
      const made = el("button", { type: "button", class: "kv-button", title }, text);
      made.addEventListener("click", act);
      return made;
    };
    buttons.append(
      button("Previous", "Previous difference", () => this.jump(-1)),
      button("First difference", "D", () => this.first()),
      button("Next", "Next difference, d", () => this.jump(1)));
    buttons.children[1].classList.add("kvc-main");
    this.strip = new Strip(this);
    this.grids = new SideBySide(this);
    this.states = new States(this);
    this.cards = el("div", "kvc-cards");
    this.root.append(el("div", "kvc-body", [this.strip.root, this.grids.root, this.states.root, this.cards]));
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
    if (comparison.ended !== null && !this.apart.includes(comparison.ended)) this.apart.push(comparison.ended);
    this.at = Math.max(0, Math.min(this.n - 1, data.at ?? this.apart[0] ?? this._fullest()));
    this.grids.build();
    this.states.build();
    this.redraw();
  }

  // Where most is held: what to show if nothing differs.
  _fullest() {
    const { occupancy } = this.left;
    return occupancy.indexOf(Math.max(...occupancy));
  }

  go(i) {
    this.at = Math.max(0, Math.min(this.n - 1, i));
    remember("at", this.at);
    this.redraw();
  }

  first() { if (this.apart.length) this.go(this.apart[0]); }

  jump(direction) {
    const found = direction > 0 ? this.apart.find((i) => i > this.at) : [...this.apart].reverse().find((i) => i < this.at);
    if (found !== undefined) this.go(found);
  }

  keys() {
    return { ArrowLeft: () => this.go(this.at - 1), ArrowRight: () => this.go(this.at + 1), Home: () => this.go(0),
      End: () => this.go(this.n - 1), d: () => this.jump(1), D: () => this.first() };
  }

  draw() {
    const width = this.root.clientWidth - 40;
    this._words();
    this.frames = [this.left.frame(this.at), this.reached ? this.right.frame(this.at) : null];
    this.strip.draw(width);
    this.grids.draw(width);
    this.states.draw(width);
    this.cards.replaceChildren(this._whatDiffers(), this._compared());
  }

  // Whether the subject has come as far as this step.
  get reached() { return this.at < this.right.nSteps; }

  _words() {
    const step = this.left.steps[this.at], found = this.differs[this.at];
    this.tell(this.at, step.call, step.ret, this._sentence(step, found));
    this.sentence.classList.toggle("kv-failed", !!found || !this.reached);
    this.buttons.hidden = !this.apart.length;
  }

  _sentence(step, found) {
    const first = this.apart[0] === this.at;
    const before = first && this.at > 0 ? `; operations 0–${number(this.at - 1)} agree` : "";
    const met = this.hazards[this.at];
    const hazard = met ? ` Hazard met: ${met.map((id) => id.replaceAll("-", " ")).join(", ")}.` : "";
    const said = `The reference: ${step.say}${hazard}`;
    const fields = found ? `, in ${count(found.n, "field")}` : "";
    if (this.ended === this.at) return `${first ? "First difference" : "Differs"}${fields}: the subject goes no further${before}. ${said}`;
    if (found) return `${first ? "First difference" : "Differs"}${fields}${before}. ${said}`;
    if (!this.reached) return `The subject has ended before. ${said}`;
    return `All agree. ${step.say}${hazard}`;
  }

  _whatDiffers() {
    const found = this.differs[this.at], over = this.ended !== null && this.at >= this.ended;
    const head = (note) => el("div", "kvc-head", [el("b", "", "What differs"), el("span", "kv-secondary", note)]);
    if (!found && !over) return el("section", "kvc-card", [head(this.apart.length ? "nothing at this operation" : "nothing in this recording; a campaign looks for what it takes")]);
    const parts = [head([found ? count(found.n, "field") : "", over ? "the subject ended" : ""].filter(Boolean).join("; "))];
    if (over) parts.push(el("p", "kvc-end", this.end));
    if (found) parts.push(this._fields(found));
    return el("section", "kvc-card", parts);
  }

  _fields(found) {
    const rows = found.rows.map(([field, a, b]) => el("tr", "", [el("td", "", field), el("td", "", a), el("td", "kv-bad", b)]));
    return el("table", "kvc-table", [
      el("thead", "", [el("tr", "", ["field", "reference", this.name].map((h) => el("th", "", h)))]), el("tbody", "", rows)]);
  }

  _compared() {
    const apart = new Set(this.differs[this.at]?.kinds ?? []);
    const items = this.kinds.map((kind, k) => el("li", apart.has(k) ? "kvc-apart" : "", [el("i", "", apart.has(k) ? "✕" : "✓"), el("span", "", kind)]));
    const broken = this.ended === this.at;
    items.push(el("li", broken ? "kvc-apart" : "", [el("i", "", broken ? "✕" : "✓"), el("span", "", "content and invariants, by the ledger")]));
    return el("section", "kvc-card", [el("div", "kvc-head", [el("b", "", "Compared at every operation")]), el("ul", "kvc-list", items)]);
  }
}
