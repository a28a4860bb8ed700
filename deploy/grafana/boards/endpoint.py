"""One endpoint: what it was measured at, what it has to do, and how it fares."""

from panels import ENDPOINT, GOOD_BELOW, UP, dashboard, lines, panel, playbook, pools, query, stat

# As the prober names them.
STATES = {
    "ready": "green",
    "probing": "blue",
    "new": "text",
    "draining": "orange",
    "unhealthy": "red",
}


def board() -> dict:
    e = 'pool="$pool", endpoint="$endpoint"'
    mappings = [{"type": "value", "options": {"1": {"text": "yes"}}}]
    overrides = [
        {
            "matcher": {"id": "byName", "options": state},
            "properties": [{"id": "color", "value": {"mode": "fixed", "fixedColor": color}}],
        }
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
            (
                "",
                2,
                [
                    playbook(
                        "WeighbridgeEndpointDown",
                        "WeighbridgeEndpointEjected",
                        "WeighbridgeEndpointFailing",
                        "WeighbridgeEndpointAlarm",
                        "WeighbridgeEndpointSlower",
                        "WeighbridgeDrainOverdue",
                    )
                ],
            ),
            (
                "",
                4,
                [
                    stat(
                        "Weight", f"max(weighbridge_prober_weight{{{e}}})", "In force: measured, or pinned by hand.", decimals=2
                    ),
                    stat("Pinned", f"max(weighbridge_prober_pinned{{{e}}})", "Somebody has set the weight.", "bool_yes_no"),
                    stat("Tokens/s", f"max(weighbridge_prober_throughput_tps{{{e}}})", "Measured."),
                    stat(
                        "Measured",
                        f"max(weighbridge_prober_measurement_age_seconds{{{e}}})",
                        "How long ago.",
                        "s",
                        **GOOD_BELOW(43200, 86400),
                    ),
                    stat("Cap", f"max(weighbridge_prober_cap{{{e}}})", "The most requests that it gets at once."),
                    stat(
                        "Healthy", f"max(weighbridge_prober_healthy{{{e}}})", "It answers, and it generates.", "bool_yes_no", **UP
                    ),
                    stat(
                        "Alarm",
                        f"max(weighbridge_prober_alarm{{{e}}})",
                        "The prober says that something is wrong; GET /v1/alarms has the words.",
                        "bool_yes_no",
                        **GOOD_BELOW(1, 2),
                    ),
                    stat(
                        "Errors",
                        f"max(weighbridge_prober_average_error_rate{{{e}}})",
                        "Of its requests, moving average; stays as it was while it gets none.",
                        "percentunit",
                        **GOOD_BELOW(0.02, 0.1),
                    ),
                ],
            ),
            ("", 5, [state]),
            (
                "Load",
                8,
                [
                    lines(
                        "In flight",
                        [query(f"sum by (instance) (weighbridge_in_flight{{{e}}})", "{{instance}}")],
                        "Of each Envoy. What others send is beside it.",
                        stack=True,
                    ),
                    lines(
                        "The engine",
                        [
                            query(f"max(weighbridge_prober_engine_running{{{e}}})", "runs"),
                            query(f"max(weighbridge_prober_engine_waiting{{{e}}})", "waits there"),
                            query(f"max(weighbridge_prober_outside_requests{{{e}}})", "from outside"),
                            query(f"max(weighbridge_prober_cap{{{e}}})", "cap"),
                        ],
                        "As the engine tells. Waiting while we are below the cap: the cap is too high.",
                    ),
                    lines(
                        "KV cache",
                        [query(f"max(weighbridge_prober_engine_kv_usage{{{e}}})", "KV cache")],
                        "Filled share.",
                        "percentunit",
                        max=1,
                    ),
                ],
            ),
            (
                "How it fares",
                8,
                [
                    lines(
                        "Time to first token",
                        [
                            query(f"max(weighbridge_prober_average_ttft_ms{{{e}}})", "first token"),
                            query(f"max(weighbridge_prober_average_e2e_ms{{{e}}})", "whole answer"),
                        ],
                        "Moving averages, from the decision on.",
                        "ms",
                    ),
                    lines(
                        "Tokens/s of one request",
                        [query(f"max(weighbridge_prober_average_tps{{{e}}})", "tokens/s")],
                        "Moving average.",
                    ),
                    lines(
                        "Requests by reason",
                        [query(f"sum by (reason) (rate(weighbridge_requests{{{e}}}[$__rate_interval]))", "{{reason}}")],
                        "Why they came here.",
                        "reqps",
                        stack=True,
                    ),
                ],
            ),
            (
                "Measurement",
                8,
                [
                    lines("Weight", [query(f"max(weighbridge_prober_weight{{{e}}})", "weight")], "In force."),
                    lines(
                        "Throughput",
                        [
                            query(f"max(weighbridge_prober_throughput_tps{{{e}}})", "answer tokens/s"),
                            query(f"max(weighbridge_prober_prefill_tps{{{e}}})", "prompt tokens/s"),
                        ],
                        "Of the measurement in force.",
                    ),
                    lines(
                        "Ejected",
                        [query(f"sum(weighbridge_ejected{{{e}}}) or vector(0)", "Envoys")],
                        "How many Envoys have it ejected.",
                    ),
                ],
            ),
        ],
    )
