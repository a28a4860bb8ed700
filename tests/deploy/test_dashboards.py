"""Dashboards and alerts against the running demo: a real Prometheus with the shipped configuration (targets and intervals replaced)
scrapes it, and every query of every panel, variable, alert and playbook entry is run."""

import concurrent.futures
import contextlib
import json
import re
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, Demo, eventually, free_ports, get, get_json, stop, tool

GRAFANA = ROOT / "deploy" / "grafana"
PROMETHEUS = ROOT / "deploy" / "prometheus"
DASHBOARDS = sorted((GRAFANA / "dashboards").glob("*.json"))
POOL, ENDPOINT = "demo", "fast-card"
# The endpoint that fails.
BROKEN = "broken-card"


class Metrics:
    """A Prometheus over the demo."""

    def __init__(self, directory: Path, demo: Demo):
        (port,) = free_ports(1)
        config = yaml.safe_load((PROMETHEUS / "prometheus.yml").read_text())
        config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        config["rule_files"] = [str(PROMETHEUS / file) for file in config["rule_files"]]
        targets = {"weighbridge-envoy": demo.admin, "weighbridge-prober": demo.api}
        for job in config["scrape_configs"]:
            (static,) = job["static_configs"]
            static["targets"] = [targets[job["job_name"]].removeprefix("http://")]
        (directory / "prometheus.yml").write_text(yaml.safe_dump(config))
        self.url = f"http://127.0.0.1:{port}"
        command = [
            tool("prometheus"),
            f"--config.file={directory / 'prometheus.yml'}",
            f"--storage.tsdb.path={directory / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
        ]
        self.log = directory / "prometheus.log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        eventually("both targets are scraped", lambda: len(self.query("up == 1")) == 2)

    def api(self, path: str, **parameters: str | list[str]):
        try:
            return get_json(f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters, doseq=True)}")["data"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{parameters}: {error.read().decode()}") from error

    def query(self, expr: str) -> list[dict]:
        return self.api("query", query=expr)["result"]

    def samples(self, expr: str) -> int:
        """Of the last minute, one per second: as a panel asks."""
        now = time.time()
        found = self.api("query_range", query=expr, start=str(now - 60), end=str(now), step="1")["result"]
        values = [value for series in found for _, value in series["values"]]
        return len([value for value in values if value != "NaN"])


def ask(demo: Demo, number: int, max_tokens: int, stream: bool = False) -> int:
    """One chat request, read to its end. Its status."""
    content = f"Question {number}: why do lorries drive over a weighbridge before anyone decides what they may carry? " * 4
    body = {"model": POOL, "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "stream": stream}
    request = urllib.request.Request(
        f"{demo.gateway}/v1/chat/completions", json.dumps(body).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            answer.read()
            return answer.status
    except urllib.error.HTTPError as error:
        error.read()
        return error.code


def send(demo: Demo, count: int, at_once: int, max_tokens: int) -> list[int]:
    """So many requests, so many at once, every second one a stream."""
    with concurrent.futures.ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda number: ask(demo, number, max_tokens, number % 2 == 0), range(count)))


def call(demo: Demo, method: str, path: str, body: dict | None = None) -> None:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"{demo.api}{path}", data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=10) as answer:
        answer.read()


@contextlib.contextmanager
def broken_engine(demo: Demo):
    """An endpoint that looks healthy and answers every request with 503; pinned, since it cannot be measured."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def reply(self, status: int, body: dict):
            content = json.dumps(body).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):
                self.wfile.write(content)

        def do_GET(self):
            models = {"object": "list", "data": [{"id": POOL, "object": "model", "max_model_len": 65536}]}
            self.reply(*((200, models) if self.path in ("/v1/models", "/health") else (404, {})))

        def do_POST(self):
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.reply(503, {"error": {"message": "no GPU", "type": "server_error"}})

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = "127.0.0.1:%d" % server.server_address[1]
    call(demo, "POST", "/v1/endpoints", {"pool": POOL, "id": BROKEN, "address": address})
    call(demo, "PUT", f"/v1/endpoints/{BROKEN}/pin", {"weight": 1.0, "reason": "to see it fail"})

    def state(*wanted: str) -> bool:
        return get_json(f"{demo.api}/v1/endpoints/{BROKEN}")["state"] in wanted

    try:
        eventually("it takes traffic", lambda: state("ready"))
        yield
    finally:
        call(demo, "DELETE", f"/v1/endpoints/{BROKEN}/pin")
        call(demo, "DELETE", f"/v1/endpoints/{BROKEN}")
        ids = lambda: {each["id"] for each in get_json(f"{demo.api}/v1/endpoints")["endpoints"]}  # noqa: E731
        eventually("it is forgotten", lambda: BROKEN not in ids())
        server.shutdown()
        server.server_close()


def alerts() -> dict[str, str]:
    groups = yaml.safe_load((PROMETHEUS / "rules" / "weighbridge.yaml").read_text())["groups"]
    return {rule["alert"]: rule["expr"] for group in groups for rule in group["rules"]}


@pytest.fixture(scope="module")
def metrics(demo: Demo, tmp_path_factory):
    running = Metrics(tmp_path_factory.mktemp("prometheus"), demo)
    try:
        yield running
    finally:
        stop(running.process)


@pytest.fixture(scope="module")
def healthy(demo: Demo, metrics: Metrics) -> dict[str, list[dict]]:
    """What the alerts' expressions gave on the healthy demo under a light load, before anything was broken."""
    assert set(send(demo, 30, 2, 16)) == {200}
    eventually("the records are there", lambda: metrics.query(f'pool:weighbridge_answers:rate5m{{pool="{POOL}"}} > 0'))
    return {name: metrics.query(expr) for name, expr in alerts().items()}


