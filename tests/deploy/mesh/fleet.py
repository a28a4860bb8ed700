"""A prober with two engines, an application that is not ours, and Envoys that are configured as control planes configure them."""

import contextlib
import http.client
import json
import os
import subprocess
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml
from conftest import ROOT, TARGET, eventually, free_ports, get, get_json, stop, tool

# Another Envoy can be tried with WEIGHBRIDGE_TEST_ENVOY.
ENVOY = os.environ.get("WEIGHBRIDGE_TEST_ENVOY") or tool("envoy")
MODULE = ROOT / "dist" / "weighbridge.wasm"
PROBER = ROOT / "dist" / "weighbridge-prober"
POOL = "qwen-27b"
# Where the drop-ins and deploy/kubernetes say that the prober is and the module lies.
PROBER_PODS = ("weighbridge-prober", "weighbridge-prober-0.weighbridge-prober")
PROBER_HOSTS = (*PROBER_PODS, *(f"{name}.weighbridge.svc.cluster.local" for name in PROBER_PODS))
MODULE_PATH = "/etc/weighbridge/wasm/weighbridge.wasm"


class Recorder:
    """A server that keeps the headers of every request. With an engine behind it, it passes them on; without, it is the
    application: it answers 200 and what it was sent."""

    def __init__(self, engine: int | None, hold: threading.Event):
        self.requests: list[dict[str, str]] = []
        recorder = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self):
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                recorder.requests.append(
                    {name.lower(): value for name, value in self.headers.items()} | {":path": self.path}
                )
                if self.path.startswith("/v1/"):
                    hold.wait(60)
                if engine is None:
                    status, headers, answer = 200, {"x-app": "yes"}, body
                else:
                    upstream = http.client.HTTPConnection("127.0.0.1", engine, timeout=30)
                    upstream.request(self.command, self.path, body, dict(self.headers.items()))
                    reply = upstream.getresponse()
                    answer = reply.read()
                    kept = {"content-type": reply.getheader("content-type", "text/plain")}
                    status, headers = reply.status, kept | {"x-weighbridge-endpoint": "forged"}
                    upstream.close()
                # Who asked may have gone.
                with contextlib.suppress(ConnectionError):
                    self.send_response(status)
                    for name, value in headers.items():
                        self.send_header(name, value)
                    self.send_header("content-length", str(len(answer)))
                    self.end_headers()
                    self.wfile.write(answer)

            do_GET = do_POST = answer

            def log_message(self, *_):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]
        self.thread = threading.Thread(target=self.server.serve_forever, daemon=True)
        self.thread.start()

    def last(self, path: str) -> dict[str, str]:
        """The headers of the last request to this path; the prober asks others all the time."""
        return next(headers for headers in reversed(self.requests) if headers[":path"] == path)

    def close(self):
        self.server.shutdown()
        self.server.server_close()


@dataclass
class Fleet:
    """What runs; ports are on loopback."""

    api: int
    xds: int
    engines: dict[str, Recorder]
    app: Recorder
    # Engines and application answer requests to /v1/ only while it is set.
    hold: threading.Event

    def applied_by(self, node: str) -> None:
        """Waits until the prober has heard that the Envoy of this node id has the filter that it was sent, and all the rest."""

        def applied():
            (ours,) = [
                each for each in get_json(f"http://127.0.0.1:{self.api}/v1/envoys")["envoys"] if each["node_id"] == node
            ]
            assert ours["last_nack"] is None, ours
            return ours["applied_version"]

        eventually(f"{node} has applied the snapshot", applied)


def _engine(directory: Path, name: str) -> tuple[subprocess.Popen, int]:
    log = directory / f"{name}.out"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [TARGET / "debug" / "engine-sim", "--profile", "instant", "--model", POOL, "--name", name, "--warm"],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    line = eventually(
        f"engine {name} listens", lambda: next((x for x in log.read_text().splitlines() if " listens on " in x), None)
    )
    return process, int(line.rsplit(":", 1)[1].strip("/"))


@contextlib.contextmanager
def fleet(directory: Path):
    """Started, with both endpoints measured."""
    (api, xds), recorders, processes, hold = free_ports(2), [], [], threading.Event()
    hold.set()
    try:
        engines = {}
        for name in ("gpu-a", "gpu-b"):
            process, port = _engine(directory, name)
            processes.append(process)
            recorders.append(engines.setdefault(name, Recorder(port, hold)))
        app = Recorder(None, hold)
        recorders.append(app)
        config = directory / "weighbridge.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "api": {"listen": f"127.0.0.1:{api}"},
                    "xds": {"listen": f"127.0.0.1:{xds}"},
                    "filter": {"wasm": str(MODULE)},
                    "store": {"path": str(directory / "weighbridge.redb")},
                    "probe": {"concurrency": 2, "tokens": 8, "prefill_tokens": 0},
                    "pools": [
                        {
                            "name": POOL,
                            "models": [POOL, "default"],
                            "served_model": POOL,
                            "endpoints": [
                                {"id": name, "address": f"127.0.0.1:{engine.port}"} for name, engine in engines.items()
                            ],
                        }
                    ],
                }
            )
        )
        log = directory / "prober.log"
        with log.open("wb") as out:
            prober = subprocess.Popen([PROBER, "--config", config], stdout=out, stderr=subprocess.STDOUT)
        processes.append(prober)

        def measured():
            assert prober.poll() is None, log.read_text()
            endpoints = get_json(f"http://127.0.0.1:{api}/v1/endpoints")["endpoints"]
            return {endpoint["weight_source"] for endpoint in endpoints} == {"measured"}

        eventually("both endpoints are measured", measured)
        yield Fleet(api, xds, engines, app, hold)
    finally:
        for process in reversed(processes):
            stop(process)
        for recorder in recorders:
            recorder.close()


