"""The Envoys, and the probers that they hear."""

from panels import GATEWAY, GOOD_BELOW, UP, dashboard, lines, playbook, query, stat


def board() -> dict:
    g = 'instance=~"$gateway"'
    return dashboard(
        "gateway",
        "Weighbridge / Gateway",
        "The Envoys, and the probers that they hear.",
        [GATEWAY],
        [
            (
                "",
                2,
                [
                    playbook(
                        "WeighbridgeEnvoyDown",
                        "WeighbridgeVmRestarts",
                        "WeighbridgeMemoryShort",
                        "WeighbridgeProberNotSeen",
                        "WeighbridgeSnapshotStale",
                        "WeighbridgeStoreDown",
                    )
                ],
            ),
            (
                "",
                4,
                [
                    stat("Envoys", f"count(weighbridge_snapshot_version{{{g}}})", "That are scraped and run the filter."),
                    stat("Connected", "max(weighbridge_prober_envoys_connected)", "As the prober sees it."),
                    stat(
                        "Reporting",
                        "max(weighbridge_prober_envoys_reporting)",
                        "Envoys that tell the prober what they have in flight.",
                    ),
                    stat(
                        "Versions",
                        f'count(count_values("version", weighbridge_snapshot_version{{{g}}}))',
                        "Of the snapshot, in force now. One is right.",
                        **GOOD_BELOW(2, 3),
                    ),
                    stat(
                        "Behind",
                        f"clamp_min(max(scalar(min(weighbridge_prober_snapshot_version)) - weighbridge_snapshot_version{{{g}}}) / 1000, 0)",
                        "How much older the oldest snapshot is than the prober's.",
                        "s",
                        **GOOD_BELOW(1, 60),
                    ),
                    stat(
                        "Crashes",
                        f"sum(increase(envoy_wasm_weighbridge_vm_reload_success{{{g}}}[1h])) + sum(increase(envoy_wasm_weighbridge_vm_reload_failure{{{g}}}[1h]))",
                        "Restarts of the filter's VM within an hour.",
                        **GOOD_BELOW(1, 2),
                    ),
                    stat("Prober", 'min(up{job="weighbridge-prober"})', "Every prober answers Prometheus.", "bool_yes_no", **UP),
                    stat("Store", "min(weighbridge_store_up)", "Every prober can use its store.", "bool_yes_no", **UP),
                ],
            ),
            (
                "Envoy",
                8,
                [
                    lines(
                        "Answers to clients",
                        [
                            query(
                                f'sum by (envoy_response_code_class) (rate(envoy_http_downstream_rq_xx{{{g}, envoy_http_conn_manager_prefix!="admin"}}[$__rate_interval]))',
                                "{{envoy_response_code_class}}xx",
                            )
                        ],
                        "The gateway's own answers included.",
                        "reqps",
                        stack=True,
                    ),
                    lines(
                        "Requests and connections",
                        [
                            query(
                                f'sum(envoy_http_downstream_rq_active{{{g}, envoy_http_conn_manager_prefix!="admin"}})',
                                "requests",
                            ),
                            query(
                                f'sum(envoy_http_downstream_cx_active{{{g}, envoy_http_conn_manager_prefix!="admin"}})',
                                "connections",
                            ),
                        ],
                        "Of clients, now.",
                    ),
                    lines(
                        "Memory",
                        [
                            query(f"envoy_server_memory_allocated{{{g}}}", "allocated {{instance}}"),
                            query(f"envoy_server_memory_physical_size{{{g}}}", "physical {{instance}}"),
                        ],
                        "V8's own memory is not in it.",
                        "bytes",
                    ),
                    lines(
                        "Heap of its limit",
                        [query(f"envoy_overload_envoy_resource_monitors_fixed_heap_pressure{{{g}}}", "{{instance}}")],
                        "From 95 % on, new requests get 503.",
                        "percent",
                        max=100,
                    ),
                ],
            ),
            (
                "Filter",
                8,
                [
                    lines(
                        "Age of the others' load",
                        [query(f"weighbridge_signals_age_ms{{{g}}}", "{{instance}}")],
                        "How old what the prober tells of other Envoys is.",
                        "ms",
                    ),
                    lines(
                        "Reports to the prober",
                        [query(f"sum by (result) (rate(weighbridge_signals_calls{{{g}}}[$__rate_interval]))", "{{result}}")],
                        "By how they end.",
                        "reqps",
                        stack=True,
                    ),
                    lines(
                        "Bodies that wait",
                        [query(f"sum by (instance) (weighbridge_queue_bytes{{{g}}})", "{{instance}}")],
                        "Memory that the queue holds.",
                        "bytes",
                    ),
                    lines(
                        "Faults",
                        [
                            query(
                                f"sum(increase(weighbridge_queue_late_wakes{{{g}}}[$__rate_interval])) or vector(0)",
                                "late wake-ups",
                            ),
                            query(
                                f"sum(increase(weighbridge_live_write_failures{{{g}}}[$__rate_interval])) or vector(0)",
                                "writes of counts that failed",
                            ),
                            query(
                                f"sum(increase(weighbridge_decisions_dropped{{{g}}}[$__rate_interval])) or vector(0)",
                                "records dropped",
                            ),
                        ],
                        "Zero, or nearly.",
                    ),
                ],
            ),
            (
                "Prober",
                8,
                [
                    lines(
                        "Probes",
                        [query("sum by (kind, result) (increase(weighbridge_prober_probes_total[1h]))", "{{kind}} {{result}}")],
                        "Within an hour.",
                    ),
                    lines(
                        "Store",
                        [
                            query("sum by (instance) (weighbridge_store_pending_writes)", "waiting {{instance}}"),
                            query("sum(weighbridge_probe_lease)", "leases"),
                        ],
                        "Changes that wait to be stored; one lease is right.",
                    ),
                    lines("Alarms", [query("sum by (code) (weighbridge_prober_alarms)", "{{code}}")], "By code; docs/alarms.md."),
                    lines(
                        "Configurations refused",
                        [query("sum by (instance) (increase(weighbridge_prober_nacks_total[1h]))", "{{instance}}")],
                        "NACKs of Envoys within an hour.",
                    ),
                ],
            ),
        ],
    )
