// The colours of the style sheet, for what is drawn on canvases; they change with the browser's setting, and on paper.

import { drawn } from "./elements.js";

const NAMES = ["page", "card", "ink", "muted", "rule", "bad", "warn", "good", "calm", "grey", "blue", "pale", "hot",
  "free", "waiting", "own1", "own2", "own3", "library"];

export function colours() {
  const style = getComputedStyle(document.documentElement);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

export const FONT = "12px system-ui, -apple-system, 'Segoe UI', sans-serif";

const fills = new Map();

/** The fill that the style sheet gives to `css`. */
export function fillOf(css) {
  if (!fills.has(css)) {
    const probe = drawn("rect", { class: css });
    const parent = drawn("svg", {}, probe);
    document.body.append(parent);
    fills.set(css, getComputedStyle(probe).fill);
    parent.remove();
  }
  return fills.get(css);
}

/** Calls `redraw` whenever the colours are others. */
export function onChange(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    fills.clear();
    redraw();
  });
  const paper = (on) => () => {
    document.documentElement.classList.toggle("paper", on);
    redraw();
  };
  addEventListener("beforeprint", paper(true));
  addEventListener("afterprint", paper(false));
}
