"""Every pool at a glance."""

from panels import GOOD_BELOW, dashboard, lines, playbook, pools, quantiles, query, stat, steps, table


def board() -> dict:
    p = 'pool=~"$pool"'
    return dashboard(
        "fleet",
        "Weighbridge / Fleet",
        "Every pool at a glance.",
        [pools(multi=True)],
        [
            (
                "",
                2,
                [
                    playbook(
                        "WeighbridgePoolDown",
                        "WeighbridgeErrorsMany",
                        "WeighbridgeSheddingMuch",
                        "WeighbridgeTtftHigh",
                        "WeighbridgeEndpointTakesMost",
                    )
                ],
            ),
            (
                "",
                4,
                [
                    stat(
                        "Alerts",
                        'count(ALERTS{alertname=~"Weighbridge.*", alertstate="firing"}) or vector(0)',
                        "Alerts of Weighbridge that fire now.",
                        **GOOD_BELOW(1, 3),
                    ),
                    stat(
                        "Ready",
                        f'sum(max by (pool, endpoint) (weighbridge_prober_state{{{p}, state="ready"}})) / count(max by (pool, endpoint) (weighbridge_prober_weight{{{p}}}))',
                        "Endpoints that take traffic, of all.",
                        "percentunit",
                        **steps((None, "red"), (0.5, "orange"), (1, "green")),
                    ),
                    stat(
                        "Requests",
                        f"sum(pool:weighbridge_requests:rate5m{{{p}}})",
                        "Per second, placed and refused, over five minutes.",
                        "reqps",
                    ),
                    stat(
                        "Refused",
                        f"sum(pool:weighbridge_shed:rate5m{{{p}}}) / sum(pool:weighbridge_requests:rate5m{{{p}}} > 0)",
                        "Because of load (429), of all requests.",
                        "percentunit",
                        **GOOD_BELOW(0.01, 0.1),
                    ),
                    stat(
                        "Errors",
                        f"sum(pool:weighbridge_errors:rate5m{{{p}}}) / sum(pool:weighbridge_answers:rate5m{{{p}}} > 0)",
                        "5xx that clients got, of all answers.",
                        "percentunit",
                        **GOOD_BELOW(0.01, 0.1),
                    ),
                    stat(
                        "Waiting",
                        f"sum(pool:weighbridge_queue_depth:sum{{{p}}})",
                        "Requests that wait for a slot now.",
                        **GOOD_BELOW(1, 50),
                    ),
                    stat(
                        "TTFT p99",
                        f"max(pool:weighbridge_ttft_ms:p99_10m{{{p}}})",
                        "Of the worst pool, over ten minutes, wait in the queue included.",
                        "ms",
                        **GOOD_BELOW(5000, 10000),
                    ),
                    stat(
                        "Tokens/s",
                        f"sum(max by (pool, endpoint) (weighbridge_prober_throughput_tps{{{p}}}))",
                        "What all endpoints together were measured at.",
                    ),
                ],
            ),
            (
                "Traffic",
                8,
                [
                    lines(
                        "Requests",
                        [query(f"sum by (pool) (rate(weighbridge_requests{{{p}}}[$__rate_interval]))", "{{pool}}")],
                        "Placed and refused, by pool.",
                        "reqps",
                        stack=True,
                    ),
                    lines(
                        "Refused",
                        [
                            query(
                                f'sum by (pool, reason) (rate(weighbridge_requests{{{p}, endpoint="none"}}[$__rate_interval]))',
                                "{{pool}} {{reason}}",
                            )
                        ],
                        "By why.",
                        "reqps",
                        stack=True,
                    ),
                    lines(
                        "Answers",
                        [
                            query(
                                'sum by (envoy_response_code_class) (rate(envoy_cluster_upstream_rq_xx{envoy_cluster_name=~"$pool"}[$__rate_interval]))',
                                "{{envoy_response_code_class}}xx",
                            )
                        ],
                        "What clients got from the pools, after retries.",
                        "reqps",
                        stack=True,
                    ),
                ],
            ),
            (
                "Load",
                8,
                [
                    lines(
                        "In flight of capacity",
                        [
                            query(
                                f"pool:weighbridge_in_flight:sum{{{p}}} / on (pool) (max by (pool) (weighbridge_prober_pool_capacity{{{p}}}) > 0)",
                                "{{pool}}",
                            )
                        ],
                        "Requests in flight, of the sum of the caps of endpoints that take traffic.",
                        "percentunit",
                    ),
                    lines(
                        "Waiting",
                        [query(f"pool:weighbridge_queue_depth:sum{{{p}}}", "{{pool}}")],
                        "Requests in the queues of all Envoys.",
                    ),
                    lines(
                        "Time to first token",
                        quantiles("weighbridge_ttft_ms", "pool", p),
                        "From arrival; of answers that are not streamed the first byte.",
                        "ms",
                    ),
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
