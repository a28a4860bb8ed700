"""What the dashboards show. Layout and looks: panels.py."""

from panels import ENDPOINT, GATEWAY, GOOD_BELOW, dashboard, lines, panel, playbook, pools, query, stat, steps

# Refusals because of load, and what the gateway says itself.
SHED = "at_cap|queue_full|queue_timeout"
UP = steps((None, "red"), (1, "green"))
STATES = {
    "ready": "green",
    "probing": "blue",
    "new": "text",
    "draining": "orange",
    "unhealthy": "red",
}


def quantiles(metric: str, by: str, where: str) -> list[dict]:
    name = "{{pool}} " if "pool" in by else ""
    return [
        query(f"histogram_quantile({value}, sum by ({by}, le) (rate({metric}_bucket{{{where}}}[$__rate_interval])))", f"{name}p{value * 100:g}")
        for value in (0.5, 0.9, 0.99)
    ]


def table(title: str, columns: list[tuple[str, str, str]], about: str) -> dict:
    """A row per endpoint; a column per query: heading, query, unit."""
    queries = [query(expr, instant=True, table=True) for _, expr, _ in columns]
    names = {f"Value #{letter}": heading for letter, (heading, _, _) in zip("ABCDEFGHIJ", columns, strict=False)}
    overrides = [
        {"matcher": {"id": "byName", "options": heading}, "properties": [{"id": "unit", "value": unit}]}
        for heading, _, unit in columns
    ]
    transformations = [
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": {"Time": True}, "renameByName": names}},
    ]
    return panel("table", title, queries, about, overrides=overrides, transformations=transformations, options={"showHeader": True})


def fleet() -> dict:
    p = 'pool=~"$pool"'
    return dashboard(
        "fleet",
        "Weighbridge / Fleet",
        "Every pool at a glance.",
        [pools(multi=True)],
        [
            ("", 2, [playbook("WeighbridgePoolDown", "WeighbridgeErrorsMany", "WeighbridgeSheddingMuch", "WeighbridgeTtftHigh", "WeighbridgeEndpointTakesMost")]),
            (
                "",
                4,
                [
                    stat("Alerts", 'count(ALERTS{alertname=~"Weighbridge.*", alertstate="firing"}) or vector(0)', "Alerts of Weighbridge that fire now.", **GOOD_BELOW(1, 3)),
                    stat("Ready", f'sum(weighbridge_prober_state{{{p}, state="ready"}}) / count(max by (pool, endpoint) (weighbridge_prober_weight{{{p}}}))', "Endpoints that take traffic, of all.", "percentunit", **steps((None, "red"), (0.5, "orange"), (1, "green"))),
                    stat("Requests", f"sum(pool:weighbridge_requests:rate5m{{{p}}})", "Per second, placed and refused, over five minutes.", "reqps"),
                    stat("Refused", f"sum(pool:weighbridge_shed:rate5m{{{p}}}) / sum(pool:weighbridge_requests:rate5m{{{p}}} > 0)", "Because of load (429), of all requests.", "percentunit", **GOOD_BELOW(0.01, 0.1)),
                    stat("Errors", f"sum(pool:weighbridge_errors:rate5m{{{p}}}) / sum(pool:weighbridge_answers:rate5m{{{p}}} > 0)", "5xx that clients got, of all answers.", "percentunit", **GOOD_BELOW(0.01, 0.1)),
                    stat("Waiting", f"sum(pool:weighbridge_queue_depth:sum{{{p}}})", "Requests that wait for a slot now.", **GOOD_BELOW(1, 50)),
                    stat("TTFT p99", f"max(pool:weighbridge_ttft_ms:p99_10m{{{p}}})", "Of the worst pool, over ten minutes, wait in the queue included.", "ms", **GOOD_BELOW(5000, 10000)),
                    stat("Tokens/s", f"sum(max by (pool, endpoint) (weighbridge_prober_throughput_tps{{{p}}}))", "What all endpoints together were measured at."),
                ],
            ),
            (
                "Traffic",
                8,
                [
                    lines("Requests", [query(f"sum by (pool) (rate(weighbridge_requests{{{p}}}[$__rate_interval]))", "{{pool}}")], "Placed and refused, by pool.", "reqps", stack=True),
                    lines("Refused", [query(f'sum by (pool, reason) (rate(weighbridge_requests{{{p}, endpoint="none"}}[$__rate_interval]))', "{{pool}} {{reason}}")], "By why.", "reqps", stack=True),
                    lines("Answers", [query('sum by (envoy_response_code_class) (rate(envoy_cluster_upstream_rq_xx{envoy_cluster_name=~"$pool"}[$__rate_interval]))', "{{envoy_response_code_class}}xx")], "What clients got from the pools, after retries.", "reqps", stack=True),
                ],
            ),
            (
                "Load",
                8,
                [
                    lines("In flight of capacity", [query(f"pool:weighbridge_in_flight:sum{{{p}}} / on (pool) (max by (pool) (weighbridge_prober_pool_capacity{{{p}}}) > 0)", "{{pool}}")], "Requests in flight, of the sum of the caps of endpoints that take traffic.", "percentunit"),
                    lines("Waiting", [query(f"pool:weighbridge_queue_depth:sum{{{p}}}", "{{pool}}")], "Requests in the queues of all Envoys."),
                    lines("Time to first token", quantiles("weighbridge_ttft_ms", "pool", p), "From arrival; of answers that are not streamed the first byte.", "ms"),
                ],
            ),
            (
                "Endpoints",
                9,
                [
                    table(
                        "Endpoints",
                        [
                            ("Weight", f"max by (pool, endpoint) (weighbridge_prober_weight{{{p}}})", "short"),
                            ("Tokens/s", f"max by (pool, endpoint) (weighbridge_prober_throughput_tps{{{p}}})", "short"),
                            ("Right share", f"pool_endpoint:weighbridge_weight:share{{{p}}}", "percentunit"),
                            ("Share", f"pool_endpoint:weighbridge_requests:share10m{{{p}}}", "percentunit"),
                            ("In flight", f"sum by (pool, endpoint) (weighbridge_in_flight{{{p}}})", "short"),
                            ("Cap", f"max by (pool, endpoint) (weighbridge_prober_cap{{{p}}})", "short"),
                            ("TTFT", f"max by (pool, endpoint) (weighbridge_prober_average_ttft_ms{{{p}}})", "ms"),
                            ("Errors", f"max by (pool, endpoint) (weighbridge_prober_average_error_rate{{{p}}})", "percentunit"),
                            ("Healthy", f"max by (pool, endpoint) (weighbridge_prober_healthy{{{p}}})", "bool_yes_no"),
                        ],
                        "Right share: by weight, among those that can serve.",
                    )
                ],
            ),
        ],
    )


