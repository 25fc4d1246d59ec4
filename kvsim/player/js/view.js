// A page's picture that is no player: a sentence bar above whatever the page draws. It is made once per element,
// draws again when its size or Streamlit's theme changes, and answers keys.

import { el, number } from "./format.js";
import { frameOnTab, themeOf } from "./ground.js";
import { Theme } from "./theme.js";

const VIEWS = new WeakMap();

// Streamlit calls this whenever the page has new data. Returns what it calls when the element goes.
export function place(View, { parentElement, data }) {
  let view = VIEWS.get(parentElement);
  if (!view) {
    view = new View(parentElement.querySelector(".kv-host") ?? parentElement);
    VIEWS.set(parentElement, view);
  }
  view.update(data);
  return () => {
    if (parentElement.isConnected) return;
    view.destroy();
    VIEWS.delete(parentElement);
  };
}

export class View {
  // kind: its CSS class; label: what it is, for screen readers; more: elements at the end of the sentence bar.
  constructor(host, kind, label, more = []) {
    this.host = host;
    this.number = el("span", "kv-number");
    this.call = el("span", "kv-call");
    this.verdict = el("span", "kv-verdict");
    this.say = el("p", { class: "kv-say", role: "status", "aria-live": "polite" });
    this.sentence = el("header", "kv-sentence", [this.number,
      el("div", "kv-said", [el("div", "kv-callline", [this.call, this.verdict]), this.say]), ...more]);
    this.root = el("div", { class: `kv ${kind}`, tabindex: "0", role: "application", "aria-label": label }, [this.sentence]);
    host.append(this.root);
    this.observer = new ResizeObserver(() => this.redraw());
    this.observer.observe(this.root);
    this.timer = setInterval(() => { if (this.root.dataset.theme !== themeOf(this.host)) this.redraw(); }, 400);
    frameOnTab(this.root);
    this.root.addEventListener("keydown", (event) => {
      const act = this.keys()[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }

  destroy() {
    this.observer.disconnect();
    clearInterval(this.timer);
    this.root.remove();
  }

  // What keys do: {key: function}. A page's view answers with its own.
  keys() { return {}; }

  // Draw everything in the size and theme of now, once there are data and room.
  redraw() {
    if (!this.data || this.root.clientWidth < 140) return;
    this.root.dataset.theme = themeOf(this.host);
    this.theme = new Theme(this.root, window.devicePixelRatio || 1);
    this.draw();
  }

  // The sentence bar: step, call, answer ("" if none) and sentence.
  tell(at, call, verdict, text) {
    const open = call.indexOf("(");
    this.number.textContent = number(at);
    this.call.replaceChildren(el("b", "", call.slice(0, open)), document.createTextNode(call.slice(open)));
    this.verdict.textContent = verdict;
    this.verdict.hidden = !verdict;
    this.say.textContent = text;
    this.say.title = text;
  }
}
