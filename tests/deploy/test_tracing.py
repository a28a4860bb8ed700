"""Tracing: what deploy/otel/tracing.yaml puts into the shipped Envoy configuration, against a real OTLP receiver: the caller's trace goes
on to the engine, and the span says where the request went and why."""

import json
import subprocess
import threading
import urllib.error
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import yaml
from conftest import ROOT, eventually, free_ports, get, stop, tool
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest, ExportTraceServiceResponse
from opentelemetry.proto.trace.v1.trace_pb2 import Span

FRAGMENT = ROOT / "deploy" / "otel" / "tracing.yaml"
# As a caller has them.
CALLER = "00f067aa0ba902b7"


class Server:
    """An HTTP server in a thread that keeps what it is sent."""

    def __init__(self, answer):
        self.seen: list[tuple[dict[str, str], bytes]] = []
        server = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                body = self.body()
                server.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
                content_type, reply = answer
                self.send_response(200)
                self.send_header("content-type", content_type)
                self.send_header("content-length", str(len(reply)))
                self.end_headers()
                self.wfile.write(reply)

            def body(self) -> bytes:
                if self.headers["transfer-encoding"] != "chunked":
                    return self.rfile.read(int(self.headers["content-length"]))
                chunks = b""
                while size := int(self.rfile.readline(), 16):
                    chunks += self.rfile.read(size)
                    self.rfile.readline()
                self.rfile.readline()
                return chunks

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, daemon=True).start()

    def close(self):
        self.http.shutdown()
        self.http.server_close()


COMPLETION = {
    "id": "c",
    "object": "chat.completion",
    "model": "qwen-27b",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5},
}


def configuration(fragment: dict, gateway: int, admin: int, collector: int, engines: list[int]) -> dict:
    """envoy/envoy.yaml with the fragment where its comments say, and our ports."""
    config = yaml.safe_load((ROOT / "envoy" / "envoy.yaml").read_text())
    config["admin"]["address"]["socket_address"]["port_value"] = admin
    static = config["static_resources"]
    (listener,) = static["listeners"]
    listener["address"]["socket_address"]["port_value"] = gateway
    manager = listener["filter_chains"][0]["filters"][0]["typed_config"]
    manager["tracing"] = fragment["tracing"]
    (strip,) = manager["early_header_mutation_extensions"]
    strip["typed_config"]["mutations"] += fragment["early_header_mutations"]
    filters = manager["http_filters"]
    filters[:0] = fragment["http_filters"]
    default = filters[-2]["config_discovery"]["default_config"]["config"]["configuration"]
    snapshot = json.loads(default["value"])
    snapshot["filter"] = {"client_headers": ["explain"]}
    for endpoint in snapshot["pools"][0]["endpoints"]:
        endpoint["context_window"] = 4096
    default["value"] = json.dumps(snapshot)
    # Envoy would wait for five spans, or five seconds.
    layer = {"name": "test", "static_layer": {"tracing.opentelemetry.min_flush_spans": 1}}
    config["layered_runtime"] = {"layers": [layer]}
    static["clusters"] += fragment["clusters"]
    # Nobody listens there: the static snapshot decides.
    ports = {4318: collector, 8000: engines[0], 8001: engines[1], 7070: 1, 7071: 1}
    for cluster in static["clusters"]:
        for group in cluster["load_assignment"]["endpoints"]:
            for endpoint in group["lb_endpoints"]:
                address = endpoint["endpoint"]["address"]["socket_address"]
                address["port_value"] = ports[address["port_value"]]
    text = json.dumps(config)
    for before, after in (("127.0.0.1:8000", f"127.0.0.1:{engines[0]}"), ("127.0.0.1:8001", f"127.0.0.1:{engines[1]}")):
        text = text.replace(before, after)
    return json.loads(text)


