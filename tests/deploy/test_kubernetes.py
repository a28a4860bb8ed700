"""deploy/kubernetes: rendered by the real kustomize, checked against Kubernetes' schemas, and what is in it started."""

import json
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, eventually, get

sys.path.insert(0, str(Path(__file__).parent))
from mesh import manifests  # noqa: E402
from mesh.fleet import MODULE, MODULE_PATH, POOL, PROBER, PROBER_HOSTS, envoy, fleet, here  # noqa: E402
from mesh.gateway_config import SOURCE, TARGET, gateway_config  # noqa: E402
from mesh.kustomize import kubectl, kustomize, rendered as rendered_by_hand, without_hashes  # noqa: E402

KUBERNETES = ROOT / "deploy" / "kubernetes"
# Made by hand, since they are no text or nobody else's business.
BY_HAND = {"weighbridge-wasm", "weighbridge-token"}


@pytest.fixture(scope="module")
def with_monitoring(tmp_path_factory) -> Path:
    """An overlay as somebody writes it: two probers, the gateway, and the component."""
    directory = tmp_path_factory.mktemp("overlay")
    overlay = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "namespace": "weighbridge",
        "resources": [os.path.relpath(KUBERNETES / "overlays" / "redis", directory.resolve())],
        "components": [os.path.relpath(KUBERNETES / "components" / "monitoring", directory.resolve())],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    return directory


@pytest.fixture(scope="module", params=["prober", "gateway", "overlays/standalone", "overlays/redis", "monitoring"])
def rendered(request, with_monitoring) -> list[dict]:
    return kustomize(with_monitoring if request.param == "monitoring" else KUBERNETES / request.param)


def of(documents: list[dict], kind: str) -> list[dict]:
    return [document for document in documents if document["kind"] == kind]


def workloads(documents: list[dict]) -> list[dict]:
    return of(documents, "StatefulSet") + of(documents, "Deployment")


def pods(documents: list[dict]) -> list[dict]:
    return [workload["spec"]["template"] for workload in workloads(documents)]


@pytest.mark.skipif(not kubectl(), reason="there is no kubectl of 1.21 or later to compare with")
@pytest.mark.parametrize("overlay", ["overlays/standalone", "overlays/redis", "monitoring"])
def test_kustomize_and_its_stand_in_say_the_same(overlay, with_monitoring):
    directory = with_monitoring if overlay == "monitoring" else KUBERNETES / overlay

    def sorted_(documents):
        return sorted(documents, key=lambda each: (each["kind"], each["metadata"]["name"]))

    assert sorted_(without_hashes(kustomize(directory))) == sorted_(rendered_by_hand(directory))


def test_every_manifest_is_valid(rendered):
    for document in rendered:
        manifests.check(document)
        assert document["kind"] == "Namespace" or document["metadata"]["namespace"] == "weighbridge"


def test_pods_are_hardened(rendered):
    """The restricted standard, of which the namespace warns, and beyond it no token and no writable root."""
    for pod in pods(rendered):
        spec = pod["spec"]
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"]["runAsNonRoot"] and spec["securityContext"]["seccompProfile"] == {
            "type": "RuntimeDefault"
        }
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(spec)
        for container in spec["containers"]:
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"] and not context["allowPrivilegeEscalation"]
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert {"requests", "limits"} <= set(container["resources"])
            assert ":" in container["image"].split("/")[-1], "an image without a version"
        assert not [volume for volume in spec["volumes"] if "hostPath" in volume]
        assert f"USER {spec['securityContext']['runAsUser']}:" in (KUBERNETES / "Containerfile").read_text()
    assert all(account["automountServiceAccountToken"] is False for account in of(rendered, "ServiceAccount"))


