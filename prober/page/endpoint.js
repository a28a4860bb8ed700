// One endpoint: what it is, how it was measured, what it does.

import * as api from "./api.js";
import { actionsFor } from "./actions.js";
import { burstSteps } from "./burst.js";
import { curvePlot } from "./curve.js";
import { h, keyed, replace, setAttribute, setText, show } from "./dom.js";
import { ago, count, moment, percent, plain, rate, span, tokens, weight } from "./format.js";
import { historyPlot } from "./history.js";
import { flightMeter, weightMeter, weightTop } from "./meters.js";
import { link } from "./router.js";
import { largest, sparkline } from "./spark.js";
import { findEndpoint, now } from "./state.js";
import { statusLine } from "./status.js";

/** Points that serving adds to the curve come slowly. */
const LOOK_MS = 15_000;

/** Terms with figures that stay where they are; `rows` are `[term, text]`. */
function facts(title) {
  const list = h("dl", { class: "facts" });
  const update = keyed(list, ([term]) => {
    const text = h("dd", {});
    return { element: h("div", {}, h("dt", {}, term), text), update: ([, value]) => setText(text, value) };
  });
  return { element: h("section", { class: "card" }, h("div", { class: "card-head" }, h("h2", {}, title)), list), update: (rows) => update(rows, ([term]) => term) };
}

function tile(title, ...children) {
  return h("div", { class: "tile" }, h("h2", {}, title), children);
}

function sparkTile(title, kind) {
  const [figure, line] = [h("span", { class: "figure large" }), sparkline(kind)];
  return { element: tile(title, h("div", { class: "with-spark" }, figure, line.element)), figure, line };
}

function tiles() {
  const [weighed, flight] = [weightMeter(), flightMeter()];
  const measured = h("span", { class: "figure large" });
  const when = h("p", { class: "muted" });
  const [ttft, output] = [sparkTile("First token", "ttft"), sparkTile("Output now", "output")];
  const cap = h("p", { class: "muted" });
  return {
    element: h(
      "div",
      { class: "tiles" },
      tile("Weight", weighed.element),
      tile("Measured", measured, when),
      tile("In flight", flight.element, cap),
      ttft.element,
      output.element,
    ),
    update(endpoint, { fleet, series }) {
      weighed.update(endpoint, weightTop(fleet.endpoints.filter((other) => other.pool === endpoint.pool)));
      setText(measured, endpoint.throughput_tps === null ? "–" : `${rate(endpoint.throughput_tps)} tok/s`);
      setText(when, endpoint.measured_at ? ago(now() - Date.parse(endpoint.measured_at)) : "not measured");
      flight.update(endpoint.in_flight, endpoint.max_in_flight);
      setText(cap, { weight: "cap by weight", measured: "measured cap", hand: "cap set by hand" }[endpoint.cap_source] ?? endpoint.cap_source);
      const samples = series.endpoints.get(endpoint.id);
      setText(ttft.figure, span(endpoint.signals.averages.ttft_ms));
      ttft.line.update(samples, "ttft_ms", { nowMs: now(), top: largest([samples?.ttft_ms]), words: "Time to the first token", format: span });
      const last = samples?.tps?.at(-1);
      setText(output.figure, typeof last === "number" ? `${rate(last)} tok/s` : "–");
      output.line.update(samples, "tps", { nowMs: now(), top: largest([samples?.tps]), words: "Tokens per second", format: rate });
    },
  };
}

function signals({ signals: of }) {
  const { averages } = of;
  return [
    ["Engine", of.brand ?? "unknown"],
    ["Running", count(of.running)],
    ["Waiting in the engine", count(of.waiting)],
    ["Envoys have in flight", count(of.in_flight)],
    ["From outside", count(of.outside)],
    ["KV cache in use", percent(of.kv_usage)],
    ["GPU in use", percent(of.gpu_usage)],
    ["Prefix hits", percent(of.prefix_hit_rate)],
    ["First token, average", span(averages.ttft_ms)],
    ["Whole answer, average", span(averages.e2e_ms)],
    ["One request, average", averages.tps === null ? "–" : `${rate(averages.tps)} tok/s`],
    ["Failures, average", percent(averages.error_rate)],
    ["Age of the figures", of.age_ms === null ? "–" : `${span(of.age_ms)}${of.stale ? ", stale" : ""}`],
    ...(of.error ? [["Last scrape", of.error]] : []),
    ...(of.gpu_error ? [["GPU exporter", of.gpu_error]] : []),
  ];
}

