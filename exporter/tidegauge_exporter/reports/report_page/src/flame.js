// A flame graph of bytes by allocation stack, the outermost call on top. Layout by d3-hierarchy, drawn on a canvas.

import { hierarchy, partition } from "d3-hierarchy";
import { button, element, hint, sized } from "./elements.js";
import * as format from "./format.js";
import { FONT, colours } from "./theme.js";

const ROW = 21;
const NARROWEST = 0.4;
const NO_STACK = "no stack recorded";

export function flame(parent, weights, stacks, name) {
  const canvas = element("canvas", "flame");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", `${name}: arrow keys move, Enter zooms in, Escape shows all`);
  const said = element("p", "said");
  said.setAttribute("aria-live", "polite");
  const search = element("input", "");
  search.type = "search";
  search.placeholder = "search a function or a file";
  search.setAttribute("aria-label", "search the flame graph");
  const fold = element("input", "");
  fold.type = "checkbox";
  fold.checked = true;
  const all = button("show all", () => zoom(root));
  parent.append(element("div", "tools", search, element("label", "", fold, " fold library frames"), all), canvas, said);

  let root = null;
  let shown = null;
  let chosen = null;
  let wanted = "";

  const build = () => {
    root = partition()(hierarchy(tree(weights, stacks, fold.checked)).sum((node) => node.own).sort((a, b) => b.value - a.value));
    root.each((node) => {
      node.blocks = node.data.blocks;
      node.text = text(node.data, stacks);
    });
    shown = root;
    chosen = null;
  };
  const zoom = (node) => {
    shown = node;
    choose(node);
  };
  const choose = (node) => {
    chosen = node;
    draw();
  };

  const draw = () => {
    const theme = colours();
    const width = Math.max(parent.clientWidth, 280);
    const scale = width / (shown.x1 - shown.x0);
    const visible = shown.ancestors().reverse().concat(shown.descendants().slice(1)).filter((node) => (node.x1 - node.x0) * scale >= NARROWEST);
    const depth = Math.max(...visible.map((node) => node.depth)) + 1;
    const ctx = sized(canvas, width, depth * ROW);
    ctx.font = FONT;
    ctx.textBaseline = "middle";
    for (const node of visible) {
      const left = Math.max((node.x0 - shown.x0) * scale, 0);
      const right = Math.min((node.x1 - shown.x0) * scale, width);
      const matches = wanted !== "" && node.text.search.includes(wanted);
      ctx.globalAlpha = wanted !== "" && !matches ? 0.35 : 1;
      ctx.fillStyle = matches ? theme.warn : colour(node, stacks, theme);
      ctx.fillRect(left, node.depth * ROW, Math.max(right - left - 1, NARROWEST), ROW - 1);
      if (right - left > 28) label(ctx, `${node.text.label}  ${format.bytes(node.value)}`, left + 5, node.depth * ROW + ROW / 2, right - left - 9, theme.ink);
      if (node === chosen) {
        ctx.strokeStyle = theme.ink;
        ctx.lineWidth = 2;
        ctx.strokeRect(left + 1, node.depth * ROW + 1, Math.max(right - left - 3, 1), ROW - 3);
      }
    }
    ctx.globalAlpha = 1;
    all.disabled = shown === root;
    say();
  };

  const say = () => {
    const found = wanted === "" ? "" : ` Search: ${format.bytes(matched(root, wanted))} (${format.share(matched(root, wanted), root.value)}).`;
    const about = chosen ? describe(chosen, root).join(" \u00b7 ") : `${format.bytes(root.value)} in ${format.count(root.blocks)} blocks.`;
    said.textContent = `${about}${found}`;
  };

  const under = (event) => {
    const { left, top, width } = canvas.getBoundingClientRect();
    const depth = Math.floor((event.clientY - top) / ROW);
    const x = shown.x0 + ((event.clientX - left) / width) * (shown.x1 - shown.x0);
    return root.descendants().find((node) => node.depth === depth && node.x0 <= x && x < node.x1) || null;
  };
  canvas.addEventListener("pointermove", (event) => {
    const node = under(event);
    hint(event, node && describe(node, root));
  });
  canvas.addEventListener("pointerleave", (event) => hint(event, null));
  canvas.addEventListener("click", (event) => {
    const node = under(event);
    if (node) zoom(node);
  });
  canvas.addEventListener("keydown", (event) => {
    const from = chosen || shown;
    const beside = (by) => {
      const row = from.parent ? from.parent.children : [from];
      return row[row.indexOf(from) + by];
    };
    const keys = {
      ArrowDown: () => from.children && from.children[0], ArrowUp: () => from.parent,
      ArrowLeft: () => beside(-1), ArrowRight: () => beside(1),
    };
    if (keys[event.key]) choose(keys[event.key]() || from);
    else if (event.key === "Enter") zoom(from);
    else if (event.key === "Escape") zoom(root);
    else return;
    event.preventDefault();
  });
  search.addEventListener("input", () => {
    wanted = search.value.trim().toLowerCase();
    draw();
  });
  fold.addEventListener("change", () => {
    build();
    draw();
  });
  build();
  return { draw, get width() { return parent.clientWidth; } };
}

