"""Puts the drop-ins onto a skeleton as the control planes would: istiod an EnvoyFilter, Envoy Gateway its policies.

Only what the drop-ins use is here; anything else is an error, and so is a patch that meets nothing: a control plane would pass
over it without a word.
"""

import copy
import re

import yaml


def merge(into: dict, value: dict) -> None:
    """As protobuf merges messages: fields one by one, lists one after the other. An Any only with its own type."""
    if "@type" in into and "@type" in value:
        assert into["@type"] == value["@type"], f"{value['@type']} cannot be merged into {into['@type']}"
    for key, new in value.items():
        if isinstance(new, dict) and isinstance(into.get(key), dict):
            merge(into[key], new)
        elif isinstance(new, list):
            into[key] = into.get(key, []) + copy.deepcopy(new)
        else:
            into[key] = copy.deepcopy(new)


def _only(match: dict, allowed: set[str]) -> dict:
    assert set(match) <= allowed, f"a match that this test does not know: {match}"
    return match


def _managers(state: dict, match: dict):
    """The filters of listeners, and of each the chain that it is in, that an EnvoyFilter's listener match means."""
    listener = _only(match.get("listener", {}), {"filterChain"})
    wanted = _only(listener.get("filterChain", {}), {"filter"}).get("filter", {})
    _only(wanted, {"name", "subFilter"})
    for each in state["listeners"]:
        for chain in each["filter_chains"]:
            yield from (found for found in chain["filters"] if found["name"] == wanted.get("name", found["name"]))


def _hosts(state: dict, match: dict):
    wanted = _only(match.get("routeConfiguration", {}), {"vhost"}).get("vhost", {})
    _only(wanted, {"name"})
    for routes in state["routes"]:
        yield from (host for host in routes["virtual_hosts"] if host["name"] == wanted.get("name", host["name"]))


def _network_filter(state, match, operation, value):
    assert operation == "MERGE"
    met = list(_managers(state, match))
    for found in met:
        merge(found, value)
    return len(met)


def _http_filter(state, match, operation, value):
    name = match["listener"]["filterChain"]["filter"]["subFilter"]["name"]
    met = 0
    for manager in _managers(state, match):
        filters = manager["typed_config"]["http_filters"]
        for at in [at for at, found in enumerate(filters) if found["name"] == name]:
            met += 1
            if operation == "MERGE":
                merge(filters[at], value)
            else:
                assert operation == "INSERT_BEFORE"
                filters.insert(at, copy.deepcopy(value))
    return met


def _virtual_host(state, match, operation, value):
    assert operation == "MERGE"
    met = list(_hosts(state, match))
    for host in met:
        merge(host, value)
    return len(met)


def _http_route(state, match, operation, value):
    assert operation == "INSERT_FIRST"
    met = list(_hosts(state, match))
    for host in met:
        host["routes"] = [copy.deepcopy(value)] + host["routes"]
    return len(met)


def _cluster(state, match, operation, value):
    assert operation == "ADD" and set(match) == {"context"}
    state["clusters"].append(copy.deepcopy(value))
    return 1


def _bootstrap(state, match, operation, value):
    assert operation == "MERGE" and not match
    merge(state["bootstrap"], value)
    return 1


_APPLY_TO = {
    "BOOTSTRAP": _bootstrap,
    "NETWORK_FILTER": _network_filter,
    "HTTP_FILTER": _http_filter,
    "VIRTUAL_HOST": _virtual_host,
    "HTTP_ROUTE": _http_route,
    "CLUSTER": _cluster,
}
# istiod goes from the outside in, and merges into HTTP filters when all of them are inserted.
_ORDER = list(_APPLY_TO)


def istio(skeleton: dict, envoy_filter: dict) -> dict:
    """The skeleton with an EnvoyFilter's patches applied."""
    state = copy.deepcopy(skeleton)
    patches = envoy_filter["spec"]["configPatches"]
    for patch in sorted(patches, key=lambda patch: _ORDER.index(patch["applyTo"])):
        match = patch.get("match", {})
        assert match.get("context", "GATEWAY") == "GATEWAY"
        met = _APPLY_TO[patch["applyTo"]](state, match, patch["patch"]["operation"], patch["patch"]["value"])
        assert met, f"{patch['applyTo']} {patch['patch']['operation']} meets nothing: {match}"
    return state


