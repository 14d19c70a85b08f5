// Zoom and keys for the memory chart. The chart itself, and what it shows under the pointer, needs no script (chart.py).

import { element, button } from "./elements.js";

const LEAST_DRAG = 4; // pixels: less is a click
const MOST_ZOOM = 64;

/** `chart` is the whole drawing; the `svg` in it holds what is drawn along the x axis, in the same coordinates. */
export function memory(chart) {
  const plot = chart.querySelector("svg");
  const strips = [...chart.querySelectorAll(".readouts g")].map((strip) => {
    const box = strip.querySelector("rect");
    return { strip, box, from: box.x.baseVal.value, to: box.x.baseVal.value + box.width.baseVal.value };
  });
  if (!plot || !strips.length) return;
  const { x: left, y: top, width, height } = plot.viewBox.baseVal;
  const right = left + width;
  const words = [...chart.querySelectorAll("text[data-x]")].map((text) => {
    const at = Number(text.dataset.x);
    return { text, at, beside: text.x.baseVal[0].value - at };
  });
  const said = element("p", "said");
  said.setAttribute("aria-live", "polite");
  const all = button("show all", () => zoom(left, right));
  const tools = element("div", "tools", element("span", "muted", "Drag to zoom in."), all);
  const frame = chart.parentElement;
  frame.before(tools);
  frame.after(said);
  chart.tabIndex = 0;
  chart.setAttribute("role", "application");
  chart.setAttribute("aria-label", `${chart.getAttribute("aria-label")}: arrow keys move, plus and minus zoom, Escape shows all`);

  let [from, to, at] = [left, right, -1];
  const placed = (x) => left + ((x - from) / (to - from)) * width;
  const zoom = (first, last) => {
    const span = Math.min(Math.max(last - first, width / MOST_ZOOM), width);
    from = Math.min(Math.max((first + last - span) / 2, left), right - span);
    to = from + span;
    plot.setAttribute("viewBox", `${from} ${top} ${span} ${height}`);
    for (const { text, at: x, beside } of words) {
      text.setAttribute("x", placed(x) + beside);
      text.style.display = x < from || x > to ? "none" : "";
    }
    for (const one of strips) {
      const begin = Math.max(placed(one.from), left);
      one.box.setAttribute("x", begin);
      one.box.setAttribute("width", Math.max(Math.min(placed(one.to), right) - begin, 0));
    }
    all.disabled = span === width;
    chart.toggleAttribute("data-zoomed", span < width);
  };
  const point = (index) => {
    if (at >= 0) strips[at].strip.classList.remove("pointed");
    at = index < 0 ? -1 : Math.min(index, strips.length - 1);
    chart.classList.toggle("walked", at >= 0);
    said.textContent = "";
    if (at < 0) return;
    const { strip, from: first, to: last } = strips[at];
    strip.classList.add("pointed");
    said.textContent = strip.textContent;
    const [span, middle] = [to - from, (first + last) / 2];
    if (middle < from || middle > to) zoom(middle - span / 2, middle + span / 2);
  };
  const closer = (factor) => {
    const middle = at < 0 ? (from + to) / 2 : (strips[at].from + strips[at].to) / 2;
    zoom(middle - ((to - from) / 2) * factor, middle + ((to - from) / 2) * factor);
  };

  chart.addEventListener("keydown", (event) => {
    const jump = event.shiftKey ? 10 : 1;
    const here = at < 0 ? strips.length - 1 : at;
    const keys = {
      ArrowLeft: () => point(Math.max(here - jump, 0)), ArrowRight: () => point(here + jump),
      Home: () => point(0), End: () => point(strips.length - 1),
      "+": () => closer(0.5), "-": () => closer(2),
      Escape: () => { point(-1); zoom(left, right); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });

  const xOf = (event) => {
    const inside = new DOMPoint(event.clientX, event.clientY).matrixTransform(chart.getScreenCTM().inverse()).x;
    return from + ((Math.min(Math.max(inside, left), right) - left) / width) * (to - from);
  };
  let began = null;
  const release = (event) => {
    const start = began;
    began = null;
    if (!start || Math.abs(event.clientX - start.clientX) < LEAST_DRAG) return;
    const end = xOf(event);
    zoom(Math.min(start.x, end), Math.max(start.x, end));
  };
  chart.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    began = { x: xOf(event), clientX: event.clientX };
    window.addEventListener("pointerup", release, { once: true });
  });
  chart.addEventListener("pointercancel", () => { began = null; }); // a touch that became a scroll
  chart.addEventListener("pointermove", () => { if (at >= 0 && !began) point(-1); });
  zoom(left, right);
}
