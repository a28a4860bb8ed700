"""deploy/kubernetes/gateway/envoy.yaml is envoy/envoy.yaml with these changes and no others. Written anew by

.tools/venv/bin/python tests/deploy/mesh/gateway_config.py
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SOURCE = ROOT / "envoy" / "envoy.yaml"
TARGET = ROOT / "deploy" / "kubernetes" / "gateway" / "envoy.yaml"

HEAD = """\
# The gateway's Envoy in Kubernetes: envoy/envoy.yaml with names for addresses, no static pool, and a listener for probes and
# statistics. Do not edit: tests/deploy/mesh/gateway_config.py writes it.
"""

HEALTH = """\
  # For the kubelet and Prometheus; the admin interface itself listens on loopback only.
  - name: health
    address: {socket_address: {address: 0.0.0.0, port_value: 9902}}
    filter_chains:
    - filters:
      - name: envoy.filters.network.http_connection_manager
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager
          stat_prefix: health
          route_config:
            name: health
            virtual_hosts:
            - name: health
              domains: ["*"]
              routes:
              - {match: {path: /ready}, route: {cluster: weighbridge-admin}}
              - {match: {path: /stats/prometheus}, route: {cluster: weighbridge-admin}}
          http_filters:
          - name: envoy.filters.http.router
            typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.router.v3.Router}

"""

ADMIN = """\
  - name: weighbridge-admin
    type: STATIC
    connect_timeout: 0.5s
    load_assignment:
      cluster_name: weighbridge-admin
      endpoints:
      - lb_endpoints:
        - endpoint: {address: {socket_address: {address: 127.0.0.1, port_value: 9901}}}

"""

PROBERS = {
    "weighbridge-xds": ("weighbridge-prober", 7071),
    "weighbridge-prober": ("weighbridge-prober-0.weighbridge-prober", 7070),
}


def once(text: str, old: str, new: str) -> str:
    assert text.count(old) == 1, f"{text.count(old)} times in envoy/envoy.yaml: {old}"
    return text.replace(old, new)


def between(text: str, start: str, end: str, new: str) -> str:
    """From the line of `start` to before that of `end`."""
    begin = text.index(start)
    return text[:begin] + new + text[text.index(end, begin) :]


def gateway_config(text: str) -> str:
    text = HEAD + text[text.index("\nnode:") :]
    text = once(
        text,
        "node: {id: weighbridge-gateway-1, cluster: weighbridge-gateway}",
        "# The id comes with --service-node.\nnode: {cluster: weighbridge-gateway}",
    )
    text = once(text, "address: 127.0.0.1, port_value: 8080", "address: 0.0.0.0, port_value: 8080")
    assert text.count("filename: dist/weighbridge.wasm") == 2
    text = text.replace("filename: dist/weighbridge.wasm", "filename: /etc/weighbridge/wasm/weighbridge.wasm")
    snapshot = re.search(r"( +)value: \|\n +\{\n +\"format\": 1,.*?\n\1  \}\n", text, re.S)
    text = once(
        text, snapshot.group(0), f"""{snapshot.group(1)}value: '{{"format": 1, "version": 0, "pools": []}}'\n"""
    )
    text = once(text, "\n  clusters:\n", f"\n{HEALTH}  clusters:\n{ADMIN}")
    text = text.replace(
        "  # The prober; list several addresses for several probers.\n",
        "  # The prober: every pod behind its headless service.\n",
    )
    for name, (address, port) in PROBERS.items():
        kind = f"  - name: {name}\n    type: STATIC\n"
        text = once(text, kind, f"  - name: {name}\n    type: STRICT_DNS\n    dns_lookup_family: V4_PREFERRED\n")
        text = once(text, f"address: 127.0.0.1, port_value: {port}", f"address: {address}, port_value: {port}")
    text = between(text, "  # The endpoints of the static snapshot.", "# `wasmcustom.weighbridge_requests", "")
    return text


if __name__ == "__main__":
    TARGET.write_text(gateway_config(SOURCE.read_text()))
