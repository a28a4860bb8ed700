// One decision record, in words and in numbers.

import { h } from "./dom.js";
import { count, counted, moment, percent, plain, rate, span, weight } from "./format.js";
import { scrolling } from "./plot.js";
import { link } from "./router.js";
import { timeline, times } from "./timeline.js";

function inWords(paragraphs) {
  return h(
    "div",
    { class: "words" },
    paragraphs.map(({ title, sentences }) => h("div", {}, h("h3", {}, title), h("p", {}, sentences.join(" ")))),
  );
}

function legend(record) {
  const { wait, first, answer } = times(record);
  const parts = [["wait", "waited for a slot", wait], ["first", "until the first token", first], ["answer", "the answer", answer]];
  return h("ul", { class: "legend" }, parts.map(([kind, text, ms]) => h("li", {}, h("span", { class: `key ${kind}`, "aria-hidden": "true" }), `${text} `, h("span", { class: "figure" }, span(ms)))));
}

function mark(record, candidate) {
  const marks = [];
  if (candidate.id === record.picked) marks.push("picked");
  if (candidate.drawn) marks.push("compared");
  if (record.prefix?.holders?.includes(candidate.id)) marks.push("holds the prefix");
  if (candidate.excluded) marks.push(`left out: ${plain(candidate.excluded)}`);
  return marks.join(", ") || "not compared";
}

function candidates(record) {
  const scored = record.candidates.some((candidate) => typeof candidate.score === "number");
  const byCurve = record.candidates.some((candidate) => typeof candidate.share === "number");
  const columns = ["Endpoint", "Weight", ...(byCurve ? ["Share of weight"] : []), "In flight / cap", "Elsewhere", "Pending tokens", "Load", ...(scored ? ["Score"] : []), ""];
  const rows = record.candidates.map((candidate) =>
    h(
      "tr",
      { class: candidate.id === record.picked ? "picked" : candidate.excluded ? "excluded" : null },
      h("th", { scope: "row" }, h("a", { href: link("endpoint", candidate.id) }, candidate.id)),
      [
        weight(candidate.weight),
        ...(byCurve ? [percent(candidate.share)] : []),
        `${count(candidate.in_flight)} / ${count(candidate.cap)}`,
        count(candidate.elsewhere ?? 0),
        count(candidate.pending_tokens ?? 0),
        weight(candidate.load),
        ...(scored ? [weight(candidate.score)] : []),
      ].map((text) => h("td", { class: "number" }, text)),
      h("td", {}, mark(record, candidate)),
    ),
  );
  const head = columns.map((column, index) => h("th", { scope: "col", class: index > 0 && column !== "" ? "number" : null }, column || h("span", { class: "unseen" }, "Why")));
  const table = h("table", { class: "data" }, h("caption", { class: "unseen" }, "Candidates"), h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows));
  const left = record.omitted > 0 ? h("p", { class: "muted" }, `and ${counted(record.omitted, "other endpoint")} of the pool`) : null;
  return [scrolling(table, "Candidates"), left];
}

function numbers(record) {
  const { result = {}, prefix, queue, shadow } = record;
  const answerMs = times(record).answer;
  const speed = result.completion_tokens > 1 && answerMs > 0 ? `${rate((1000 * result.completion_tokens) / answerMs)} tok/s` : null;
  const rows = [
    ["Arrived", moment(record.time_ms)],
    ["Request id", record.request_id],
    ["Envoy", record.envoy],
    ["Snapshot", record.snapshot],
    ["Policy", plain(record.policy)],
    ["Order of the attempts", record.hosts?.join(", ")],
    ["Tried", result.tried?.join(", ")],
    ["Attempts", result.attempts],
    ["Prompt, estimate", record.prompt_tokens === undefined ? null : `${count(record.prompt_tokens)} tokens`],
    ["Prompt, counted", result.prompt_tokens === undefined ? null : `${count(result.prompt_tokens)} tokens, ${count(result.cached_tokens ?? 0)} from the cache`],
    ["Prefix known", prefix ? `${count(prefix.matched_tokens)} tokens${prefix.allowance === undefined ? "" : `, allowance ${weight(prefix.allowance)}`}` : null],
    ["Answer", result.completion_tokens === undefined ? null : `${count(result.completion_tokens)} tokens`],
    ["Its speed", speed],
    ["Ended by", result.finish],
    ["Queue", queue ? `ticket ${queue.ticket}, ${queue.position} before it` : null],
    ["Asked for pool", record.spilled_from],
    ["Shadow", shadow ? `${plain(shadow.policy)} would pick ${shadow.picked ?? "nobody"}` : null],
    ["Envoy's words", result.details],
  ];
  return h("dl", { class: "facts" }, rows.filter(([, text]) => text !== null && text !== undefined && text !== "").map(([term, text]) => h("div", {}, h("dt", {}, term), h("dd", {}, String(text)))));
}

/** All of it. */
export function recordInFull(record, explanation) {
  const whole = times(record).total;
  return h(
    "div",
    { class: "record" },
    explanation ? inWords(explanation) : null,
    h("div", {}, h("h3", {}, "Its time"), timeline(record, whole), legend(record)),
    h("div", {}, h("h3", {}, "Candidates"), candidates(record)),
    h("div", {}, h("h3", {}, "Numbers"), numbers(record)),
    h("details", { class: "as-table" }, h("summary", {}, "As JSON"), scrolling(h("pre", {}, JSON.stringify(record, null, 2)), "The record as JSON")),
  );
}
