// A recording's blocks (recording_data.py): what is allocated at any event, and what is said of a block.

import * as format from "../format.js";

export function recording(data) {
  const events = data.end - data.first;
  const blocks = columns(data);
  const { made, freed, asked, rounding, category, stack } = blocks;
  const total = made.length;
  const css = data.categories.map((name) => `of-${name.toLowerCase().replaceAll(" ", "-")}`);
  const ROUNDING = data.categories.indexOf("rounding");
  const peak = Math.max(data.peak - data.first, -1);
  const stacks = data.stacks;

  const eventNumber = (event) => format.count(Math.max(event + data.first, 0));
  const phaseAt = (event) => {
    let [low, high] = [0, data.stretches.length - 1];
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (data.stretches[middle][0] <= event + data.first) low = middle;
      else high = middle - 1;
    }
    return data.phases[data.stretches[low][1]];
  };
  const phaseOf = (block) => (made[block] < 0 ? "before" : phaseAt(made[block]) === "unknown" ? "before" : phaseAt(made[block]));
  const lineName = (frame) => {
    const [name, path, line] = stacks.frames[frame];
    return `${stacks.texts[path].split("/").slice(-2).join("/")}:${line} in ${stacks.texts[name]}`;
  };
  const askingOf = (block) => (stack[block] < 0 ? -1 : stacks.asking[stack[block]]);
  const nameOf = (block) => {
    const frame = askingOf(block);
    return frame >= 0 ? lineName(frame) : phaseOf(block) === "backward" ? "(autograd)" : "no stack recorded";
  };
  const callerOf = (block) => {
    const frame = askingOf(block);
    if (frame < 0) return -1;
    const frames = stacks.stacks[stack[block]];
    const further = frames.slice(frames.indexOf(frame) + 1).find((one) => !stacks.frames[one][3]);
    return further === undefined ? -1 : further;
  };
  const stackLines = (block) => {
    if (stack[block] < 0) return [nameOf(block)];
    const own = stacks.stacks[stack[block]].filter((frame) => !stacks.frames[frame][3]);
    const frames = own.length ? own : stacks.stacks[stack[block]];
    return [...frames.slice(0, 8).map(lineName), ...(frames.length > 8 ? ["\u2026"] : [])];
  };

  const aboutBlock = (block) => `${format.bytes(asked[block])} of ${data.categories[category[block]]}`;

  const bound = (event) => Math.min(Math.max(event, 0), events - 1);
  const aliveAt = (event) => {
    const found = [];
    for (let at = 0; at < total && made[at] <= event; at += 1) if (freed[at] > event) found.push(at);
    return found;
  };
  const leftBy = (from, to) => aliveAt(to).filter((at) => made[at] >= from);
  const sumsOf = (found) => {
    const sums = new Float64Array(data.categories.length);
    for (const at of found) {
      sums[category[at]] += asked[at];
      sums[ROUNDING] += rounding[at];
    }
    return sums;
  };
  const madeBy = new Int32Array(events).fill(-1), freedBy = new Int32Array(events).fill(-1);
  for (let at = 0; at < total; at += 1) {
    if (made[at] >= 0) madeBy[made[at]] = at;
    if (freed[at] < events) freedBy[freed[at]] = at;
  }
  /** Calls `each(event, sums, allocated)` for every event in order, from -1 on. */
  function walk(each) {
    const sums = new Float64Array(data.categories.length);
    let allocated = 0;
    const add = (at, sign) => {
      sums[category[at]] += sign * asked[at];
      sums[ROUNDING] += sign * rounding[at];
      allocated += sign * (asked[at] + rounding[at]);
    };
    for (let at = 0; at < total && made[at] < 0; at += 1) add(at, 1);
    each(-1, sums, allocated);
    for (let event = 0; event < events; event += 1) {
      if (madeBy[event] >= 0) add(madeBy[event], 1);
      if (freedBy[event] >= 0) add(freedBy[event], -1);
      each(event, sums, allocated);
    }
  }
  const highestIn = (from, to) => {
    let [best, most] = [to, -1];
    if (from <= peak && peak <= to) return peak;
    walk((event, _, allocated) => { if (event >= from && event <= to && allocated > most) [best, most] = [event, allocated]; });
    return best;
  };
  return {
    ...blocks, data, events, css, peak, madeBy, freedBy, eventNumber, phaseAt, phaseOf, lineName, askingOf, nameOf, callerOf,
    stackLines, aboutBlock, bound, aliveAt, leftBy, sumsOf, walk, highestIn,
  };
}

/** Columns of the blocks: absolute events, beyond the last one where a block is never freed. */
function columns({ blocks, first, end }) {
  const total = blocks.made.length;
  const made = new Int32Array(total), freed = new Int32Array(total);
  let event = -1;
  for (let at = 0; at < total; at += 1) {
    event += blocks.made[at];
    made[at] = event;
    freed[at] = blocks.lives[at] ? event + blocks.lives[at] : end - first;
  }
  return {
    made, freed, address: Float64Array.from(blocks.address), asked: Float64Array.from(blocks.asked),
    rounding: Float64Array.from(blocks.rounding), category: Uint8Array.from(blocks.category),
    module: Int32Array.from(blocks.module), stack: Int32Array.from(blocks.stack),
  };
}
