// A list that the page keeps beside its player: elements with data-kv-steps="first end". A click on one leads the
// player to its first step; the one whose step is shown is marked.

export class Follow {
  constructor(player) {
    this.player = player;
    document.addEventListener("click", this._click = (event) => this._go(event.target.closest?.("[data-kv-steps]")));
  }

  stop() { document.removeEventListener("click", this._click); }

  _go(line) {
    if (!line) return;
    this.player.lead(stepsOf(line)[0]);
    this.mark();
  }

  // Mark the line of the step that is shown. The page may have made the list anew.
  mark() {
    for (const line of document.querySelectorAll("[data-kv-steps]")) {
      const [first, end] = stepsOf(line), here = this.player.at >= first && this.player.at < end;
      if (here !== line.hasAttribute("aria-current")) line.toggleAttribute("aria-current", here);
      if (here) line.setAttribute("aria-current", "step");
    }
  }
}

const stepsOf = (line) => line.dataset.kvSteps.split(" ").map(Number);
