// The allocator's memory as a map: segment after segment, row after row, an area of its own for every byte.

import { button, element, hint, sized } from "./elements.js";
import * as format from "./format.js";
import { FONT, colours } from "./theme.js";

const ROW = 15;
const GAP = 3;
const HEAD = 22;
const ROWS_AT_FIRST = 18;
const TALLEST = 420;
const DEEPEST = 4096;
const WIDE = 3;
const NARROWEST = 0.15;
const [FREE, LIVE, WAITING, GROWN] = [0, 1, 2, 3];
const FRAMES_SHOWN = 8;

export function map(parent, data, stacks) {
  const canvas = element("canvas", "");
  const spacer = element("div", "spacer");
  const scroller = element("div", "map", canvas, spacer);
  scroller.tabIndex = 0;
  scroller.setAttribute("role", "application");
  scroller.setAttribute("aria-label", "map of the allocator's memory: arrow keys move from block to block, plus and minus zoom, Enter marks the line, Escape shows all");
  const said = element("p", "said");
  said.setAttribute("aria-live", "polite");
  const closer = button("closer", () => zoom(2));
  const farther = button("farther", () => zoom(0.5));
  const words = [["live", "live"], ...(data.compared ? [["grown", "live, and from a stack that grew since the early snapshot"]] : []),
    ["waiting", "freed, waiting for another stream"], ["free", "free"]];
  const key = element("span", "keys", ...words.map(([css, text]) => element("span", `key ${css}`, text)));
  parent.append(element("div", "tools", key, closer, farther), scroller, said);
  if (data.left_out) said.before(element("p", "muted", `${format.count(data.left_out)} smaller segments not shown.`));

  const blocks = placed(data);
  let nearer = 1;
  let chosen = -1;
  let marked = -2;
  let layout = null;

  const measure = () => {
    layout = laidOut(data, blocks, Math.max(scroller.clientWidth, 280), nearer);
    scroller.style.height = `${Math.min(layout.height, TALLEST)}px`;
    spacer.style.height = `${Math.max(layout.height - Math.min(layout.height, TALLEST), 0)}px`;
  };
  const draw = () => {
    measure();
    paint();
  };
  const paint = () => {
    const theme = colours();
    const height = Math.min(layout.height, TALLEST);
    const ctx = sized(canvas, layout.width, height);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    const top = scroller.scrollTop;
    const looks = [[LIVE, theme.blue], [WAITING, theme.waiting], [GROWN, theme.hot]];
    const seen = { top, height };
    for (const group of layout.groups) {
      if (group.top + group.height < top || group.top > top + height) continue;
      ctx.fillStyle = theme.muted;
      ctx.fillText(group.title, 0, group.top - top + HEAD / 2);
      const rows = rowsSeen(layout, group, seen);
      ctx.fillStyle = theme.free;
      for (const segment of segmentsSeen(layout, data, group, rows)) {
        bar(ctx, layout, group, seen, layout.start[segment], Math.ceil(layout.end(segment)));
      }
      // Colour by colour: to change it costs more than to draw.
      for (const [state, colour] of looks) {
        ctx.fillStyle = colour;
        for (const segment of segmentsSeen(layout, data, group, rows)) paintBlocks(ctx, group, seen, rows, segment, state);
      }
      ctx.globalAlpha = 1;
      if (chosen >= group.firstBlock && chosen < group.lastBlock) outline(ctx, layout, group, seen, layout.left(chosen), theme.ink, data.blocks.bytes[chosen]);
    }
    closer.disabled = nearer >= DEEPEST;
    farther.disabled = nearer <= 1;
    said.textContent = chosen < 0 ? summary() : describe(chosen).slice(0, 3).join(" \u00b7 ");
  };
  /** Blocks in one state. Neighbours that are narrower than a pixel are one stretch. */
  const paintBlocks = (ctx, group, seen, rows, segment, state) => {
    const first = firstAfter(blocks, segment, (rows.from - layout.start[segment]) * layout.bytesPerPixel);
    let [left, right, dim] = [0, -1, false];
    const flush = () => {
      if (right <= left) return;
      ctx.globalAlpha = dim ? 0.22 : 1;
      bar(ctx, layout, group, seen, left, right - (right - left > WIDE ? 0.5 : 0));
    };
    for (let at = first; at < blocks.firstOf[segment + 1]; at += 1) {
      if (data.blocks.state[at] !== state) continue;
      const start = layout.left(at);
      if (start > rows.to) break;
      const end = start + data.blocks.bytes[at] / layout.bytesPerPixel;
      const other = marked !== -2 && stacks.asking(data.blocks.stack[at]) !== marked;
      if (end - start < 1 && start - right < 0.25 && other === dim && right > left) {
        right = end;
        continue;
      }
      flush();
      [left, right, dim] = [start, end, other];
    }
    flush();
  };
  const summary = () => {
    if (marked !== -2) {
      let [held, number] = [0, 0];
      data.blocks.state.forEach((state, at) => {
        if (state === FREE || stacks.asking(data.blocks.stack[at]) !== marked) return;
        held += data.blocks.bytes[at];
        number += 1;
      });
      return `${format.bytes(held)} in ${format.count(number)} blocks come from ${marked < 0 ? "no recorded stack" : stacks.line(marked)}. Click elsewhere, or press Escape, to see all.`;
    }
    return `${format.count(data.blocks.bytes.length)} blocks in ${format.count(data.segments.bytes.length)} segments. Click on a block to see all that its line allocated.`;
  };
  const describe = (at) => {
    const segment = blocks.segmentOf[at];
    const address = (BigInt(`0x${data.segments.address[segment]}`) + BigInt(blocks.offset[at])).toString(16);
    const state = ["free", "live", "freed, waiting for another stream", "live, from a stack that grew"][data.blocks.state[at]];
    const stack = data.blocks.stack[at];
    const frames = stacks.frames(stack).slice(0, FRAMES_SHOWN);
    return [
      `${format.bytes(data.blocks.bytes[at])}, ${state}`,
      ...(data.blocks.state[at] === FREE ? [] : [stacks.words(stack)]),
      `at 0x${address}, in a ${data.segments.expandable[segment] ? "expandable " : data.segments.large[segment] ? "large " : "small "}segment of ${format.bytes(data.segments.bytes[segment])}`,
      ...(data.blocks.state[at] === FREE ? [] : frames.map((frame) => stacks.line(frame))),
      ...(stacks.frames(stack).length > FRAMES_SHOWN && data.blocks.state[at] !== FREE ? ["\u2026"] : []),
    ];
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    return layout.blockAt(event.clientX - box.left, event.clientY - box.top + scroller.scrollTop);
  };
  const zoom = (factor) => {
    const middle = chosen >= 0 ? chosen : layout.blockAt(0, scroller.scrollTop + HEAD + 1);
    nearer = Math.min(Math.max(nearer * factor, 1), DEEPEST);
    measure();
    if (middle >= 0) scroller.scrollTop = layout.topOf(middle) - TALLEST / 2;
    paint();
  };
  const show = (at) => {
    chosen = Math.max(0, Math.min(at, data.blocks.bytes.length - 1));
    const y = layout.topOf(chosen);
    if (y < scroller.scrollTop || y + ROW > scroller.scrollTop + TALLEST) scroller.scrollTop = y - TALLEST / 2;
    paint();
  };

  scroller.addEventListener("scroll", paint);
  canvas.addEventListener("pointermove", (event) => {
    const at = under(event);
    hint(event, at < 0 ? null : describe(at));
  });
  canvas.addEventListener("pointerleave", (event) => hint(event, null));
  canvas.addEventListener("click", (event) => {
    const at = under(event);
    const asking = at < 0 || data.blocks.state[at] === FREE ? -2 : stacks.asking(data.blocks.stack[at]);
    marked = asking === marked ? -2 : asking;
    chosen = -1;
    paint();
  });
  scroller.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => show(chosen - 1), ArrowRight: () => show(chosen + 1), Home: () => show(0),
      End: () => show(data.blocks.bytes.length - 1), "+": () => zoom(2), "-": () => zoom(0.5),
      Enter: () => { if (chosen >= 0) { marked = stacks.asking(data.blocks.stack[chosen]); paint(); } },
      Escape: () => { marked = -2; chosen = -1; paint(); },
    };
    if (!keys[event.key]) return;
    event.preventDefault();
    keys[event.key]();
  });
  return { draw, get width() { return parent.clientWidth; } };
}

