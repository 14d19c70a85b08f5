// What is allocated as tables by category and by line, and as trees by module and by call stack.

import { drawn, element } from "../elements.js";
import * as format from "../format.js";

const MAX_LINES = 60;
const largest = (map, bytes = (value) => value) => [...map].sort((a, b) => bytes(b[1]) - bytes(a[1]));

/** Tables that are filled with what is `found`: numbers of blocks. */
export function tables(told) {
  const { data, css, asked, category, sumsOf, askingOf, phaseOf, callerOf, lineName } = told;

  function fill(name, rows) {
    const body = document.querySelector(`[data-part="${name}"] tbody`);
    if (!body) return;
    const numbers = [...body.closest("table").querySelectorAll("th")].map((head) => head.className);
    body.replaceChildren(...rows.map((row) => element("tr", "", ...row.map((cell, at) => element("td", numbers[at], cell)))));
  }
  function bar(bytes, whole, kind) {
    const rect = drawn("rect", { class: css[kind], width: whole ? (100 * bytes) / whole : 0, height: 6 });
    return drawn("svg", { class: "bar", viewBox: "0 0 100 6", preserveAspectRatio: "none" }, rect);
  }
  function showCategories(found) {
    const sums = sumsOf(found), whole = sums.reduce((a, b) => a + b, 0);
    const rows = largest([...sums].entries()).filter(([, bytes]) => bytes);
    fill("categories", rows.map(([kind, bytes]) => [data.categories[kind], format.bytes(bytes), format.percent(bytes, whole), bar(bytes, whole, kind)]));
  }
  function showLines(found) {
    const groups = new Map();
    for (const at of found) {
      const key = `${askingOf(at)} ${category[at]}`;
      if (!groups.has(key)) groups.set(key, { bytes: 0, blocks: 0, of: at, phases: new Map(), callers: new Map() });
      const group = groups.get(key), phase = phaseOf(at), caller = callerOf(at);
      group.bytes += asked[at];
      group.blocks += 1;
      group.phases.set(phase, (group.phases.get(phase) || 0) + asked[at]);
      group.callers.set(caller, (group.callers.get(caller) || 0) + asked[at]);
    }
    const rows = largest(groups, (group) => group.bytes).slice(0, MAX_LINES).map(([, group]) => {
      const phase = largest(group.phases)[0][0], caller = largest(group.callers)[0][0];
      const name = askingOf(group.of) >= 0 ? lineName(askingOf(group.of)) : phase === "backward" ? "(autograd)" : "no stack recorded";
      const cell = element("span", "", element("span", "path", name), ...(caller < 0 ? [] : [element("small", "", `called from ${lineName(caller)}`)]));
      return [format.bytes(group.bytes), format.count(group.blocks), data.categories[category[group.of]], phase, cell];
    });
    fill("lines", rows);
  }
  return { showCategories, showLines };
}

/** Trees of what is `found`, for icicles. */
export function trees(told) {
  const { data, css, asked, category, module, stack, askingOf, nameOf, lineName } = told;
  const stacks = data.stacks;

  const part = (name, css, path = "") => ({ name, css, path, bytes: 0, parts: [], below: new Map(), held: new Map() });
  function step(above, key, name, css, path) {
    if (!above.below.has(key)) {
      const made = part(name, css, path);
      above.below.set(key, made);
      above.parts.push(made);
    }
    return above.below.get(key);
  }
  function entitled(whole) {
    for (const waiting = [whole]; waiting.length;) {
      const one = waiting.pop();
      const held = largest(one.held).map(([kind, bytes]) => `${data.categories[kind]} ${format.bytes(bytes)}`);
      one.title = `${one.path || one.name}: ${format.bytes(one.bytes)} (${format.percent(one.bytes, whole.bytes)})${held.length > 1 ? `: ${held.join(", ")}` : ""}`;
      waiting.push(...one.parts);
    }
    whole.name = `${format.bytes(whole.bytes)}, as asked for`;
    return whole;
  }
  /** A tree of what `way` says of each block, from the outermost on: [key, name, css, path]; categories are its leaves. */
  function tree(found, way) {
    const whole = part("all", "rest");
    for (const at of found) {
      let one = whole;
      const add = () => {
        one.bytes += asked[at];
        one.held.set(category[at], (one.held.get(category[at]) || 0) + asked[at]);
      };
      add();
      for (const [key, name, look, path] of way(at)) { one = step(one, key, name, look, path); add(); }
      one = step(one, `of ${category[at]}`, data.categories[category[at]], `area ${css[category[at]]}`, "");
      add();
    }
    return entitled(whole);
  }
  const ways = new Map();
  const stackWay = (at) => {
    const key = stack[at] >= 0 ? stack[at] : nameOf(at);
    if (!ways.has(key)) {
      const own = stack[at] < 0 ? [] : stacks.stacks[stack[at]].filter((frame) => !stacks.frames[frame][3]);
      const frames = own.length ? own.reverse() : askingOf(at) < 0 ? [] : [askingOf(at)];
      ways.set(key, frames.length ? frames.map((frame) => {
        const [name, path, number] = stacks.frames[frame];
        return [frame, `${stacks.texts[name]}  ${stacks.texts[path].split("/").pop()}:${number}`, "module", lineName(frame)];
      }) : [[key, nameOf(at), "rest", nameOf(at)]]);
    }
    return ways.get(key);
  };
  const moduleWay = (at) => {
    if (module[at] < 0) return [["", "no module", "rest", ""]];
    const parts = data.modules[module[at]].split(".");
    return parts.map((name, depth) => [name, name, "module", parts.slice(0, depth + 1).join(".")]);
  };
  return { byModule: (found) => tree(found, moduleWay), byStack: (found) => tree(found, stackWay) };
}
