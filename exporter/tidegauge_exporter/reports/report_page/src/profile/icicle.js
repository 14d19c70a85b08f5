// An icicle: what the parts of a whole are made of (icicle.py); a click enlarges a part.

import { drawn } from "../elements.js";

const WIDTH = 1036;
const LETTER = 6.6;
const PADDING = 5;
const ROW = 24;
const MAX_ROWS = 24;
const MIN_WIDTH = 0.3;

function label(name, width) {
  const letters = Math.floor((width - 2 * PADDING) / LETTER);
  if (name.length <= letters) return name;
  return letters >= 3 ? name.slice(0, letters - 1) + "\u2026" : "";
}

/** The icicle that is drawn in `svg`, and others in its place. */
export function icicle(svg) {
  let cells = [];

  function zoom(to) {
    const scale = WIDTH / to.width, end = to.x + to.width;
    for (const cell of cells) {
      const left = Math.max(cell.x, to.x), right = Math.min(cell.x + cell.width, end);
      const isShown = right - left > 1e-3;
      cell.element.toggleAttribute("hidden", !isShown);
      cell.element.classList.toggle("above", cell.row < to.row);
      if (!isShown) continue;
      const x = (left - to.x) * scale, width = (right - left) * scale;
      cell.rect.setAttribute("x", x);
      cell.rect.setAttribute("width", width);
      cell.text.setAttribute("x", x + PADDING);
      cell.text.textContent = label(cell.name, width);
    }
  }

  function listen() {
    for (const cell of cells) {
      cell.element.setAttribute("tabindex", "0");
      cell.element.addEventListener("click", () => zoom(cell));
      cell.element.addEventListener("keydown", (event) => {
        if (event.key === "Enter") zoom(cell);
        if (event.key === "Escape") zoom(cells[0]);
      });
    }
  }

  function celled(part, row, x, width) {
    const rect = drawn("rect", { x, y: row * ROW, width, height: ROW - 1 });
    const text = drawn("text", { x: x + PADDING, y: row * ROW + 16 }, label(part.name, width));
    const element = drawn("g", { class: `cell ${part.css}` }, rect, text, drawn("title", {}, part.title));
    element.dataset.path = part.path;
    element.dataset.bytes = part.bytes;
    return { row, x, width, bytes: part.bytes, name: part.name, path: part.path.toLowerCase(), element, rect, text };
  }

  /** `whole`: {name, title, css, path, bytes, parts}. */
  function show(whole) {
    cells = [];
    const waiting = whole.bytes > 0 ? [[whole, 0, 0]] : [];
    while (waiting.length) {
      const [part, row, x] = waiting.pop();
      cells.push(celled(part, row, x, (part.bytes / whole.bytes) * WIDTH));
      if (row + 1 >= MAX_ROWS) continue;
      const below = [];
      let left = x;
      for (const one of [...part.parts].sort((a, b) => (a.css === "rest") - (b.css === "rest") || b.bytes - a.bytes)) {
        const width = (one.bytes / whole.bytes) * WIDTH;
        if (width >= MIN_WIDTH) below.push([one, row + 1, left]);
        left += width;
      }
      waiting.push(...below.reverse());
    }
    const rows = cells.reduce((most, cell) => Math.max(most, cell.row + 1), 1);
    svg.setAttribute("viewBox", `0 0 ${WIDTH} ${rows * ROW}`);
    svg.replaceChildren(...cells.map((cell) => cell.element));
    listen();
  }

  cells = [...svg.querySelectorAll(".cell")].map((one) => ({
    element: one,
    rect: one.querySelector("rect"),
    text: one.querySelector("text"),
    x: Number(one.dataset.x),
    width: Number(one.dataset.width),
    row: Number(one.dataset.row),
    bytes: Number(one.dataset.bytes),
    name: one.dataset.name,
    path: one.dataset.path.toLowerCase(),
  }));
  listen();
  return { svg, show, cells: () => cells };
}
