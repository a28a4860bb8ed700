// Throughput over concurrency: what the sweep measured, the knee, what serving has shown since, and the cap.

import { svg } from "./dom.js";
import { count, rate, span } from "./format.js";
import { figure, grid, label, ticks } from "./plot.js";

const HEIGHT = 220;
const LEFT = 48;
const RIGHT = 16;
const TOP = 20;
const BASE = HEIGHT - 28;

const BOUNDS = {
  throughput: "nine tenths of the best throughput",
  floor: "beyond it a request gets less than min_tps",
  below_floor: "one request alone gets less than min_tps",
};

function draw({ curve, knee, observed, max_in_flight: cap, cap_source: source }, width) {
  if (!curve || curve.length === 0) return null;
  const most = Math.max(...curve.map((step) => step.throughput_tps), ...observed.map((point) => point.throughput_tps));
  const values = ticks(most);
  const y = (value) => BASE - ((BASE - TOP) * value) / values.at(-1);
  const end = Math.log2(Math.max(2, curve.at(-1).concurrency, source === "weight" ? 0 : cap));
  const x = (concurrency) => LEFT + 12 + ((width - LEFT - RIGHT - 12) * Math.log2(Math.max(1, concurrency))) / end;
  const line = curve.map((step, index) => `${index === 0 ? "M" : "L"}${x(step.concurrency).toFixed(1)} ${y(step.throughput_tps).toFixed(1)}`).join("");
  const drawing = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` }, grid(values, y, LEFT, width - RIGHT, (value) => rate(value).replace(/\.0$/, "")));
  if (knee) {
    const at = x(knee.concurrency);
    const side = at > width / 2 ? "end" : "start";
    drawing.append(
      svg("line", { x1: at, x2: at, y1: TOP - 6, y2: BASE, class: "knee" }),
      label(at + (side === "end" ? -6 : 6), TOP + 2, `knee ${knee.concurrency}`, side, "axis strong"),
    );
  }
  drawing.append(svg("path", { d: line, class: "curve" }));
  for (const step of curve) {
    const read = `${step.concurrency} at once: ${rate(step.throughput_tps)} tok/s, ${rate(step.per_request_tps)} each, first token ${span(step.ttft_ms)}`;
    drawing.append(
      svg("g", { "data-read": read }, svg("circle", { cx: x(step.concurrency), cy: y(step.throughput_tps), r: 12, class: "hit" }), svg("circle", { cx: x(step.concurrency), cy: y(step.throughput_tps), r: 3.5, class: "point" })),
      label(x(step.concurrency), HEIGHT - 8, String(step.concurrency), "middle"),
    );
  }
  for (const point of observed) {
    const read = `Serving at ${point.concurrency.toFixed(1)} at once: ${rate(point.throughput_tps)} tok/s, ${point.ratio.toFixed(2)} of the curve (${count(point.windows)} windows)`;
    drawing.append(svg("g", { "data-read": read }, svg("circle", { cx: x(point.concurrency), cy: y(point.throughput_tps), r: 5, class: "observed" })));
  }
  const kneeWords = knee ? `Knee at ${knee.concurrency}: ${BOUNDS[knee.bound] ?? knee.bound}. ` : "";
  return {
    drawing,
    words: `Throughput from ${curve[0].concurrency} to ${curve.at(-1).concurrency} requests at once; the best is ${rate(most)} tok/s. ${kneeWords}The cap is ${cap}.`,
    readout: `${kneeWords}Cap ${cap}, ${{ weight: "by weight", measured: "measured", hand: "set by hand" }[source] ?? source}.`,
    legend: [["curve", "sweep"], ["observed", "while serving"], ["knee", "knee"]],
    columns: ["At once", "Throughput, tok/s", "One request, tok/s", "First token", "Serving against it"],
    rows: curve.map((step) => {
      const near = observed.find((point) => Math.round(Math.log2(point.concurrency)) === Math.round(Math.log2(step.concurrency)));
      return [String(step.concurrency), rate(step.throughput_tps), rate(step.per_request_tps), span(step.ttft_ms), near ? near.ratio.toFixed(2) : "–"];
    }),
  };
}

/** Of an endpoint in full what the plot shows: nothing else makes it draw anew. */
const shown = ({ curve, knee, observed, max_in_flight, cap_source }) => ({ curve, knee, observed: observed ?? [], max_in_flight, cap_source });

/** `update(endpoint in full)` */
export function curvePlot() {
  const nothing = "No sweep of concurrency: the pool's caps follow the weights (admission.cap), or the last sweep failed.";
  const { element, update, leave } = figure("Concurrency", nothing, draw);
  return { element, leave, update: (endpoint) => update(shown(endpoint)) };
}
