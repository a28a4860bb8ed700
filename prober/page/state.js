// What the page knows, in one place. Views read it and are told when it changes, at most once per frame.

/** How far back sparklines go. */
const KEEP_MS = 15 * 60_000;

export const state = {
  /** `connecting`, `live` or `lost` */
  connection: "connecting",
  /** Why the prober gives this page no stream, in its words; null as long as it does. */
  refusal: null,
  /** The document of GET /v1/fleet, once one has come. */
  fleet: null,
  /** When it came, by this machine's clock. */
  receivedMs: 0,
  /** The prober's clock less ours. */
  skewMs: 0,
  /** Samples per endpoint and per pool: `{at_ms: [...], <figure>: [...]}`. */
  series: { endpoints: new Map(), pools: new Map(), latestMs: 0 },
};

const watchers = new Set();
let asked = false;

/** Calls back after changes; the answer ends that. */
export function watch(callback) {
  watchers.add(callback);
  return () => watchers.delete(callback);
}

export function changed() {
  if (asked) return;
  asked = true;
  requestAnimationFrame(() => {
    asked = false;
    for (const callback of watchers) callback(state);
  });
}

/** The prober's time, in ms. */
export const now = () => Date.now() + state.skewMs;

export function takeFleet(fleet) {
  state.fleet = fleet;
  state.receivedMs = Date.now();
  state.skewMs = fleet.now_ms - state.receivedMs;
  changed();
}

function append(known, samples, oldestMs) {
  if (known === undefined) return samples;
  const last = known.at_ms.at(-1) ?? 0;
  const from = samples.at_ms.findIndex((at) => at > last);
  const first = known.at_ms.findIndex((at) => at >= oldestMs);
  const joined = {};
  for (const figure of Object.keys(samples)) {
    const kept = first < 0 ? [] : (known[figure] ?? []).slice(first);
    joined[figure] = kept.concat(from < 0 ? [] : samples[figure].slice(from));
  }
  return joined;
}

export function takeSeries(answer) {
  const { series } = state;
  const oldestMs = now() - KEEP_MS;
  for (const kind of ["endpoints", "pools"]) {
    for (const [name, samples] of Object.entries(answer[kind] ?? {})) {
      series[kind].set(name, append(series[kind].get(name), samples, oldestMs));
      series.latestMs = Math.max(series.latestMs, samples.at_ms.at(-1) ?? 0);
    }
    for (const name of series[kind].keys()) if (!(name in (answer[kind] ?? {}))) series[kind].delete(name);
  }
  changed();
}

/** Forgets everything: nobody is signed in. */
export function forget() {
  state.fleet = null;
  state.connection = "connecting";
  state.refusal = null;
  state.series = { endpoints: new Map(), pools: new Map(), latestMs: 0 };
  changed();
}

export const findEndpoint = (id) => state.fleet?.endpoints.find((endpoint) => endpoint.id === id) ?? null;
export const findPool = (name) => state.fleet?.pools.find((pool) => pool.name === name) ?? null;
