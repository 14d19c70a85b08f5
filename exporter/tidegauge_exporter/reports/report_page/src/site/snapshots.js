// Snapshots that the reader drops on the page: what is alive in one, or what grew from one to another, by allocation
// stack. They are read here and sent nowhere.

import { element } from "../elements.js";
import { flame } from "../flame.js";
import * as format from "../format.js";
import { Stacks } from "../stacks.js";
import { onChange } from "../theme.js";
import { unpickle } from "./pickle.js";

const MAX_BYTES = 2 ** 30;
const MAX_LINES = 40;
const MAX_FRAMES = 100; // of a stack, the innermost: a recursion may have any number
const GZIP = [0x1f, 0x8b];
const ZSTD = [0x28, 0xb5, 0x2f, 0xfd];
const LIVE = new Set(["active_allocated", "active_awaiting_free", "active_pending_free"]);
// As tidegauge.core.evidence.owners tells whose a file is.
const NO_FILE = /^$|^<|\.(c|cc|cpp|cu|h|hpp|so)$|^\?\?/;
const PACKAGES = /\/(site|dist)-packages\/|\/lib(64)?\/python\d/;

export function snapshots(place) {
  const input = place.querySelector("input[type=file]");
  const result = place.querySelector(".result");
  const show = async (files) => {
    const chosen = [...files].slice(0, 2);
    result.replaceChildren(element("p", "muted", `Reading ${chosen.map((file) => file.name).join(" and ")} …`));
    await new Promise((done) => setTimeout(done)); // so that it is seen
    try {
      const read = [];
      for (const file of chosen) read.push(await readSnapshot(file));
      const parts = draw(read);
      result.replaceChildren(...parts.elements);
      parts.ready();
      result.dataset.ready = String(read.length);
    } catch (error) {
      // Errors of the browser's own (no map, no array, no number where one belongs) are in words for programmers.
      const why = error.constructor === Error ? error.message : "its content is not that of a snapshot";
      result.replaceChildren(element("p", "", `${chosen.map((file) => file.name).join(", ")}: ${why}. A snapshot is what torch.cuda.memory._dump_snapshot writes.`));
      result.dataset.ready = "failed";
    }
  };
  input.addEventListener("click", () => { input.value = ""; }); // the same file again, written anew, is a change too
  input.addEventListener("change", () => input.files.length && show(input.files));
  place.addEventListener("dragover", (event) => { event.preventDefault(); place.classList.add("over"); });
  place.addEventListener("dragleave", () => place.classList.remove("over"));
  place.addEventListener("drop", (event) => {
    event.preventDefault();
    place.classList.remove("over");
    if (event.dataTransfer.files.length) show(event.dataTransfer.files);
  });
}

/** What the file holds, unpacked. Throws for more than `MAX_BYTES`. */
async function bytesOf(file) {
  const start = new Uint8Array(await file.slice(0, 4).arrayBuffer());
  const begins = (magic) => magic.every((byte, at) => start[at] === byte);
  if (begins(ZSTD)) throw new Error("it is packed by zstd, as Tidegauge's own snapshots: use `tidegauge diff` or `tidegauge report`");
  if (!begins(GZIP)) return new Uint8Array(await bounded(file.size, file).arrayBuffer());
  const reader = bounded(file.size, file).stream().pipeThrough(new DecompressionStream("gzip")).getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return new Uint8Array(await new Blob(parts).arrayBuffer());
    size += value.length;
    parts.push(bounded(size, value));
  }
}

function bounded(size, value) {
  if (size > MAX_BYTES) throw new Error(`it has ${format.bytes(size)}, the limit is ${format.bytes(MAX_BYTES)}: use \`tidegauge diff\``);
  return value;
}

function sizeOf(map, key) {
  const size = map.get(key);
  if (!Number.isSafeInteger(size) || size < 0) throw new Error(`its ${key} is no number of bytes`);
  return size;
}

/** Names of stacks. Those of a snapshot are few, and blocks share them. */
function stackNames() {
  const names = new Map();
  return (frames) => {
    if (!names.has(frames)) {
      names.set(frames, frames.slice(0, MAX_FRAMES).map((frame) => `${frame.get("name")}\0${frame.get("filename")}\0${frame.get("line")}`).join("\u0001"));
    }
    return names.get(frames);
  };
}

