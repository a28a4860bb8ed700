"""docs/migration.md: what it says that people have is what those programs accept, and the move from Envoy works as described.

The prober's files in it are checked with those of every other page (tests/harness/tests/docs.rs).
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, eventually, tool

sys.path.insert(0, str(Path(__file__).parent))
from mesh.fleet import POOL, envoy, fleet, here  # noqa: E402

PAGE = (ROOT / "docs" / "migration.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.S | re.M)


def test_nginx_accepts_what_nginx_had(tmp_path):
    (block,) = blocks("nginx")
    paths = "".join(
        f"{kind}_temp_path {tmp_path}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    config = tmp_path / "nginx.conf"
    config.write_text(f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ {paths} access_log off;\n{block}\n}}")
    done = subprocess.run(
        [tool("nginx"), "-t", "-q", "-p", tmp_path, "-c", config], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


def test_haproxy_accepts_what_haproxy_had(tmp_path):
    (block,) = blocks("haproxy")
    config = tmp_path / "haproxy.cfg"
    config.write_text(block)
    done = subprocess.run([tool("haproxy"), "-c", "-f", config], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "warning" not in done.stderr.lower(), done.stderr


def test_every_setting_that_is_named_exists():
    """`section.setting` of the prober, and settings of an endpoint, as prober/example.yaml has them (there may be a comment before)."""
    example = (ROOT / "prober" / "example.yaml").read_text()
    known = yaml.safe_load(example)
    sections = {**known, **known["pools"][0]}
    named = set(re.findall(r"`(admission|affinity|passive_health|policy|health|filter|probe)\.(\w+)", PAGE))
    assert len(named) > 12
    for section, setting in named:
        assert setting in sections[section] or re.search(rf"# {setting}:", example), f"{section}.{setting}"
    for setting in ("max_in_flight", "api_key_file", "api_key_env"):
        assert f"`{setting}" in PAGE and f"{setting}:" in example


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with fleet(tmp_path_factory.mktemp("fleet")) as started:
        yield started


@pytest.fixture
def had(running) -> dict:
    """The configuration with least_request, its endpoints being the engines of this test."""
    (text,) = [block for block in blocks("yaml") if "LEAST_REQUEST" in block]
    for where, engine in (("8000", "gpu-a"), ("8001", "gpu-b")):
        text = text.replace(f"port_value: {where}}}", f"port_value: {running.engines[engine].port}}}")
    return yaml.safe_load(text.replace("port_value: 8080", "port_value: LISTEN"))


def test_what_envoy_had_serves(running, had, tmp_path):
    with envoy(tmp_path / "envoy", {"bootstrap": had}) as started:
        eventually("an engine is healthy and answers", lambda: started.chat("gateway")[0] == 200, 20)


def test_the_snippet_on_top_of_it_decides(running, had, tmp_path):
    """The move as the page describes it: the parts go where their comments say, and the old cluster goes away."""
    snippet = json.loads(
        json.dumps(yaml.safe_load((ROOT / "envoy" / "mesh" / "envoy-snippet.yaml").read_text())).replace(
            "dist/weighbridge.wasm", str(ROOT / "dist" / "weighbridge.wasm")
        )
    )
    manager = had["static_resources"]["listeners"][0]["filter_chains"][0]["filters"][0]["typed_config"]
    router = manager["http_filters"][-1]
    manager["http_filters"] = [*manager["http_filters"][:-1], *snippet["http_filters"], router]
    router["typed_config"]["upstream_log"] = snippet["upstream_log"]
    manager["early_header_mutation_extensions"] = snippet["early_header_mutation_extensions"]
    manager["local_reply_config"] = {"mappers": snippet["local_reply_mappers"]}
    manager["access_log"] = snippet["access_log"]
    manager["route_config"]["virtual_hosts"][0]["routes"] = snippet["routes"]
    had["static_resources"]["clusters"] = snippet["clusters"]
    had["stats_config"] = {key: snippet[key] for key in ("stats_tags", "histogram_bucket_settings")}
    had["node"] = {"id": "moved", "cluster": "gateway"}
    with envoy(tmp_path / "envoy", {"bootstrap": here(had, running)}) as started:
        running.applied_by("moved")
        status, headers, body = started.chat("gateway", x_weighbridge_cluster="elsewhere")
        assert status == 200, body
        running.engines[headers["x-weighbridge-endpoint"]].last("/v1/chat/completions")
        assert POOL in started.send("GET", "/v1/models", "gateway")[2]