/** Where each block begins in its segment, and which blocks a segment has. */
function placed({ segments, blocks }) {
  const count = blocks.bytes.length;
  const offset = new Float64Array(count);
  const segmentOf = new Uint32Array(count);
  const firstOf = new Uint32Array(segments.bytes.length + 1);
  let at = 0;
  segments.blocks.forEach((number, segment) => {
    firstOf[segment] = at;
    let passed = 0;
    for (const end = at + number; at < end; at += 1) {
      offset[at] = passed;
      segmentOf[at] = segment;
      passed += blocks.bytes[at];
    }
  });
  firstOf[segments.bytes.length] = at;
  return { offset, segmentOf, firstOf };
}

/** The first block of a segment that ends after `byte` of it. */
function firstAfter({ offset, firstOf }, segment, byte) {
  let [low, high] = [firstOf[segment], firstOf[segment + 1]];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (offset[middle] <= byte) low = middle + 1;
    else high = middle;
  }
  return Math.max(low - 1, firstOf[segment]);
}

/** One run of pixels for each pool and stream, broken into rows; a segment begins a pixel after the one before. */
function laidOut(data, blocks, width, nearer) {
  const sizes = data.segments.bytes;
  const whole = sizes.reduce((sum, size) => sum + size, 0);
  const bytesPerPixel = Math.max(whole / (width * ROWS_AT_FIRST * nearer), 1 / 4);
  const start = new Float64Array(sizes.length);
  const groups = [];
  let top = 0;
  for (let first = 0; first < sizes.length;) {
    let last = first;
    let pixel = 0;
    let held = 0;
    const same = (segment) => data.segments.pool[segment] === data.segments.pool[first] && data.segments.stream[segment] === data.segments.stream[first];
    for (; last < sizes.length && same(last); last += 1) {
      start[last] = pixel;
      pixel += Math.max(Math.ceil(sizes[last] / bytesPerPixel), 1) + 2;
      held += sizes[last];
    }
    const height = HEAD + Math.ceil(pixel / width) * (ROW + GAP) + GAP;
    groups.push({
      first, last, top, height, title: title(data, first, last - first, held),
      firstBlock: blocks.firstOf[first], lastBlock: blocks.firstOf[last],
    });
    top += height;
    first = last;
  }
  const groupOf = (segment) => groups.find((group) => segment >= group.first && segment < group.last);
  return {
    width, bytesPerPixel, start, groups, height: top,
    end: (segment) => start[segment] + sizes[segment] / bytesPerPixel,
    left: (at) => start[blocks.segmentOf[at]] + blocks.offset[at] / bytesPerPixel,
    topOf(at) {
      const segment = blocks.segmentOf[at];
      const group = groupOf(segment);
      return group.top + HEAD + Math.floor((start[segment] + blocks.offset[at] / bytesPerPixel) / width) * (ROW + GAP);
    },
    blockAt(x, y) {
      const group = groups.find((one) => y >= one.top + HEAD && y < one.top + one.height);
      if (!group) return -1;
      const pixel = Math.floor((y - group.top - HEAD) / (ROW + GAP)) * width + x;
      let [low, high] = [group.first, group.last];
      while (low < high) {
        const middle = (low + high) >> 1;
        if (start[middle] <= pixel) low = middle + 1;
        else high = middle;
      }
      const segment = Math.max(low - 1, group.first);
      const byte = (pixel - start[segment]) * bytesPerPixel;
      if (byte > sizes[segment] || blocks.firstOf[segment] === blocks.firstOf[segment + 1]) return -1;
      return firstAfter(blocks, segment, byte);
    },
  };
}

