"""What the dashboards are made of. A dashboard is a list of rows, a row a list of panels that share its width. What is the same
everywhere (datasource, grid, legend, colours) stands here once, so that four dashboards look like one."""

# Grafana 11 and 12 read it; newer ones migrate it when they load it.
SCHEMA = 39
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH = 24


def query(expr: str, legend: str = "", instant: bool = False, table: bool = False) -> dict:
    return {
        "datasource": SOURCE,
        "editorMode": "code",
        "expr": " ".join(expr.split()),
        "legendFormat": legend or "__auto",
        "instant": instant,
        "range": not instant,
        "format": "table" if table else "time_series",
    }


def panel(kind: str, title: str, queries: list[dict], about: str, unit: str = "short", **more) -> dict:
    """`about` is what the little i shows. `more`: fieldConfig's `defaults` and `overrides`, `options`, `transformations`."""
    for letter, each in zip("ABCDEFGHIJ", queries, strict=False):
        each["refId"] = letter
    return {
        "type": kind,
        "title": title,
        "description": about,
        "datasource": SOURCE,
        "fieldConfig": {"defaults": {"unit": unit, **more.get("defaults", {})}, "overrides": more.get("overrides", [])},
        "options": more.get("options", {}),
        "targets": queries,
        "transformations": more.get("transformations", []),
    }


def lines(title: str, queries: list[dict], about: str, unit: str = "short", stack: bool = False, **defaults) -> dict:
    """A time series; stacked where the sum means something."""
    custom = {
        "lineWidth": 1,
        "fillOpacity": 25 if stack else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stack else "none", "group": "A"},
    }
    options = {
        "legend": {"displayMode": "list", "placement": "bottom", "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    return panel("timeseries", title, queries, about, unit, defaults={"min": 0, "custom": custom, **defaults}, options=options)


def steps(*at: tuple[float | None, str]) -> dict:
    return {"thresholds": {"mode": "absolute", "steps": [{"value": value, "color": color} for value, color in at]}}


GOOD_BELOW = lambda warn, bad: steps((None, "green"), (warn, "orange"), (bad, "red"))  # noqa: E731
# For what is 1 where all is well.
UP = steps((None, "red"), (1, "green"))


def stat(title: str, expr: str, about: str, unit: str = "short", **defaults) -> dict:
    options = {
        "colorMode": "value",
        "graphMode": "area",
        "justifyMode": "auto",
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
    }
    defaults.setdefault("thresholds", steps((None, "text"))["thresholds"])
    return panel("stat", title, [query(expr)], about, unit, defaults=defaults, options=options)


def quantiles(metric: str, by: str, where: str) -> list[dict]:
    name = "{{pool}} " if "pool" in by else ""
    return [
        query(
            f"histogram_quantile({value}, sum by ({by}, le) (rate({metric}_bucket{{{where}}}[$__rate_interval])))",
            f"{name}p{value * 100:g}",
        )
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
    return panel(
        "table", title, queries, about, overrides=overrides, transformations=transformations, options={"showHeader": True}
    )


def text(title: str, content: str) -> dict:
    return {
        "type": "text",
        "title": title,
        "transparent": True,
        "options": {"mode": "markdown", "content": content},
        "fieldConfig": {"defaults": {}, "overrides": []},
        "targets": [],
    }


def playbook(*alerts: str) -> dict:
    links = " · ".join(f"[{name.removeprefix('Weighbridge')}](${{docs}}/alerts.md#{name.lower()})" for name in alerts)
    return text("", f"**Playbook** {links} · [all](${{docs}}/alerts.md) · [words and figures](${{docs}}/telemetry.md)")


def variable(name: str, label: str, values: str, multi: bool) -> dict:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": values,
        "query": {"query": values, "refId": "variable"},
        "refresh": 2,
        "sort": 1,
        "multi": multi,
        "includeAll": multi,
        "current": {"text": ["All"], "value": ["$__all"]} if multi else {},
    }


def pools(multi: bool) -> dict:
    return variable("pool", "Pool", "label_values(weighbridge_prober_pool_capacity, pool)", multi)


ENDPOINT = variable("endpoint", "Endpoint", 'label_values(weighbridge_prober_weight{pool="$pool"}, endpoint)', False)
GATEWAY = variable("gateway", "Envoy", "label_values(weighbridge_snapshot_version, instance)", True)


def dashboard(name: str, title: str, about: str, variables: list[dict], rows: list[tuple[str, int, list[dict]]]) -> dict:
    """`rows`: heading (none for no heading), height, panels."""
    panels, y = [], 0
    for heading, height, content in rows:
        if heading:
            panels.append(
                {
                    "type": "row",
                    "title": heading,
                    "collapsed": False,
                    "gridPos": {"x": 0, "y": y, "w": WIDTH, "h": 1},
                    "panels": [],
                }
            )
            y += 1
        width = WIDTH // len(content)
        for at, each in enumerate(content):
            panels.append(each | {"gridPos": {"x": at * width, "y": y, "w": width, "h": height}})
        y += height
    for number, each in enumerate(panels, 1):
        each["id"] = number
    source = {
        "name": "datasource",
        "label": "Prometheus",
        "type": "datasource",
        "query": "prometheus",
        "current": {},
        "refresh": 1,
    }
    docs = {"name": "docs", "label": "Docs", "type": "textbox", "query": "docs", "current": {"text": "docs", "value": "docs"}}
    link = {
        "type": "dashboards",
        "title": "Weighbridge",
        "tags": ["weighbridge"],
        "asDropdown": False,
        "includeVars": True,
        "keepTime": True,
    }
    return {
        "uid": f"weighbridge-{name}",
        "title": title,
        "description": about,
        "tags": ["weighbridge"],
        "schemaVersion": SCHEMA,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "time": {"from": "now-1h", "to": "now"},
        "refresh": "30s",
        "timezone": "browser",
        "links": [link],
        "templating": {"list": [source, *variables, docs]},
        "annotations": {"list": []},
        "panels": panels,
    }
