// "Why was this one slow?": finds decision records, and explains each.

import * as api from "./api.js";
import { say } from "./announce.js";
import { h, replace, setText, show } from "./dom.js";
import { count, counted, moment, plain, span } from "./format.js";
import { recordInFull } from "./record.js";
import { link } from "./router.js";
import { state } from "./state.js";
import { timeline, times } from "./timeline.js";

const PAGE = 30;
const MOST = 1_000;
const SINCE = [["", "all that is kept"], ["5m", "last 5 minutes"], ["15m", "last 15 minutes"], ["1h", "last hour"], ["6h", "last 6 hours"], ["24h", "last day"]];
const KEPT_WHOLE = new Set(["pool", "endpoint", "since", "until", "ttft_ms", "slow_ms", "request_id"]);

function options(values, chosen, any) {
  const all = values.includes(chosen) || chosen === "" ? values : [...values, chosen];
  return [h("option", { value: "" }, any), ...all.map((value) => h("option", { value, selected: value === chosen }, value))];
}

function filters(query, search) {
  const value = (name) => query[name] ?? "";
  const select = (name, choices) => h("select", { name }, choices);
  const text = (name, placeholder, inputmode) => h("input", { type: "text", name, value: value(name), placeholder, inputmode, autocomplete: "off", spellcheck: "false", "aria-describedby": "search-error" });
  const field = (label, control) => h("label", { class: "field" }, h("span", {}, label), control);
  const since = SINCE.some(([code]) => code === value("since")) ? SINCE : [...SINCE, [value("since"), `since ${value("since")}`]];
  const form = h(
    "form",
    { class: "card filters", role: "search", "aria-label": "Decisions", novalidate: true },
    field("Pool", select("pool", options((state.fleet?.pools ?? []).map(({ name }) => name), value("pool"), "every pool"))),
    field("Endpoint", select("endpoint", options((state.fleet?.endpoints ?? []).map(({ id }) => id), value("endpoint"), "every endpoint"))),
    field("Since", select("since", since.map(([code, words]) => h("option", { value: code, selected: code === value("since") }, words)))),
    field("Until", text("until", "now, or 5m, 03:00Z …")),
    field("First token after", text("ttft_ms", "ms", "numeric")),
    field("Took at least", text("slow_ms", "ms", "numeric")),
    field("Request id", text("request_id", "x-request-id")),
    h("div", { class: "buttons" }, h("button", { type: "reset" }, "Clear"), h("button", { type: "submit", class: "solid" }, "Search")),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    search(Object.fromEntries(new FormData(form)));
  });
  form.addEventListener("reset", (event) => {
    event.preventDefault();
    for (const control of form.querySelectorAll("select, input")) control.value = "";
    search({});
  });
  return form;
}

/** Good, or why not. */
function outcome({ result, picked }) {
  if (!picked) return "bad";
  return !result || result.status === 0 || result.status >= 400 || result.error ? "bad" : "good";
}

function item(record, explanation, top, open) {
  const { total } = times(record);
  const ttft = record.result?.ttft_ms;
  const body = h("div", { class: "detail-body", hidden: true });
  const answered = record.result?.endpoint ?? record.picked;
  const button = h(
    "button",
    { type: "button", class: "decision", "aria-expanded": "false" },
    h("span", { class: "when figure" }, moment(record.time_ms)),
    h("span", { class: "to" }, h("span", { class: "dot", "data-tone": outcome(record), "aria-hidden": "true" }), h("span", { class: "name" }, answered ?? "nobody"), h("span", { class: "muted pool-name" }, record.pool)),
    h("span", { class: "reason" }, plain(record.reason)),
    h("span", { class: "figure status-code" }, record.result?.status ? String(record.result.status) : "–"),
    h("span", { class: "figure ttft" }, h("span", { class: "unseen" }, "first token "), span(ttft)),
    h("span", { class: "figure total" }, h("span", { class: "unseen" }, "in all "), span(total)),
    timeline(record, top),
  );
  const toggle = () => {
    const opening = body.hidden;
    if (opening && body.childElementCount === 0) {
      body.append(recordInFull(record, explanation));
      // Without an id there is nothing to find it by.
      if (record.request_id) body.append(h("p", { class: "muted" }, h("a", { href: link("decisions", "", { request_id: record.request_id }) }, "Link to this record")));
    }
    show(body, opening);
    button.setAttribute("aria-expanded", String(opening));
  };
  button.addEventListener("click", toggle);
  if (open) toggle();
  return h("li", {}, button, body);
}

/** The view. */
export function decisionsView({ query }) {
  const heading = h("h1", { tabindex: "-1" }, "Decisions");
  const found = h("p", { class: "muted found" }, "Searching");
  const failure = h("p", { class: "error", id: "search-error", role: "alert", hidden: true });
  const list = h("ol", { class: "decisions" });
  const more = h("button", { type: "button", class: "begin", hidden: true }, "Show more");
  const wanted = Object.fromEntries(Object.entries(query).filter(([name]) => KEPT_WHOLE.has(name)));
  let limit = PAGE;
  let left = false;
  let number = 0;
  const go = (values) => {
    const next = link("decisions", "", values);
    if (location.hash === next || (location.hash === "" && next === "#/decisions")) find();
    else location.hash = next;
  };
  const place = h("div", {});
  const find = async () => {
    const mine = (number += 1);
    try {
      const answer = await api.decisions({ ...wanted, limit });
      if (left || mine !== number) return;
      show(failure, false);
      const { decisions, explanations = [], matched, kept, oldest_ms: oldest } = answer;
      const top = Math.max(1, ...decisions.map((record) => times(record).total));
      replace(list, decisions.map((record, index) => item(record, explanations[index], top, decisions.length === 1)));
      const reach = kept === 0 ? "Nothing is kept yet." : `Kept are ${counted(kept, "record")}, back to ${moment(oldest)}.`;
      const text = matched === 0 ? `Nothing matches. ${reach}` : `${decisions.length < matched ? `The newest ${count(decisions.length)} of ${count(matched)}` : counted(matched, "record")}. ${reach}`;
      setText(found, text);
      say(text);
      show(more, decisions.length < matched && limit < MOST);
      show(columns, decisions.length > 0);
    } catch (error) {
      if (left || mine !== number) return;
      setText(failure, error.message);
      show(failure, true);
      setText(found, "");
      replace(list);
    }
  };
  more.addEventListener("click", () => {
    limit = Math.min(MOST, limit * 4);
    find();
  });
  const columns = h("div", { class: "decision columns", "aria-hidden": "true", hidden: true }, ["Arrived", "Answered by", "Reason", "Status", "First token", "In all", "Its time"].map((title) => h("span", {}, title)));
  const refresh = h("button", { type: "button", onclick: find }, "Refresh");
  let begun = false;
  return {
    title: "Decisions",
    heading,
    element: h("div", { class: "view" }, h("div", { class: "view-head" }, h("div", {}, heading, h("p", { class: "muted" }, "Why did this request go there, and why was it slow?")), refresh), place, failure, found, h("section", { class: "card flush", "aria-label": "Records" }, h("h2", { class: "unseen" }, "Records"), columns, list), more),
    update() {
      // The choices of the form are the fleet's, once it is known.
      if (begun || !state.fleet) return;
      begun = true;
      place.append(filters(wanted, go));
      find();
    },
    leave() {
      left = true;
    },
  };
}
