// Figures, times and words as people read them. What is not known is a dash, never a zero.

const UNKNOWN = "–";
const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en", { minimumFractionDigits: 1, maximumFractionDigits: 1 });
const clockFormat = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const dayFormat = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short" });

const known = (value) => typeof value === "number" && Number.isFinite(value);

/** A count. */
export function count(value) {
  return known(value) ? whole.format(value) : UNKNOWN;
}

/** "1 request", "2 requests". */
export function counted(value, noun) {
  return `${count(value)} ${noun}${value === 1 ? "" : "s"}`;
}

/** A rate, in tokens per second: a tenth matters below 100 only. */
export function rate(value) {
  if (!known(value)) return UNKNOWN;
  return value < 99.95 ? tenth.format(value) : whole.format(value);
}

/** A weight or a load: two places. */
export function weight(value) {
  return known(value) ? value.toFixed(2) : UNKNOWN;
}

/** A share, 0 to 1. */
export function percent(value) {
  if (!known(value)) return UNKNOWN;
  return `${value > 0 && value < 0.0995 ? tenth.format(value * 100) : whole.format(value * 100)} %`;
}

/** A span, given in ms. */
export function span(ms) {
  if (!known(ms)) return UNKNOWN;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 10_000) return `${(ms / 1000).toFixed(2)} s`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const seconds = Math.round(ms / 1000);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 2880) return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
  return `${Math.round(minutes / 1440)} days`;
}

/** How long ago, in the largest unit only. */
export function ago(ms) {
  if (!known(ms)) return UNKNOWN;
  const seconds = Math.max(0, Math.round(ms / 1000));
  if (seconds < 2) return "now";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.round(seconds / 3600)} h ago`;
  return `${Math.round(seconds / 86_400)} days ago`;
}

/** Tokens of a context window: 65,536 is 64k. */
export function tokens(value) {
  if (!known(value)) return UNKNOWN;
  if (value < 1000) return String(value);
  if (value >= 1 << 20 && value % (1 << 20) === 0) return `${value / (1 << 20)}M`;
  return value % 1024 === 0 ? `${value / 1024}k` : `${Math.round(value / 1000)}k`;
}

/** A moment: the time of day, with the day when that is not today. Takes ms or RFC 3339. */
export function moment(when, now = Date.now()) {
  const time = new Date(when);
  if (Number.isNaN(time.getTime())) return UNKNOWN;
  const sameDay = new Date(now).toDateString() === time.toDateString();
  return sameDay ? clockFormat.format(time) : `${dayFormat.format(time)} ${clockFormat.format(time)}`;
}

/** A word of the API as a person writes it: `at_cap` is "at cap". */
export function plain(word) {
  return typeof word === "string" ? word.replaceAll("_", " ") : UNKNOWN;
}

/** The first letter large. */
export function capital(text) {
  return text.charAt(0).toUpperCase() + text.slice(1);
}
