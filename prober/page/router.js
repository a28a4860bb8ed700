// Where one is on the page, as the part of the address after `#`: `/`, `/pool/NAME`, `/endpoint/ID`, `/decisions?...`, `/envoys`,
// `/alarms`.

const VIEWS = new Set(["fleet", "pool", "endpoint", "decisions", "envoys", "alarms"]);

/** `{view, name, query}` of a hash; an unknown one is the fleet. */
export function parse(hash) {
  const [path, query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [first, second = ""] = path.split("/");
  const view = VIEWS.has(first) ? first : "fleet";
  let name = "";
  try {
    name = decodeURIComponent(second);
  } catch {
    // A broken escape names nothing.
  }
  return { view, name, query: Object.fromEntries(new URLSearchParams(query)) };
}

/** The hash of a place. */
export function link(view, name = "", query = {}) {
  const search = new URLSearchParams(Object.entries(query).filter(([, value]) => value !== "")).toString();
  const path = view === "fleet" ? "" : name === "" ? view : `${view}/${encodeURIComponent(name)}`;
  return `#/${path}${search === "" ? "" : `?${search}`}`;
}
