// Keeps the state live by server-sent events, and says so when it is not. Samples for sparklines are fetched as they fall due.

import * as api from "./api.js";
import { changed, forget, state, takeFleet, takeSeries } from "./state.js";

/** The prober sends something every 5 s at least; later than this, what is shown is old. */
const SILENCE_MS = 8_000;
/** A stream that was refused is asked for again after so long. */
const AGAIN_MS = 2_000;
const SAMPLES_MS = 5_000;

let stream = null;
let again = null;
let timers = [];
let lastMs = 0;

function become(connection) {
  if (state.connection === connection) return;
  state.connection = connection;
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

/** Begins; `onGone` is called when the session has ended. */
export function start(onGone) {
  stop();
  const open = () => {
    stream?.close();
    const mine = new EventSource("/v1/events");
    stream = mine;
    mine.addEventListener("fleet", (event) => {
      lastMs = Date.now();
      takeFleet(JSON.parse(event.data));
      become("live");
    });
    mine.addEventListener("error", async () => {
      become(state.fleet ? "lost" : "connecting");
      // A connection that breaks is made again by the browser, one that is refused is not.
      if (mine.readyState !== EventSource.CLOSED) return;
      const over = await sessionIsOver();
      if (mine !== stream) return;
      if (over) onGone();
      else again = setTimeout(open, AGAIN_MS);
    });
  };
  open();
  timers = [setInterval(() => {
    if (state.connection === "live" && Date.now() - lastMs > SILENCE_MS) become("lost");
    // Ages are part of what is shown.
    changed();
  }, 1_000), setInterval(fetchSamples, SAMPLES_MS)];
  fetchSamples();
}

/** Ends, and forgets what was shown. */
export function stop() {
  stream?.close();
  stream = null;
  clearTimeout(again);
  for (const timer of timers) clearInterval(timer);
  timers = [];
  forget();
}
