// The fleet by pool.

import { actionsFor, register } from "./actions.js";
import { burstBar } from "./burst.js";
import { h, icon, keyed, setAttribute, setText, show } from "./dom.js";
import { count, counted, plain, rate, span, tokens } from "./format.js";
import { openMenu } from "./menu.js";
import { flightMeter, weightMeter, weightTop } from "./meters.js";
import { link } from "./router.js";
import { largest, sparkline } from "./spark.js";
import { now } from "./state.js";
import { statusLine } from "./status.js";

const MORE = "M3 8h.01M8 8h.01M13 8h.01";
const PLUS = "M8 3v10M3 8h10";
const COLUMNS = [
  ["endpoint", "Endpoint"],
  ["weight", "Weight"],
  ["measured", "Measured, tok/s"],
  ["flight", "In flight"],
  ["ttft", "First token"],
  ["output", "Now, tok/s"],
  ["window", "Context"],
  ["status", "Status"],
  ["more", ""],
];

/** The last figure of some samples that is known. */
function latest(samples, figure) {
  const value = samples?.[figure]?.at(-1);
  return typeof value === "number" ? value : null;
}

/** On a phone, where the column's header does not say it. */
const unit = () => h("span", { class: "unit", "aria-hidden": "true" }, " tok/s");

function row(first) {
  const name = h("a", { class: "name", href: link("endpoint", first.id) }, first.id);
  const where = h("span", { class: "muted where" });
  const [weight, flight, status, bar] = [weightMeter(), flightMeter(), statusLine(), burstBar()];
  const measured = h("span", { class: "figure" });
  const [ttft, ttftLine] = [h("span", { class: "figure" }), sparkline("ttft")];
  const [output, outputLine] = [h("span", { class: "figure" }), sparkline("output")];
  const window = h("span", { class: "figure" });
  const more = h("button", { class: "quiet square", type: "button", "aria-haspopup": "menu", "aria-expanded": "false", "aria-label": `Actions for ${first.id}` }, icon(MORE));
  let present = first;
  more.addEventListener("click", () => openMenu(more, `Actions for ${present.id}`, actionsFor(present)));
  const cells = {
    endpoint: [name, where],
    weight: [weight.element],
    measured: [measured, unit()],
    flight: [flight.element],
    ttft: [ttft, ttftLine.element],
    output: [output, unit(), outputLine.element],
    window: [window],
    status: [status.element, bar.element],
    more: [more],
  };
  const element = h(
    "tr",
    { role: "row", "data-endpoint": first.id },
    COLUMNS.map(([column, title]) =>
      h(column === "endpoint" ? "th" : "td", { role: column === "endpoint" ? "rowheader" : "cell", scope: column === "endpoint" ? "row" : null, class: `col-${column}`, "data-title": title.split(",")[0] }, cells[column]),
    ),
  );
  return {
    element,
    update(endpoint, { series, top, tops }) {
      present = endpoint;
      setAttribute(element, "data-state", endpoint.state);
      setText(where, endpoint.node === endpoint.id ? endpoint.address : `${endpoint.node} · ${endpoint.address}`);
      weight.update(endpoint, top);
      setText(measured, rate(endpoint.throughput_tps));
      flight.update(endpoint.in_flight, endpoint.max_in_flight);
      const samples = series.get(endpoint.id);
      const figures = { nowMs: now() };
      setText(ttft, span(endpoint.signals.averages.ttft_ms));
      ttftLine.update(samples, "ttft_ms", { ...figures, top: tops.ttft, words: "Time to the first token", format: span });
      setText(output, rate(latest(samples, "tps")));
      outputLine.update(samples, "tps", { ...figures, top: tops.output, words: "Tokens per second", format: rate });
      setText(window, tokens(endpoint.context_window));
      status.update(endpoint);
      bar.update(endpoint);
    },
  };
}

