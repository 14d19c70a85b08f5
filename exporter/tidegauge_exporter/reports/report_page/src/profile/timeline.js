// Memory over the recording, stacked by category, with the phases on top.

import { element, hint, sized } from "../elements.js";
import * as format from "../format.js";
import { FONT, colours, fillOf } from "../theme.js";

const HEIGHT = 300;
const LEFT = 66;
const RIGHT = 10;
const TOP = 26;
const BOTTOM = 24;
const LEAST_VIEW = 10; // events on each side of the middle
const PHASES = { forward: "own1", backward: "waiting", recomputation: "hot", optimizer: "calm" };

/** `onSelect(from, to)` is called with events; with one of them, with none where a choice was broken off. */
export function timeline(place, told, onSelect) {
  const { data, events, css, peak, made, madeBy, freedBy, eventNumber, phaseAt, stackLines, aboutBlock, walk } = told;
  const canvas = place.querySelector("canvas");
  const order = place.dataset.order.split(",").map((name) => data.categories.indexOf(name));
  const whole = [0, Math.max(events - 1, 1)];
  let view = whole;
  let pixels = null;

  /** For each pixel of the view the moment with most allocated. */
  function measured(width) {
    const [from, to] = view, kinds = data.categories.length;
    const sums = new Float64Array(width * kinds), at = new Int32Array(width).fill(-2), most = new Float64Array(width).fill(-1);
    const scale = width / (to - from + 1);
    walk((event, held, allocated) => {
      if (event > to || (event < from && (event >= 0 || from > 0))) return;
      const begin = Math.max(Math.floor((event - from) * scale), 0);
      const end = Math.min(Math.max(Math.ceil((event + 1 - from) * scale), begin + 1), width);
      for (let pixel = begin; pixel < end; pixel += 1) {
        if (allocated <= most[pixel]) continue;
        most[pixel] = allocated;
        at[pixel] = event;
        sums.set(held, pixel * kinds);
      }
    });
    return { view, width, sums, at, most, kinds, highest: Math.max(most.reduce((a, b) => Math.max(a, b), 0), 1) };
  }
  const xOf = (event) => LEFT + ((event + 0.5 - view[0]) / (view[1] - view[0] + 1)) * pixels.width;
  const pixelOf = (event) => Math.min(Math.max(Math.floor(event.clientX - canvas.getBoundingClientRect().left - LEFT), 0), pixels.width - 1);

  function draw(selected) {
    const full = Math.max(place.clientWidth, 280), width = Math.floor(full - LEFT - RIGHT);
    if (!pixels || pixels.width !== width || pixels.view !== view) pixels = measured(width);
    const ctx = sized(canvas, full, HEIGHT), high = HEIGHT - TOP - BOTTOM;
    const theme = colours();
    const { ink, muted, rule } = theme;
    ctx.font = FONT;
    const y = (bytes) => TOP + high - (bytes / (pixels.highest * 1.04)) * high;
    ctx.textBaseline = "middle";
    ctx.textAlign = "right";
    for (const tick of ticks(pixels.highest)) {
      ctx.fillStyle = rule;
      ctx.fillRect(LEFT, Math.round(y(tick)), width, 1);
      ctx.fillStyle = muted;
      ctx.fillText(format.bytes(tick), LEFT - 8, y(tick));
    }
    const base = new Float64Array(width);
    for (const kind of order) {
      ctx.beginPath();
      ctx.moveTo(LEFT, y(base[0]));
      for (let pixel = 0; pixel < width; pixel += 1) {
        ctx.lineTo(LEFT + pixel, y(base[pixel]));
        ctx.lineTo(LEFT + pixel + 1, y(base[pixel]));
      }
      let any = false;
      for (let pixel = width - 1; pixel >= 0; pixel -= 1) {
        const held = pixels.sums[pixel * pixels.kinds + kind];
        any = any || held > 0;
        base[pixel] += held;
        ctx.lineTo(LEFT + pixel + 1, y(base[pixel]));
        ctx.lineTo(LEFT + pixel, y(base[pixel]));
      }
      if (!any) continue;
      ctx.closePath();
      ctx.fillStyle = fillOf(css[kind]);
      ctx.fill();
    }
    drawPhases(ctx, width, high, theme);
    ctx.textAlign = "center";
    ctx.textBaseline = "alphabetic";
    ctx.fillStyle = muted;
    for (let part = 0; part <= 4; part += 1) {
      const event = Math.round(view[0] + ((view[1] - view[0]) * part) / 4);
      ctx.textAlign = part === 0 ? "left" : part === 4 ? "right" : "center";
      ctx.fillText(`${part === 0 ? "event " : ""}${eventNumber(event)}`, LEFT + (width * part) / 4, HEIGHT - 7);
    }
    const { from, to } = selected;
    if (from !== to) {
      const left = Math.max(xOf(from), LEFT), right = Math.min(xOf(to), LEFT + width);
      ctx.globalAlpha = 0.55;
      ctx.fillStyle = theme.card;
      if (left > LEFT) ctx.fillRect(LEFT, TOP, left - LEFT, high);
      if (right < LEFT + width) ctx.fillRect(right, TOP, LEFT + width - right, high);
      ctx.globalAlpha = 1;
    }
    ctx.fillStyle = ink;
    for (const event of new Set([from, to])) line(ctx, event, high, ink);
    if (from !== peak || to !== peak) line(ctx, peak, high, theme.bad, true);
    if (xOf(peak) < LEFT || xOf(peak) > LEFT + width) return;
    const isLeft = xOf(peak) < LEFT + width / 2;
    ctx.fillStyle = ink;
    ctx.textAlign = isLeft ? "left" : "right";
    ctx.textBaseline = "middle";
    ctx.fillText("peak", xOf(peak) + (isLeft ? 5 : -5), TOP + 4);
  }
  function line(ctx, event, high, look, dashed = false) {
    const x = xOf(event);
    if (x < LEFT || x > LEFT + pixels.width) return;
    ctx.strokeStyle = look;
    ctx.lineWidth = 1.5;
    ctx.setLineDash(dashed ? [3, 3] : []);
    ctx.beginPath();
    ctx.moveTo(x, TOP - 6);
    ctx.lineTo(x, TOP + high);
    ctx.stroke();
    ctx.setLineDash([]);
  }
  function drawPhases(ctx, width, high, theme) {
    data.stretches.forEach(([begin, phase], at) => {
      const end = at + 1 < data.stretches.length ? data.stretches[at + 1][0] : data.end;
      const left = Math.max(xOf(begin - data.first - 0.5), LEFT), right = Math.min(xOf(end - data.first - 0.5), LEFT + width);
      if (right - left < 0.05) return;
      const name = data.phases[phase];
      ctx.fillStyle = theme[PHASES[name] || "grey"];
      ctx.fillRect(left, 4, right - left, 14);
      if (name === "backward" || name === "recomputation") {
        ctx.globalAlpha = 0.08;
        ctx.fillStyle = theme.ink;
        ctx.fillRect(left, TOP, right - left, high);
        ctx.globalAlpha = 1;
      }
      if (right - left < ctx.measureText(name).width + 6) return;
      ctx.fillStyle = theme.ink;
      ctx.textAlign = "left";
      ctx.textBaseline = "middle";
      ctx.fillText(name, left + 3, 11.5);
    });
  }
  function ticks(highest) {
    let step = 1;
    while (highest / step > 5) step *= 2;
    return Array.from({ length: Math.floor(highest / step) + 1 }, (_, at) => at * step);
  }

  function aboutEvent(event) {
    const [born, gone] = [madeBy[event] ?? -1, freedBy[event] ?? -1];
    if (born >= 0) return [`allocates ${aboutBlock(born)}`, ...stackLines(born)];
    if (gone >= 0) return [`frees ${aboutBlock(gone)}, allocated at event ${eventNumber(made[gone])}`, ...stackLines(gone)];
    return [];
  }
  function aboutPixel(pixel) {
    const event = pixels.at[pixel];
    const held = [...pixels.sums.subarray(pixel * pixels.kinds, (pixel + 1) * pixels.kinds)]
      .map((bytes, kind) => [bytes, data.categories[kind]]).filter(([bytes]) => bytes).sort((a, b) => b[0] - a[0]);
    const parts = held.slice(0, 4).map(([bytes, name]) => `${name} ${format.bytes(bytes)}`).join(", ");
    return [`event ${eventNumber(event)}, ${phaseAt(Math.max(event, 0))}: ${format.bytes(pixels.most[pixel])}`, parts, ...aboutEvent(event)];
  }

  let began = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    began = pixelOf(event);
    canvas.setPointerCapture(event.pointerId);
  });
  const first = (pixel) => told.bound(Math.floor(view[0] + (pixel / pixels.width) * (view[1] - view[0] + 1)));
  canvas.addEventListener("pointermove", (event) => {
    const pixel = pixelOf(event);
    if (began === null || Math.abs(pixel - began) < 4) return hint(event, aboutPixel(pixel));
    hint(event, [`event ${eventNumber(first(Math.min(pixel, began)))} to ${eventNumber(first(Math.max(pixel, began)))}`]);
    draw({ from: first(Math.min(pixel, began)), to: first(Math.max(pixel, began)) });
  });
  canvas.addEventListener("pointerup", (event) => {
    const [start, pixel] = [began, pixelOf(event)];
    began = null;
    if (start === null) return;
    if (Math.abs(pixel - start) < 4) onSelect(Math.max(pixels.at[pixel], -1));
    else onSelect(first(Math.min(pixel, start)), first(Math.max(pixel, start)));
  });
  canvas.addEventListener("pointercancel", () => { began = null; onSelect(); });
  canvas.addEventListener("pointerleave", (event) => hint(event, null));

  const known = new Set(data.stretches.map(([, phase]) => data.phases[phase]));
  place.querySelector(".keys").append(...data.phases.filter((name) => known.has(name) && name !== "unknown").map((name) => {
    const key = element("span", "key", name);
    key.style.setProperty("--look", `var(--${PHASES[name] || "grey"})`);
    return key;
  }));
  return {
    canvas,
    draw,
    span: () => view[1] - view[0],
    isWhole: () => view === whole,
    showAll: () => { view = whole; },
    lookAt(from, to) {
      const middle = (from + to) / 2, half = Math.max((to - from) / 2, LEAST_VIEW);
      const begin = Math.max(Math.floor(middle - half), 0);
      const end = Math.max(Math.min(Math.ceil(middle + half), events - 1), begin + 1);
      view = begin <= whole[0] && end >= whole[1] ? whole : [begin, end];
    },
    /** All of it, where these events are not in view. */
    reveal({ from, to }) {
      if (to > view[1] || from < view[0]) view = whole;
    },
  };
}
