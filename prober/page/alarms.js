// What is wrong now, and where to read what to do.

import { h, keyed, setAttribute, setText, show } from "./dom.js";
import { ago, counted, plain, capital } from "./format.js";
import { link } from "./router.js";
import { now } from "./state.js";

/** With a key each: its words may change while it lasts, and one subject may have several of a kind. */
function numbered(alarms) {
  const seen = new Map();
  return alarms.map((alarm) => {
    const kind = `${alarm.code} ${alarm.subject.id ?? ""}`;
    const number = (seen.get(kind) ?? 0) + 1;
    seen.set(kind, number);
    return { key: `${kind} ${number}`, alarm };
  });
}

function row({ alarm: first }) {
  const message = h("p", { class: "message" });
  const since = h("span", { class: "muted" });
  const subject = first.subject.kind === "endpoint" ? h("a", { href: link("endpoint", first.subject.id) }, first.subject.id) : h("span", {}, "the prober");
  return {
    element: h(
      "li",
      { class: "card" },
      h("div", { class: "card-head" }, h("h2", { class: "state" }, h("span", { class: "dot", "data-tone": "bad", "aria-hidden": "true" }), capital(plain(first.code))), since),
      message,
      h("p", { class: "muted" }, "At ", subject, ". What to do: ", h("code", {}, `docs/alarms.md, ${first.code}`)),
    ),
    update({ alarm }) {
      setText(message, alarm.message);
      setText(since, alarm.since_ms === null ? "" : ago(now() - alarm.since_ms));
    },
  };
}

/** The view. */
export function alarmsView() {
  const heading = h("h1", { tabindex: "-1" }, "Alarms");
  const list = h("ul", { class: "stack plain" });
  const rows = keyed(list, row);
  const summary = h("p", { class: "muted" });
  const empty = h("p", { class: "card empty", hidden: true }, "Nothing is wrong.");
  return {
    title: "Alarms",
    heading,
    element: h("div", { class: "view" }, h("div", { class: "view-head" }, h("div", {}, heading, summary)), list, empty),
    update({ fleet }) {
      if (!fleet) return;
      setText(summary, fleet.alarms.length === 0 ? "" : counted(fleet.alarms.length, "alarm"));
      rows(numbered(fleet.alarms), ({ key }) => key);
      show(empty, fleet.alarms.length === 0);
      setAttribute(list, "hidden", fleet.alarms.length === 0 ? "" : null);
    },
  };
}
