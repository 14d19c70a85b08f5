// The allocator's segments, and the blocks in them, at one event.

import { hint, sized } from "../elements.js";
import * as format from "../format.js";
import { colours, fillOf } from "../theme.js";

const MAP_ROW = 16;
const MAP_GAP = 3;
const MAP_ROWS = 12;

/** Returns what draws what is shown. */
export function segments(parent, told) {
  const { data, events, css, made, freed, address, asked, rounding, category, eventNumber, aliveAt, aboutBlock, stackLines } = told;
  const canvas = parent.querySelector("canvas");
  const said = parent.querySelector(".said");
  let laid = null;
  function draw({ event, found, isRange }) {
    const segments = [];
    data.segments.made.forEach((born, at) => {
      const lives = data.segments.freed[at];
      if (born <= event && (!lives || born + lives > event)) segments.push([data.segments.address[at], data.segments.bytes[at]]);
    });
    const alive = aliveAt(event).sort((a, b) => address[a] - address[b]);
    const marked = isRange ? new Set(found) : null;
    const reserved = segments.reduce((sum, [, bytes]) => sum + bytes, 0);
    const held = alive.reduce((sum, at) => sum + asked[at] + rounding[at], 0);
    const width = Math.max(canvas.parentElement.clientWidth, 280), scale = (width * MAP_ROWS) / Math.max(reserved, 1);
    const spans = [];
    let x = 0, next = 0;
    for (const [begin, bytes] of segments) {
      const start = x;
      spans.push([start, start + Math.max(bytes * scale, 1), -1, begin]);
      while (next < alive.length && address[alive[next]] < begin) next += 1;
      for (; next < alive.length && address[alive[next]] < begin + bytes; next += 1) {
        const at = alive[next], left = start + (address[at] - begin) * scale;
        spans.push([left, left + (asked[at] + rounding[at]) * scale, at, begin]);
      }
      x = Math.ceil(start + Math.max(bytes * scale, 1)) + 2;
    }
    const rows = Math.max(Math.ceil(x / width), 1);
    const theme = colours();
    const ctx = sized(canvas, width, rows * (MAP_ROW + MAP_GAP));
    for (const [left, right, at] of spans) {
      ctx.fillStyle = at < 0 ? theme.free : fillOf(css[category[at]]);
      ctx.globalAlpha = at >= 0 && marked && !marked.has(at) ? 0.25 : 1;
      for (let row = Math.floor(left / width); row * width < right; row += 1) {
        const begin = Math.max(left - row * width, 0), end = Math.min(right - row * width, width);
        const gap = at >= 0 && end - begin > 3 ? 0.75 : 0;
        ctx.fillRect(begin, row * (MAP_ROW + MAP_GAP), Math.max(end - begin - gap, 0.5), MAP_ROW);
      }
    }
    laid = { spans, width };
    said.textContent = `At event ${eventNumber(event)}: ${format.bytes(reserved)} reserved in ${format.several(segments.length, "segment")}, `
      + `${format.bytes(held)} of it allocated in ${format.several(alive.length, "block")}, ${format.bytes(Math.max(reserved - held, 0))} free (grey). Point at a block for its line.`
      + (isRange ? " Pale blocks are not of the range." : "");
  }
  canvas.addEventListener("pointermove", (event) => {
    const bounds = canvas.getBoundingClientRect();
    const x = Math.floor((event.clientY - bounds.top) / (MAP_ROW + MAP_GAP)) * laid.width + event.clientX - bounds.left;
    const over = laid.spans.filter(([left, right]) => left <= x && x < Math.max(right, left + 1)).pop();
    if (!over) return hint(event, null);
    const [, , at, begin] = over;
    if (at < 0) return hint(event, ["free"]);
    return hint(event, [
      aboutBlock(at), `in a block of ${format.bytes(asked[at] + rounding[at])}, ${format.bytes(address[at] - begin)} into its segment`,
      made[at] < 0 ? "allocated before the first event" : `allocated at event ${eventNumber(made[at])}`
        + (freed[at] < events ? `, freed at event ${eventNumber(freed[at])}` : ", not freed"), ...stackLines(at),
    ]);
  });
  canvas.addEventListener("pointerleave", (event) => hint(event, null));
  return draw;
}
