// A probe as it runs: its phases, how far the present one is, and what the bursts have given.

import { h, setAttribute, setText, show } from "./dom.js";
import { rate, span } from "./format.js";
import { now } from "./state.js";

/** The phases in their order, with what each is for. */
const PHASES = [
  ["waiting", "Waiting", "until it is idle and takes no traffic"],
  ["warmup", "Warm-up burst", "the engine gets warm; does not count"],
  ["kept", "Kept burst", "gives the throughput, and so the weight"],
  ["prefill", "Prefill", "one long prompt: how fast it reads"],
  ["sweep", "Sweep", "1, 2, 4, ... requests at once: the curve"],
];
const ORDER = PHASES.map(([phase]) => phase);
/** Between the bursts the engine comes to rest: part of the warm-up for people. */
const placeOf = (burst) => (burst.phase === "settling" ? 1.5 : ORDER.indexOf(burst.phase));

/** 0 to 1 of the present phase: by the clock where we know how long it takes, but never past what is left to do. */
export function progress(burst) {
  if (burst.elsewhere || burst.phase === "waiting") return 0;
  const counted = burst.of > 0 ? burst.done / burst.of : 0;
  if (burst.phase === "sweep" || !burst.expected_ms) return Math.min(1, counted);
  const timed = (now() - burst.phase_begun_ms) / burst.expected_ms;
  return Math.min(1, Math.max(counted, Math.min(0.97, timed)));
}

/** In a few words. */
export function describe(burst) {
  if (burst.elsewhere) return "another prober measures it";
  if (burst.phase === "waiting") return "until it is idle";
  const name = { warmup: "warm-up", settling: "between the bursts", kept: "kept burst", prefill: "prefill", sweep: "sweep" }[burst.phase] ?? burst.phase;
  return burst.of > 0 ? `${name}, ${burst.done} of ${burst.of}` : name;
}

/** The bar in a row. */
export function burstBar() {
  const bar = h("span", { class: "fill" });
  const element = h("span", { class: "track thin busy", role: "progressbar", "aria-valuemin": "0", "aria-valuemax": "100", hidden: true }, bar);
  return {
    element,
    update(endpoint) {
      const { burst } = endpoint;
      show(element, Boolean(burst) && !burst.elsewhere && burst.phase !== "waiting");
      if (!burst) return;
      // The whole probe, phase by phase, so that the bar only ever grows.
      const whole = (Math.max(0, Math.ceil(placeOf(burst)) - 1) + (burst.phase === "settling" ? 0 : progress(burst))) / (ORDER.length - 1);
      const share = Math.round(100 * Math.min(1, whole));
      bar.style.width = `${share}%`;
      setAttribute(element, "aria-valuenow", share);
      setAttribute(element, "aria-label", `Probe of ${endpoint.id}`);
      setAttribute(element, "aria-valuetext", describe(burst));
    },
  };
}

/** The steps, one beneath the other: which is done, which runs, what it gave. */
export function burstSteps() {
  const rows = PHASES.map(([phase, title, purpose]) => {
    const figure = h("span", { class: "figure" });
    const bar = h("span", { class: "fill" });
    const word = h("span", { class: "unseen" });
    const track = h("span", { class: "track thin busy", "aria-hidden": "true" }, bar);
    const element = h("li", { class: "step" }, h("span", { class: "title" }, title, word), h("span", { class: "muted purpose" }, purpose), track, figure);
    return { phase, element, figure, bar, word };
  });
  const title = h("h2", {}, "Probe");
  const since = h("p", { class: "muted" });
  const elsewhere = h("p", { hidden: true }, "Another prober measures it; how far is not known here.");
  const steps = h("ol", { class: "steps" }, rows.map((row) => row.element));
  return {
    element: h("section", { class: "card probing", "aria-label": "Probe in progress", hidden: true }, h("div", { class: "card-head" }, title, since), elsewhere, steps),
    update(endpoint) {
      const { burst } = endpoint;
      show(this.element, Boolean(burst));
      if (!burst) return;
      show(elsewhere, Boolean(burst.elsewhere));
      show(steps, !burst.elsewhere);
      if (burst.elsewhere) {
        setText(since, "");
        return;
      }
      const place = placeOf(burst);
      setText(since, `${burst.kind === "demand" ? "asked for" : burst.kind === "interval" ? "it was time" : "at registration"}${burst.forced ? ", not waiting until idle" : ""} · ${span(Math.max(0, now() - burst.begun_ms))}`);
      for (const [index, { phase, element, figure, bar, word }] of rows.entries()) {
        const stage = index < place ? "done" : index === place ? "now" : "later";
        setAttribute(element, "data-stage", stage);
        setText(word, { done: ", done", now: ", running", later: "" }[stage]);
        bar.style.width = `${Math.round(100 * (stage === "done" ? 1 : stage === "now" ? (phase === "waiting" ? 0 : progress(burst)) : 0))}%`;
        const gave = { warmup: burst.warmup_tps, kept: burst.kept_tps }[phase];
        const running = stage === "now" && burst.of > 0 ? `${burst.done} / ${burst.of}` : "";
        setText(figure, typeof gave === "number" ? `${rate(gave)} tok/s` : running);
      }
    },
  };
}
