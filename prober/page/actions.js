// What people do to endpoints: each asks first, says what will happen, and tells what became of it (`act` answers that).

import * as api from "./api.js";
import { ask } from "./dialog.js";
import { weight } from "./format.js";
import { link } from "./router.js";
import { state } from "./state.js";

const REASON = { name: "reason", label: "Reason", optional: true, help: "For the next person who looks." };

/** In force is not stored: the API says which with its status. */
function done(text, { status }) {
  return status === 202 ? `${text} It is in force, but not stored yet: the store does not answer.` : text;
}

/** Those of the pool that take requests, this one left out. */
function others(endpoint) {
  return (state.fleet?.endpoints ?? []).filter(
    (other) => other.pool === endpoint.pool && other.id !== endpoint.id && other.state === "ready" && !other.ejected,
  );
}

function lastOne(endpoint) {
  const alone = endpoint.state === "ready" && others(endpoint).length === 0;
  return alone ? `Nobody else in ${endpoint.pool} takes requests: they will be refused with 503.` : null;
}

function pin(endpoint, opener) {
  ask({
    title: `Pin ${endpoint.id}`,
    text: `Its weight stays what you say until it is unpinned, whatever is measured. Now ${weight(endpoint.weight)}, ${endpoint.weight_source}; 1.0 is the pool's median.`,
    fields: [
      {
        name: "weight",
        label: "Weight",
        kind: "number",
        value: String(endpoint.pin?.weight ?? endpoint.weight),
        help: "0.01 to 100. The cap follows where it goes by weight.",
        expects: "a number from 0.01 to 100",
      },
      { ...REASON, value: endpoint.pin?.reason ?? "" },
    ],
    button: "Pin",
    opener,
    act: async (values) => done(`${endpoint.id} is pinned to ${values.weight}.`, await api.pin(endpoint.id, values.weight, values.reason)),
  });
}

function unpin(endpoint, opener) {
  ask({
    title: `Unpin ${endpoint.id}`,
    text: `It was pinned to ${weight(endpoint.pin.weight)}${endpoint.pin.reason ? `: ${endpoint.pin.reason}` : ""}. Its weight will be what was measured again.`,
    button: "Unpin",
    opener,
    act: async () => done(`${endpoint.id} is no longer pinned.`, await api.unpin(endpoint.id)),
  });
}

function probe(endpoint, opener) {
  ask({
    title: `Probe ${endpoint.id}`,
    text: "It takes no traffic while it is measured: two bursts of requests, a long prompt, and a sweep where the pool's caps are measured. The result replaces the one before.",
    warning: lastOne(endpoint) ? `Nobody else in ${endpoint.pool} takes requests, so it goes on serving meanwhile, and requests spoil the figures.` : null,
    fields: [
      {
        name: "force",
        label: "Do not wait until it is idle",
        kind: "check",
        help: "Requests under way make the figures worse; a result with requests of others in it is thrown away.",
      },
    ],
    button: "Probe",
    opener,
    act: async ({ force }) => done(`A probe of ${endpoint.id} has been asked for.`, { ...(await api.probe(endpoint.id, force)), status: 200 }),
  });
}

function drain(endpoint, opener) {
  ask({
    title: `Drain ${endpoint.id}`,
    text: "It gets no new requests; those under way finish. It stays drained until that is undone.",
    warning: lastOne(endpoint),
    fields: [
      REASON,
      {
        name: "deadline_s",
        label: "Deadline, seconds",
        kind: "number",
        optional: true,
        expects: "whole seconds, at most 604800",
        help: "When it is to be empty; after that an alarm says so. Left out: drain.deadline of the configuration.",
      },
    ],
    button: "Drain",
    opener,
    act: async ({ reason, deadline_s: deadline }) =>
      done(`${endpoint.id} is draining.`, await api.drain(endpoint.id, deadline === "" ? { reason } : { reason, deadline_s: deadline })),
  });
}

function undrain(endpoint, opener) {
  ask({
    title: `Undrain ${endpoint.id}`,
    text: `It takes requests again${endpoint.drain.reason ? `. It was drained: ${endpoint.drain.reason}` : ""}.`,
    button: "Undrain",
    opener,
    act: async () => done(`${endpoint.id} takes requests again.`, await api.undrain(endpoint.id)),
  });
}

function remove(endpoint, opener) {
  ask({
    title: `Remove ${endpoint.id}`,
    text: "It is drained, then forgotten with its pin. An engine that registers itself comes back when it does so again.",
    warning: lastOne(endpoint),
    button: "Remove",
    danger: true,
    opener,
    act: async () => done(`${endpoint.id} is being removed.`, { ...(await api.remove(endpoint.id)), status: 200 }),
  });
}

/** Registers an endpoint in one of the pools, which is looked at afterwards. */
export function register(opener, pool) {
  const pools = (state.fleet?.pools ?? []).map(({ name }) => name);
  ask({
    title: "Register an endpoint",
    text: "It joins the pool at once, and is probed before it takes its share.",
    fields: [
      { name: "pool", label: "Pool", options: pools, value: pool ?? pools[0] },
      { name: "id", label: "Id", help: "Letters, digits, _ and -; at most 64.", placeholder: "rtx6000" },
      { name: "address", label: "Address", help: "host:port of the engine.", placeholder: "10.0.1.10:8000" },
      { name: "node", label: "Node", optional: true, help: "The machine; the id when left out." },
      { name: "launch_args", label: "Launch arguments", optional: true, help: "Asked of the engine when left out." },
      { name: "context_window", label: "Context window, tokens", kind: "number", optional: true, expects: "a whole number of tokens", help: "Asked of the engine when left out." },
    ],
    button: "Register",
    opener,
    act: async (values) => {
      const given = Object.fromEntries(Object.entries(values).filter(([name, value]) => value !== "" || name === "id" || name === "address"));
      const told = done(`${values.id} is registered.`, await api.register(given));
      location.hash = link("endpoint", values.id);
      return told;
    },
  });
}

/** What may be done to it now: `{label, action(opener), danger}`. */
export function actionsFor(endpoint) {
  const action = (label, act, danger = false) => ({ label, danger, action: (opener) => act(endpoint, opener) });
  const list = [action(endpoint.pin ? "Change pin" : "Pin weight", pin)];
  if (endpoint.pin) list.push(action("Unpin", unpin));
  if (!endpoint.burst && !endpoint.asked) list.push(action("Probe", probe));
  list.push(endpoint.drain ? action("Undrain", undrain) : action("Drain", drain));
  // The configuration file would bring the others back.
  if (endpoint.origin === "api" && !endpoint.removal) list.push(action("Remove", remove, true));
  return list;
}
