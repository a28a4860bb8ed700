// The probes of an endpoint as a plot: the cold first burst beside the kept one, and failures where they happened.

import { svg } from "./dom.js";
import { moment, plain, rate } from "./format.js";
import { figure, grid, label, ticks } from "./plot.js";

const HEIGHT = 220;
const LEFT = 48;
const TOP = 16;
const BASE = HEIGHT - 28;
/** The narrowest that a probe may be drawn, in px; older ones are in the table only. */
const NARROWEST = 30;

function words(probe) {
  const when = `${moment(probe.at)}, ${plain(probe.kind)}`;
  if (probe.error) return `${when}: failed, ${probe.error}`;
  if (probe.reused) return `${when}: kept result reused, ${rate(probe.throughput_tps)} tok/s`;
  return `${when}: warm-up ${rate(probe.warmup_tps)}, kept ${rate(probe.throughput_tps)} tok/s`;
}

/** Under a bar there is room for the day, or for the time of one of today. */
function short(at) {
  const words = moment(at).split(" ");
  return words.length > 1 ? words.slice(0, 2).join(" ") : words[0].slice(0, 5);
}

function bar(x, width, value, y, kind) {
  if (typeof value !== "number") return null;
  const top = Math.min(y(value), BASE - 1);
  return svg("rect", { x, y: top, width, height: BASE - top, rx: 2, class: kind });
}

function group(probe, x, width, y) {
  const half = Math.min(18, Math.floor((width - 8) / 2));
  const middle = x + width / 2;
  const parts = [svg("rect", { x, y: TOP, width, height: BASE - TOP, class: "hit" })];
  if (probe.error) {
    const [cross, size] = [BASE - 14, 5];
    parts.push(
      bar(middle - half - 1, half, probe.warmup_tps, y, "cold faint"),
      svg("path", { class: "failed", d: `M${middle - size} ${cross - size}l${2 * size} ${2 * size}m0 ${-2 * size}l${-2 * size} ${2 * size}` }),
    );
  } else if (probe.reused) {
    parts.push(bar(middle + 1, half, probe.throughput_tps, y, "reused"));
  } else {
    parts.push(bar(middle - half - 1, half, probe.warmup_tps, y, "cold"), bar(middle + 1, half, probe.throughput_tps, y, "kept"));
  }
  return svg("g", { "data-read": words(probe) }, parts);
}

function draw(history, width) {
  if (history.length === 0) return null;
  const shown = history.slice(-Math.max(1, Math.floor((width - LEFT) / NARROWEST)));
  const most = Math.max(1, ...shown.flatMap((probe) => [probe.warmup_tps ?? 0, probe.throughput_tps ?? 0]));
  const values = ticks(most);
  const y = (value) => BASE - ((BASE - TOP) * value) / values.at(-1);
  // A few probes do not spread over the whole width: the eye compares neighbours.
  const each = Math.min(88, (width - LEFT) / shown.length);
  const drawing = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}` }, grid(values, y, LEFT, width, (value) => rate(value).replace(/\.0$/, "")));
  shown.forEach((probe, index) => drawing.append(group(probe, LEFT + index * each, each, y)));
  const labels = Math.max(1, Math.ceil(72 / each));
  shown.forEach((probe, index) => {
    if ((shown.length - 1 - index) % labels === 0) drawing.append(label(LEFT + (index + 0.5) * each, HEIGHT - 8, short(probe.at), "middle"));
  });
  const failed = history.filter((probe) => probe.error).length;
  return {
    drawing,
    words: `${history.length} probes, ${failed} of them failed. The last: ${words(history.at(-1))}.`,
    readout: words(history.at(-1)),
    legend: [["cold", "warm-up, cold"], ["kept", "kept"], ["failed", "failed"]],
    columns: ["When", "Why", "Warm-up, tok/s", "Kept, tok/s", "Prefill, tok/s", "Remarks"],
    rows: history.toReversed().map((probe) => [
      moment(probe.at),
      plain(probe.kind),
      rate(probe.warmup_tps),
      rate(probe.throughput_tps),
      rate(probe.prefill_tps),
      probe.error ?? ([probe.reused ? "kept result reused" : null, probe.prefill_error, probe.sweep_error].filter(Boolean).join("; ") || "–"),
    ]),
  };
}

/** `update(history)`: newest last, as the API has it. */
export function historyPlot() {
  return figure("Probes", "No probe yet.", draw);
}