@pytest.fixture(scope="module")
def troubled(demo: Demo, metrics: Metrics, healthy):
    """More requests than there are slots, and an endpoint that fails those it gets: while that is in the window of the queries."""
    # Before the broken one comes: nobody knows its window.
    assert ask(demo, 0, 1_000_000) == 400, "refused: no window holds that many tokens"
    with broken_engine(demo):
        waited = f'sum(weighbridge_queue_wait_ms_count{{pool="{POOL}"}}) > 0'
        # Half as many again as there are slots, with answers of some seconds; as often as a busy machine takes to have them at once.
        eventually("some waited", lambda: 200 in send(demo, 180, 180, 96) and metrics.query(waited), 120)
        ejected = f'weighbridge_ejections{{endpoint="{BROKEN}"}} > 0'
        eventually("it was ejected", lambda: metrics.query(ejected))
        # A counter's first value is no rate: it takes one more request there, which comes when its ejection is over.
        failing = alerts()["WeighbridgeEndpointFailing"]
        eventually("its failures are seen", lambda: send(demo, 4, 4, 8) and metrics.query(failing))
        yield


def test_no_alert_fires_on_the_healthy_demo(metrics: Metrics, healthy):
    assert {name: found for name, found in healthy.items() if found} == {}


def test_the_alerts_see_an_endpoint_that_fails(metrics: Metrics, troubled):
    """The same expressions, where something is wrong."""
    failing = alerts()["WeighbridgeEndpointFailing"]
    assert [found["metric"]["endpoint"] for found in metrics.query(failing)] == [BROKEN]


def substituted(text: str) -> str:
    values = {"pool": POOL, "endpoint": ENDPOINT, "gateway": ".*", "__rate_interval": "1m"}
    text = re.sub(r"\$\{?(\w+)\}?", lambda found: values[found[1]], text)
    assert "$" not in text, text
    return text


def queries(dashboard: dict) -> list[tuple[str, str]]:
    return [
        (panel["title"], target["expr"])
        for panel in dashboard["panels"]
        if panel["type"] not in ("row", "text")
        for target in panel["targets"]
    ]