function poolFigures() {
  const part = (title) => {
    const figure = h("dd", { class: "figure" });
    return { figure, element: h("div", {}, h("dt", {}, title), figure) };
  };
  const [flight, waiting, median, policy] = ["In flight", "Waiting", "Median", "Policy"].map(part);
  const waitingLine = sparkline("waiting");
  waiting.element.append(h("dd", { class: "beside" }, waitingLine.element));
  return {
    element: h("dl", { class: "figures" }, flight.element, waiting.element, median.element, policy.element),
    update(pool, samples) {
      setText(flight.figure, `${count(pool.in_flight)} / ${count(pool.capacity)}`);
      setText(waiting.figure, `${count(pool.waiting)} / ${count(pool.queue_limit)}`);
      setAttribute(waiting.element, "data-tone", pool.waiting > 0 ? "warn" : null);
      setAttribute(waiting.element, "title", `at most ${span(pool.max_wait_ms)}`);
      waitingLine.update(samples, "waiting", { nowMs: now(), top: Math.max(4, largest([samples?.waiting])), words: "Requests waiting", format: count });
      setText(median.figure, `${rate(pool.median_tps)} tok/s`);
      setText(policy.figure, pool.policy === "p2c" ? `p2c, choices ${pool.choices}` : plain(pool.policy));
    },
  };
}

function poolCard(first) {
  const models = h("p", { class: "muted" });
  const figures = poolFigures();
  const body = h("tbody", { role: "rowgroup" });
  const rows = keyed(body, row);
  const heading = h("h2", {}, h("a", { href: link("pool", first.name) }, first.name));
  const empty = h("p", { class: "muted empty", hidden: true }, "No endpoint yet.");
  const element = h(
    "section",
    { class: "card pool", "aria-label": `Pool ${first.name}` },
    h("div", { class: "card-head" }, h("div", {}, heading, models), figures.element),
    h(
      "table",
      { class: "fleet", role: "table" },
      h("caption", { class: "unseen" }, `Endpoints of ${first.name}`),
      h("thead", { role: "rowgroup" }, h("tr", { role: "row" }, COLUMNS.map(([column, title]) => h("th", { role: "columnheader", scope: "col", class: `col-${column}` }, title || h("span", { class: "unseen" }, "Actions"))))),
      body,
    ),
    empty,
  );
  return {
    element,
    update(pool, { fleet, series }) {
      const names = pool.models.filter((name) => name !== pool.name);
      const spill = pool.spill_to.length > 0 ? ` · spills to ${pool.spill_to.join(", ")}` : "";
      setText(models, `${pool.served_model === pool.name ? "" : `serves ${pool.served_model} · `}${names.length > 0 ? `also asked for as ${names.join(", ")}` : "no other names"}${spill}`);
      figures.update(pool, series.pools.get(pool.name));
      const members = fleet.endpoints.filter((endpoint) => endpoint.pool === pool.name);
      const samples = members.map((endpoint) => series.endpoints.get(endpoint.id));
      // One scale per pool and figure: lines may be compared with each other.
      const tops = { ttft: largest(samples.map((of) => of?.ttft_ms)), output: largest(samples.map((of) => of?.tps)) };
      rows(members, ({ id }) => id, { series: series.endpoints, top: weightTop(members), tops });
      show(empty, members.length === 0);
    },
  };
}

/** The view; with a name, of that pool only. */
export function fleetView(place) {
  const list = h("div", { class: "pools" });
  const pools = keyed(list, poolCard);
  const summary = h("p", { class: "muted" });
  const only = place.view === "pool" ? place.name : null;
  const heading = h("h1", { tabindex: "-1" }, only ?? "Fleet");
  const add = h("button", { type: "button", onclick: () => register(add, only ?? undefined) }, icon(PLUS), "Register");
  const gone = h("p", { class: "card empty", hidden: true }, "There is no such pool. ", h("a", { href: link("fleet") }, "All pools"));
  return {
    title: only ?? "Fleet",
    heading,
    element: h("div", { class: "view" }, only ? h("p", { class: "back" }, h("a", { href: link("fleet") }, "Fleet")) : null, h("div", { class: "view-head" }, h("div", {}, heading, summary), add), list, gone),
    update({ fleet, series }) {
      if (!fleet) return;
      const shown = only === null ? fleet.pools : fleet.pools.filter((pool) => pool.name === only);
      const names = new Set(shown.map(({ name }) => name));
      const members = fleet.endpoints.filter((endpoint) => names.has(endpoint.pool));
      const serving = members.filter((endpoint) => endpoint.state === "ready" && endpoint.ejected === 0).length;
      setText(summary, `${serving} of ${counted(members.length, "endpoint")} take traffic${only === null ? `, in ${counted(shown.length, "pool")}` : ""}`);
      pools(shown, ({ name }) => name, { fleet, series });
      show(gone, shown.length === 0 && only !== null);
    },
  };
}
