// Elements, and the cheapest way to keep them up to date: build once, then touch only what has changed. Text from the API is
// only ever set as text, never parsed.

const SVG = "http://www.w3.org/2000/svg";

function fill(element, properties, children) {
  for (const [name, value] of Object.entries(properties ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** An HTML element. Properties are attributes, `on<event>` a listener; children are elements or text. */
export function h(tag, properties, ...children) {
  return fill(document.createElement(tag), properties, children);
}

/** The same of SVG. */
export function svg(tag, properties, ...children) {
  return fill(document.createElementNS(SVG, tag), properties, children);
}

/** A line icon of 16 px; purely decoration, so hidden from screen readers. */
export function icon(path) {
  return svg(
    "svg",
    { class: "icon", viewBox: "0 0 16 16", width: 16, height: 16, "aria-hidden": "true", focusable: "false" },
    svg("path", { d: path }),
  );
}

/** Sets a text, when it is another one. */
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

/** Sets an attribute, when it is another value; nothing (null, undefined, false) takes it away. */
export function setAttribute(node, name, value) {
  if (value === null || value === undefined || value === false) node.removeAttribute(name);
  else if (node.getAttribute(name) !== String(value)) node.setAttribute(name, value);
}

/** Shows or hides. */
export function show(node, shown) {
  if (node.hidden === shown) node.hidden = !shown;
}

/** Whether it is on the page and takes room there, so that it can have the focus. */
export function isSeen(node) {
  return Boolean(node?.isConnected) && node.getClientRects().length > 0;
}

/** Replaces all children. */
export function replace(node, ...children) {
  node.replaceChildren(...children.flat().filter(Boolean));
}

/**
 * Keeps the children of `parent` in step with a list, one per key. `create(item)` makes `{element, update(item, context)}`
 * once per key, so that focus, selection and transitions survive every update.
 */
export function keyed(parent, create) {
  const parts = new Map();
  return (items, keyOf, context) => {
    const keys = new Set(items.map(keyOf));
    for (const [key, part] of parts) {
      if (keys.has(key)) continue;
      part.element.remove();
      parts.delete(key);
    }
    let place = parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      const part = parts.get(key) ?? create(item);
      parts.set(key, part);
      if (part.element === place) place = place.nextElementSibling;
      else parent.insertBefore(part.element, place);
      part.update(item, context);
    }
  };
}
