// Keeps the state live by server-sent events, and says so when it is not. Samples for sparklines are fetched as they fall due.

import * as api from "./api.js";
import { changed, forget, state, takeFleet, takeSeries } from "./state.js";

/** The prober sends something every 5 s at least; later than this, what is shown is old and the stream is opened anew. */
const SILENCE_MS = 8_000;
/** A stream that was refused is asked for again after so long. */
const AGAIN_MS = 2_000;
/** A page that nobody sees gives its stream back after so long: browsers have six connections to a host, and the prober counts. */
const HIDDEN_MS = 30_000;
const SAMPLES_MS = 5_000;

let stream = null;
let again = null;
let hidden = null;
let timers = [];
let gone = null;
/** When something was last heard, or the stream was opened. */
let heardMs = 0;
/** How long silence may last now: each page its own, so that they do not all come at once. */
let patienceMs = 0;

function become(connection, refusal = null) {
  if (state.connection === connection && state.refusal === refusal) return;
  state.connection = connection;
  state.refusal = refusal;
  changed();
}

/** A refused stream tells no status: whether the session is over has to be asked. */
async function sessionIsOver() {
  try {
    const { required, signed_in } = await api.session();
    return required && !signed_in;
  } catch {
    // Not reachable is not signed out.
    return false;
  }
}

async function fetchSamples() {
  if (document.hidden) return;
  try {
    takeSeries(await api.series(state.series.latestMs));
  } catch {
    // The next look fetches what this one missed; the stream says whether the prober is there.
  }
}

function open() {
  clearTimeout(again);
  stream?.close();
  const mine = new EventSource("/v1/events");
  stream = mine;
  heardMs = Date.now();
  patienceMs = SILENCE_MS * (1 + Math.random() / 4);
  mine.addEventListener("fleet", (event) => {
    heardMs = Date.now();
    takeFleet(JSON.parse(event.data));
    become("live");
  });
  mine.addEventListener("error", async () => {
    const refused = mine.readyState === EventSource.CLOSED;
    become(state.fleet ? "lost" : "connecting", refused ? state.refusal : null);
    // A connection that breaks is made again by the browser, one that is refused is not.
    if (!refused) return;
    const over = await sessionIsOver();
    if (mine !== stream) return;
    if (over) {
      gone();
      return;
    }
    const refusal = await api.refusalOfEvents();
    if (mine !== stream) return;
    become(state.connection, refusal);
    again = setTimeout(open, AGAIN_MS);
  });
}

function close() {
  clearTimeout(again);
  stream?.close();
  stream = null;
}

const isSilent = () => Date.now() - heardMs > patienceMs;

/** A connection may be dead without anybody being told: whatever was in between has forgotten it. */
function look() {
  if (stream !== null && isSilent()) {
    if (state.connection === "live") become("lost");
    open();
  }
  // Ages are part of what is shown.
  changed();
}

function seen() {
  clearTimeout(hidden);
  if (document.hidden) {
    hidden = setTimeout(close, HIDDEN_MS);
    return;
  }
  if (stream === null) {
    // What is shown is of when the page was left.
    become("connecting");
    open();
  } else look();
  fetchSamples();
}

/** The network is back: what was open before it went may never be heard of again. */
function online() {
  if (stream !== null) open();
}

/** Begins; `onGone` is called when the session has ended. */
export function start(onGone) {
  stop();
  gone = onGone;
  document.addEventListener("visibilitychange", seen);
  addEventListener("online", online);
  open();
  if (document.hidden) seen();
  timers = [setInterval(look, 1_000), setInterval(fetchSamples, SAMPLES_MS)];
  fetchSamples();
}

/** Ends, and forgets what was shown. */
export function stop() {
  close();
  document.removeEventListener("visibilitychange", seen);
  removeEventListener("online", online);
  clearTimeout(hidden);
  for (const timer of timers) clearInterval(timer);
  timers = [];
  forget();
}
