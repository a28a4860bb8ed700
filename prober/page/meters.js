// Bars of a row: the weight against the pool's median, and requests in flight against the cap. The figure beside each says the
// same, so that the bars themselves are hidden from screen readers.

import { h, setAttribute, setText, show } from "./dom.js";
import { count, weight } from "./format.js";

const share = (part, whole) => `${Math.max(0, Math.min(100, (100 * part) / whole)).toFixed(1)}%`;

/** The end of a pool's weight bars: the heaviest, and never less than twice the median. */
export function weightTop(endpoints) {
  return Math.max(2, ...endpoints.map((endpoint) => endpoint.weight));
}

/** Weight, bar with a mark at the median (1.0), and where the weight comes from. */
export function weightMeter() {
  const figure = h("span", { class: "figure" });
  const source = h("span", { class: "source" });
  const bar = h("span", { class: "fill" });
  const mark = h("span", { class: "median" });
  const track = h("span", { class: "track", "aria-hidden": "true" }, bar, mark);
  return {
    element: h("div", { class: "weight" }, figure, track, source),
    update(endpoint, top) {
      setText(figure, weight(endpoint.weight));
      bar.style.width = share(endpoint.weight, top);
      mark.style.left = share(1, top);
      const reason = endpoint.pin?.reason ?? "";
      setText(source, reason === "" ? endpoint.weight_source : `${endpoint.weight_source}: ${reason}`);
      setAttribute(track, "data-source", endpoint.weight_source);
      setAttribute(source, "data-source", endpoint.weight_source);
      setAttribute(source, "title", reason === "" ? null : reason);
    },
  };
}

/** In flight of the cap. */
export function flightMeter() {
  const now = h("span", { class: "figure" });
  const cap = h("span", { class: "muted" });
  const bar = h("span", { class: "fill" });
  const track = h("span", { class: "track thin", "aria-hidden": "true" }, bar);
  return {
    element: h("div", { class: "flight" }, h("div", {}, now, cap), track),
    update(inFlight, most) {
      setText(now, count(inFlight));
      setText(cap, ` / ${count(most)}`);
      bar.style.width = share(inFlight ?? 0, Math.max(1, most));
      setAttribute(track, "data-full", inFlight >= most ? "" : null);
      show(track, most > 0);
    },
  };
}
