// The prober's REST API. Every request says that it comes from this page, without which a session's cookie changes nothing.

/** An answer that is an error. `field` is the field that its message begins with, when it begins with one. */
export class ApiError extends Error {
  constructor(status, code, message) {
    super(message);
    this.status = status;
    this.code = code;
    this.field = /^([a-z_]+)(?: is |: |\b)/.exec(message)?.[1] ?? null;
  }
}

const signedOut = new Set();

/** Calls back when the API no longer knows us. */
export function onSignedOut(callback) {
  signedOut.add(callback);
}

async function call(method, path, body) {
  const headers = { "x-weighbridge-page": "1" };
  if (body !== undefined) headers["content-type"] = "application/json";
  let answer;
  try {
    answer = await fetch(path, { method, headers, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch {
    throw new ApiError(0, "unreachable", "The prober cannot be reached. Nothing was changed, as far as this page knows.");
  }
  const text = await answer.text();
  let value = null;
  try {
    value = text === "" ? null : JSON.parse(text);
  } catch {
    // An answer of something between here and the prober.
  }
  if (answer.ok) return { value, status: answer.status };
  if (answer.status === 401 && path !== "/v1/session") for (const callback of signedOut) callback();
  const error = value?.error;
  throw new ApiError(answer.status, error?.code ?? "unknown", error?.message ?? `The prober answered ${answer.status}.`);
}

const endpoint = (id) => `/v1/endpoints/${encodeURIComponent(id)}`;

/** `{required, signed_in}` */
export const session = async () => (await call("GET", "/v1/session")).value;
export const signIn = (token) => call("POST", "/v1/session", { token });
export const signOut = () => call("DELETE", "/v1/session");

/** Why the events are refused, in words; null when they are not. A browser does not tell a page what its EventSource was answered. */
export async function refusalOfEvents() {
  const ask = new AbortController();
  try {
    const answer = await fetch("/v1/events", { headers: { accept: "text/event-stream" }, signal: ask.signal });
    if (answer.ok) return null;
    return (await answer.json()).error?.message ?? null;
  } catch {
    return null;
  } finally {
    ask.abort();
  }
}
/** One endpoint with history and curve. */
export const inFull = async (id) => (await call("GET", endpoint(id))).value;
/** Samples later than `sinceMs`. */
export const series = async (sinceMs) => (await call("GET", `/v1/series?since_ms=${sinceMs}`)).value;
/** Decision records with their explanations; `search` has the API's own names. */
export const decisions = async (search) => {
  const query = new URLSearchParams(Object.entries(search).filter(([, value]) => value !== "" && value !== null));
  query.set("words", "true");
  return (await call("GET", `/v1/decisions?${query}`)).value;
};

// Changes. Status 202 of these means: in force, but not stored yet.
export const pin = (id, weight, reason) => call("PUT", `${endpoint(id)}/pin`, { weight, reason });
export const unpin = (id) => call("DELETE", `${endpoint(id)}/pin`);
export const drain = (id, body) => call("PUT", `${endpoint(id)}/drain`, body);
export const undrain = (id) => call("DELETE", `${endpoint(id)}/drain`);
export const probe = (id, force) => call("POST", `${endpoint(id)}/probe${force ? "?force=true" : ""}`);
export const register = (registration) => call("POST", "/v1/endpoints", registration);
export const remove = (id) => call("DELETE", endpoint(id));