# --- Envoy Gateway

_STEP = re.compile(r"(\.\.?)(\w+)(?:\[\?\(@\.(\w+)(?:\[(\d+)\])?=='([^']*)'\)\])?")


def pointers(document, path: str) -> list[list]:
    """Where a JSONPath leads: `.field`, `..field` and `[?(@.field=='x')]` (or the field's nth element), nothing else."""
    found, rest = [([], document)], path.removeprefix("$")
    while rest:
        step = _STEP.match(rest)
        assert step, f"a JSONPath that this test does not know: {path}"
        depth, field, key, index, wanted = step.groups()
        rest = rest[step.end() :]
        nodes = [node for each in found for node in (_all(*each) if depth == ".." else [each])]
        found = [(at + [field], node[field]) for at, node in nodes if isinstance(node, dict) and field in node]
        if key:
            elements = [
                (at + [n], item) for at, items in found if isinstance(items, list) for n, item in enumerate(items)
            ]

            def meant(item):
                value = item.get(key) if isinstance(item, dict) else None
                return (value[int(index)] if index and value else value) == wanted

            found = [(at, item) for at, item in elements if meant(item)]
    return [at for at, _ in found]


def _all(at, node):
    yield at, node
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield from _all(at + [key], child)


def _add(document, at: list, value) -> None:
    """RFC 6902 `add`, with objects and lists on the way made where they are missing, as Envoy Gateway does."""
    for step, after in zip(at, at[1:], strict=False):
        document = document[step] if isinstance(document, list) else document.setdefault(step, [] if after == 0 else {})
    if isinstance(document, list):
        document.insert(int(at[-1]), copy.deepcopy(value))
    else:
        document[at[-1]] = copy.deepcopy(value)


_KINDS = {
    "type.googleapis.com/envoy.config.listener.v3.Listener": "listeners",
    "type.googleapis.com/envoy.config.route.v3.RouteConfiguration": "routes",
    "type.googleapis.com/envoy.config.cluster.v3.Cluster": "clusters",
}


def _json_patch(state: dict, patch: dict) -> None:
    operation, resources = patch["operation"], state[_KINDS[patch["type"]]]
    assert operation["op"] == "add"
    if operation.get("path") == "" and "jsonPath" not in operation:
        assert operation["value"]["name"] == patch["name"]
        resources.append(copy.deepcopy(operation["value"]))
        return
    met = 0
    for resource in (each for each in resources if each["name"] == patch["name"]):
        starts = pointers(resource, operation["jsonPath"]) if "jsonPath" in operation else [[]]
        tail = [int(step) if step.isdigit() else step for step in operation.get("path", "").split("/")[1:]]
        for start in starts:
            _add(resource, start + tail, operation["value"])
            met += 1
    assert met, f"a patch of {patch['name']} meets nothing: {operation.get('jsonPath')} {operation.get('path')}"


def envoy_gateway(skeleton: dict, documents: list[dict]) -> dict:
    """The skeleton with an EnvoyProxy's bootstrap, a ClientTrafficPolicy's early headers and an EnvoyPatchPolicy applied."""
    state, kinds = copy.deepcopy(skeleton), {document["kind"]: document["spec"] for document in documents}
    bootstrap = kinds["EnvoyProxy"]["bootstrap"]
    assert bootstrap["type"] == "Merge"
    merge(state["bootstrap"], yaml.safe_load(bootstrap["value"]))
    headers = kinds["ClientTrafficPolicy"]["headers"]
    assert set(headers) == {"earlyRequestHeaders"} and set(headers["earlyRequestHeaders"]) == {"remove"}
    mutation = {
        "name": "envoy.http.early_header_mutation.header_mutation",
        "typed_config": {
            "@type": "type.googleapis.com/envoy.extensions.http.early_header_mutation.header_mutation.v3.HeaderMutation",
            "mutations": [{"remove": name} for name in headers["earlyRequestHeaders"]["remove"]],
        },
    }
    for listener in state["listeners"]:
        manager = listener["default_filter_chain"]["filters"][0]["typed_config"]
        manager["early_header_mutation_extensions"] = [mutation]
    for patch in kinds["EnvoyPatchPolicy"]["jsonPatches"]:
        _json_patch(state, patch)
    return state
