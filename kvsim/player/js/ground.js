// Light or dark, by the ground Streamlit draws.
export function themeOf(host) {
  const style = getComputedStyle(host);
  const color = style.getPropertyValue("--st-background-color").trim();
  const probe = color.match(/^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})/i);
  const [r, g, b] = probe ? probe.slice(1).map((h) => parseInt(h, 16)) : (color.match(/\d+/g) ?? [255, 255, 255]).map(Number);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128 ? "dark" : "light";
}

// A frame around the focused root only for who came to it by the tab key: not on load, and not after a click.
export function frameOnTab(root) {
  root.addEventListener("keyup", (event) => { if (event.key === "Tab" && event.target === root) root.classList.add("kv-tabbed"); });
  root.addEventListener("blur", () => root.classList.remove("kv-tabbed"));
}

// Make `change` to what stands in `root`, which takes the focus of what goes: else keys would act on nothing.
export function keepFocus(root, change) {
  const had = root.matches(":focus-within");
  change();
  if (had && !root.matches(":focus-within")) root.focus({ preventScroll: true });
}

// Keys act at once on what has just appeared, unless a field, a button or another picture has the focus.
export function focusIfFree(root) {
  const has = document.activeElement;
  if (!has?.closest("input, textarea, select, button, [contenteditable]") && !has?.shadowRoot?.activeElement) root.focus({ preventScroll: true });
}

// Keep a value in the address without running the script again.
const waiting = new Map();

export function remember(name, value) {
  clearTimeout(waiting.get(name));
  waiting.set(name, setTimeout(() => {
    const url = new URL(window.location.href);
    url.searchParams.set(name, value);
    window.history.replaceState(window.history.state, "", url);
  }, 250));
}
