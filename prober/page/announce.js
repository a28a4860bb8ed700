// What changes, said: to screen readers through the page's one live region, to others as a note in the corner.

import { h } from "./dom.js";
import { plain } from "./format.js";

const NOTE_MS = 5_000;
/** More than this at once would be noise. */
const AT_ONCE = 3;

/** To screen readers only. */
export function say(text) {
  document.getElementById("said").textContent = text;
}

/** To everybody. */
export function note(text) {
  say(text);
  const toast = h("p", { class: "toast" }, text);
  document.getElementById("toasts").append(toast);
  setTimeout(() => toast.remove(), NOTE_MS);
}

/** Its words may change while it lasts. */
const alarmKey = ({ code, subject }) => `${code} ${subject.id ?? ""}`;

/** What is worth saying between two documents of the fleet, as sentences. */
export function changes(before, after) {
  if (before === null) return [];
  const told = [];
  const were = new Map(before.endpoints.map((endpoint) => [endpoint.id, endpoint]));
  for (const endpoint of after.endpoints) {
    const was = were.get(endpoint.id);
    were.delete(endpoint.id);
    if (was === undefined) told.push(`${endpoint.id} has joined ${endpoint.pool}.`);
    else if (was.state !== endpoint.state) told.push(`${endpoint.id} is ${plain(endpoint.state)}.`);
    else if (was.ejected === 0 && endpoint.ejected > 0) told.push(`${endpoint.id} is ejected.`);
  }
  for (const id of were.keys()) told.push(`${id} is gone.`);
  const known = new Set(before.alarms.map(alarmKey));
  for (const alarm of after.alarms) if (!known.has(alarmKey(alarm))) told.push(`Alarm: ${alarm.message}.`);
  return told;
}

/** Says them. */
export function sayChanges(before, after) {
  const told = changes(before, after);
  if (told.length > AT_ONCE) say(`${told.length} changes in the fleet.`);
  else if (told.length > 0) say(told.join(" "));
}
