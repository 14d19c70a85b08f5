// Makes one tree of elements like another by as few changes as possible: what has the focus keeps it, what somebody
// types is left alone, and a screen reader is not told everything anew.

/** Make the content of `now` that of `then`. Elements with `data-own` belong to a script and stay as they are. */
export function morph(now, then) {
  const old = [...now.childNodes];
  const spare = new Map(old.filter((node) => key(node)).map((node) => [key(node), node]));
  let place = 0;
  for (const wanted of [...then.childNodes]) {
    const name = key(wanted);
    let here = now.childNodes[place];
    const kept = name && spare.get(name);
    if (kept && kept !== here) {
      now.insertBefore(kept, here || null);
      here = kept;
    }
    if (!here) now.append(document.importNode(wanted, true));
    else if (alike(here, wanted) && owner(here) === owner(wanted)) change(here, wanted);
    else if (owner(here)) now.insertBefore(document.importNode(wanted, true), here); // that one comes later, or goes
    else now.replaceChild(document.importNode(wanted, true), here);
    place += 1;
  }
  while (now.childNodes.length > place) now.lastChild.remove();
}

/** Rows are known by the link in them, so that a row that moves is not rewritten into another. */
function key(node) {
  if (owner(node)) return `own ${owner(node)}`;
  if (node.nodeName !== "TR") return null;
  const link = node.querySelector("td a[href]");
  return link ? link.getAttribute("href") : null;
}

/** The name of an element that belongs to a script, if it has one. */
function owner(node) {
  return node.dataset ? node.dataset.own || "" : "";
}

function alike(here, wanted) {
  return here.nodeType === wanted.nodeType && here.nodeName === wanted.nodeName;
}

function change(here, wanted) {
  if (here.nodeType !== Node.ELEMENT_NODE) {
    if (here.nodeValue !== wanted.nodeValue) here.nodeValue = wanted.nodeValue;
    return;
  }
  if ("own" in here.dataset && "own" in wanted.dataset) return;
  for (const { name } of [...here.attributes]) {
    if (!wanted.hasAttribute(name) && !mine(here, name)) here.removeAttribute(name);
  }
  for (const { name, value } of [...wanted.attributes]) {
    if (here.getAttribute(name) !== value && !mine(here, name)) here.setAttribute(name, value);
  }
  if (here.nodeName === "INPUT" || here.nodeName === "SELECT") return;
  morph(here, wanted);
}

/** What the reader, not the page, decides. */
function mine(element, name) {
  return (element.nodeName === "DETAILS" && name === "open") || (element.nodeName === "INPUT" && name === "value");
}
