"""The drop-ins of envoy/mesh: every patch put onto what the control plane generates, started in the real Envoy with a real prober."""

import json
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, eventually

sys.path.insert(0, str(Path(__file__).parent))
from mesh import manifests, patches  # noqa: E402
from mesh.fleet import MODULE_PATH, POOL, fleet, from_control_plane, here  # noqa: E402

MESH = ROOT / "envoy" / "mesh"
SKELETONS = Path(__file__).parent / "mesh"


def documents(path: Path) -> list[dict]:
    return list(yaml.safe_load_all(path.read_text()))


def rendered(name: str) -> dict:
    """What an Envoy of this mesh gets, with the places to change changed as their comments say."""
    # Through JSON, so that what the file says once and names twice is there twice.
    skeleton = json.loads(json.dumps(yaml.safe_load((SKELETONS / f"{name}-skeleton.yaml").read_text())))
    if name == "istio":
        (envoy_filter,) = yaml.safe_load_all(
            (MESH / "istio.yaml").read_text().replace("llm.example.com:443", "llm.example.com:80")
        )
        return patches.istio(skeleton, envoy_filter)
    return patches.envoy_gateway(skeleton, documents(MESH / "envoy-gateway.yaml"))


def test_the_manifests_are_what_their_definitions_allow():
    found = [document for name in ("istio", "envoy-gateway") for document in documents(MESH / f"{name}.yaml")]
    assert [document["kind"] for document in found] == [
        "EnvoyFilter",
        "EnvoyProxy",
        "ClientTrafficPolicy",
        "EnvoyPatchPolicy",
    ]
    for document in found:
        manifests.check(document)


def parts(state: dict) -> dict:
    """What a rendered Envoy has of ours, by the names that the snippet gives it."""
    (chain,) = [
        chain
        for each in state["listeners"]
        for chain in [*each.get("filter_chains", []), *filter(None, [each.get("default_filter_chain")])]
    ]
    manager = chain["filters"][0]["typed_config"]
    ours, router = manager["http_filters"][-2:]
    assert ours.pop("disabled") is True, "only the virtual host that names it uses it"
    host = next(host for host in state["routes"][0]["virtual_hosts"] if host["domains"] == ["llm.example.com"])
    others = [host for host in state["routes"][0]["virtual_hosts"] if host["domains"] != ["llm.example.com"]]
    assert all(len(host["routes"]) == 1 and "typed_per_filter_config" not in host for host in others)
    bootstrap = state["bootstrap"]
    probers = [each for each in bootstrap["static_resources"]["clusters"] if each["name"].startswith("weighbridge-")]
    return {
        "early_header_mutation_extensions": [
            mutation["typed_config"] for mutation in manager["early_header_mutation_extensions"]
        ],
        "http_filters": [ours],
        "upstream_log": router["typed_config"]["upstream_log"],
        "local_reply_mappers": manager["local_reply_config"]["mappers"],
        "routes": host["routes"][:-1],
        "clusters": probers + [each for each in state["clusters"] if each["name"] == POOL],
        "stats_tags": bootstrap["stats_config"]["stats_tags"][-4:],
        "histogram_bucket_settings": bootstrap["stats_config"]["histogram_bucket_settings"],
    }


@pytest.mark.parametrize("name", ["istio", "envoy-gateway"])
def test_they_say_what_the_snippet_says(name):
    """Where they differ from envoy-snippet.yaml it is in where things are, not in what they do."""
    snippet = yaml.safe_load((MESH / "envoy-snippet.yaml").read_text())
    del snippet["access_log"]  # your own format is yours
    snippet["early_header_mutation_extensions"] = [
        mutation["typed_config"] for mutation in snippet["early_header_mutation_extensions"]
    ]
    text = json.dumps(snippet).replace("dist/weighbridge.wasm", MODULE_PATH)
    snippet = json.loads(text)
    for cluster, host in zip(
        snippet["clusters"], ("weighbridge-prober", "weighbridge-prober-0.weighbridge-prober"), strict=False
    ):
        cluster |= {"type": "STRICT_DNS", "dns_lookup_family": "V4_PREFERRED"}
        address = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]["address"]["socket_address"]
        address["address"] = f"{host}.weighbridge.svc.cluster.local"
    assert parts(rendered(name)) == snippet


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet")) as started:
        yield started


