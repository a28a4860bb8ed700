// A sparkline: one figure as far back as samples go, a quarter of an hour at most, and the same in words for screen readers.

import { setAttribute, svg } from "./dom.js";
import { counted } from "./format.js";

const WIDTH = 88;
const HEIGHT = 22;
/** The samples of a prober that has just started fill the line soon; one that moves with every sample says nothing. */
const SHORTEST_MS = 2 * 60_000;
const LONGEST_MS = 15 * 60_000;

/** The largest of some lists of figures, for lines that share a scale. */
export function largest(lists) {
  let most = 0;
  for (const list of lists) for (const value of list ?? []) if (value > most) most = value;
  return most;
}

function path(atMs, values, nowMs, windowMs, top) {
  let line = "";
  let pen = "M";
  atMs.forEach((at, index) => {
    const value = values[index];
    // A gap in the figures is a gap in the line.
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    const x = WIDTH * (1 - (nowMs - at) / windowMs);
    if (x < 0) return;
    const y = HEIGHT - 2 - (HEIGHT - 4) * (top > 0 ? Math.min(1, value / top) : 0);
    line += `${pen}${x.toFixed(1)} ${y.toFixed(1)}`;
    pen = "L";
  });
  return line;
}

/** `update(samples, figure, {nowMs, top, words, format})`; the line is decoration until there are two figures. */
export function sparkline(kind) {
  const line = svg("path", { class: `spark-line ${kind}` });
  const element = svg("svg", { class: "spark", viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, role: "img" }, line);
  return {
    element,
    update(samples, figure, { nowMs, top, words, format }) {
      const values = samples?.[figure] ?? [];
      const known = values.filter((value) => typeof value === "number");
      const windowMs = Math.min(LONGEST_MS, Math.max(SHORTEST_MS, nowMs - (samples?.at_ms[0] ?? nowMs)));
      const minutes = counted(Math.round(windowMs / 60_000), "minute");
      setAttribute(line, "d", known.length < 2 ? "" : path(samples.at_ms, values, nowMs, windowMs, top));
      const text =
        known.length < 2
          ? `${words}: nothing in the last ${minutes}`
          : `${words} in the last ${minutes}: from ${format(Math.min(...known))} to ${format(Math.max(...known))}`;
      setAttribute(element, "aria-label", text);
    },
  };
}
