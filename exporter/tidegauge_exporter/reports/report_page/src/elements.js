// Elements with text. Nothing here, and nothing elsewhere in the report, takes markup: what a job chose is only text.

/** An element with a class, with texts and elements in it. */
export function element(tag, css, ...inside) {
  const made = document.createElement(tag);
  if (css) made.className = css;
  made.append(...inside);
  return made;
}

/** An element of SVG with these attributes. */
export function drawn(tag, attributes, ...inside) {
  const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...inside);
  return made;
}

export function button(words, onClick) {
  const made = element("button", "", words);
  made.type = "button";
  made.addEventListener("click", onClick);
  return made;
}

/** A canvas as wide as `parent` allows, sharp on every screen. Returns its context, in CSS pixels. */
export function sized(canvas, width, height) {
  const ratio = Math.max(window.devicePixelRatio || 1, 1);
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  return context;
}

let box = null;

/** Show `lines` (the first is the heading) near the pointer; without lines, nothing. */
export function hint(event, lines) {
  if (!box) {
    box = element("div", "hint");
    box.setAttribute("aria-hidden", "true");
    document.body.append(box);
  }
  box.hidden = !lines;
  if (!lines) return;
  box.replaceChildren(...lines.map((line, at) => element("div", at ? "" : "heading", line)));
  const { innerWidth, innerHeight } = window;
  const right = event.clientX + 16 + box.offsetWidth < innerWidth;
  box.style.left = `${Math.max(right ? event.clientX + 16 : event.clientX - 16 - box.offsetWidth, 4)}px`;
  box.style.top = `${Math.max(Math.min(event.clientY + 14, innerHeight - box.offsetHeight - 8), 4)}px`;
}