def pool() -> dict:
    p = 'pool="$pool"'
    return dashboard(
        "pool",
        "Weighbridge / Pool",
        "One pool: who gets what, why, and how long requests wait.",
        [pools(multi=False)],
        [
            ("", 2, [playbook("WeighbridgeEndpointTakesMost", "WeighbridgeSharesOffWeights", "WeighbridgeQueueGrowing", "WeighbridgeShedding", "WeighbridgeErrors", "WeighbridgeAllEjected")]),
            (
                "Who gets what",
                9,
                [
                    lines("Share less right share", [query(f"pool_endpoint:weighbridge_requests:share10m{{{p}}} - on (pool, endpoint) avg_over_time(pool_endpoint:weighbridge_weight:share{{{p}}}[10m])", "{{endpoint}}")], "Share of the requests less what the weight makes right, over ten minutes. An idle pool gives everything to its heaviest.", "percentunit", min=-1, max=1),
                    lines("Requests by endpoint", [query(f'sum by (endpoint) (rate(weighbridge_requests{{{p}, endpoint!="none"}}[$__rate_interval]))', "{{endpoint}}")], "Placed.", "reqps", stack=True),
                    lines("Requests by reason", [query(f"sum by (reason) (rate(weighbridge_requests{{{p}}}[$__rate_interval]))", "{{reason}}")], "Why requests went where they went, or were refused.", "reqps", stack=True),
                ],
            ),
            (
                "Load",
                8,
                [
                    lines("In flight per weight", [query(f"sum by (pool, endpoint) (weighbridge_in_flight{{{p}}}) / on (pool, endpoint) max by (pool, endpoint) (weighbridge_prober_weight{{{p}}})", "{{endpoint}}")], "What the policy balances: alike where it works."),
                    lines("In flight and capacity", [query(f"pool:weighbridge_in_flight:sum{{{p}}}", "in flight"), query(f"max(weighbridge_prober_pool_capacity{{{p}}})", "capacity"), query(f"max(weighbridge_prober_pool_headroom{{{p}}})", "headroom")], "Capacity: the sum of the caps of endpoints that take traffic. Headroom: free slots, as engines tell."),
                    lines("Waiting", [query(f"sum by (instance) (weighbridge_queue_depth{{{p}}})", "{{instance}}")], "In the queue of each Envoy.", stack=True),
                ],
            ),
            (
                "Time",
                8,
                [
                    lines("Time to first token", quantiles("weighbridge_ttft_ms", "pool", p), "From arrival, wait in the queue included.", "ms"),
                    lines("Wait in the queue", quantiles("weighbridge_queue_wait_ms", "pool", p), "Of requests that waited and got a slot.", "ms"),
                    lines("Expected wait", [query(f"max by (instance) (weighbridge_expected_wait_ms{{{p}}})", "{{instance}}")], "What retry-after tells clients.", "ms"),
                ],
            ),
            (
                "Failures",
                8,
                [
                    lines("Answers", [query('sum by (envoy_response_code_class) (rate(envoy_cluster_upstream_rq_xx{envoy_cluster_name="$pool"}[$__rate_interval]))', "{{envoy_response_code_class}}xx")], "What clients got, after retries.", "reqps", stack=True),
                    lines("Retries", [query('sum(rate(envoy_cluster_upstream_rq_retry{envoy_cluster_name="$pool"}[$__rate_interval]))', "retries"), query('sum(rate(envoy_cluster_upstream_rq_retry_success{envoy_cluster_name="$pool"}[$__rate_interval]))', "that helped"), query('sum(rate(envoy_cluster_upstream_rq_retry_overflow{envoy_cluster_name="$pool"}[$__rate_interval]))', "beyond the budget")], "Attempts at another endpoint.", "reqps"),
                    lines("Ejections", [query(f"sum by (endpoint) (increase(weighbridge_ejections{{{p}}}[$__rate_interval])) or sum by (endpoint) (weighbridge_in_flight{{{p}}} * 0)", "{{endpoint}}")], "By the filters, for failures."),
                ],
            ),
            (
                "Prefix",
                7,
                [
                    lines("Prefix known", [query(f'sum(rate(weighbridge_prefix_lookups{{{p}, result="hit"}}[$__rate_interval])) / (sum(rate(weighbridge_prefix_lookups{{{p}, result=~"hit|miss"}}[$__rate_interval])) > 0) or vector(0)', "known")], "Requests of whose prompt somebody is known to hold some, of those that have something to look for.", "percentunit", max=1),
                    lines("Refused because of load", [query(f"pool:weighbridge_shed:rate5m{{{p}}}", "refused")], f"{SHED.replace('|', ', ')}, over five minutes.", "reqps"),
                    lines("Able to serve", [query(f"pool:weighbridge_able:count{{{p}}}", "able"), query(f"count(max by (endpoint) (weighbridge_prober_weight{{{p}}}))", "all")], "Ready, and not ejected by most Envoys."),
                ],
            ),
        ],
    )


