// Every Envoy with the version that it has applied, against the version in force.

import { h, keyed, setAttribute, setText, show } from "./dom.js";
import { ago, counted, span } from "./format.js";
import { now } from "./state.js";

/** Versions are the ms of their making, which is what people can compare. */
function standing(envoy, version) {
  if (!envoy.connected) return ["none", "not connected"];
  if (envoy.refuses) return ["bad", "refuses the version in force"];
  if (envoy.applied_version === null) return ["warn", "has applied none"];
  if (envoy.applied_version < version) return ["warn", `${span(version - envoy.applied_version)} behind`];
  return ["good", "in force"];
}

function card(first) {
  const dot = h("span", { class: "dot", "aria-hidden": "true" });
  const word = h("span", {});
  const applied = h("dd", { class: "figure" });
  const streams = h("dd", { class: "figure" });
  const body = h("tbody", {});
  const types = keyed(body, ([kind]) => {
    const [acked, synced, standingOf] = [h("td", { class: "number" }), h("td", { class: "number" }), h("td", {})];
    return {
      element: h("tr", {}, h("th", { scope: "row" }, kind.toUpperCase()), acked, synced, standingOf),
      update([, type]) {
        setText(acked, String(type.acked_version ?? "–"));
        setText(synced, String(type.in_sync_with ?? "–"));
        setText(standingOf, type.rejected_version ? `refused ${type.rejected_version}` : type.pending ? "on its way" : "acknowledged");
      },
    };
  });
  const nack = h("p", { class: "muted", hidden: true });
  const head = h("tr", {}, h("th", { scope: "col" }, "Type"), h("th", { scope: "col", class: "number" }, "Acknowledged"), h("th", { scope: "col", class: "number" }, "Up to version"), h("th", { scope: "col" }, ""));
  head.lastElementChild.append(h("span", { class: "unseen" }, "Standing"));
  const table = h("table", { class: "data" }, h("caption", { class: "unseen" }, `What ${first.node_id} has acknowledged`), h("thead", {}, head), body);
  return {
    element: h(
      "section",
      { class: "card", "aria-label": first.node_id },
      h("div", { class: "card-head" }, h("div", {}, h("h2", {}, first.node_id), h("p", { class: "muted" }, first.node_cluster)), h("p", { class: "state" }, dot, word)),
      h("dl", { class: "figures left" }, h("div", {}, h("dt", {}, "Filter has applied"), applied), h("div", {}, h("dt", {}, "Streams"), streams)),
      h("div", { class: "scroll", role: "region", tabindex: "0", "aria-label": `Types of ${first.node_id}` }, table),
      nack,
    ),
    update(envoy, version) {
      const [tone, text] = standing(envoy, version);
      setAttribute(dot, "data-tone", tone);
      setText(word, text);
      setText(applied, envoy.applied_version === null ? "–" : String(envoy.applied_version));
      setText(streams, String(envoy.streams));
      types(Object.entries(envoy.types), ([kind]) => kind);
      setText(nack, envoy.last_nack ? `Last refusal: ${envoy.last_nack.type} ${envoy.last_nack.version}: ${envoy.last_nack.message}` : "");
      show(nack, Boolean(envoy.last_nack));
    },
  };
}

/** The view. */
export function envoysView() {
  const heading = h("h1", { tabindex: "-1" }, "Envoys");
  const summary = h("p", { class: "muted" });
  const list = h("div", { class: "stack" });
  const cards = keyed(list, card);
  const empty = h("p", { class: "card empty", hidden: true }, "No Envoy has connected. Until one does, nobody gets the weights.");
  return {
    title: "Envoys",
    heading,
    element: h("div", { class: "view" }, h("div", { class: "view-head" }, h("div", {}, heading, summary)), list, empty),
    update({ fleet }) {
      if (!fleet) return;
      const { envoys, version } = fleet;
      const connected = envoys.filter((envoy) => envoy.connected).length;
      setText(summary, `${counted(connected, "Envoy")} connected. Version in force: ${version}, made ${ago(now() - version)}.`);
      cards(envoys, ({ node_id: id }) => id, version);
      show(empty, envoys.length === 0);
    },
  };
}