def test_clusters_of_the_prober_that_come_over_cds_are_refused(running, tmp_path):
    """Why they are in the bootstrap, and that this test tells the two apart as a mesh does."""
    state = here(rendered("istio"), running)
    static = state["bootstrap"]["static_resources"]
    for cluster in [each for each in static["clusters"] if each["name"].startswith("weighbridge-")]:
        static["clusters"].remove(cluster)
        state["clusters"].append(cluster)
    with from_control_plane(tmp_path / "envoy", state) as started:
        refused = "must have a statically defined non-EDS cluster: 'weighbridge-xds'"
        eventually("the listener is refused", lambda: refused in started.log.read_text(), 20)
        with pytest.raises(ConnectionRefusedError):
            started.chat("llm.example.com")


@pytest.fixture(scope="module", params=["istio", "envoy-gateway"])
def gateway(request, running, tmp_path_factory):
    state = here(rendered(request.param), running)
    with from_control_plane(tmp_path_factory.mktemp(request.param) / "envoy", state) as started:
        running.applied_by(state["bootstrap"]["node"]["id"])
        yield started


def test_the_filter_chooses_and_nobody_steers(gateway, running):
    for model in (POOL, "default"):
        steering = {"x_weighbridge_host": f"127.0.0.1:{running.app.port}", "x_weighbridge_cluster": "elsewhere"}
        status, headers, body = gateway.chat("llm.example.com", model, x_weighbridge_max_wait_ms="9", **steering)
        assert status == 200, body
        # What the engine called itself is gone; who is named is who was asked.
        got = running.engines[headers["x-weighbridge-endpoint"]].last("/v1/chat/completions")
        assert not [name for name in got if name.startswith("x-weighbridge-")], got


def test_what_is_not_ours_passes_untouched(gateway, running):
    forged = {"x-weighbridge-cluster": POOL, "x-weighbridge-host": f"127.0.0.1:{running.engines['gpu-a'].port}"}
    status, headers, _ = gateway.send("GET", "/health", "llm.example.com", headers=forged)
    assert (status, headers["x-app"]) == (200, "yes")
    assert not [name for name in running.app.last("/health") if name.startswith("x-weighbridge-")]
    # A chat of another host of the same listener: the same body, and nothing of ours.
    status, headers, body = gateway.chat("other.example.com", "anything")
    assert (status, headers["x-app"]) == (200, "yes")
    assert '"model": "anything"' in body and "x-weighbridge-endpoint" not in headers


def test_errors_and_models_are_the_filters(gateway):
    status, _, body = gateway.chat("llm.example.com", "nobody-serves-this")
    assert (status, json.loads(body)["error"]["code"]) == (404, "model_not_found")
    status, _, body = gateway.send("GET", "/v1/models", "llm.example.com")
    assert (status, {model["id"] for model in json.loads(body)["data"]}) == (200, {POOL, "default"})


def test_a_body_above_envoys_own_limit_passes(gateway):
    body = {"model": POOL, "messages": [{"role": "user", "content": "a " * 1_000_000}], "max_tokens": 4}
    status, headers, answer = gateway.send("POST", "/v1/chat/completions", "llm.example.com", body)
    # The engine's window is smaller than that: the filter has read it all and says so.
    assert (status, "x-weighbridge-endpoint" in headers or "context_length_exceeded" in answer) != (413, False), answer
    assert status in (200, 400), answer


def test_statistics_have_labels(gateway):
    assert gateway.chat("llm.example.com")[0] == 200

    def labelled():
        lines = [line for line in gateway.stats().splitlines() if line.startswith("weighbridge_requests{")]
        return [line for line in lines if f'pool="{POOL}"' in line and 'endpoint="gpu-' in line and 'reason="' in line]

    eventually("weighbridge_requests has its labels", labelled, 20)


def test_filter_and_log_of_attempts_share_their_vms(gateway):
    """One per worker, one for the main thread, and the one that they are copies of. The log is of use only in the filter's VM."""

    def shared():
        (line,) = [
            line for line in gateway.stats("").splitlines() if line.startswith("wasm.envoy.wasm.runtime.v8.active:")
        ]
        assert line.endswith(": 4"), line
        return True

    eventually("as many VMs as one module needs", shared, 10)
