// Everything that needs the blocks: any event of the recording, and any range of them, can be chosen.

import { element } from "../elements.js";
import * as format from "../format.js";
import { onChange } from "../theme.js";
import { recording } from "./recording.js";
import { segments } from "./segments.js";
import { tables, trees } from "./tables.js";
import { timeline } from "./timeline.js";

export function explore(data, icicles, search) {
  const told = recording(data);
  const { events, peak, eventNumber, phaseAt, sumsOf, bound, aliveAt, leftBy, highestIn } = told;
  const place = document.querySelector(".timeline");
  const said = place.querySelector(".said"), modes = place.querySelector("select"), field = place.querySelector("input[type=number]");
  const line = timeline(place, told, (from, to) => (from === undefined ? show() : select(from, to)));
  const drawMap = segments(document.querySelector(".segments"), told);
  const { showCategories, showLines } = tables(told);
  const { byModule, byStack } = trees(told);
  const icicleOf = (of) => icicles.find((one) => one.svg.dataset.of === of);
  let selected = { from: peak, to: peak }, mode = "left";

  const shown = () => {
    const { from, to } = selected;
    if (from === to) return { event: to, found: aliveAt(to), isRange: false };
    if (mode === "highest") {
      const event = highestIn(from, to);
      return { event, found: aliveAt(event), isRange: false };
    }
    return { event: to, found: leftBy(from, to), isRange: true };
  };
  function words(now, bytes) {
    const { from, to } = selected;
    const when = (event) => `event ${eventNumber(event)}${phaseAt(Math.max(event, 0)) === "unknown" ? "" : `, ${phaseAt(Math.max(event, 0))}`}`;
    if (now.isRange) {
      return [`Allocated from event ${eventNumber(from)} to ${eventNumber(to)} and still there at its end`,
        `${format.bytes(bytes)} in ${format.several(now.found.length, "block")} were allocated from event ${eventNumber(from)} to event ${eventNumber(to)} and are still there at its end.`];
    }
    if (from !== to) return [`At the highest moment of the range (event ${eventNumber(now.event)})`,
      `${format.bytes(bytes)} allocated at the highest moment from event ${eventNumber(from)} to event ${eventNumber(to)}: ${when(now.event)}.`];
    if (to === peak) return ["At the peak", `${format.bytes(bytes)} allocated at the peak: ${when(to)}.`];
    return [`At event ${eventNumber(to)}`, `${format.bytes(bytes)} allocated at ${when(to)}.`];
  }
  function show(isFirst = false) {
    const now = shown();
    const bytes = sumsOf(now.found).reduce((a, b) => a + b, 0);
    if (!isFirst) { // the page has the peak already
      showCategories(now.found);
      showLines(now.found);
      if (icicleOf("module")) icicleOf("module").show(byModule(now.found));
    }
    icicleOf("function").show(byStack(now.found));
    const [heading, sentence] = words(now, bytes);
    for (const one of document.querySelectorAll("[data-moment]")) one.textContent = heading;
    said.textContent = sentence;
    modes.parentElement.hidden = selected.from === selected.to;
    place.querySelector("[data-do=zoom]").disabled = selected.from === selected.to;
    place.querySelector("[data-do=all]").disabled = line.isWhole();
    place.querySelector("[data-do=peak]").disabled = selected.from === peak && selected.to === peak;
    field.value = Math.max(now.event + data.first, 0);
    line.draw(selected);
    drawMap(now);
    if (!isFirst) search();
  }
  function redraw() {
    line.draw(selected);
    drawMap(shown());
  }
  function select(from, to = from) {
    selected = { from: Math.min(from, to), to: Math.max(from, to) };
    line.reveal(selected);
    show();
  }
  function lookAt(from, to) {
    line.lookAt(from, to);
    show();
  }

  const deeds = {
    peak: () => select(peak),
    back: () => select(bound(shown().event - 1)),
    on: () => select(bound(shown().event + 1)),
    zoom: () => lookAt(selected.from, selected.to),
    all: () => lookAt(0, events - 1),
  };
  for (const one of place.querySelectorAll("[data-do]")) one.addEventListener("click", deeds[one.dataset.do]);
  modes.addEventListener("change", () => { mode = modes.value; show(); });
  field.addEventListener("change", () => { if (field.value !== "") select(bound(Math.round(Number(field.value)) - data.first)); });
  line.canvas.addEventListener("keydown", (event) => {
    const jump = event.shiftKey ? Math.max(Math.round(line.span() / 20), 10) : 1;
    const at = selected.to;
    const keys = {
      ArrowLeft: () => select(bound(at - jump)), ArrowRight: () => select(bound(at + jump)),
      Home: () => select(0), End: () => select(events - 1), Enter: deeds.peak,
      "+": () => lookAt(at - line.span() / 4, at + line.span() / 4), "-": () => lookAt(at - line.span(), at + line.span()),
      Escape: () => { line.showAll(); select(peak); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  for (const cell of document.querySelectorAll("[data-event]")) {
    const event = Number(cell.dataset.event) - data.first;
    if (event < 0 || event >= events) continue;
    const link = element("button", "link", cell.textContent);
    link.type = "button";
    link.title = "show this event";
    link.addEventListener("click", () => { select(event); place.scrollIntoView({ block: "nearest" }); });
    cell.replaceChildren(link);
  }

  for (const one of document.querySelectorAll(".needs-blocks")) one.hidden = false;
  for (const one of document.querySelectorAll(".without-blocks")) one.hidden = true;
  field.min = data.first;
  field.max = data.end - 1;
  show(true);
  let width = place.clientWidth;
  new ResizeObserver(() => {
    if (place.clientWidth === width) return;
    width = place.clientWidth;
    redraw();
  }).observe(place);
  onChange(redraw);
  document.documentElement.dataset.explored = "true";
}
