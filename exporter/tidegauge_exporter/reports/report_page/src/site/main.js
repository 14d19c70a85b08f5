// The script of the web UI: asks for the page again and changes only what differs, filters as one types, draws what is
// drawn. Every page works without it, a little slower.

import { drawProfiles } from "../profile/profiles.js";
import { memory } from "../memory.js";
import { drawReport } from "../report.js";
import { heatMap } from "./heat_map.js";
import { morph } from "./morph.js";
import { snapshots } from "./snapshots.js";

const TYPING_MS = 250;
const ANSWER_MS = 15000; // a service that hangs takes the question and never answers
const OLD_AFTER = 2; // failed attempts until the page says that it is old

const main = document.getElementById("content");
const news = document.getElementById("news");
const isReport = location.pathname.endsWith("/report");
const refreshMs = 1000 * Number(document.body.dataset.refresh);
let failed = 0;
let latest = 0;
let shownMs = Date.now();

/** Let the sections of a report that scripts draw into be theirs, by their headings. */
function keepDrawn(content) {
  for (const part of content.querySelectorAll(".drawn[data-part], .scroll > svg")) {
    const section = part.closest("section");
    if (section) section.dataset.own = section.querySelector("h2").textContent;
  }
}

/** Show the charts as they are now, but for one that somebody has zoomed into or walks by keys. */
function followCharts(content) {
  const own = [...main.querySelectorAll("section[data-own]")];
  for (const fresh of content.querySelectorAll("section[data-own]")) {
    const here = own.find((section) => section.dataset.own === fresh.dataset.own);
    if (!here || !fresh.querySelector(".scroll > svg") || here.querySelector("[data-zoomed]") || here.contains(document.activeElement)) continue;
    const section = document.importNode(fresh, true);
    here.replaceWith(section);
    for (const chart of section.querySelectorAll(".scroll > svg")) memory(chart);
  }
}

/** Show the page as it is at `address` now. What is asked for later wins. */
async function show(address) {
  const asked = (latest += 1);
  const patience = new AbortController();
  const late = setTimeout(() => patience.abort(), ANSWER_MS);
  let told = "No answer from the service";
  try {
    const headers = { Accept: "text/html", "X-Requested-With": "fetch" };
    const answer = await fetch(address, { headers, cache: "no-store", signal: patience.signal });
    if (answer.ok && new URL(answer.url).pathname !== new URL(address, location.href).pathname) {
      location.reload(); // to where one logs in
      return;
    }
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (asked !== latest) return;
    const content = page.getElementById("content");
    if (!answer.ok) {
      if (content) told = content.querySelector("h1").textContent.replace(/\.$/, "");
      throw new Error(`status ${answer.status}`);
    }
    if (isReport) keepDrawn(content);
    morph(main, content);
    if (isReport) followCharts(content);
    document.title = page.title;
    shownMs = Date.now();
    failed = 0;
    news.hidden = true;
  } catch (error) {
    if (asked !== latest) return;
    failed += patience.signal.aborted ? OLD_AFTER : 1;
    if (failed >= OLD_AFTER) {
      const shown = new Date(shownMs).toISOString().slice(0, 19).replace("T", " ");
      const words = `${told}: the figures below are old, of ${shown} UTC.`;
      if (news.textContent !== words) news.textContent = words;
      news.hidden = false;
    }
  } finally {
    clearTimeout(late);
  }
}

if (refreshMs > 0) {
  const again = async () => {
    // Nobody reads a hidden tab; a selection would be lost under the reader's hands.
    if (!document.hidden && String(getSelection()) === "") await show(location.href);
    setTimeout(again, refreshMs * Math.min(failed + 1, 10));
  };
  setTimeout(again, refreshMs);
  document.addEventListener("visibilitychange", () => { if (!document.hidden) show(location.href); });
}

/** The address of the page with the fields of a form. */
function addressOf(form) {
  const fields = new URLSearchParams([...new FormData(form)].filter(([, value]) => value !== ""));
  return `${location.pathname}?${fields}`;
}

let typing = 0;
const changed = (event) => {
  const form = event.target.closest("form.filter");
  if (!form) return;
  clearTimeout(typing);
  typing = setTimeout(() => {
    const address = addressOf(form);
    history.replaceState(null, "", address);
    show(address);
  }, event.type === "input" ? TYPING_MS : 0);
};
main.addEventListener("input", changed);
main.addEventListener("submit", (event) => {
  if (!event.target.matches("form.filter") || event.target.querySelector("[name=before]")) return;
  event.preventDefault();
  changed(event);
});

document.addEventListener("keydown", (event) => {
  if (event.key !== "/" || event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, select, textarea")) return;
  const field = main.querySelector("form.filter input[type=search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
});

if (refreshMs === 0 || isReport) drawReport(); // what is drawn into another page that changes would be taken away again
if (isReport) keepDrawn(main);
if (main.querySelector(".tools.search")) drawProfiles();
for (const place of main.querySelectorAll("[data-heat-map]")) heatMap(place);
for (const place of main.querySelectorAll("[data-snapshots]")) snapshots(place);
document.documentElement.dataset.site = "ready";
