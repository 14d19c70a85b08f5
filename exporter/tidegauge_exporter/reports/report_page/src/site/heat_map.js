// All ranks of a job over time: a row for each, from the share of its limit that it held. One hue up to nearly full, then
// another, so that it can be told without seeing red or green; the row and the figure are said in words as well.

import { element, hint, sized } from "../elements.js";
import { onChange } from "../theme.js";

const AGAIN_MS = 6000;
const MAX_HEIGHT = 420;
const ROW_HEIGHT = 14;
const LIGHT = { unseen: [238, 241, 244], low: [222, 235, 247], high: [33, 102, 172], full: [253, 141, 60], over: [165, 15, 21] };
const DARK = { unseen: [30, 37, 45], low: [30, 52, 78], high: [116, 173, 230], full: [217, 119, 40], over: [255, 120, 100] };

export function heatMap(place) {
  const nearlyFull = Number(place.dataset.nearlyFull);
  const canvas = document.createElement("canvas");
  canvas.tabIndex = 0;
  canvas.setAttribute("role", "application");
  canvas.setAttribute("aria-label", "share of the limit of each rank over time: arrow keys move, Enter opens the rank");
  const said = element("p", "said", "Loading the history of the ranks …");
  said.setAttribute("aria-live", "polite");
  const legend = element("p", "heat-legend muted");
  place.replaceChildren(canvas, legend, said);
  let data = null;
  let at = null; // row and column that the keys point at

  const draw = () => {
    if (!data || !data.rows.length) return;
    const rows = data.rows.length;
    const columns = data.rows[0].percent.length;
    const width = Math.max(place.clientWidth, 280);
    const height = Math.min(Math.max(rows * ROW_HEIGHT, 40), MAX_HEIGHT);
    const lines = Math.min(rows, Math.floor(height * Math.max(window.devicePixelRatio || 1, 1)));
    const colours = matchMedia("(prefers-color-scheme: dark)").matches && !document.documentElement.classList.contains("paper") ? DARK : LIGHT;
    const image = new ImageData(columns, lines);
    for (let line = 0; line < lines; line += 1) {
      // Of several rows in one line the fullest is shown: an odd rank among ten thousand must not vanish.
      const first = Math.floor((line * rows) / lines);
      const last = Math.max(Math.floor(((line + 1) * rows) / lines), first + 1);
      for (let column = 0; column < columns; column += 1) {
        let most = null;
        for (let row = first; row < last; row += 1) {
          const percent = data.rows[row].percent[column];
          if (percent !== null && (most === null || percent > most)) most = percent;
        }
        const [red, green, blue] = colourOf(most, nearlyFull, colours);
        image.data.set([red, green, blue, 255], 4 * (line * columns + column));
      }
    }
    const small = new OffscreenCanvas(columns, lines);
    small.getContext("2d").putImageData(image, 0, 0);
    const context = sized(canvas, width, height);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, height);
    if (at) {
      context.strokeStyle = getComputedStyle(document.documentElement).getPropertyValue("--ink");
      context.strokeRect((at.column / columns) * width, (at.row / rows) * height, Math.max(width / columns, 3), Math.max(height / rows, 3));
    }
    legend.textContent = `${data.by_node ? "A row for each node: its rank to look at first" : "A row for each rank"}, ${clock(data.from_unix_s)} to ${clock(data.until_unix_s)}. Blue: up to ${nearlyFull} % of the limit; orange to red: above; grey: not seen.${data.left_out ? ` ${data.left_out.toLocaleString("en")} rows are left out.` : ""}`;
    canvas.dataset.drawn = String(rows);
  };
  const words = ({ row, column }) => {
    const one = data.rows[row];
    const seconds = (data.until_unix_s - data.from_unix_s) / one.percent.length;
    const percent = one.percent[column];
    const mark = percent !== null && percent >= nearlyFull ? " !" : "";
    return [
      `rank ${one.rank} on ${one.hostname}${one.gpu === null ? "" : `, GPU ${one.gpu}`}`,
      `${clock(data.from_unix_s + seconds * (column + 1))}: ${percent === null ? "not seen" : `${percent} % of its limit${mark}`}`,
      `${one.stale ? "now: stale, when last heard of" : "now:"} ${one.state}${one.severity ? ` (${one.severity})` : ""}`,
    ];
  };
  const under = (event) => {
    const box = canvas.getBoundingClientRect();
    const rows = data.rows.length;
    const columns = data.rows[0].percent.length;
    const inside = (share, count) => Math.min(Math.max(Math.floor(share * count), 0), count - 1);
    return { row: inside((event.clientY - box.top) / box.height, rows), column: inside((event.clientX - box.left) / box.width, columns) };
  };
  const open = ({ row }) => {
    const address = new URL(location.href);
    address.searchParams.set("rank", data.rows[row].rank);
    location.href = address;
  };
  canvas.addEventListener("pointermove", (event) => data && data.rows.length && hint(event, words(under(event))));
  canvas.addEventListener("pointerleave", (event) => hint(event, null));
  canvas.addEventListener("click", (event) => data && data.rows.length && open(under(event)));
  canvas.addEventListener("blur", () => { at = null; draw(); });
  canvas.addEventListener("keydown", (event) => {
    if (!data || !data.rows.length) return;
    const here = at || { row: 0, column: data.rows[0].percent.length - 1 };
    const jump = event.shiftKey ? 10 : 1;
    const to = {
      ArrowUp: [-jump, 0], ArrowDown: [jump, 0], ArrowLeft: [0, -jump], ArrowRight: [0, jump],
      Home: [-data.rows.length, 0], End: [data.rows.length, 0],
    }[event.key];
    if (event.key === "Enter" && at) open(at);
    if (!to) return;
    event.preventDefault();
    const kept = (value, count) => Math.min(Math.max(value, 0), count - 1);
    at = { row: kept(here.row + (at ? to[0] : 0), data.rows.length), column: kept(here.column + (at ? to[1] : 0), data.rows[0].percent.length) };
    said.textContent = words(at).join(", ");
    draw();
  });

  const load = async () => {
    try {
      const answer = await fetch(place.dataset.heatMap, { headers: { Accept: "application/json", "X-Requested-With": "fetch" } });
      if (answer.ok) {
        data = await answer.json();
        if (!at) said.textContent = data.rows.length ? "Point at the map, or move in it with the arrow keys; a click opens the rank." : "No limit is known of any rank.";
        draw();
      }
    } catch {
      // the page says that the service does not answer
    }
  };
  const again = async () => {
    if (!document.hidden && place.isConnected) await load();
    if (place.isConnected && Number(document.body.dataset.refresh) > 0) setTimeout(again, AGAIN_MS);
  };
  again();
  let width = 0;
  new ResizeObserver(() => {
    if (place.clientWidth === width) return;
    width = place.clientWidth;
    draw();
  }).observe(place);
  onChange(draw);
}

function colourOf(percent, nearlyFull, { unseen, low, high, full, over }) {
  if (percent === null) return unseen;
  if (percent < nearlyFull) return between(low, high, percent / nearlyFull);
  return between(full, over, Math.min((percent - nearlyFull) / (100 - nearlyFull), 1));
}

function between(from, to, share) {
  return from.map((value, place) => Math.round(value + (to[place] - value) * share));
}

function clock(unixS) {
  return `${new Date(1000 * unixS).toISOString().slice(5, 16).replace("T", " ")} UTC`;
}