def endpoint() -> dict:
    e = 'pool="$pool", endpoint="$endpoint"'
    mappings = [{"type": "value", "options": {"1": {"text": "yes"}}}]
    overrides = [
        {"matcher": {"id": "byName", "options": state}, "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}]}
        for state, color in STATES.items()
    ]
    state = panel(
        "state-timeline",
        "State",
        [query(f"max by (state) (weighbridge_prober_state{{{e}}})", "{{state}}")],
        "ready, new (waits for its first probe), probing, draining, unhealthy.",
        defaults={"mappings": mappings, "custom": {"fillOpacity": 70, "lineWidth": 0}},
        overrides=overrides,
        options={"showValue": "never", "legend": {"displayMode": "list", "placement": "bottom"}, "mergeValues": True},
    )
    return dashboard(
        "endpoint",
        "Weighbridge / Endpoint",
        "One endpoint: what it was measured at, what it has to do, and how it fares.",
        [pools(multi=False), ENDPOINT],
        [
            ("", 2, [playbook("WeighbridgeEndpointDown", "WeighbridgeEndpointEjected", "WeighbridgeEndpointFailing", "WeighbridgeEndpointAlarm", "WeighbridgeEndpointSlower", "WeighbridgeDrainOverdue")]),
            (
                "",
                4,
                [
                    stat("Weight", f"max(weighbridge_prober_weight{{{e}}})", "In force: measured, or pinned by hand.", decimals=2),
                    stat("Pinned", f"max(weighbridge_prober_pinned{{{e}}})", "Somebody has set the weight.", "bool_yes_no"),
                    stat("Tokens/s", f"max(weighbridge_prober_throughput_tps{{{e}}})", "Measured."),
                    stat("Measured", f"max(weighbridge_prober_measurement_age_seconds{{{e}}})", "How long ago.", "s", **GOOD_BELOW(43200, 86400)),
                    stat("Cap", f"max(weighbridge_prober_cap{{{e}}})", "The most requests that it gets at once."),
                    stat("Healthy", f"max(weighbridge_prober_healthy{{{e}}})", "It answers, and it generates.", "bool_yes_no", **UP),
                    stat("Alarm", f"max(weighbridge_prober_alarm{{{e}}})", "The prober says that something is wrong; GET /v1/alarms has the words.", "bool_yes_no", **GOOD_BELOW(1, 2)),
                    stat("Errors", f"max(weighbridge_prober_average_error_rate{{{e}}})", "Of its requests, moving average; stays as it was while it gets none.", "percentunit", **GOOD_BELOW(0.02, 0.1)),
                ],
            ),
            ("", 5, [state]),
            (
                "Load",
                8,
                [
                    lines("In flight", [query(f"sum by (instance) (weighbridge_in_flight{{{e}}})", "{{instance}}")], "Of each Envoy. What others send is beside it.", stack=True),
                    lines("The engine", [query(f"max(weighbridge_prober_engine_running{{{e}}})", "runs"), query(f"max(weighbridge_prober_engine_waiting{{{e}}})", "waits there"), query(f"max(weighbridge_prober_outside_requests{{{e}}})", "from outside"), query(f"max(weighbridge_prober_cap{{{e}}})", "cap")], "As the engine tells. Waiting while we are below the cap: the cap is too high."),
                    lines("KV cache", [query(f"max(weighbridge_prober_engine_kv_usage{{{e}}})", "KV cache")], "Filled share.", "percentunit", max=1),
                ],
            ),
            (
                "How it fares",
                8,
                [
                    lines("Time to first token", [query(f"max(weighbridge_prober_average_ttft_ms{{{e}}})", "first token"), query(f"max(weighbridge_prober_average_e2e_ms{{{e}}})", "whole answer")], "Moving averages, from the decision on.", "ms"),
                    lines("Tokens/s of one request", [query(f"max(weighbridge_prober_average_tps{{{e}}})", "tokens/s")], "Moving average."),
                    lines("Requests by reason", [query(f"sum by (reason) (rate(weighbridge_requests{{{e}}}[$__rate_interval]))", "{{reason}}")], "Why they came here.", "reqps", stack=True),
                ],
            ),
            (
                "Measurement",
                8,
                [
                    lines("Weight", [query(f"max(weighbridge_prober_weight{{{e}}})", "weight")], "In force."),
                    lines("Throughput", [query(f"max(weighbridge_prober_throughput_tps{{{e}}})", "answer tokens/s"), query(f"max(weighbridge_prober_prefill_tps{{{e}}})", "prompt tokens/s")], "Of the measurement in force."),
                    lines("Ejected", [query(f"sum(weighbridge_ejected{{{e}}}) or vector(0)", "Envoys")], "How many Envoys have it ejected."),
                ],
            ),
        ],
    )


def gateway() -> dict:
    g = 'instance=~"$gateway"'
    return dashboard(
        "gateway",
        "Weighbridge / Gateway",
        "The Envoys, and the probers that they hear.",
        [GATEWAY],
        [
            ("", 2, [playbook("WeighbridgeEnvoyDown", "WeighbridgeVmRestarts", "WeighbridgeMemoryShort", "WeighbridgeProberNotSeen", "WeighbridgeSnapshotStale", "WeighbridgeStoreDown")]),
            (
                "",
                4,
                [
                    stat("Envoys", f"count(weighbridge_snapshot_version{{{g}}})", "That are scraped and run the filter."),
                    stat("Connected", "max(weighbridge_prober_envoys_connected)", "As the prober sees it."),
                    stat("Reporting", "max(weighbridge_prober_envoys_reporting)", "Envoys that tell the prober what they have in flight."),
                    stat("Versions", f"count(count_values(\"version\", weighbridge_snapshot_version{{{g}}}))", "Of the snapshot, in force now. One is right.", **GOOD_BELOW(2, 3)),
                    stat("Behind", f"clamp_min(max(scalar(min(weighbridge_prober_snapshot_version)) - weighbridge_snapshot_version{{{g}}}) / 1000, 0)", "How much older the oldest snapshot is than the prober's.", "s", **GOOD_BELOW(1, 60)),
                    stat("Crashes", f"sum(increase(envoy_wasm_weighbridge_vm_reload_success{{{g}}}[1h])) + sum(increase(envoy_wasm_weighbridge_vm_reload_failure{{{g}}}[1h]))", "Restarts of the filter's VM within an hour.", **GOOD_BELOW(1, 2)),
                    stat("Prober", 'min(up{job="weighbridge-prober"})', "Every prober answers Prometheus.", "bool_yes_no", **UP),
                    stat("Store", "min(weighbridge_store_up)", "Every prober can use its store.", "bool_yes_no", **UP),
                ],
            ),
            (
                "Envoy",
                8,
                [
                    lines("Answers to clients", [query(f'sum by (envoy_response_code_class) (rate(envoy_http_downstream_rq_xx{{{g}, envoy_http_conn_manager_prefix!="admin"}}[$__rate_interval]))', "{{envoy_response_code_class}}xx")], "The gateway's own answers included.", "reqps", stack=True),
                    lines("Requests and connections", [query(f'sum(envoy_http_downstream_rq_active{{{g}, envoy_http_conn_manager_prefix!="admin"}})', "requests"), query(f'sum(envoy_http_downstream_cx_active{{{g}, envoy_http_conn_manager_prefix!="admin"}})', "connections")], "Of clients, now."),
                    lines("Memory", [query(f"envoy_server_memory_allocated{{{g}}}", "allocated {{instance}}"), query(f"envoy_server_memory_physical_size{{{g}}}", "physical {{instance}}")], "V8's own memory is not in it.", "bytes"),
                    lines("Heap of its limit", [query(f"envoy_overload_envoy_resource_monitors_fixed_heap_pressure{{{g}}}", "{{instance}}")], "From 95 % on, new requests get 503.", "percent", max=100),
                ],
            ),
            (
                "Filter",
                8,
                [
                    lines("Age of the others' load", [query(f"weighbridge_signals_age_ms{{{g}}}", "{{instance}}")], "How old what the prober tells of other Envoys is.", "ms"),
                    lines("Reports to the prober", [query(f"sum by (result) (rate(weighbridge_signals_calls{{{g}}}[$__rate_interval]))", "{{result}}")], "By how they end.", "reqps", stack=True),
                    lines("Bodies that wait", [query(f"sum by (instance) (weighbridge_queue_bytes{{{g}}})", "{{instance}}")], "Memory that the queue holds.", "bytes"),
                    lines("Faults", [query(f"sum(increase(weighbridge_queue_late_wakes{{{g}}}[$__rate_interval])) or vector(0)", "late wake-ups"), query(f"sum(increase(weighbridge_live_write_failures{{{g}}}[$__rate_interval])) or vector(0)", "writes of counts that failed"), query(f"sum(increase(weighbridge_decisions_dropped{{{g}}}[$__rate_interval])) or vector(0)", "records dropped")], "Zero, or nearly."),
                ],
            ),
            (
                "Prober",
                8,
                [
                    lines("Probes", [query("sum by (kind, result) (increase(weighbridge_prober_probes_total[1h]))", "{{kind}} {{result}}")], "Within an hour."),
                    lines("Store", [query("sum by (instance) (weighbridge_store_pending_writes)", "waiting {{instance}}"), query("sum(weighbridge_probe_lease)", "leases")], "Changes that wait to be stored; one lease is right."),
                    lines("Alarms", [query("sum by (code) (weighbridge_prober_alarms)", "{{code}}")], "By code; docs/alarms.md."),
                    lines("Configurations refused", [query("sum by (instance) (increase(weighbridge_prober_nacks_total[1h]))", "{{instance}}")], "NACKs of Envoys within an hour."),
                ],
            ),
        ],
    )


BOARDS = {"fleet": fleet, "pool": pool, "endpoint": endpoint, "gateway": gateway}