def test_names_lead_somewhere(rendered):
    labels = [pod["metadata"]["labels"] for pod in pods(rendered)]
    claims = {
        claim["metadata"]["name"]
        for each in workloads(rendered)
        for claim in each["spec"].get("volumeClaimTemplates", [])
    }
    made = {document["metadata"]["name"] for document in rendered} | BY_HAND
    for workload in workloads(rendered):
        spec = workload["spec"]["template"]["spec"]
        assert spec["serviceAccountName"] in made
        sources = [
            volume.get("configMap", {}).get("name") or volume.get("secret", {}).get("secretName")
            for volume in spec["volumes"]
        ]
        assert set(filter(None, sources)) <= made
        volumes = {volume["name"] for volume in spec["volumes"]} | claims
        for container in spec["containers"]:
            assert {mount["name"] for mount in container["volumeMounts"]} <= volumes
            ports = {port["name"] for port in container["ports"]}
            for probe in ("livenessProbe", "readinessProbe"):
                (check,) = [value for key, value in container[probe].items() if key in ("httpGet", "tcpSocket")]
                assert check["port"] in ports
    ports = {
        port["name"] for pod in pods(rendered) for container in pod["spec"]["containers"] for port in container["ports"]
    }
    for document in rendered:
        spec = document.get("spec", {})
        selector = {
            "Service": lambda: spec["selector"],
            "PodDisruptionBudget": lambda: spec["selector"]["matchLabels"],
            "NetworkPolicy": lambda: spec["podSelector"]["matchLabels"],
            "PodMonitor": lambda: spec["selector"]["matchLabels"],
        }.get(document["kind"])
        if selector and document["metadata"]["name"] != "vllm":
            assert any(selector().items() <= each.items() for each in labels), document["metadata"]
        if document["kind"] == "NetworkPolicy":
            assert {port["port"] for rule in spec["ingress"] for port in rule["ports"]} <= ports
        if document["kind"] == "PodMonitor":
            assert {endpoint["port"] for endpoint in spec["podMetricsEndpoints"]} <= ports


