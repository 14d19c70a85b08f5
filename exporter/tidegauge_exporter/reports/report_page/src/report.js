// Reads the report's data and draws its parts. What is in the data is never taken for markup.

import { history } from "./history.js";
import { element } from "./elements.js";
import { flame } from "./flame.js";
import { map } from "./map.js";
import { memory } from "./memory.js";
import { Stacks } from "./stacks.js";
import { onChange } from "./theme.js";

/** Draw the parts of the page that have data, and give its memory chart zoom and keys. */
export function drawReport() {
  const raw = document.getElementById("report-data");
  const data = raw ? JSON.parse(raw.textContent) : {};
  const stacks = raw && new Stacks(data.stacks);
  const PARTS = {
    growth: (parent) => flame(parent, data.growth, stacks, "flame graph of what grew"),
    live: (parent) => flame(parent, data.live, stacks, "flame graph of what is alive"),
    map: (parent) => map(parent, data.map, stacks),
    history: (parent) => history(parent, data.history, stacks),
  };

  const drawn = [];
  const failed = [];
  document.documentElement.classList.add("js");
  for (const parent of document.querySelectorAll(".drawn[data-part]")) {
    const name = parent.dataset.part;
    try {
      const part = PARTS[name](parent);
      part.draw();
      let width = part.width;
      new ResizeObserver(() => {
        if (part.width === width) return;
        width = part.width;
        part.draw();
      }).observe(parent);
      drawn.push(part);
    } catch (error) {
      // One part that cannot be drawn leaves the others, and the tables, as they are.
      failed.push(name);
      console.error(`the part ${name} of this report cannot be drawn`, error);
      parent.replaceChildren(element("p", "muted", "This part cannot be drawn in this browser."));
    }
  }
  for (const chart of document.querySelectorAll(".scroll > svg")) {
    try {
      memory(chart);
    } catch (error) {
      failed.push("memory"); // the chart stays as it is, without zoom and keys
      console.error("the memory chart of this report takes no keys", error);
    }
  }
  onChange(() => drawn.forEach((part) => part.draw()));
  document.documentElement.dataset.drawn = String(drawn.length);
  document.documentElement.dataset.failed = failed.join(" ");
}
