// Curves: memory over time, and the history inside a snapshot. Drawn by uPlot.

import uPlot from "uplot";
import { element, button } from "./elements.js";
import * as format from "./format.js";
import { FONT, colours } from "./theme.js";

const HEIGHT = 320;
const LEAST_WIDTH = 280;
const BINARY_STEPS = Array.from({ length: 62 }, (_, power) => 2 ** power);
const CLOSE_TO_LIMIT = 0.6;
const MANY_POINTS = 4000;
const linear = uPlot.paths.linear();
const stepped = uPlot.paths.stepped({ align: 1 });

/** Memory over time: layers on layers, the limit, the forecast. */
export function memory(parent, data) {
  const tops = [];
  for (const layer of data.layers) {
    const below = tops.at(-1);
    tops.push(layer.bytes.map((held, at) => held + (below ? below[at] : 0)));
  }
  const most = Math.max(...tops.at(-1));
  const foreseen = data.fan && data.limit !== null ? fanEnds(data.fan, data.limit)[0][1] : 0;
  const limit = data.limit !== null && Math.max(most, foreseen) >= CLOSE_TO_LIMIT * data.limit ? data.limit : null;
  const first = data.x[0];
  const last = Math.max(data.x.at(-1), data.fan ? data.fan.until : -Infinity);
  const highest = Math.max(most, foreseen, limit ?? 0) * 1.04;

  const make = (width, place) => {
    const theme = colours();
    const look = (layer) => (layer.grows ? theme.hot : { allocated: theme.blue, cached: theme.pale }[layer.kind] || theme.grey);
    const layers = data.layers.map((layer, at) => ({
      label: layer.name,
      stroke: look(layer),
      fill: look(layer),
      width: 1,
      points: { show: false },
      value: figure(layer.bytes, format.bytes),
      tops: tops[at],
    })).reverse();
    const total = {
      label: "in all", stroke: theme.ink, width: 1.25, points: { show: false },
      value: figure(tops.at(-1), format.bytes),
    };
    const step = {
      label: "step", stroke: "transparent", scale: "step", points: { show: false },
      value: figure(data.steps, format.count),
    };
    const series = [
      { label: data.by_step ? "step" : "time", value: figure(data.x, data.by_step ? format.count : format.moment) },
      ...layers,
      total,
      ...(data.by_step ? [] : [step]),
    ];
    const columns = [data.x, ...layers.map((layer) => layer.tops), tops.at(-1), ...(data.by_step ? [] : [data.steps])];
    return new uPlot({
      width, height: HEIGHT,
      tzDate: (unixS) => uPlot.tzDate(new Date(unixS * 1e3), "UTC"),
      scales: { x: { time: !data.by_step, range: (_, from, to) => ranged(from, to, data.x, first, last) }, y: { range: [0, highest] }, step: {} },
      axes: [axis(theme, data.by_step ? (_, ticks) => ticks.map(format.count) : (_, ticks, __, ___, apart) => format.timeTicks(ticks, apart)),
        { ...axis(theme, (_, ticks) => format.byteTicks(ticks)), size: 72, incrs: BINARY_STEPS }],
      series,
      hooks: { draw: [(plot) => over(plot, data, limit, theme)] },
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    }, columns, place);
  };
  return chart(parent, make, "memory over time");
}

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
        draw: [(plot) => data.ooms.forEach((at) => mark(plot, (byTime ? timeMs : numbers)[at], "out of memory", theme.bad, theme))],
        setCursor: [(plot) => { said.textContent = about(plot.cursor.idx); }],
      },
      cursor: { points: { size: 6 }, drag: { x: true, y: false } },
    }, [byTime ? timeMs : numbers, allocated, reserved], place);
  };
  const about = (at) => {
    if (at === null || at === undefined) return `${format.count(events)} events. Point at the curve to see which line each of them comes from.`;
    const change = data.allocated[at] || data.reserved[at];
    const what = data.allocated[at] ? (change > 0 ? "allocated" : "freed") : change > 0 ? "reserved from the device" : change < 0 ? "given back to the device" : "out of memory";
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
  if (data.left_out) drawn.tools.append(element("span", "muted", `${format.count(data.left_out)} older events are left out`));
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

/** All of it unless somebody zoomed in. uPlot asks with the range of the data itself then. */
function ranged(from, to, x, first, last) {
  return from === x[0] && to === x.at(-1) ? [first, last > first ? last : first + 1] : [from, to];
}

function axis(theme, values) {
  return { font: FONT, stroke: theme.muted, values, grid: { stroke: theme.rule, width: 1 }, ticks: { stroke: theme.rule, width: 1, size: 4 } };
}

function clipped(plot, draw) {
  const { ctx, bbox } = plot;
  ctx.save();
  ctx.beginPath();
  ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
  ctx.clip();
  draw(ctx, bbox, window.devicePixelRatio || 1);
  ctx.restore();
}

/** Stretches of the plot, named at the bottom. */
function spans(plot, all, theme) {
  clipped(plot, (ctx, bbox, ratio) => {
    for (const span of all) {
      const left = plot.valToPos(span.start, "x", true);
      const right = plot.valToPos(span.end, "x", true);
      ctx.globalAlpha = 0.13;
      ctx.fillStyle = theme.ink;
      ctx.fillRect(left, bbox.top, Math.max(right - left, ratio), bbox.height);
      ctx.globalAlpha = 1;
      const isLeft = left < bbox.left + bbox.width / 2;
      words(ctx, span.text, isLeft ? left + 5 * ratio : right - 5 * ratio, bbox.top + bbox.height - 8 * ratio, theme.ink, ratio, isLeft ? "left" : "right");
    }
  });
}

/** What lies over the curves: the forecast, the limit, moments. */
function over(plot, data, limit, theme) {
  spans(plot, data.spans, theme);
  if (data.fan && data.limit !== null) clipped(plot, (ctx, _, ratio) => fan(plot, ctx, data.fan, data.limit, theme, ratio));
  if (limit !== null) {
    clipped(plot, (ctx, bbox, ratio) => {
      const y = plot.valToPos(limit, "y", true);
      ctx.strokeStyle = theme.ink;
      ctx.lineWidth = 1.5 * ratio;
      line(ctx, bbox.left, y, bbox.left + bbox.width, y);
      words(ctx, `limit ${format.bytes(limit)}`, bbox.left + 6 * ratio, y + 14 * ratio, theme.ink, ratio);
    });
  }
  data.moments.forEach((moment, row) => mark(plot, moment.x, moment.text, moment.tone === "alarm" ? theme.bad : theme.muted, theme, row));
}

/** Where the forecast's lines end: soonest, likely, latest; each as time and bytes. */
function fanEnds({ x, bytes, ends, until }, limit) {
  return ends.map((meets) => {
    if (meets !== null && meets <= until) return [Math.max(meets, x), limit];
    return [until, meets === null ? bytes : bytes + ((limit - bytes) * (until - x)) / (meets - x)];
  });
}

function fan(plot, ctx, forecast, limit, theme, ratio) {
  const at = ([when, held]) => [plot.valToPos(when, "x", true), plot.valToPos(held, "y", true)];
  const [soonest, likely, latest] = fanEnds(forecast, limit).map(at);
  const start = at([forecast.x, forecast.bytes]);
  ctx.fillStyle = theme.bad;
  ctx.globalAlpha = 0.16;
  ctx.beginPath();
  for (const point of [start, soonest, [latest[0], soonest[1]], latest]) ctx.lineTo(...point);
  ctx.fill();
  ctx.globalAlpha = 1;
  ctx.strokeStyle = theme.bad;
  ctx.lineWidth = 2 * ratio;
  ctx.setLineDash([6 * ratio, 4 * ratio]);
  line(ctx, ...start, ...likely);
}

/** A vertical line with a few words, on the side where there is room. */
function mark(plot, x, text, colour, theme, row = 0) {
  clipped(plot, (ctx, bbox, ratio) => {
    const at = plot.valToPos(x, "x", true);
    ctx.strokeStyle = colour;
    ctx.lineWidth = ratio;
    ctx.setLineDash([3 * ratio, 3 * ratio]);
    line(ctx, at, bbox.top, at, bbox.top + bbox.height);
    const isLeft = at < bbox.left + bbox.width / 2;
    words(ctx, text, at + (isLeft ? 5 : -5) * ratio, bbox.top + (34 + 16 * row) * ratio, theme.ink, ratio, isLeft ? "left" : "right");
  });
}

function words(ctx, text, x, y, colour, ratio, align = "left") {
  ctx.font = FONT.replace("12px", `${12 * ratio}px`);
  ctx.textAlign = align;
  ctx.fillStyle = colour;
  ctx.fillText(text, x, y);
}

function line(ctx, fromX, fromY, toX, toY) {
  ctx.beginPath();
  ctx.moveTo(fromX, fromY);
  ctx.lineTo(toX, toY);
  ctx.stroke();
}
