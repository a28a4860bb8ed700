// What an endpoint is doing, in a word and a line: its state, who has ejected it, how far a drain is.

import { h, setAttribute, setText, show } from "./dom.js";
import { capital, counted, plain } from "./format.js";
import { describe } from "./burst.js";

/** `{tone, word, detail}`: `tone` is `good`, `busy`, `warn`, `bad` or `none`. */
export function statusOf(endpoint) {
  const { state, removal, drain, health, burst, asked, ejected, cooling_down: cooling } = endpoint;
  const leaving = removal ?? drain;
  if (removal || state === "draining") {
    const left = leaving?.in_flight;
    const progress = { drained: "empty", overdue: "deadline passed" }[leaving?.state];
    const detail = progress ?? (typeof left === "number" ? `${counted(left, "request")} left` : "emptying");
    const word = removal ? "Being removed" : leaving?.state === "drained" ? "Drained" : "Draining";
    return { tone: leaving?.state === "overdue" ? "bad" : "warn", word, detail: drain?.reason ? `${detail} · ${drain.reason}` : detail };
  }
  if (state === "unhealthy") return { tone: "bad", word: "Unhealthy", detail: health.last_error ?? "" };
  if (burst) return { tone: "busy", word: burst.phase === "waiting" && !burst.elsewhere ? "Waiting to probe" : "Probing", detail: describe(burst) };
  if (state === "probing") return { tone: "busy", word: "Probing", detail: "" };
  if (state === "new") return { tone: "none", word: "New", detail: "never measured" };
  if (ejected > 0) return { tone: "bad", word: "Ejected", detail: `by ${counted(ejected, "Envoy")}` };
  if (cooling > 0) return { tone: "warn", word: "Cooling down", detail: `at ${counted(cooling, "Envoy")}: its engine pushed back` };
  const alarm = endpoint.alarm ?? endpoint.signals?.alarm;
  if (asked) return { tone: "good", word: "Ready", detail: "a probe waits until it is idle" };
  return { tone: "good", word: capital(plain(state)), detail: alarm ? `alarm: ${alarm}` : "" };
}

/** The dot and the words. */
export function statusLine() {
  const dot = h("span", { class: "dot", "aria-hidden": "true" });
  const word = h("span", { class: "word" });
  const detail = h("span", { class: "detail" });
  return {
    element: h("div", { class: "status" }, h("span", { class: "state" }, dot, word), detail),
    update(endpoint) {
      const status = statusOf(endpoint);
      setAttribute(dot, "data-tone", status.tone);
      setText(word, status.word);
      setText(detail, status.detail);
      setAttribute(detail, "title", status.detail);
      show(detail, status.detail !== "");
    },
  };
}