/** Calls below calls. A run of library frames is one box when folded, named by the call that leads into it. */
function tree(weights, stacks, folded) {
  const top = node(-1, 0);
  for (const [stack, held, blocks] of weights) {
    let at = top;
    top.blocks += blocks;
    for (const [frame, run] of way(stack, stacks, folded)) {
      const key = run ? `library ${stacks.name(frame)} ${stacks.path(frame)}` : String(frame);
      if (!at.known.has(key)) {
        const below = node(frame, run);
        at.known.set(key, below);
        at.children.push(below);
      }
      at = at.known.get(key);
      at.blocks += blocks;
      at.folded = Math.max(at.folded, run);
    }
    at.own += held;
  }
  return top;
}

/** Frames from the outermost in, each with how many library frames it stands for (0: it is the user's own, or not folded). */
function way(stack, stacks, folded) {
  const frames = stacks.frames(stack);
  if (!frames.length) return [[-1, 0]];
  const steps = [];
  let run = 0;
  for (let at = frames.length - 1; at >= 0; at -= 1) {
    if (folded && stacks.isLibrary(frames[at])) {
      run += 1;
      if (run === 1) steps.push([frames[at], 1]);
      else steps[steps.length - 1][1] = run;
    } else {
      run = 0;
      steps.push([frames[at], 0]);
    }
  }
  return steps;
}

function node(frame, folded) {
  return { frame, folded, own: 0, blocks: 0, children: [], known: new Map() };
}

function text({ frame, folded, known }, stacks) {
  if (frame < 0) {
    const whole = known.size > 0;
    return { label: whole ? "all" : NO_STACK, place: "", search: whole ? "" : NO_STACK };
  }
  const more = folded > 1 ? ` (${folded} library frames)` : "";
  return {
    label: `${stacks.line(frame)}${more}`,
    place: stacks.path(frame),
    search: `${stacks.name(frame)} ${stacks.path(frame)}`.toLowerCase(),
  };
}

function colour({ depth, data }, stacks, theme) {
  if (depth === 0) return theme.rule;
  if (data.frame < 0) return theme.grey;
  if (stacks.isLibrary(data.frame)) return theme.library;
  let hash = 7;
  for (const char of stacks.name(data.frame)) hash = (hash * 31 + char.codePointAt(0)) % 65521;
  return [theme.own1, theme.own2, theme.own3][hash % 3];
}

function describe(node, root) {
  return [
    node.text.label,
    `${format.bytes(node.value)}, ${format.share(node.value, root.value)} of all`,
    `${format.count(node.blocks)} block${node.blocks === 1 ? "" : "s"}`,
    ...(node.text.place ? [node.text.place] : []),
  ];
}

/** Bytes below the outermost boxes that match. */
function matched(node, wanted) {
  if (node.text.search.includes(wanted)) return node.value;
  return (node.children || []).reduce((sum, below) => sum + matched(below, wanted), 0);
}

function label(ctx, words, x, y, room, ink) {
  ctx.fillStyle = ink;
  const fits = Math.floor(room / 6.2);
  ctx.fillText(words.length > fits ? `${words.slice(0, Math.max(fits - 1, 1))}\u2026` : words, x, y, room + 6);
}