def test_the_rules_find_what_is_scraped(with_monitoring):
    """Jobs have the names of deploy/prometheus, and the labels `pool` and `endpoint` stay ours."""
    scraped = yaml.safe_load((ROOT / "deploy" / "prometheus" / "prometheus.yml").read_text())["scrape_configs"]
    expected = {job["job_name"]: job.get("metrics_path", "/metrics") for job in scraped}
    found = {}
    for monitor in of(kustomize(with_monitoring), "PodMonitor"):
        (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
        (job,) = [rule["replacement"] for rule in endpoint["relabelings"] if rule["targetLabel"] == "job"]
        assert endpoint["honorLabels"] is True
        found[job] = endpoint["path"]
    assert found == expected


def test_the_drop_ins_find_the_prober():
    documents = kustomize(KUBERNETES / "prober")
    (prober,) = of(documents, "StatefulSet")
    (service,) = [
        each for each in of(documents, "Service") if each["metadata"]["name"] == prober["spec"]["serviceName"]
    ]
    # A pod has a name of its own only in a headless service, and one that is not ready only where that is published.
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["publishNotReadyAddresses"]
    name = service["metadata"]["name"]
    known = {
        f"{pod}{name}{rest}"
        for pod in ("", f"{prober['metadata']['name']}-0.")
        for rest in ("", ".weighbridge.svc.cluster.local")
    }
    assert known == set(PROBER_HOSTS)
    for file in (ROOT / "envoy" / "mesh" / "istio.yaml", ROOT / "envoy" / "mesh" / "envoy-gateway.yaml", TARGET):
        asked = set(re.findall(r"address: ([\w.-]+), port_value: 707[01]\b", file.read_text()))
        assert asked and asked <= known, file
    assert {port["port"] for port in service["spec"]["ports"]} == {7070, 7071}


@pytest.mark.parametrize("overlay, path", [("prober", "/readyz"), ("overlays/standalone", "/readyz"), ("overlays/redis", "/healthz")])
def test_a_rollout_does_not_wait_for_envoys_that_are_elsewhere(overlay, path):
    """With several probers each Envoy has one of them: the others are never /readyz."""
    (prober,) = of(kustomize(KUBERNETES / overlay), "StatefulSet")
    (container,) = prober["spec"]["template"]["spec"]["containers"]
    assert (prober["spec"]["replicas"] > 1) == (path == "/healthz")
    assert container["readinessProbe"]["httpGet"]["path"] == path


def test_engines_may_stand_beside_the_prober():
    (namespace,) = of(kustomize(KUBERNETES / "prober"), "Namespace")
    labels = namespace["metadata"]["labels"]
    standards = {name.partition("/")[2]: value for name, value in labels.items() if name.startswith("pod-security.kubernetes.io/")}
    assert standards == {"enforce": "baseline", "warn": "restricted"}


def test_a_config_map_can_carry_the_module():
    assert MODULE.stat().st_size < 1024 * 1024, "Kubernetes refuses larger ones"


@pytest.mark.parametrize("overlay", ["prober", "overlays/redis"])
def test_the_probers_configuration_passes_its_check(overlay, tmp_path):
    (config,) = [
        each["data"]["weighbridge.yaml"]
        for each in of(kustomize(KUBERNETES / overlay), "ConfigMap")
        if "weighbridge.yaml" in each["data"]
    ]
    (tmp_path / "token").write_text("the-token-of-the-operators\n")
    for directory in ("/etc/weighbridge/token", "/var/lib/weighbridge"):
        config = config.replace(f" {directory}/", f" {tmp_path}/")
    (tmp_path / "weighbridge.yaml").write_text(config)
    done = subprocess.run(
        [PROBER, "--check", tmp_path / "weighbridge.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    parsed = yaml.safe_load(config)
    # Every Envoy reads the module where the prober says, so that is where all of them mount it.
    assert parsed["filter"]["wasm"] == MODULE_PATH
    assert ("redis" in parsed["store"]) == (overlay != "prober")


def test_the_gateways_configuration_is_the_shipped_one():
    assert TARGET.read_text() == gateway_config(SOURCE.read_text()), "run tests/deploy/mesh/gateway_config.py"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet")) as started:
        yield started


@pytest.fixture(scope="module")
def gateway(running, tmp_path_factory):
    (text,) = [each["data"]["envoy.yaml"] for each in of(kustomize(KUBERNETES / "gateway"), "ConfigMap")]
    for where, placeholder in (
        ("0.0.0.0, port_value: 8080", "LISTEN"),
        ("127.0.0.1, port_value: 9901", "ADMIN"),
        ("0.0.0.0, port_value: 9902", "0"),
    ):
        assert where in text
        text = text.replace(where, f"127.0.0.1, port_value: {placeholder}")
    files = {"bootstrap": here(yaml.safe_load(text), running)}
    with envoy(
        tmp_path_factory.mktemp("gateway") / "envoy", files, "--service-node", "weighbridge-gateway-7c5d-x2k"
    ) as started:
        running.applied_by("weighbridge-gateway-7c5d-x2k")
        yield started


def test_the_gateway_serves_what_the_prober_measured(gateway, running):
    status, headers, body = gateway.chat(
        "anything.example.com", x_weighbridge_host="127.0.0.1:1", x_weighbridge_cluster="elsewhere"
    )
    assert status == 200, body
    got = running.engines[headers["x-weighbridge-endpoint"]].last("/v1/chat/completions")
    assert not [name for name in got if name.startswith("x-weighbridge-")]
    status, _, body = gateway.send("GET", "/elsewhere", "anything.example.com")
    assert (status, json.loads(body)["error"]["code"]) == (404, "unknown_path")
    assert POOL in gateway.send("GET", "/v1/models", "anything.example.com")[2]


def test_probes_and_statistics_have_a_port_of_their_own(gateway):
    listeners = dict(line.split("::", 1) for line in get(f"http://127.0.0.1:{gateway.admin}/listeners").splitlines())
    health = f"http://{listeners['health']}"
    assert get(f"{health}/ready").startswith("LIVE")
    assert "weighbridge_" in get(f"{health}/stats/prometheus")
    with pytest.raises(OSError, match="404"):
        get(f"{health}/config_dump")


def test_pre_stop_waits_for_what_is_under_way(gateway, running):
    """Last, since it drains. The script that is shipped: it ends when nothing is under way, and Envoy then tells nobody to come."""
    (pod,) = pods(kustomize(KUBERNETES / "gateway"))
    command = pod["spec"]["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
    script = command[-1].replace("/127.0.0.1/9901", f"/127.0.0.1/{gateway.admin}")
    assert script != command[-1]
    running.hold.clear()
    try:
        answers = []
        asked = threading.Thread(target=lambda: answers.append(gateway.chat("anything.example.com")))
        asked.start()
        eventually(
            "the request is under way",
            lambda: "http.gateway.downstream_rq_active: 1" in gateway.stats("?filter=rq_active"),
        )
        with subprocess.Popen([*command[:-1], script], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as stopping:
            with pytest.raises(subprocess.TimeoutExpired):
                stopping.wait(7)
            running.hold.set()
            assert stopping.wait(15) == 0, stopping.stderr.read()
        asked.join(15)
        assert answers[0][0] == 200 and answers[0][1].get("connection") == "close", answers
    finally:
        running.hold.set()
    with pytest.raises(OSError, match="503"):
        get(f"http://127.0.0.1:{gateway.admin}/ready")
