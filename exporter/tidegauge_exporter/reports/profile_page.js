// A profile's page: zoom into icicles, search modules and lines, choose a rank of a job; with the recording's blocks
// (recording_data.py) also what is allocated at any event, and what a range of events leaves behind.
"use strict";
(() => {
  const WIDTH = 1036, LETTER = 6.6, PADDING = 5, ROW = 24, MAX_ROWS = 24, MIN_WIDTH = 0.3;
  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  const SVG = "http://www.w3.org/2000/svg";

  function size(bytes) {
    let power = 0;
    while (bytes >= 1024 && power < UNITS.length - 1) { bytes /= 1024; power += 1; }
    return power ? `${bytes.toFixed(1)} ${UNITS[power]}` : `${bytes} B`;
  }
  const count = (number) => number.toLocaleString("en-US");
  const several = (number, one) => `${count(number)} ${number === 1 ? one : `${one}s`}`;
  const share = (part, whole) => (whole ? `${((100 * part) / whole).toFixed(1)}%` : "0.0%");
  const largest = (map, bytes = (value) => value) => [...map].sort((a, b) => bytes(b[1]) - bytes(a[1]));

  /** An element of HTML. Whatever a job chose gets on the page as text alone. */
  function element(tag, css, ...inside) {
    const made = document.createElement(tag);
    if (css) made.className = css;
    made.append(...inside);
    return made;
  }

  function label(name, width) {
    const letters = Math.floor((width - 2 * PADDING) / LETTER);
    if (name.length <= letters) return name;
    return letters >= 3 ? name.slice(0, letters - 1) + "\u2026" : "";
  }

  /** The icicle that is drawn in `svg`, and others in its place. */
  function icicle(svg) {
    let cells = [];

    function zoom(to) {
      const scale = WIDTH / to.width, end = to.x + to.width;
      for (const cell of cells) {
        const left = Math.max(cell.x, to.x), right = Math.min(cell.x + cell.width, end);
        const isShown = right - left > 1e-3;
        cell.element.toggleAttribute("hidden", !isShown);
        cell.element.classList.toggle("above", cell.row < to.row);
        if (!isShown) continue;
        const x = (left - to.x) * scale, width = (right - left) * scale;
        cell.rect.setAttribute("x", x);
        cell.rect.setAttribute("width", width);
        cell.text.setAttribute("x", x + PADDING);
        cell.text.textContent = label(cell.name, width);
      }
    }

    function listen() {
      for (const cell of cells) {
        cell.element.setAttribute("tabindex", "0");
        cell.element.addEventListener("click", () => zoom(cell));
        cell.element.addEventListener("keydown", (event) => {
          if (event.key === "Enter") zoom(cell);
          if (event.key === "Escape") zoom(cells[0]);
        });
      }
    }

    function drawn(part, row, x, width) {
      const cell = {
        part, row, x, width, bytes: part.bytes, name: part.name, path: (part.path || "").toLowerCase(),
        element: document.createElementNS(SVG, "g"),
        rect: document.createElementNS(SVG, "rect"),
        text: document.createElementNS(SVG, "text"),
      };
      const title = document.createElementNS(SVG, "title");
      title.textContent = part.title;
      cell.element.setAttribute("class", `cell ${part.css}`);
      for (const [name, value] of [["x", x], ["y", row * ROW], ["width", width], ["height", ROW - 1]]) cell.rect.setAttribute(name, value);
      cell.text.setAttribute("x", x + PADDING);
      cell.text.setAttribute("y", row * ROW + 16);
      cell.text.textContent = label(part.name, width);
      cell.element.dataset.path = part.path || "";
      cell.element.dataset.bytes = part.bytes;
      cell.element.append(cell.rect, cell.text, title);
      return cell;
    }

    /** `whole`: {name, title, css, path, bytes, parts}. */
    function show(whole) {
      cells = [];
      const waiting = whole.bytes > 0 ? [[whole, 0, 0]] : [];
      while (waiting.length) {
        const [part, row, x] = waiting.pop();
        cells.push(drawn(part, row, x, (part.bytes / whole.bytes) * WIDTH));
        if (row + 1 >= MAX_ROWS) continue;
        const below = [];
        let left = x;
        for (const one of [...part.parts].sort((a, b) => (a.css === "rest") - (b.css === "rest") || b.bytes - a.bytes)) {
          const width = (one.bytes / whole.bytes) * WIDTH;
          if (width >= MIN_WIDTH) below.push([one, row + 1, left]);
          left += width;
        }
        waiting.push(...below.reverse());
      }
      const rows = cells.reduce((most, cell) => Math.max(most, cell.row + 1), 1);
      svg.setAttribute("viewBox", `0 0 ${WIDTH} ${rows * ROW}`);
      svg.replaceChildren(...cells.map((cell) => cell.element));
      listen();
    }

    cells = [...svg.querySelectorAll(".cell")].map((one) => ({
      element: one,
      rect: one.querySelector("rect"),
      text: one.querySelector("text"),
      x: Number(one.dataset.x),
      width: Number(one.dataset.width),
      row: Number(one.dataset.row),
      bytes: Number(one.dataset.bytes),
      name: one.dataset.name,
      path: one.dataset.path.toLowerCase(),
    }));
    listen();
    return { svg, show, cells: () => cells };
  }

  const icicles = [...document.querySelectorAll("svg.icicle")].map(icicle);
  const icicleOf = (of) => icicles.find((one) => one.svg.dataset.of === of);
  const tools = document.querySelector(".search");

  const isOfShownRank = (one) => !one.closest(".of-rank[hidden]");

  function search() {
    const input = tools.querySelector("input"), said = tools.querySelector("output");
    const wanted = input.value.trim().toLowerCase();
    const found = [];
    let lines = 0;
    for (const row of document.querySelectorAll(".searched tbody tr")) {
      const isFound = row.textContent.toLowerCase().includes(wanted);
      row.hidden = !isFound;
      lines += isFound && isOfShownRank(row) ? 1 : 0;
    }
    for (const one of icicles) {
      let parts = 0, bytes = 0, outer = null;
      for (const cell of one.cells()) {
        const isFound = wanted !== "" && cell.path.includes(wanted);
        cell.element.classList.toggle("found", isFound);
        if (!isFound) continue;
        parts += 1;
        if (outer && cell.row > outer.row && cell.x + cell.width <= outer.x + outer.width + 1e-3) continue;
        outer = cell; // cells come depth first: one that is not inside the last one is inside none
        bytes += cell.bytes;
      }
      one.svg.classList.toggle("searching", wanted !== "");
      if (isOfShownRank(one.svg)) found.push(`${several(parts, one.svg.dataset.of)} with ${size(bytes)}`);
    }
    found.push(several(lines, "line"));
    said.textContent = wanted === "" ? "" : found.join(", ");
  }

  if (tools) {
    tools.hidden = false;
    tools.querySelector("input").addEventListener("input", search);
    search(); // what a reload has left in the field
  }

  const choice = document.querySelector(".choose-rank");
  if (choice) chooseRank(choice, choice.querySelector("select"));

  /** Of a job's ranks, one at a time: the first that is in full, until another is chosen. */
  function chooseRank(parent, select) {
    const ranks = [...document.querySelectorAll(".of-rank")], bars = [...document.querySelectorAll(".rank-bars li")];
    const show = (rank) => {
      select.value = rank;
      for (const one of ranks) one.hidden = one.dataset.rank !== rank;
      for (const bar of bars) bar.classList.toggle("shown", bar.dataset.rank === rank);
      search();
    };
    for (const bar of bars) if (bar.classList.contains("there")) bar.addEventListener("click", () => show(bar.dataset.rank));
    select.addEventListener("change", () => show(select.value));
    parent.hidden = false;
    show(ranks[0].dataset.rank);
  }

  const raw = document.getElementById("profile-data");
  if (raw) explore(JSON.parse(raw.textContent));

  /** Everything that needs the blocks. */
  function explore(data) {
    const events = data.end - data.first, blocks = columns(data);
    const { made, freed, asked, rounding, category, module, stack, address } = blocks;
    const total = made.length;
    const css = data.categories.map((name) => `of-${name.toLowerCase().replaceAll(" ", "-")}`);
    const order = document.querySelector(".timeline").dataset.order.split(",").map((name) => data.categories.indexOf(name));
    const ROUNDING = data.categories.indexOf("rounding");
    const peak = Math.max(data.peak - data.first, -1);
    const stacks = data.stacks;
    const look = new Map();
    const PHASES = { forward: "--own1", backward: "--waiting", recomputation: "--hot", optimizer: "--calm" };
    let view = [0, Math.max(events - 1, 1)], selected = { from: peak, to: peak }, mode = "left";

    // ---- words ------------------------------------------------------------------------------------------------
    const eventNumber = (event) => count(Math.max(event + data.first, 0));
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

    // ---- what is there ----------------------------------------------------------------------------------------
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
    const shown = () => {
      const { from, to } = selected;
      if (from === to) return { event: to, found: aliveAt(to), isRange: false };
      if (mode === "highest") {
        const event = highestIn(from, to);
        return { event, found: aliveAt(event), isRange: false };
      }
      return { event: to, found: leftBy(from, to), isRange: true };
    };

    // ---- the timeline -----------------------------------------------------------------------------------------
    const place = document.querySelector(".timeline");
    const canvas = place.querySelector("canvas"), said = place.querySelector(".said");
    const modes = place.querySelector("select"), field = place.querySelector("input[type=number]");
    const HEIGHT = 300, LEFT = 66, RIGHT = 10, TOP = 26, BOTTOM = 24;
    let pixels = null;

    function style(name) {
      return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
    }
    function colour(number) {
      if (!look.has(number)) {
        const probe = document.createElementNS(SVG, "rect"), svg = document.createElementNS(SVG, "svg");
        probe.setAttribute("class", css[number]);
        svg.append(probe);
        place.append(svg);
        look.set(number, getComputedStyle(probe).fill);
        svg.remove();
      }
      return look.get(number);
    }
    function sized(one, width, height) {
      const ratio = Math.max(window.devicePixelRatio || 1, 1);
      one.width = Math.round(width * ratio);
      one.height = Math.round(height * ratio);
      one.style.width = `${width}px`;
      one.style.height = `${height}px`;
      const context = one.getContext("2d");
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      return context;
    }
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
      return { width, sums, at, most, kinds, highest: Math.max(most.reduce((a, b) => Math.max(a, b), 0), 1) };
    }
    const xOf = (event) => LEFT + ((event + 0.5 - view[0]) / (view[1] - view[0] + 1)) * pixels.width;
    const pixelOf = (event) => Math.min(Math.max(Math.floor(event.clientX - canvas.getBoundingClientRect().left - LEFT), 0), pixels.width - 1);

    function drawTimeline() {
      const whole = Math.max(place.clientWidth, 280), width = Math.floor(whole - LEFT - RIGHT);
      if (!pixels || pixels.width !== width || pixels.view !== view) pixels = Object.assign(measured(width), { view });
      const ctx = sized(canvas, whole, HEIGHT), high = HEIGHT - TOP - BOTTOM;
      const ink = style("--ink"), muted = style("--muted"), rule = style("--rule");
      const y = (bytes) => TOP + high - (bytes / (pixels.highest * 1.04)) * high;
      ctx.textBaseline = "middle";
      ctx.textAlign = "right";
      for (const tick of ticks(pixels.highest)) {
        ctx.fillStyle = rule;
        ctx.fillRect(LEFT, Math.round(y(tick)), width, 1);
        ctx.fillStyle = muted;
        ctx.fillText(size(tick), LEFT - 8, y(tick));
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
        ctx.fillStyle = colour(kind);
        ctx.fill();
      }
      drawPhases(ctx, width, high);
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
        ctx.fillStyle = style("--card");
        if (left > LEFT) ctx.fillRect(LEFT, TOP, left - LEFT, high);
        if (right < LEFT + width) ctx.fillRect(right, TOP, LEFT + width - right, high);
        ctx.globalAlpha = 1;
      }
      ctx.fillStyle = ink;
      for (const event of new Set([from, to])) line(ctx, event, high, ink);
      if (from !== peak || to !== peak) line(ctx, peak, high, style("--bad"), true);
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
    function drawPhases(ctx, width, high) {
      data.stretches.forEach(([begin, phase], at) => {
        const end = at + 1 < data.stretches.length ? data.stretches[at + 1][0] : data.end;
        const left = Math.max(xOf(begin - data.first - 0.5), LEFT), right = Math.min(xOf(end - data.first - 0.5), LEFT + width);
        if (right - left < 0.05) return;
        const name = data.phases[phase];
        ctx.fillStyle = style(PHASES[name] || "--grey");
        ctx.fillRect(left, 4, right - left, 14);
        if (name === "backward" || name === "recomputation") {
          ctx.globalAlpha = 0.08;
          ctx.fillStyle = style("--ink");
          ctx.fillRect(left, TOP, right - left, high);
          ctx.globalAlpha = 1;
        }
        if (right - left < ctx.measureText(name).width + 6) return;
        ctx.fillStyle = style("--ink");
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

    // ---- a box beside the pointer -----------------------------------------------------------------------------
    const box = element("div", "hint");
    box.hidden = true;
    box.setAttribute("aria-hidden", "true");
    document.body.append(box);
    function hint(event, lines) {
      box.hidden = !lines;
      if (!lines) return;
      box.replaceChildren(...lines.map((text, at) => element("div", at ? "" : "heading", text)));
      const right = event.clientX + 16 + box.offsetWidth < window.innerWidth;
      box.style.left = `${Math.max(right ? event.clientX + 16 : event.clientX - 16 - box.offsetWidth, 4)}px`;
      box.style.top = `${Math.max(Math.min(event.clientY + 14, window.innerHeight - box.offsetHeight - 8), 4)}px`;
    }
    const stackLines = (block) => {
      if (stack[block] < 0) return [nameOf(block)];
      const own = stacks.stacks[stack[block]].filter((frame) => !stacks.frames[frame][3]);
      const frames = own.length ? own : stacks.stacks[stack[block]];
      return [...frames.slice(0, 8).map(lineName), ...(frames.length > 8 ? ["\u2026"] : [])];
    };
    const aboutBlock = (block) => `${size(asked[block])} of ${data.categories[category[block]]}`;
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
      const parts = held.slice(0, 4).map(([bytes, name]) => `${name} ${size(bytes)}`).join(", ");
      return [`event ${eventNumber(event)}, ${phaseAt(Math.max(event, 0))}: ${size(pixels.most[pixel])}`, parts, ...aboutEvent(event)];
    }

    // ---- tables and drawings of what is selected --------------------------------------------------------------
    function fill(name, rows) {
      const body = document.querySelector(`[data-part="${name}"] tbody`);
      if (!body) return;
      const numbers = [...body.closest("table").querySelectorAll("th")].map((head) => head.className);
      body.replaceChildren(...rows.map((row) => element("tr", "", ...row.map((cell, at) => element("td", numbers[at], cell)))));
    }
    function bar(bytes, whole, kind) {
      const svg = document.createElementNS(SVG, "svg"), rect = document.createElementNS(SVG, "rect");
      for (const [name, value] of [["class", "bar"], ["viewBox", "0 0 100 6"], ["preserveAspectRatio", "none"]]) svg.setAttribute(name, value);
      for (const [name, value] of [["class", css[kind]], ["width", whole ? (100 * bytes) / whole : 0], ["height", 6]]) rect.setAttribute(name, value);
      svg.append(rect);
      return svg;
    }
    function showCategories(found) {
      const sums = sumsOf(found), whole = sums.reduce((a, b) => a + b, 0);
      const rows = largest([...sums].entries()).filter(([, bytes]) => bytes);
      fill("categories", rows.map(([kind, bytes]) => [data.categories[kind], size(bytes), share(bytes, whole), bar(bytes, whole, kind)]));
      return whole;
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
      const rows = largest(groups, (group) => group.bytes).slice(0, 60).map(([, group]) => {
        const phase = largest(group.phases)[0][0], caller = largest(group.callers)[0][0];
        const name = askingOf(group.of) >= 0 ? lineName(askingOf(group.of)) : phase === "backward" ? "(autograd)" : "no stack recorded";
        const cell = element("span", "", element("span", "path", name), ...(caller < 0 ? [] : [element("small", "", `called from ${lineName(caller)}`)]));
        return [size(group.bytes), count(group.blocks), data.categories[category[group.of]], phase, cell];
      });
      fill("lines", rows);
    }
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
        const held = largest(one.held).map(([kind, bytes]) => `${data.categories[kind]} ${size(bytes)}`);
        one.title = `${one.path || one.name}: ${size(one.bytes)} (${share(one.bytes, whole.bytes)})${held.length > 1 ? `: ${held.join(", ")}` : ""}`;
        waiting.push(...one.parts);
      }
      whole.name = `${size(whole.bytes)}, as asked for`;
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

    // ---- the allocator's segments and blocks ------------------------------------------------------------------
    const map = document.querySelector(".segments canvas"), mapSaid = document.querySelector(".segments .said");
    const MAP_ROW = 16, MAP_GAP = 3, MAP_ROWS = 12;
    let laid = null;
    function drawMap({ event, found, isRange }) {
      if (!map) return;
      const segments = [];
      data.segments.made.forEach((born, at) => {
        const lives = data.segments.freed[at];
        if (born <= event && (!lives || born + lives > event)) segments.push([data.segments.address[at], data.segments.bytes[at]]);
      });
      const alive = aliveAt(event).sort((a, b) => address[a] - address[b]);
      const marked = isRange ? new Set(found) : null;
      const reserved = segments.reduce((sum, [, bytes]) => sum + bytes, 0);
      const held = alive.reduce((sum, at) => sum + asked[at] + rounding[at], 0);
      const width = Math.max(map.parentElement.clientWidth, 280), scale = (width * MAP_ROWS) / Math.max(reserved, 1);
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
      const ctx = sized(map, width, rows * (MAP_ROW + MAP_GAP));
      for (const [left, right, at] of spans) {
        ctx.fillStyle = at < 0 ? style("--free") : colour(category[at]);
        ctx.globalAlpha = at >= 0 && marked && !marked.has(at) ? 0.25 : 1;
        for (let row = Math.floor(left / width); row * width < right; row += 1) {
          const begin = Math.max(left - row * width, 0), end = Math.min(right - row * width, width);
          const gap = at >= 0 && end - begin > 3 ? 0.75 : 0;
          ctx.fillRect(begin, row * (MAP_ROW + MAP_GAP), Math.max(end - begin - gap, 0.5), MAP_ROW);
        }
      }
      laid = { spans, width };
      mapSaid.textContent = `At event ${eventNumber(event)}: ${size(reserved)} reserved in ${several(segments.length, "segment")}, `
        + `${size(held)} of it allocated in ${several(alive.length, "block")}, ${size(Math.max(reserved - held, 0))} free (grey). Point at a block for its line.`
        + (isRange ? " Pale blocks are not of the range." : "");
    }
    if (map) {
      map.addEventListener("pointermove", (event) => {
        const bounds = map.getBoundingClientRect();
        const x = Math.floor((event.clientY - bounds.top) / (MAP_ROW + MAP_GAP)) * laid.width + event.clientX - bounds.left;
        const over = laid.spans.filter(([left, right]) => left <= x && x < Math.max(right, left + 1)).pop();
        if (!over) return hint(event, null);
        const [, , at, begin] = over;
        if (at < 0) return hint(event, ["free"]);
        return hint(event, [
          aboutBlock(at), `in a block of ${size(asked[at] + rounding[at])}, ${size(address[at] - begin)} into its segment`,
          made[at] < 0 ? "allocated before the first event" : `allocated at event ${eventNumber(made[at])}`
            + (freed[at] < events ? `, freed at event ${eventNumber(freed[at])}` : ", not freed"), ...stackLines(at),
        ]);
      });
      map.addEventListener("pointerleave", (event) => hint(event, null));
    }

    // ---- selecting --------------------------------------------------------------------------------------------
    function words(now, bytes) {
      const { from, to } = selected;
      const when = (event) => `event ${eventNumber(event)}${phaseAt(Math.max(event, 0)) === "unknown" ? "" : `, ${phaseAt(Math.max(event, 0))}`}`;
      if (now.isRange) {
        return [`Allocated from event ${eventNumber(from)} to ${eventNumber(to)} and still there at its end`,
          `${size(bytes)} in ${several(now.found.length, "block")} were allocated from event ${eventNumber(from)} to event ${eventNumber(to)} and are still there at its end.`];
      }
      if (from !== to) return [`At the highest moment of the range (event ${eventNumber(now.event)})`,
        `${size(bytes)} allocated at the highest moment from event ${eventNumber(from)} to event ${eventNumber(to)}: ${when(now.event)}.`];
      if (to === peak) return ["At the peak", `${size(bytes)} allocated at the peak: ${when(to)}.`];
      return [`At event ${eventNumber(to)}`, `${size(bytes)} allocated at ${when(to)}.`];
    }
    function show(isFirst = false) {
      const now = shown();
      let bytes = sumsOf(now.found).reduce((a, b) => a + b, 0);
      if (!isFirst) { // the page has the peak already
        showCategories(now.found);
        showLines(now.found);
        if (icicleOf("module")) icicleOf("module").show(tree(now.found, moduleWay));
      }
      if (icicleOf("function")) icicleOf("function").show(tree(now.found, stackWay));
      const [heading, sentence] = words(now, bytes);
      for (const one of document.querySelectorAll("[data-moment]")) one.textContent = heading;
      said.textContent = sentence;
      modes.parentElement.hidden = selected.from === selected.to;
      place.querySelector("[data-do=zoom]").disabled = selected.from === selected.to;
      place.querySelector("[data-do=all]").disabled = view[0] === 0 && view[1] === Math.max(events - 1, 1);
      place.querySelector("[data-do=peak]").disabled = selected.from === peak && selected.to === peak;
      field.value = Math.max(now.event + data.first, 0);
      drawTimeline();
      drawMap(now);
      if (!isFirst && tools) search();
    }
    const bound = (event) => Math.min(Math.max(event, 0), events - 1);
    function select(from, to = from) {
      selected = { from: Math.min(from, to), to: Math.max(from, to) };
      if (selected.to > view[1] || selected.from < view[0]) view = [0, Math.max(events - 1, 1)];
      show();
    }
    function look_at(from, to) {
      const middle = (from + to) / 2, half = Math.max((to - from) / 2, 10);
      const begin = Math.max(Math.floor(middle - half), 0);
      view = [begin, Math.max(Math.min(Math.ceil(middle + half), events - 1), begin + 1)];
      show();
    }
    const deeds = {
      peak: () => select(peak),
      back: () => select(bound(shown().event - 1)),
      on: () => select(bound(shown().event + 1)),
      zoom: () => look_at(selected.from, selected.to),
      all: () => look_at(0, events - 1),
    };
    for (const one of place.querySelectorAll("[data-do]")) one.addEventListener("click", deeds[one.dataset.do]);
    modes.addEventListener("change", () => { mode = modes.value; show(); });
    field.addEventListener("change", () => { if (field.value !== "") select(bound(Math.round(Number(field.value)) - data.first)); });
    let began = null;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      began = pixelOf(event);
      canvas.setPointerCapture(event.pointerId);
    });
    const first = (pixel) => bound(Math.floor(view[0] + (pixel / pixels.width) * (view[1] - view[0] + 1)));
    canvas.addEventListener("pointermove", (event) => {
      const pixel = pixelOf(event);
      if (began === null || Math.abs(pixel - began) < 4) return hint(event, aboutPixel(pixel));
      hint(event, [`event ${eventNumber(first(Math.min(pixel, began)))} to ${eventNumber(first(Math.max(pixel, began)))}`]);
      selected = { from: first(Math.min(pixel, began)), to: first(Math.max(pixel, began)) };
      drawTimeline();
    });
    canvas.addEventListener("pointerup", (event) => {
      const [start, pixel] = [began, pixelOf(event)];
      began = null;
      if (start === null) return;
      if (Math.abs(pixel - start) < 4) select(Math.max(pixels.at[pixel], -1));
      else select(first(Math.min(pixel, start)), first(Math.max(pixel, start)));
    });
    canvas.addEventListener("pointercancel", () => { began = null; show(); });
    canvas.addEventListener("pointerleave", (event) => hint(event, null));
    canvas.addEventListener("keydown", (event) => {
      const jump = event.shiftKey ? Math.max(Math.round((view[1] - view[0]) / 20), 10) : 1;
      const at = selected.to;
      const keys = {
        ArrowLeft: () => select(bound(at - jump)), ArrowRight: () => select(bound(at + jump)),
        Home: () => select(0), End: () => select(events - 1), Enter: deeds.peak,
        "+": () => look_at(at - (view[1] - view[0]) / 4, at + (view[1] - view[0]) / 4), "-": () => look_at(at - (view[1] - view[0]), at + (view[1] - view[0])),
        Escape: () => { view = [0, Math.max(events - 1, 1)]; select(peak); },
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

    const known = new Set(data.stretches.map(([, phase]) => data.phases[phase]));
    place.querySelector(".keys").append(...data.phases.filter((name) => known.has(name) && name !== "unknown").map((name) => {
      const key = element("span", "key", name);
      key.style.setProperty("--look", `var(${PHASES[name] || "--grey"})`);
      return key;
    }));
    for (const one of document.querySelectorAll(".needs-blocks")) one.hidden = false;
    for (const one of document.querySelectorAll(".without-blocks")) one.hidden = true;
    field.min = data.first;
    field.max = data.end - 1;
    show(true);
    let width = place.clientWidth;
    new ResizeObserver(() => {
      if (place.clientWidth === width) return;
      width = place.clientWidth;
      drawTimeline();
      drawMap(shown());
    }).observe(place);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { look.clear(); drawTimeline(); drawMap(shown()); });
    document.documentElement.dataset.explored = "true";
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
})();