def here(document, fleet: Fleet):
    """The same with the prober, the module and the application where they are in this test."""
    ports = {7070: fleet.api, 7071: fleet.xds, 1: fleet.app.port}
    if isinstance(document, list):
        return [here(each, fleet) for each in document]
    if not isinstance(document, dict):
        return str(MODULE) if document == MODULE_PATH else document
    if document.get("address") in (*PROBER_HOSTS, "127.0.0.1") and document.get("port_value") in ports:
        return {"address": "127.0.0.1", "port_value": ports[document["port_value"]]}
    return {key: here(value, fleet) for key, value in document.items()}


@dataclass(frozen=True)
class Gateway:
    """A running Envoy."""

    port: int
    admin: int
    log: Path

    def send(self, method: str, path: str, host: str, body: dict | None = None, headers: dict[str, str] | None = None):
        """Status, headers with names in small letters, and the body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = {"host": host, "content-type": "application/json"} | (headers or {})
            connection.request(method, path, json.dumps(body) if body else None, sent)
            reply = connection.getresponse()
            return reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read().decode()
        finally:
            connection.close()

    def chat(self, host: str, model: str = POOL, **headers: str):
        body = {"model": model, "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return self.send("POST", "/v1/chat/completions", host, body, named)

    def stats(self, as_text: str = "/prometheus") -> str:
        return get(f"http://127.0.0.1:{self.admin}/stats{as_text}")


def _resources(kind: str, resources: list[dict]) -> dict:
    """A file that Envoy watches instead of a stream, with the same content."""
    url = f"type.googleapis.com/envoy.config.{kind}"
    return {"version_info": "1", "type_url": url, "resources": [{"@type": url} | each for each in resources]}


@contextlib.contextmanager
def envoy(directory: Path, files: dict[str, dict], *arguments: str):
    """Envoy with `bootstrap` of these files, and ready. `LISTEN` and `ADMIN` in them are free ports."""
    gateway, admin = free_ports(2)
    directory.mkdir(exist_ok=True)
    files["bootstrap"]["admin"] = {"address": {"socket_address": {"address": "127.0.0.1", "port_value": "ADMIN"}}}
    for name, content in files.items():
        text = json.dumps(content).replace('"LISTEN"', str(gateway)).replace('"ADMIN"', str(admin))
        (directory / f"{name}.json").write_text(text)
    log = directory / "envoy.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [ENVOY, "-c", directory / "bootstrap.json", "--concurrency", "2", "--use-dynamic-base-id", *arguments],
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:

        def ready():
            assert process.poll() is None, "Envoy has ended"
            return get(f"http://127.0.0.1:{admin}/ready").startswith("LIVE")

        try:
            eventually("Envoy is ready", ready, 60)
            yield Gateway(gateway, admin, log)
        except BaseException as error:
            error.add_note(log.read_text()[-6000:])
            raise
    finally:
        stop(process)


def from_control_plane(directory: Path, state: dict):
    """Envoy with what a control plane would send: bootstrap first, then listeners, routes and clusters, as dynamic resources.
    That matters: of what the bootstrap does not have, Envoy takes neither filters nor endpoints."""

    def source(name):
        return {"resource_api_version": "V3", "path_config_source": {"path": str(directory / f"{name}.json")}}

    for listener in state["listeners"]:
        listener["address"] = {"socket_address": {"address": "127.0.0.1", "port_value": "LISTEN"}}
        for chain in [*listener.get("filter_chains", []), *filter(None, [listener.get("default_filter_chain")])]:
            for found in chain["filters"]:
                found["typed_config"]["rds"]["config_source"] = source("rds")
    files = {
        "bootstrap": state["bootstrap"]
        | {"dynamic_resources": {"lds_config": source("lds"), "cds_config": source("cds")}},
        "lds": _resources("listener.v3.Listener", state["listeners"]),
        "rds": _resources("route.v3.RouteConfiguration", state["routes"]),
        "cds": _resources("cluster.v3.Cluster", state["clusters"]),
    }
    return envoy(directory, files)
