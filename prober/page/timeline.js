// How the time of one request went: waiting for a slot, until the first token, the answer.

import { h } from "./dom.js";
import { span } from "./format.js";

/** `{wait, first, answer, total}` of a record, in ms; the wait is in none of the others. Null: it did not end. */
export function times(record) {
  const { result, queue } = record;
  const wait = queue?.wait_ms ?? 0;
  const total = result?.duration_ms ?? wait;
  const first = typeof result?.ttft_ms === "number" ? Math.max(0, Math.min(result.ttft_ms, total) - wait) : Math.max(0, total - wait);
  return { wait, first, answer: Math.max(0, total - wait - first), total };
}

/** The bar, to a scale whose end is `top` ms; its words are its alternative. */
export function timeline(record, top) {
  const { wait, first, answer, total } = times(record);
  const part = (kind, ms) => {
    if (ms <= 0) return null;
    const element = h("span", { class: `part ${kind}` });
    element.style.width = `${((100 * ms) / Math.max(1, top)).toFixed(2)}%`;
    return element;
  };
  const words = `waited ${span(wait)}, first token after ${span(first)}, answer ${span(answer)}, in all ${span(total)}`;
  return h("span", { class: "timeline", role: "img", "aria-label": words, title: words }, part("wait", wait), part("first", first), part("answer", answer));
}
