// The page: signs in where that is needed, shows the view that the address names, and keeps it live.

import * as api from "./api.js";
import { sayChanges } from "./announce.js";
import { alarmsView } from "./alarms.js";
import { decisionsView } from "./decisions.js";
import { isSeen, replace } from "./dom.js";
import { endpointView } from "./endpoint.js";
import { envoysView } from "./envoys.js";
import { fleetView } from "./fleet.js";
import * as live from "./live.js";
import { loginView } from "./login.js";
import { parse } from "./router.js";
import { shell } from "./shell.js";
import { state, watch } from "./state.js";

const VIEWS = { fleet: fleetView, pool: fleetView, endpoint: endpointView, decisions: decisionsView, envoys: envoysView, alarms: alarmsView };
const RETRY_MS = 2_000;

const root = document.getElementById("app");
let frame = null;
let view = null;
let seen = null;

function leave() {
  view?.leave?.();
  view = null;
}

/** What they ask about is of a place that is left. */
function closeDialogs() {
  for (const dialog of document.querySelectorAll("dialog")) dialog.close();
}

/** Shows the view of the address; the focus goes to its heading, so that a screen reader begins there. */
function show(first) {
  if (!frame) return;
  const place = parse(location.hash);
  leave();
  closeDialogs();
  view = VIEWS[place.view](place);
  frame.at(place.view);
  replace(frame.main, view.element);
  document.title = `${view.title} · Weighbridge`;
  frame.update(state);
  view.update(state);
  if (first) return;
  view.heading.focus({ preventScroll: true });
  scrollTo(0, 0);
}

function signedIn() {
  frame = shell(async () => {
    // Whatever the prober says, this page shows nothing any more.
    await api.signOut().catch(() => null);
    signedOut();
  });
  replace(root, frame.element);
  live.start(signedOut);
  show(true);
}

function signedOut() {
  if (!frame && root.childElementCount > 0) return;
  live.stop();
  leave();
  frame = null;
  seen = null;
  closeDialogs();
  document.title = "Sign in · Weighbridge";
  const login = loginView(signedIn);
  replace(root, login.element);
  login.focus();
}

async function begin() {
  try {
    const { required, signed_in } = await api.session();
    if (required && !signed_in) signedOut();
    else signedIn();
  } catch {
    setTimeout(begin, RETRY_MS);
  }
}

api.onSignedOut(signedOut);
watch(() => {
  if (!frame) return;
  if (state.fleet && state.fleet !== seen) {
    sayChanges(seen, state.fleet);
    seen = state.fleet;
  }
  frame.update(state);
  const at = frame.main.contains(document.activeElement) ? document.activeElement : null;
  view?.update(state);
  // What had the focus has gone: without this, whoever goes by keyboard would begin at the top of the page.
  if (at !== null && !isSeen(at)) view?.heading.focus({ preventScroll: true });
});
addEventListener("hashchange", () => show(false));
// The skip link is no place of the page: it moves the focus only.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  document.getElementById("main")?.focus();
});
begin();
