// The player as a Streamlit component: mounts once per element, takes a new recording when the data change,
// follows Streamlit's theme, and keeps the step in the address without running the script again.

import { mount } from "./main.js";

const PLAYERS = new WeakMap();

export default function component({ parentElement, data, setStateValue }) {
  const host = parentElement.querySelector(".kv-host") ?? parentElement;
  let entry = PLAYERS.get(parentElement);
  if (!entry) {
    entry = { handle: mount(host, JSON.parse(data.payload), { at: data.at, theme: themeOf(host), onAt: rememberStep, ...data.options }) };
    entry.theme = setInterval(() => entry.handle.player.setTheme(themeOf(host)), 400);
    PLAYERS.set(parentElement, entry);
  } else if (entry.key !== data.key) {
    entry.handle.update(JSON.parse(data.payload), { at: data.from ?? data.at });
    if (data.from != null && data.from < data.at) entry.handle.player.play();
  }
  entry.key = data.key;
  const { picks } = data.options;
  entry.handle.player.picks.limit = picks;
  entry.handle.player.options.onPick = picks ? (cells) => setStateValue("picked", { key: data.key, cells }) : null;
  entry.handle.player.picks.outline(data.preview);
  entry.handle.player.note(data.notes);
  return () => {
    if (parentElement.isConnected) return;
    clearInterval(entry.theme);
    entry.handle.destroy();
    PLAYERS.delete(parentElement);
  };
}

// Light or dark, by the ground Streamlit draws.
function themeOf(host) {
  const style = getComputedStyle(host);
  const color = style.getPropertyValue("--st-background-color").trim();
  const probe = color.match(/^#([0-9a-f]{2})([0-9a-f]{2})([0-9a-f]{2})/i);
  const [r, g, b] = probe ? probe.slice(1).map((h) => parseInt(h, 16)) : (color.match(/\d+/g) ?? [255, 255, 255]).map(Number);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b < 128 ? "dark" : "light";
}

let pending = null;

function rememberStep(step) {
  clearTimeout(pending);
  pending = setTimeout(() => {
    const url = new URL(window.location.href);
    url.searchParams.set("at", step);
    window.history.replaceState(window.history.state, "", url);
  }, 250);
}
