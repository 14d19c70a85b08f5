// The history inside a snapshot: memory event by event. Drawn by uPlot.

import uPlot from "uplot";
import { element, button } from "./elements.js";
import * as format from "./format.js";
import { FONT, colours } from "./theme.js";

const HEIGHT = 320;
const LEAST_WIDTH = 280;
const BINARY_STEPS = Array.from({ length: 62 }, (_, power) => 2 ** power);
const MANY_POINTS = 4000;
const linear = uPlot.paths.linear();
const stepped = uPlot.paths.stepped({ align: 1 });

/** The history inside a snapshot, event by event. */
export function history(parent, data, stacks) {
  const events = data.allocated.length;
  const allocated = new Float64Array(events);
  const reserved = new Float64Array(events);
  const timeMs = data.time_us && new Float64Array(events);
  let [held, kept, passed] = [data.allocated_before, data.reserved_before, 0];
  for (let at = 0; at < events; at += 1) {
    allocated[at] = held += data.allocated[at];
    reserved[at] = kept += data.reserved[at];
    if (timeMs) timeMs[at] = (passed += data.time_us[at]) / 1000;
  }
  const numbers = Float64Array.from({ length: events }, (_, at) => at);
  const said = element("p", "said");
  let byTime = false;

  const make = (width, place) => {
    const theme = colours();
    const area = (plot, series, from, to) => (to - from > MANY_POINTS ? linear : stepped)(plot, series, from, to);
    return new uPlot({
      width, height: HEIGHT,
      scales: { x: { time: false }, y: { range: (_, __, most) => [0, (most || 1) * 1.04] } },
      axes: [axis(theme, (_, ticks) => ticks.map(byTime ? milliseconds : format.count)),
        { ...axis(theme, (_, ticks) => format.byteTicks(ticks)), size: 72, incrs: BINARY_STEPS }],
      series: [
        { label: byTime ? "time" : "event", value: byTime ? figure(timeMs, milliseconds) : figure(numbers, format.count) },
        { label: "allocated", stroke: theme.blue, fill: theme.blue, width: 1, points: { show: false }, paths: area, value: figure(allocated, format.bytes) },
        { label: "reserved", stroke: theme.ink, width: 1.25, dash: [6, 4], points: { show: false }, paths: area, value: figure(reserved, format.bytes) },
      ],
      hooks: {
        draw: [(plot) => data.ooms.forEach((at) => mark(plot, (byTime ? timeMs : numbers)[at], theme))],
        setCursor: [(plot) => { said.textContent = about(plot.cursor.idx); }],
      },
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    }, [byTime ? timeMs : numbers, allocated, reserved], place);
  };
  const about = (at) => {
    if (at === null || at === undefined) return `${format.count(events)} events. Point at the curve to see the line behind each event.`;
    const change = data.allocated[at] || data.reserved[at];
    const what = data.allocated[at] ? (change > 0 ? "allocated" : "freed") : change > 0 ? "reserved from the device" : change < 0 ? "returned to the device" : "out of memory";
    const where = data.stack && change >= 0 ? `, ${stacks.words(data.stack[at])}` : "";
    return `Event ${format.count(at)}: ${change ? `${format.bytes(Math.abs(change))} ` : ""}${what}${where}.`;
  };
  const drawn = chart(parent, make, "memory over the history of the snapshot", said);
  said.textContent = about(null);
  if (timeMs) {
    const change = button("by time", () => {
      byTime = !byTime;
      change.textContent = byTime ? "by event" : "by time";
      drawn.draw();
    });
    drawn.tools.prepend(change);
  }
  if (data.left_out) drawn.tools.append(element("span", "muted", `${format.count(data.left_out)} older events not shown`));
  return drawn;
}

/** A plot that is made again when its width or the colours change, with a button and keys for what the mouse does. */
function chart(parent, make, name, ...below) {
  const place = element("div", "plot");
  const reset = button("show all", () => plot && plot.setData(plot.data));
  const tools = element("div", "tools", element("span", "muted", "Drag to zoom in."), reset);
  place.tabIndex = 0;
  place.setAttribute("role", "application");
  place.setAttribute("aria-label", `${name}: arrow keys move, plus and minus zoom, Escape shows all`);
  parent.append(tools, place, ...below);
  let plot = null;
  const draw = () => {
    if (plot) plot.destroy();
    plot = make(Math.max(place.clientWidth, LEAST_WIDTH), place);
  };
  place.addEventListener("keydown", (event) => key(event, plot));
  return { draw, tools, get width() { return place.clientWidth; } };
}

function key(event, plot) {
  const x = plot.data[0];
  const { min, max } = plot.scales.x;
  const at = plot.cursor.idx ?? 0;
  const go = (to) => {
    const place = Math.max(0, Math.min(to, x.length - 1));
    plot.setCursor({ left: plot.valToPos(x[place], "x"), top: plot.over.clientHeight / 2 });
  };
  const zoom = (factor) => {
    const middle = x[at] >= min && x[at] <= max ? x[at] : (min + max) / 2;
    plot.setScale("x", { min: middle - (middle - min) * factor, max: middle + (max - middle) * factor });
  };
  const jump = event.shiftKey ? 10 : 1;
  const keys = {
    ArrowLeft: () => go(at - jump), ArrowRight: () => go(at + jump), Home: () => go(0), End: () => go(x.length - 1),
    "+": () => zoom(0.5), "-": () => zoom(2), Escape: () => plot.setData(plot.data),
  };
  if (!keys[event.key]) return;
  event.preventDefault();
  keys[event.key]();
}

/** What the legend says of a column: where the pointer is, and at the end where nobody points. */
function figure(column, format) {
  return (_, __, ___, place) => format(column[place ?? column.length - 1]);
}

function milliseconds(ms) {
  return format.duration(ms * 1000);
}

function axis(theme, values) {
  return { font: FONT, stroke: theme.muted, values, grid: { stroke: theme.rule, width: 1 }, ticks: { stroke: theme.rule, width: 1, size: 4 } };
}

/** A vertical line where memory ran out, with words on the side where there is room. */
function mark(plot, x, theme) {
  const { ctx, bbox } = plot;
  const ratio = window.devicePixelRatio || 1;
  const at = plot.valToPos(x, "x", true);
  const isLeft = at < bbox.left + bbox.width / 2;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  ctx.strokeStyle = theme.bad;
  ctx.lineWidth = ratio;
  ctx.setLineDash([3 * ratio, 3 * ratio]);
  ctx.beginPath();
  ctx.moveTo(at, bbox.top);
  ctx.lineTo(at, bbox.top + bbox.height);
  ctx.stroke();
  ctx.font = FONT.replace("12px", `${12 * ratio}px`);
  ctx.textAlign = isLeft ? "left" : "right";
  ctx.fillStyle = theme.ink;
  ctx.fillText("out of memory", at + (isLeft ? 5 : -5) * ratio, bbox.top + 34 * ratio);
  ctx.restore();
}
