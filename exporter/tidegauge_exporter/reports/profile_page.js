// A profile's page: zoom into the icicle, search modules and lines.
"use strict";
(() => {
  const WIDTH = 1036, LETTER = 6.6, PADDING = 5;
  const cells = [...document.querySelectorAll(".icicle .cell")].map((element) => ({
    element,
    rect: element.querySelector("rect"),
    text: element.querySelector("text"),
    x: Number(element.dataset.x),
    width: Number(element.dataset.width),
    row: Number(element.dataset.row),
    bytes: Number(element.dataset.bytes),
    name: element.dataset.name,
    path: element.dataset.path.toLowerCase(),
  }));

  function label(name, width) {
    const letters = Math.floor((width - 2 * PADDING) / LETTER);
    if (name.length <= letters) return name;
    return letters >= 3 ? name.slice(0, letters - 1) + "\u2026" : "";
  }

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

  for (const cell of cells) {
    cell.element.setAttribute("tabindex", "0");
    cell.element.addEventListener("click", () => zoom(cell));
    cell.element.addEventListener("keydown", (event) => {
      if (event.key === "Enter") zoom(cell);
      if (event.key === "Escape") zoom(cells[0]);
    });
  }

  const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];
  function size(bytes) {
    let power = 0;
    while (bytes >= 1024 && power < UNITS.length - 1) { bytes /= 1024; power += 1; }
    return power ? `${bytes.toFixed(1)} ${UNITS[power]}` : `${bytes} B`;
  }

  const tools = document.querySelector(".search");
  if (!tools) return;
  const input = tools.querySelector("input"), said = tools.querySelector("output");
  const icicle = document.querySelector(".icicle");
  const rows = [...document.querySelectorAll(".searched tbody tr")];

  function search() {
    const wanted = input.value.trim().toLowerCase();
    let lines = 0, modules = 0, bytes = 0, outer = null;
    for (const row of rows) {
      const isFound = row.textContent.toLowerCase().includes(wanted);
      row.hidden = !isFound;
      lines += isFound ? 1 : 0;
    }
    for (const cell of cells) {
      const isFound = wanted !== "" && cell.path.includes(wanted);
      cell.element.classList.toggle("found", isFound);
      if (!isFound) continue;
      modules += 1;
      if (outer && cell.row > outer.row && cell.x + cell.width <= outer.x + outer.width + 1e-3) continue;
      outer = cell; // cells come depth first: one that is not inside the last one is inside none
      bytes += cell.bytes;
    }
    if (icicle) icicle.classList.toggle("searching", wanted !== "");
    const found = [];
    if (icicle) found.push(`${modules} ${modules === 1 ? "module" : "modules"} with ${size(bytes)}`);
    found.push(`${lines} ${lines === 1 ? "line" : "lines"}`);
    said.textContent = wanted === "" ? "" : found.join(", ");
  }

  tools.hidden = false;
  input.addEventListener("input", search);
  search(); // what a reload has left in the field
})();