class Traced:
    """An Envoy with tracing, two engines and a collector."""

    def __init__(self, directory, fragment: dict):
        self.engines = [Server(("application/json", json.dumps(COMPLETION).encode())) for _ in range(2)]
        self.collector = Server(("application/x-protobuf", ExportTraceServiceResponse().SerializeToString()))
        gateway, admin = free_ports(2)
        config = configuration(fragment, gateway, admin, self.collector.port, [engine.port for engine in self.engines])
        (directory / "envoy.json").write_text(json.dumps(config))
        self.log = directory / "envoy.log"
        with self.log.open("wb") as log:
            command = [tool("envoy"), "-c", directory / "envoy.json", "--use-dynamic-base-id", "--concurrency", "1"]
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=subprocess.STDOUT)
        self.gateway = f"http://127.0.0.1:{gateway}"
        eventually("Envoy serves", lambda: get(f"http://127.0.0.1:{admin}/ready"))

    def ask(self, max_tokens: int = 8, **headers: str) -> dict[str, str]:
        """The headers of the answer, its status as `:status`."""
        body = {"model": "qwen-27b", "messages": [{"role": "user", "content": "Hello"}], "max_tokens": max_tokens}
        request = urllib.request.Request(
            f"{self.gateway}/v1/chat/completions",
            json.dumps(body).encode(),
            {"content-type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()},
        )
        try:
            answer = urllib.request.urlopen(request, timeout=10)
        except urllib.error.HTTPError as error:
            answer = error
        with answer:
            headers = {name.lower(): value for name, value in answer.headers.items()}
            return headers | {":status": str(answer.status)}

    def spans(self, trace: str) -> list:
        """What the collector has got of this trace."""
        found = []
        for _, body in self.collector.seen:
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                assert attributes(resource.resource)["service.name"] == "weighbridge-gateway"
                found += [span for scope in resource.scope_spans for span in scope.spans if span.trace_id.hex() == trace]
        return found

    def close(self):
        stop(self.process)
        for server in (*self.engines, self.collector):
            server.close()


@pytest.fixture(scope="module")
def traced(tmp_path_factory):
    running = Traced(tmp_path_factory.mktemp("tracing"), yaml.safe_load(FRAGMENT.read_text()))
    try:
        yield running
    finally:
        running.close()


def attributes(of) -> dict[str, str]:
    return {attribute.key: attribute.value.string_value for attribute in of.attributes}


def received(traced: Traced) -> tuple[str, dict[str, str]]:
    """The engine that was asked since the last look, and the headers that it got."""
    found = []
    for name, engine in zip(("gpu-a", "gpu-b"), traced.engines, strict=True):
        found += [(name, headers) for headers, _ in engine.seen]
        engine.seen.clear()
    (only,) = found
    return only


def test_the_span_says_where_the_request_went_and_why(traced):
    trace = "4bf92f3577b34da6a3ce929d0e0e4736"
    answer = traced.ask(traceparent=f"00-{trace}-{CALLER}-01", tracestate="vendor=value")
    engine, headers = received(traced)
    eventually("two spans", lambda: len(traced.spans(trace)) == 2, 20)
    request, attempt = sorted(traced.spans(trace), key=lambda span: span.kind)
    assert (request.kind, attempt.kind) == (Span.SPAN_KIND_SERVER, Span.SPAN_KIND_CLIENT)
    assert (request.parent_span_id.hex(), attempt.parent_span_id) == (CALLER, request.span_id)
    # The engine is told the same trace, and the attempt's span as its parent.
    assert headers["traceparent"] == f"00-{trace}-{attempt.span_id.hex()}-01"
    assert headers["tracestate"] == "vendor=value"
    said = attributes(request)
    assert (said["weighbridge.pool"], said["weighbridge.endpoint"]) == ("qwen-27b", engine)
    # Equal weights and nobody busy: either of them, by chance.
    assert said["weighbridge.reason"] == "all_idle"
    decision = json.loads(said["weighbridge.decision"])
    assert (decision["pool"], decision["picked"], decision["reason"]) == ("qwen-27b", engine, "all_idle")
    # The decision is the span's only: no client and no engine gets it.
    assert answer["x-weighbridge-endpoint"] == engine
    assert not {"x-weighbridge-decision", "x-weighbridge-explain"} & answer.keys()
    assert not [name for name in headers if name.startswith("x-weighbridge")]


def test_a_refusal_is_in_its_span_too(traced):
    trace = "0af7651916cd43dd8448eb211c80319c"
    answer = traced.ask(max_tokens=100_000, traceparent=f"00-{trace}-{CALLER}-01")
    assert answer[":status"] == "400" and "x-weighbridge-decision" not in answer
    (span,) = eventually("its span", lambda: traced.spans(trace), 20)
    said = attributes(span)
    assert (said["weighbridge.pool"], said["weighbridge.reason"]) == ("qwen-27b", "too_long")
    assert "weighbridge.endpoint" not in said
    assert "picked" not in json.loads(said["weighbridge.decision"])


def test_a_caller_that_does_not_sample_is_followed(traced):
    quiet, loud = "11111111111111111111111111111111", "22222222222222222222222222222222"
    traced.ask(traceparent=f"00-{quiet}-{CALLER}-00")
    _, headers = received(traced)
    version, trace, _, flags = headers["traceparent"].split("-")
    assert (version, trace, flags) == ("00", quiet, "00")
    # One thread exports in order: when this one is there, the other would be.
    traced.ask(traceparent=f"00-{loud}-{CALLER}-01")
    received(traced)
    eventually("the spans of the next", lambda: len(traced.spans(loud)) == 2, 20)
    assert traced.spans(quiet) == []


def test_a_request_without_a_trace_gets_one(traced):
    traced.ask()
    _, headers = received(traced)
    version, trace, span, _ = headers["traceparent"].split("-")
    assert (version, len(trace), len(span)) == ("00", 32, 16)
    assert int(trace, 16) and int(span, 16)
