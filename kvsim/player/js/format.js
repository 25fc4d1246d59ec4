// Numbers and text as the player writes them, and a helper to make elements. Text is always set as text.

export const number = (n) => String(Math.abs(n)).replace(/\B(?=(\d{3})+(?!\d))/g, ",").replace(/^/, n < 0 ? "−" : "");

export const range = (a, b) => (a === b ? number(a) : `${number(a)}–${number(b)}`);

export const count = (n, noun) => `${number(n)} ${noun}${n === 1 ? "" : "s"}`;

// Ascending integers as [first, last] runs.
export function runsOf(values) {
  const runs = [];
  for (const v of values) {
    const last = runs[runs.length - 1];
    if (last && v === last[1] + 1) last[1] = v;
    else runs.push([v, v]);
  }
  return runs;
}

// "0–65 and 74–82"; more than `most` runs are told by their ends.
export function ranges(values, most = 4) {
  const runs = runsOf(values);
  if (runs.length > most) return `${number(values.length)} between ${number(values[0])} and ${number(values[values.length - 1])}`;
  const texts = runs.map(([a, b]) => range(a, b));
  return texts.length < 2 ? texts.join("") : `${texts.slice(0, -1).join(", ")} and ${texts[texts.length - 1]}`;
}

// el("div", "row", "text" | [children]) or el("div", {class, title, ...}, ...).
export function el(tag, attributes = "", content = null) {
  const node = document.createElement(tag);
  const all = typeof attributes === "string" ? { class: attributes } : attributes;
  for (const [name, value] of Object.entries(all)) if (value !== "" && value != null) node.setAttribute(name, value);
  if (Array.isArray(content)) node.append(...content.filter((c) => c != null));
  else if (content != null) node.textContent = content;
  return node;
}

// Easing: cubic in-out for flights, cubic out for fades.
export const inOut = (p) => (p < 0.5 ? 4 * p ** 3 : 1 - (-2 * p + 2) ** 3 / 2);
export const out = (p) => 1 - (1 - p) ** 3;
export const clamp = (p) => Math.max(0, Math.min(1, p));