async function readSnapshot(file) {
  const root = unpickle(await bytesOf(file));
  const nameOf = stackNames();
  const segments = root instanceof Map ? root.get("segments") : root;
  if (!Array.isArray(segments)) throw new Error("it has no segments");
  const sums = { name: file.name, reserved: 0, allocated: 0, free: 0, blocks: 0, byStack: new Map() };
  for (const segment of segments) {
    sums.reserved += sizeOf(segment, "total_size");
    for (const block of segment.get("blocks")) {
      const size = sizeOf(block, "size");
      if (!LIVE.has(block.get("state"))) { sums.free += size; continue; }
      sums.allocated += size;
      sums.blocks += 1;
      const history = block.get("history");
      const frames = block.get("frames") || (history && history.length && history[history.length - 1].get("frames")) || [];
      const name = nameOf(frames);
      const known = sums.byStack.get(name) || { frames: frames.slice(0, MAX_FRAMES), bytes: 0, blocks: 0 };
      known.bytes += size;
      known.blocks += 1;
      sums.byStack.set(name, known);
    }
  }
  return sums;
}

function draw(read) {
  const [first, second] = read;
  const last = second || first;
  const weights = [];
  const table = { texts: [], frames: [], stacks: [], asking: [] };
  const number = numbering(table);
  for (const [name, { frames, bytes, blocks }] of last.byStack) {
    const before = second ? first.byStack.get(name) : null;
    const grown = bytes - (before ? before.bytes : 0);
    if (grown > 0) weights.push([number(name, frames), grown, blocks - (before ? before.blocks : 0)]);
  }
  weights.sort((a, b) => b[1] - a[1]);
  const stacks = new Stacks(table);
  const lines = new Map();
  for (const [stack, bytes, blocks] of weights) {
    const line = lines.get(stacks.words(stack)) || { bytes: 0, blocks: 0 };
    line.bytes += bytes;
    line.blocks += blocks;
    lines.set(stacks.words(stack), line);
  }
  const whole = weights.reduce((sum, [, bytes]) => sum + bytes, 0);
  const heads = ["", ...read.map((one) => one.name), ...(second ? ["change"] : [])];
  const figures = [["allocated", "allocated"], ["reserved", "reserved"], ["free in segments", "free"]].map(([words, key]) => [
    words, ...read.map((one) => format.bytes(one[key])), ...(second ? [signed(second[key] - first[key])] : []),
  ]);
  const graph = element("div", "drawn");
  const what = second ? "grew" : "is alive";
  const rows = [...lines].sort((a, b) => b[1].bytes - a[1].bytes).slice(0, MAX_LINES)
    .map(([line, { bytes, blocks }]) => [line, format.bytes(bytes), format.percent(bytes, whole), format.count(blocks)]);
  const drawn = weights.length ? flame(graph, weights, stacks, `flame graph of what ${what}`) : null;
  return {
    elements: [
      tableOf("snapshots", heads, figures), element("h3", "", `What ${what}: ${format.bytes(whole)}`), graph,
      ...(rows.length ? [tableOf(`what ${what}, by line`, ["allocated at", second ? "growth" : "bytes", "share", "blocks"], rows)] : [element("p", "muted", "Nothing.")]),
    ],
    ready: () => { if (drawn) { drawn.draw(); onChange(() => drawn.draw()); } },
  };
}

/** Numbers stacks, frames and texts, as the data of a report has them. */
function numbering(table) {
  const texts = new Map();
  const frames = new Map();
  const textOf = (text) => {
    if (!texts.has(text)) { texts.set(text, table.texts.length); table.texts.push(text); }
    return texts.get(text);
  };
  const frameOf = (frame) => {
    const [name, path, line] = [String(frame.get("name")), String(frame.get("filename")), Number(frame.get("line"))];
    const key = `${name}\0${path}\0${line}`;
    if (!frames.has(key)) {
      frames.set(key, table.frames.length);
      table.frames.push([textOf(name), textOf(path), line, Number(NO_FILE.test(path) || PACKAGES.test(path))]);
    }
    return frames.get(key);
  };
  return (_, stack) => {
    const numbers = stack.map(frameOf);
    const own = numbers.find((frame) => !table.frames[frame][3]);
    const python = numbers.find((frame) => table.texts[table.frames[frame][1]].endsWith(".py"));
    table.stacks.push(numbers);
    table.asking.push(own ?? python ?? numbers[0] ?? -1);
    return table.stacks.length - 1;
  };
}

function signed(bytes) {
  return bytes > 0 ? `+${format.bytes(bytes)}` : format.bytes(bytes);
}

function tableOf(name, heads, rows) {
  const cell = (tag) => (text, at) => {
    const made = element(tag, at ? "number" : "", text);
    if (tag === "th") made.scope = "col";
    return made;
  };
  const head = element("thead", "", element("tr", "", ...heads.map(cell("th"))));
  const body = element("tbody", "", ...rows.map((row) => element("tr", "", ...row.map(cell("td")))));
  const table = element("table", "", head, body);
  table.setAttribute("aria-label", name);
  const box = element("div", "scroll", table);
  box.tabIndex = 0;
  return box;
}
