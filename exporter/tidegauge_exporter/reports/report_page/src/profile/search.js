// Finds modules, functions and lines, and shows one rank of a job at a time.

import * as format from "../format.js";

/** Returns what searches again, after other parts came to the page. */
export function searching(tools, icicles) {
  const input = tools.querySelector("input");
  const said = tools.querySelector("output");
  const isOfShownRank = (one) => !one.closest(".of-rank[hidden]");

  function search() {
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
      if (isOfShownRank(one.svg)) found.push(`${format.several(parts, one.svg.dataset.of)} with ${format.bytes(bytes)}`);
    }
    found.push(format.several(lines, "line"));
    said.textContent = wanted === "" ? "" : found.join(", ");
  }

  tools.hidden = false;
  input.addEventListener("input", search);
  search(); // what a reload has left in the field
  return search;
}

/** Of a job's ranks, one at a time: the first that is in full, until another is chosen. */
export function chooseRank(parent, search) {
  const select = parent.querySelector("select");
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
