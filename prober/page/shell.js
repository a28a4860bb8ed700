// What is around every view: the name, the ways to the views, the state of the connection, and the view itself.

import { h, icon, setAttribute, setText, show } from "./dom.js";
import { moment, span } from "./format.js";
import { link } from "./router.js";
import { themeSwitch } from "./theme.js";

const SCALE = "M2 12h12M3.5 12l1 2h7l1-2M8 10V3M4.5 10h7M7 3h2";
const WAYS = [["fleet", "Fleet"], ["decisions", "Decisions"], ["envoys", "Envoys"], ["alarms", "Alarms"]];
/** Under which way a view is. */
const UNDER = { pool: "fleet", endpoint: "fleet" };

/** The shell; `onSignOut` is called by the button, which is there only in a session. */
export function shell(onSignOut) {
  const main = h("main", { id: "main", tabindex: "-1" });
  const badge = h("span", { class: "badge", hidden: true });
  const ways = new Map(WAYS.map(([view, title]) => [view, h("a", { href: link(view) }, title, view === "alarms" ? badge : null)]));
  const dot = h("span", { class: "dot", "aria-hidden": "true" });
  const word = h("span", {});
  const connection = h("p", { class: "connection" }, dot, word);
  const stale = h("p", { class: "stale", role: "alert", hidden: true });
  const signOut = h("button", { class: "quiet", type: "button", hidden: true, onclick: onSignOut }, "Sign out");
  const foot = h("p", { class: "muted" });
  const element = h(
    "div",
    { class: "shell" },
    h(
      "header",
      { class: "top" },
      h("a", { class: "brand", href: link("fleet"), "aria-label": "Weighbridge, fleet" }, icon(SCALE), h("span", {}, "Weighbridge")),
      h("nav", { "aria-label": "Views" }, [...ways.values()]),
      h("div", { class: "top-end" }, connection, themeSwitch(), signOut),
    ),
    stale,
    main,
    h("footer", { class: "foot" }, foot),
  );
  return {
    element,
    main,
    at(view) {
      for (const [way, anchor] of ways) setAttribute(anchor, "aria-current", way === (UNDER[view] ?? view) ? "page" : null);
    },
    update({ fleet, connection: how, refusal, receivedMs }) {
      setText(word, { live: "Live", lost: "Not live", connecting: "Connecting" }[how]);
      setAttribute(dot, "data-tone", { live: "good", lost: "bad", connecting: "none" }[how]);
      const lost = how === "lost" && fleet !== null;
      show(stale, lost || refusal !== null);
      // Only once per loss: a live region that changed every second would be read out every second.
      const why = refusal === null ? "The connection to the prober is lost." : `The prober sends this page nothing: ${refusal}. Close other windows with it; it tries again by itself.`;
      if (lost || refusal !== null) setText(stale, fleet === null ? why : `${why} What you see is of ${moment(receivedMs)}.`);
      setAttribute(connection, "title", lost ? `for ${span(Date.now() - receivedMs)}` : null);
      setAttribute(element, "data-stale", lost ? "" : null);
      if (!fleet) return;
      show(signOut, fleet.auth === "session");
      const alarms = fleet.alarms.length;
      setText(badge, String(alarms));
      show(badge, alarms > 0);
      setText(foot, `Prober ${fleet.prober_version}, up ${span(fleet.now_ms - fleet.started_ms)}${fleet.leads ? "" : "; another prober measures"}. ${fleet.ready ? "Every Envoy has the version in force." : "Not ready: an Envoy or a first probe is missing."}`);
    },
  };
}
