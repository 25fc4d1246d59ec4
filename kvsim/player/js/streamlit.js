// The player as a Streamlit component: mounts once per element, takes a new recording when the data change,
// follows Streamlit's theme, leads and follows a list of the page, and keeps the step in the address without running
// the script again.

import { Follow } from "./follow.js";
import { focusIfFree, remember, themeOf } from "./ground.js";
import { mount } from "./main.js";

const PLAYERS = new WeakMap();

export default function component({ parentElement, data, setStateValue }) {
  const host = parentElement.querySelector(".kv-host") ?? parentElement;
  let entry = PLAYERS.get(parentElement);
  if (!entry) {
    const told = (step) => { if (!data.options.plain) remember("at", step); entry?.follow?.mark(); };
    entry = { handle: mount(host, JSON.parse(data.payload), { at: data.at, theme: themeOf(host), onAt: told, ...data.options }) };
    const { player } = entry.handle;
    entry.follow = new Follow(player);
    entry.timer = setInterval(() => { player.setTheme(themeOf(host)); entry.follow.mark(); }, 400);
    PLAYERS.set(parentElement, entry);
    if (!data.options.plain) focusIfFree(player.root);
  } else if (entry.key !== data.key) {
    entry.handle.update(JSON.parse(data.payload), { at: data.from ?? data.at });
    if (data.from != null && data.from < data.at) entry.handle.player.play();
  } else if (entry.payload !== data.payload) {
    entry.handle.extend(JSON.parse(data.payload));
  }
  entry.key = data.key;
  entry.payload = data.payload;
  const { picks } = data.options;
  entry.handle.player.picks.limit = picks;
  entry.handle.player.options.onPick = picks ? (cells) => setStateValue("picked", { key: data.key, cells }) : null;
  entry.handle.player.picks.outline(data.preview);
  entry.handle.player.note(data.notes);
  return () => {
    if (parentElement.isConnected) return;
    clearInterval(entry.timer);
    entry.follow.stop();
    entry.handle.destroy();
    PLAYERS.delete(parentElement);
  };
}
