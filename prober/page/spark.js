// A sparkline: the last quarter of an hour of one figure, and the same in words for screen readers.

import { setAttribute, svg } from "./dom.js";

const WIDTH = 88;
const HEIGHT = 22;
const WINDOW_MS = 15 * 60_000;

/** The largest of some lists of figures, for lines that share a scale. */
export function largest(lists) {
  let most = 0;
  for (const list of lists) for (const value of list ?? []) if (value > most) most = value;
  return most;
}

function path(atMs, values, nowMs, top) {
  let line = "";
  let pen = "M";
  atMs.forEach((at, index) => {
    const value = values[index];
    // A gap in the figures is a gap in the line.
    if (value === null || value === undefined) {
      pen = "M";
      return;
    }
    const x = WIDTH * (1 - (nowMs - at) / WINDOW_MS);
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
      setAttribute(line, "d", known.length < 2 ? "" : path(samples.at_ms, values, nowMs, top));
      const text =
        known.length < 2
          ? `${words}: nothing in the last 15 minutes`
          : `${words} in the last 15 minutes: from ${format(Math.min(...known))} to ${format(Math.max(...known))}`;
      setAttribute(element, "aria-label", text);
    },
  };
}