function title(data, segment, number, held) {
  const [first, second] = data.pools[data.segments.pool[segment]];
  const stream = data.streams[data.segments.stream[segment]];
  const pool = first === 0 && second === 0 ? "default pool" : `private pool ${first}, ${second}`;
  return `${pool}, ${stream === "0" ? "default stream" : `stream ${stream}`}: ${format.bytes(held)} in ${format.count(number)} segment${number === 1 ? "" : "s"}`;
}

/** The run of pixels of a group that is on the screen. */
function rowsSeen({ width }, group, { top, height }) {
  const row = (y) => Math.max(Math.floor((y - group.top - HEAD) / (ROW + GAP)), 0);
  return { from: row(top) * width, to: (row(top + height) + 1) * width };
}

function* segmentsSeen(layout, data, group, { from, to }) {
  for (let segment = group.first; segment < group.last; segment += 1) {
    if (layout.start[segment] <= to && layout.end(segment) >= from) yield segment;
  }
}

/** A stretch of pixels, on as many rows as it takes. */
function bar(ctx, { width }, group, seen, start, end) {
  const above = group.top + HEAD - seen.top;
  for (let row = Math.floor(start / width); row * width < end; row += 1) {
    const y = above + row * (ROW + GAP);
    if (y > seen.height) return;
    const left = Math.max(start - row * width, 0);
    if (y > -ROW) ctx.fillRect(left, y, Math.max(Math.min(end - row * width, width) - left, NARROWEST), ROW);
  }
}

function outline(ctx, layout, group, seen, start, colour, size) {
  const row = Math.floor(start / layout.width);
  const left = start - row * layout.width;
  ctx.strokeStyle = colour;
  ctx.lineWidth = 2;
  ctx.strokeRect(left, group.top + HEAD + row * (ROW + GAP) - seen.top, Math.max(Math.min(size / layout.bytesPerPixel, layout.width - left), 3), ROW);
}