@pytest.mark.parametrize("path", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_of_a_dashboard_has_data(path: Path, metrics: Metrics, troubled, capsys):
    dashboard = json.loads(path.read_text())
    seen = []
    for title, expr in queries(dashboard):
        expr = substituted(expr)
        # Those that look back over what has just been recorded come with the next scrapes.
        eventually(f"{title}: {expr}", lambda expr=expr: metrics.samples(expr), 10)
        seen.append((title, expr, metrics.samples(expr)))
    for variable in dashboard["templating"]["list"]:
        if variable["type"] == "query":
            found = re.fullmatch(r"label_values\((.*), (\w+)\)", substituted(variable["query"]["query"]))
            values = metrics.api(f"label/{found[2]}/values", **{"match[]": found[1]})
            assert values, variable
            seen.append((f"variable {variable['name']}", variable["definition"], len(values)))
    with capsys.disabled():
        print(f"\n\n{dashboard['title']}")
        for title, expr, samples in seen:
            print(f"{samples:6}  {title}: {expr}")


def test_every_query_of_the_playbook_has_data(metrics: Metrics, troubled):
    blocks = re.findall(r"^```promql\n(.*?)^```", (ROOT / "docs" / "alerts.md").read_text(), re.MULTILINE | re.DOTALL)
    asked = [line for block in blocks for line in block.splitlines()]
    assert len(asked) > 30
    for expr in asked:
        eventually(expr, lambda expr=expr: metrics.samples(expr), 10)


def test_every_address_of_the_playbook_answers(demo: Demo, troubled):
    page = (ROOT / "docs" / "alerts.md").read_text()
    bases = {"7070": demo.api, "9901": demo.admin, "8080": demo.gateway}
    found = set(re.findall(r"curl -s (?:-o /dev/null -w '[^']*' )?'?http://127\.0\.0\.1:(\d+)(/[^'`\s]*)", page))
    assert len(found) > 10
    for port, path in sorted(found):
        assert get(f"{bases[port]}{path}"), path


def test_the_dashboards_are_as_generated_and_whole():
    run = subprocess.run([sys.executable, GRAFANA / "generate.py", "--check"], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert len(DASHBOARDS) == 4
    uids = set()
    for path in DASHBOARDS:
        dashboard = json.loads(path.read_text())
        uids.add(dashboard["uid"])
        ids = [panel["id"] for panel in dashboard["panels"]]
        assert len(set(ids)) == len(ids)
        taken = set()
        for panel in dashboard["panels"]:
            at = panel["gridPos"]
            cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
            assert at["x"] + at["w"] <= 24 and not taken & cells, f"{path.stem}: {panel['title']} lies over another"
            taken |= cells
            if panel["type"] not in ("row", "text"):
                assert panel["description"], f"{path.stem}: {panel['title']} says nothing of itself"
                assert {target["datasource"]["uid"] for target in panel["targets"]} == {"${datasource}"}
        linked = set(re.findall(r"\$\{docs\}/alerts\.md#(\w+)\)", path.read_text()))
        assert linked and linked <= {name.lower() for name in alerts()}
    assert len(uids) == 4


def listed() -> dict[str, tuple[str, set[str], str]]:
    """The metrics of docs/telemetry.md: type, labels, and whether they are always there."""
    rows = re.findall(r"^\| `(weighbridge_\w+)` \|(.*)$", (ROOT / "docs" / "telemetry.md").read_text(), re.MULTILINE)
    cells = {name: [cell.strip() for cell in rest.split("|")] for name, rest in rows}
    assert len(cells) == len(rows), "each once"
    return {name: (kind, set(re.findall(r"\w+", labels)), mark) for name, (kind, labels, mark, *_) in cells.items()}


def test_the_list_of_metrics_is_what_is_exposed(demo: Demo, metrics: Metrics, troubled):
    exposed: dict[str, tuple[str, set[str]]] = {}
    text = get(f"{demo.admin}/stats/prometheus") + get(f"{demo.api}/metrics")
    kinds = dict(re.findall(r"^# TYPE (weighbridge_\w+) (\w+)", text, re.MULTILINE))
    for name, labels in re.findall(r"^(weighbridge_\w+)(\{.*?\})? ", text, re.MULTILINE):
        base = re.sub(r"_(bucket|sum|count|total)$", "", name)
        kind = kinds.get(name) or kinds[base]
        shown = base if kind == "histogram" else name
        exposed.setdefault(shown, (kind, set()))[1].update(set(re.findall(r"(\w+)=", labels)) - {"le"})
    known = listed()
    assert {name: known.get(name, ())[:2] for name in exposed} == exposed
    assert {name for name, (_, _, mark) in known.items() if not mark} <= set(exposed), "without a mark it is always there"


def test_no_metric_of_the_sources_is_missing_from_the_list():
    known = set(listed())
    filters = "".join(path.read_text() for path in (ROOT / "filter" / "src").rglob("*.rs"))
    names = set(re.findall(r'"(weighbridge_[a-z0-9_]+)[".]', filters)) - {"weighbridge_models"}
    assert {name for name in names if not re.search(rf'answer\(.*"{name}"', filters)} <= known
    prober = (ROOT / "prober" / "src" / "metrics.rs").read_text()
    families = re.findall(r'(?:family\(|metrics\.register\()\s*"(\w+)"', prober)
    assert {name for name in families if not {f"weighbridge_prober_{name}", f"weighbridge_prober_{name}_total"} & known} == set()
    assert set(re.findall(r'gauge\("(\w+)"', prober)) == {
        name.removeprefix("weighbridge_") for name in known if re.match(r"weighbridge_(store|probe)_", name)
    }