function identity(endpoint) {
  const { health, pin, drain, removal } = endpoint;
  return [
    ["Address", `${endpoint.address}${endpoint.tls ? ", TLS" : ""}${endpoint.api_key ? ", with a key" : ""}`],
    ["Node", endpoint.node],
    ["Launch arguments", endpoint.launch_args ?? "–"],
    ["Context window", endpoint.context_window === null ? "–" : `${count(endpoint.context_window)} tokens`],
    ["KV cache", endpoint.kv_tokens === null ? "–" : `${count(endpoint.kv_tokens)} tokens`],
    ["Prefill", endpoint.prefill_tps === null ? "–" : `${rate(endpoint.prefill_tps)} tok/s`],
    ["Health", health.last_error ?? (health.healthy ? (health.checked ? "healthy" : "not checked yet") : "unhealthy")],
    ["Last token seen", health.last_token ? ago(now() - Date.parse(health.last_token)) : "–"],
    ["Named by", endpoint.origin === "file" ? "the configuration file" : "registration over the API"],
    ...(pin ? [["Pin", `${weight(pin.weight)} since ${moment(pin.since)}${pin.reason ? `: ${pin.reason}` : ""}`]] : []),
    ...(drain ? [["Drain", `${plain(drain.state)} since ${moment(drain.since)}${drain.reason ? `: ${drain.reason}` : ""}`]] : []),
    ...(removal ? [["Removal", `${plain(removal.state)} since ${moment(removal.since)}: ${removal.reason}`]] : []),
  ];
}

/** The buttons; made anew only when other actions apply, so that the focus stays. */
function actionBar() {
  const element = h("div", { class: "actions" });
  let labels = "";
  let present = null;
  return {
    element,
    update(endpoint) {
      present = endpoint;
      const list = actionsFor(endpoint);
      const next = list.map(({ label }) => label).join();
      if (next === labels) return;
      labels = next;
      const focused = element.contains(document.activeElement) ? document.activeElement.textContent : null;
      replace(
        element,
        list.map(({ label, danger }) => {
          const act = () => actionsFor(present).find((other) => other.label === label)?.action(button);
          const button = h("button", { type: "button", class: danger ? "danger" : null, onclick: act }, label);
          return button;
        }),
      );
      const again = [...element.children].find((button) => button.textContent === focused);
      if (focused !== null) (again ?? element.firstElementChild)?.focus();
    },
  };
}

/** The view. */
export function endpointView({ name: id }) {
  const heading = h("h1", { tabindex: "-1" }, id);
  const pool = h("a", {});
  const [status, actions, steps, figures] = [statusLine(), actionBar(), burstSteps(), tiles()];
  const alarm = h("p", { class: "card alarm", hidden: true });
  const [history, curve] = [historyPlot(), curvePlot()];
  const [told, about] = [facts("Signals"), facts("About")];
  const slow = h("a", { href: link("decisions", "", { endpoint: id }) }, "Why was a request slow here?");
  const gone = h("p", { class: "card empty", hidden: true }, "There is no such endpoint. ", h("a", { href: link("fleet") }, "All endpoints"));
  const failed = h("p", { class: "error", hidden: true });
  const body = h("div", { class: "stack" }, alarm, steps.element, figures.element, failed, h("div", { class: "two" }, h("section", { class: "card" }, history.element), h("section", { class: "card" }, curve.element)), h("div", { class: "two" }, told.element, about.element));
  let fetched = "";
  let fetchedMs = 0;
  let busy = false;
  const fetchFull = async (endpoint) => {
    // A probe that ends, well or not, changes one of these.
    const mark = `${endpoint.measured_at} ${endpoint.burst !== null} ${endpoint.alarm} ${endpoint.max_in_flight}`;
    if (busy || (mark === fetched && Date.now() - fetchedMs < LOOK_MS)) return;
    busy = true;
    try {
      const full = await api.inFull(id);
      [fetched, fetchedMs] = [mark, Date.now()];
      history.update(full.history ?? []);
      curve.update(full);
      show(failed, false);
    } catch (error) {
      fetchedMs = Date.now();
      fetched = mark;
      setText(failed, `History and curve: ${error.message}`);
      show(failed, true);
    } finally {
      busy = false;
    }
  };
  return {
    title: id,
    heading,
    element: h(
      "div",
      { class: "view" },
      h("p", { class: "back" }, h("a", { href: link("fleet") }, "Fleet"), h("span", { "aria-hidden": "true" }, " / "), pool),
      h("div", { class: "view-head" }, h("div", {}, heading, h("div", { class: "under" }, status.element, slow)), actions.element),
      body,
      gone,
    ),
    update(state) {
      if (!state.fleet) return;
      const endpoint = findEndpoint(id);
      show(gone, endpoint === null);
      for (const part of [body, actions.element, status.element, pool, slow]) show(part, endpoint !== null);
      if (endpoint === null) return;
      setText(pool, endpoint.pool);
      setAttribute(pool, "href", link("pool", endpoint.pool));
      status.update(endpoint);
      actions.update(endpoint);
      steps.update(endpoint);
      figures.update(endpoint, state);
      setText(alarm, endpoint.alarm ?? "");
      show(alarm, Boolean(endpoint.alarm));
      told.update(signals(endpoint));
      about.update(identity(endpoint));
      fetchFull(endpoint);
    },
    leave() {
      history.leave();
      curve.leave();
    },
  };
}
