// A button that copies the address of what is shown now.

import { el } from "./format.js";

const LONGEST = 2000;

export default function component({ parentElement, data }) {
  const host = parentElement.querySelector(".kv-host");
  if (data.long) host.dataset.long = "yes"; else delete host.dataset.long;
  if (host.firstChild) return;
  const button = el("button", { type: "button", class: "kv-link-button" }, data.label);
  button.addEventListener("click", async () => {
    const { href } = window.location;
    let told = "Copied";
    if (href.length > LONGEST || host.dataset.long) told = "Too long for a link: use Export";
    else {
      try { await navigator.clipboard.writeText(href); } catch { told = "Copy the address bar"; }
    }
    button.textContent = told;
    setTimeout(() => { button.textContent = data.label; }, 1600);
  });
  host.append(button);
}
