// Colours as the CSS variables give them (kvsim/player/palette.py), and the textures made from them.

export class Theme {
  constructor(root, dpr) {
    const style = getComputedStyle(root);
    const read = (name) => style.getPropertyValue(`--kv-${name}`).trim();
    for (const name of ["bg", "panel", "sunk", "cell", "line", "line2", "ink", "ink2", "ink3", "decode", "edit",
      "copy", "state", "fail", "fail-bg", "hazard", "agrees"]) this[name.replace("-", "_")] = read(name);
    this.sequences = Array.from({ length: 12 }, (_, i) => read(`seq-${i}`));
    this.dark = luminance(rgb(this.bg)) < 0.2;
    this.edges = this.sequences.map((c) => this._edge(c));
    this.labels = this.sequences.map((c) => labelOn(rgb(c)));
    this.sans = style.getPropertyValue("--kv-sans").trim();
    this.mono = style.getPropertyValue("--kv-mono").trim();
    this.dpr = dpr;
    this._textures = new Map();
  }

  color(seq) { return this.sequences[((seq % 12) + 12) % 12]; }
  edge(seq) { return this.edges[((seq % 12) + 12) % 12]; }
  label(seq) { return this.labels[((seq % 12) + 12) % 12]; }
  alpha(seq, a) { const [r, g, b] = rgb(this.color(seq)); return `rgba(${r},${g},${b},${a})`; }

  // The colour moved towards ink until it stands out 3:1 from an empty cell.
  _edge(color) {
    const ground = luminance(rgb(this.cell)), ink = rgb(this.ink), own = rgb(color);
    for (let t = this.dark ? 0.1 : 0.16; t <= 1; t += 0.04) {
      const mixed = own.map((v, i) => Math.round(v + (ink[i] - v) * t));
      if (contrast(luminance(mixed), ground) >= 3) return `rgb(${mixed})`;
    }
    return this.ink;
  }

  // Bands of the owners' colours, falling to the right, with a line of the ground between them: neighbours that are
  // alike in lightness would melt into each other. The pattern starts at the canvas' corner, so that a run of shared
  // cells reads as one cloth.
  bands(ctx, owners, pitch) {
    const width = Math.round((pitch >= 24 ? 7 : pitch >= 11 ? 5 : 4) * this.dpr);
    const line = (pitch >= 24 ? 1.75 : pitch >= 11 ? 1.25 : 0.75) * this.dpr;
    const shown = owners.slice(0, 4), ground = rgb(this.bg), colors = shown.map((seq) => rgb(this.color(seq)));
    return this._texture(ctx, `bands ${shown} ${width}`, width * shown.length, (x, y, period) => {
      const across = (((x - y) % period) + period) % period;
      return across % width < line ? ground : colors[Math.floor(across / width)];
    });
  }

  // Thin lines rising to the right over a pale fill: a cell the window has passed.
  hatch(ctx, seq, pitch) {
    const period = Math.round((pitch >= 24 ? 4 : 3.5) * this.dpr);
    const color = rgb(this.color(seq)), ground = rgb(this.cell);
    const pale = color.map((v, i) => v * 0.2 + ground[i] * 0.8);
    const line = this.dark ? color.map((v, i) => v * 0.75 + ground[i] * 0.25) : rgb(this.edge(seq)).map((v, i) => v * 0.8 + ground[i] * 0.2);
    return this._texture(ctx, `hatch ${seq % 12} ${period}`, period, (x, y, p) => ((x + y) % p < p * 0.3 ? line : pale));
  }

  // Dots over a paler fill: the content is unknown.
  dots(ctx, seq, pitch) {
    const period = Math.round((pitch >= 24 ? 5 : 4) * this.dpr);
    const color = rgb(this.color(seq)), ground = rgb(this.cell);
    const pale = color.map((v, i) => v * 0.38 + ground[i] * 0.62);
    return this._texture(ctx, `dots ${seq % 12} ${period}`, period, (x, y, p) =>
      ((x % p) - p / 2) ** 2 + ((y % p) - p / 2) ** 2 < (p * 0.26) ** 2 ? color : pale);
  }

  _texture(ctx, key, period, colorAt) {
    if (!this._textures.has(key)) {
      const canvas = document.createElement("canvas");
      canvas.width = canvas.height = period;
      const c = canvas.getContext("2d"), image = c.createImageData(period, period);
      for (let y = 0; y < period; y++) for (let x = 0; x < period; x++) {
        const sum = [0, 0, 0];
        for (const dy of [0.17, 0.5, 0.83]) for (const dx of [0.17, 0.5, 0.83]) {
          colorAt(x + dx, y + dy, period).forEach((v, i) => { sum[i] += v / 9; });
        }
        image.data.set([...sum.map(Math.round), 255], (y * period + x) * 4);
      }
      c.putImageData(image, 0, 0);
      const pattern = ctx.createPattern(canvas, "repeat");
      pattern.setTransform(new DOMMatrix().scale(1 / this.dpr));
      this._textures.set(key, pattern);
    }
    return this._textures.get(key);
  }
}

// The context to draw on a canvas of this size in CSS pixels, empty.
export function penOf(canvas, width, height, dpr) {
  canvas.width = Math.round(width * dpr);
  canvas.height = Math.round(height * dpr);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ctx = canvas.getContext("2d");
  ctx.setTransform(dpr, 0, 0, dpr, 0, 0);
  return ctx;
}

// "#rgb", "#rrggbb" or "rgb(...)" as three numbers.
export function rgb(color) {
  if (color.startsWith("#")) {
    const hex = color.length === 4 ? [...color.slice(1)].map((c) => c + c).join("") : color.slice(1);
    return [0, 2, 4].map((i) => parseInt(hex.slice(i, i + 2), 16));
  }
  return color.match(/[\d.]+/g).slice(0, 3).map(Number);
}

export function luminance(values) {
  const [r, g, b] = values.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

export const contrast = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);

function labelOn(fill) {
  const l = luminance(fill);
  return contrast(l, 1) >= contrast(l, luminance([6, 8, 11])) ? "#ffffff" : "#06080b";
}
