"""One pool: who gets what, why, and how long requests wait."""

from panels import dashboard, lines, playbook, pools, quantiles, query


def board() -> dict:
    p = 'pool="$pool"'
    return dashboard(
        "pool",
        "Weighbridge / Pool",
        "One pool: who gets what, why, and how long requests wait.",
        [pools(multi=False)],
        [
            (
                "",
                2,
                [
                    playbook(
                        "WeighbridgeEndpointTakesMost",
                        "WeighbridgeSharesOffWeights",
                        "WeighbridgeQueueGrowing",
                        "WeighbridgeShedding",
                        "WeighbridgeErrors",
                        "WeighbridgeAllEjected",
                    )
                ],
            ),
            (
                "Who gets what",
                9,
                [
                    lines(
                        "Share less right share",
                        [
                            query(
                                f"pool_endpoint:weighbridge_requests:share10m{{{p}}} - on (pool, endpoint) avg_over_time(pool_endpoint:weighbridge_weight:share{{{p}}}[10m])",
                                "{{endpoint}}",
                            )
                        ],
                        "Share of the requests less what the weight makes right, over ten minutes. An idle pool gives everything to its heaviest.",
                        "percentunit",
                        min=-1,
                        max=1,
                    ),
                    lines(
                        "Requests by endpoint",
                        [
                            query(
                                f'sum by (endpoint) (rate(weighbridge_requests{{{p}, endpoint!="none"}}[$__rate_interval]))',
                                "{{endpoint}}",
                            )
                        ],
                        "Placed.",
                        "reqps",
                        stack=True,
                    ),
                    lines(
                        "Requests by reason",
                        [query(f"sum by (reason) (rate(weighbridge_requests{{{p}}}[$__rate_interval]))", "{{reason}}")],
                        "Why requests went where they went, or were refused.",
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
                        "In flight per weight",
                        [
                            query(
                                f"sum by (pool, endpoint) (weighbridge_in_flight{{{p}}}) / on (pool, endpoint) max by (pool, endpoint) (weighbridge_prober_weight{{{p}}})",
                                "{{endpoint}}",
                            )
                        ],
                        "What the policy balances: alike where it works.",
                    ),
                    lines(
                        "In flight and capacity",
                        [
                            query(f"pool:weighbridge_in_flight:sum{{{p}}}", "in flight"),
                            query(f"max(weighbridge_prober_pool_capacity{{{p}}})", "capacity"),
                            query(f"max(weighbridge_prober_pool_headroom{{{p}}})", "headroom"),
                        ],
                        "Capacity: the sum of the caps of endpoints that take traffic. Headroom: free slots, as engines tell.",
                    ),
                    lines(
                        "Waiting",
                        [query(f"sum by (instance) (weighbridge_queue_depth{{{p}}})", "{{instance}}")],
                        "In the queue of each Envoy.",
                        stack=True,
                    ),
                ],
            ),
            (
                "Time",
                8,
                [
                    lines(
                        "Time to first token",
                        quantiles("weighbridge_ttft_ms", "pool", p),
                        "From arrival, wait in the queue included.",
                        "ms",
                    ),
                    lines(
                        "Wait in the queue",
                        quantiles("weighbridge_queue_wait_ms", "pool", p),
                        "Of requests that waited and got a slot.",
                        "ms",
                    ),
                    lines(
                        "Expected wait",
                        [query(f"max by (instance) (weighbridge_expected_wait_ms{{{p}}})", "{{instance}}")],
                        "What retry-after tells clients.",
                        "ms",
                    ),
                ],
            ),
            (
                "Failures",
                8,
                [
                    lines(
                        "Answers",
                        [
                            query(
                                'sum by (envoy_response_code_class) (rate(envoy_cluster_upstream_rq_xx{envoy_cluster_name="$pool"}[$__rate_interval]))',
                                "{{envoy_response_code_class}}xx",
                            )
                        ],
                        "What clients got, after retries.",
                        "reqps",
                        stack=True,
                    ),
                    lines(
                        "Retries",
                        [
                            query(
                                'sum(rate(envoy_cluster_upstream_rq_retry{envoy_cluster_name="$pool"}[$__rate_interval]))',
                                "retries",
                            ),
                            query(
                                'sum(rate(envoy_cluster_upstream_rq_retry_success{envoy_cluster_name="$pool"}[$__rate_interval]))',
                                "that helped",
                            ),
                            query(
                                'sum(rate(envoy_cluster_upstream_rq_retry_overflow{envoy_cluster_name="$pool"}[$__rate_interval]))',
                                "beyond the budget",
                            ),
                        ],
                        "Attempts at another endpoint.",
                        "reqps",
                    ),
                    lines(
                        "Ejections",
                        [
                            query(
                                f"sum by (endpoint) (increase(weighbridge_ejections{{{p}}}[$__rate_interval])) or sum by (endpoint) (weighbridge_in_flight{{{p}}} * 0)",
                                "{{endpoint}}",
                            )
                        ],
                        "By the filters, for failures.",
                    ),
                ],
            ),
            (
                "Prefix",
                7,
                [
                    lines(
                        "Prefix known",
                        [
                            query(
                                f'sum(rate(weighbridge_prefix_lookups{{{p}, result="hit"}}[$__rate_interval])) / (sum(rate(weighbridge_prefix_lookups{{{p}, result=~"hit|miss"}}[$__rate_interval])) > 0) or vector(0)',
                                "known",
                            )
                        ],
                        "Requests of whose prompt somebody is known to hold some, of those that have something to look for.",
                        "percentunit",
                        max=1,
                    ),
                    lines(
                        "Refused because of load",
                        [query(f"pool:weighbridge_shed:rate5m{{{p}}}", "refused")],
                        "at_cap, queue_full, queue_timeout, over five minutes.",
                        "reqps",
                    ),
                    lines(
                        "Able to serve",
                        [
                            query(f"pool:weighbridge_able:count{{{p}}}", "able"),
                            query(f"count(max by (endpoint) (weighbridge_prober_weight{{{p}}}))", "all"),
                        ],
                        "Ready, and not ejected by most Envoys.",
                    ),
                ],
            ),
        ],
    )
