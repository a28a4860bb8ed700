// What the plots share: a figure that is drawn anew at the width it has, a scale with round steps, a readout, and the same
// figures as a table, which is the plot's alternative for everybody.

import { h, replace, setText, svg } from "./dom.js";

/** Round values from 0 to at least `most`, three to five of them. */
export function ticks(most) {
  if (!(most > 0)) return [0, 1];
  const raw = most / 4;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 2.5, 5, 10].map((factor) => factor * power).find((size) => size >= raw * 0.999);
  const values = [];
  for (let value = 0; value < most + step * 0.999; value += step) values.push(Number(value.toPrecision(6)));
  return values;
}

/** A line of text in a drawing. */
export function label(x, y, text, anchor = "start", kind = "axis") {
  return svg("text", { x, y, "text-anchor": anchor, class: kind }, text);
}

/** Horizontal lines with their values. */
export function grid(values, y, left, right, format) {
  return values.map((value) =>
    svg("g", {}, svg("line", { x1: left, x2: right, y1: y(value), y2: y(value), class: value === 0 ? "base" : "grid" }), label(left - 8, y(value) + 4, format(value), "end")),
  );
}

/** A table. Cells are texts; the first of a row is its header. */
export function table(caption, columns, rows) {
  return h(
    "table",
    { class: "data" },
    h("caption", { class: "unseen" }, caption),
    h("thead", {}, h("tr", {}, columns.map((column) => h("th", { scope: "col" }, column)))),
    h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, index) => (index === 0 ? h("th", { scope: "row" }, cell) : h("td", {}, cell)))))),
  );
}

/** A table that may be wider than the page: it scrolls by itself, also by keyboard. */
export function scrolling(element, name) {
  return h("div", { class: "scroll", role: "region", "aria-label": name, tabindex: "0" }, element);
}

/**
 * A figure. `drawData(data, width)` answers `{drawing, words, columns, rows, readout}`, or null while there is nothing to see; `data-read`
 * of any part of the drawing is what the readout says while the pointer is there.
 */
export function figure(title, nothing, drawData) {
  const readout = h("p", { class: "readout", "aria-hidden": "true" });
  const place = h("div", { class: "drawing" });
  const rows = h("div", {});
  const asTable = h("details", { class: "as-table" }, h("summary", {}, "As a table"), rows);
  const legend = h("ul", { class: "legend", "aria-hidden": "true" });
  const empty = h("p", { class: "muted empty" }, nothing);
  const element = h("figure", { class: "plot" }, h("figcaption", { class: "card-head" }, h("h2", {}, title), legend), place, readout, empty, asTable);
  let draw = () => null;
  let drawn = null;
  let data = null;
  let painted = null;
  const paint = () => {
    const width = Math.floor(place.clientWidth);
    // Else what somebody reads, scrolls or has selected would go from under them with every look at the prober.
    const mark = `${width} ${data}`;
    if (mark === painted) return;
    painted = mark;
    const result = width > 0 ? draw(width) : null;
    drawn = result;
    for (const part of [place, readout, asTable, legend]) part.classList.toggle("gone", result === null && part !== place);
    empty.hidden = result !== null;
    if (result === null) {
      replace(place);
      return;
    }
    result.drawing.setAttribute("role", "img");
    result.drawing.setAttribute("aria-label", result.words);
    replace(place, result.drawing);
    replace(rows, scrolling(table(title, result.columns, result.rows), `${title}, as a table`));
    replace(legend, (result.legend ?? []).map(([kind, text]) => h("li", {}, h("span", { class: `key ${kind}` }), text)));
    setText(readout, result.readout);
  };
  place.addEventListener("pointermove", (event) => {
    const read = event.target.closest?.("[data-read]")?.dataset.read;
    if (drawn) setText(readout, read ?? drawn.readout);
  });
  place.addEventListener("pointerleave", () => drawn && setText(readout, drawn.readout));
  const sizes = new ResizeObserver(paint);
  sizes.observe(place);
  return {
    element,
    /** Draws what is shown; again only when it is something else. */
    update(shown) {
      data = JSON.stringify(shown);
      draw = (width) => drawData(shown, width);
      paint();
    },
    leave: () => sizes.disconnect(),
  };
}
