"""Alerts: Prometheus accepts the files, every alert fires when it should and is silent when it should be (promtool), every
condition in it is needed, and docs/alerts.md has an entry for each."""

import functools
import re
import subprocess
from pathlib import Path

import pytest
import yaml
from conftest import ROOT, tool

PROMETHEUS = ROOT / "deploy" / "prometheus"
RULES = sorted((PROMETHEUS / "rules").glob("*.yaml"))
TESTS = sorted((PROMETHEUS / "tests").glob("*.yaml"))
PAGE = ROOT / "docs" / "alerts.md"
SEVERITIES = {"critical", "warning", "info"}
# Stands for `for` among the places of conditions.
WAIT = -1


def promtool(*arguments, cwd: Path = PROMETHEUS) -> subprocess.CompletedProcess:
    command = [tool("promtool"), *map(str, arguments)]
    return subprocess.run(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


@functools.cache
def groups() -> list[dict]:
    return [group for file in RULES for group in yaml.safe_load(file.read_text())["groups"]]


def alerts() -> dict[str, dict]:
    found = [rule for group in groups() for rule in group["rules"] if "alert" in rule]
    by_name = {rule["alert"]: rule for rule in found}
    assert len(by_name) == len(found), "every alert has a name of its own"
    return by_name


@functools.cache
def cases() -> list[tuple[Path, dict, dict]]:
    """File, test and its look at one alert at one time."""
    return [
        (file, test, look)
        for file in TESTS
        for test in yaml.safe_load(file.read_text())["tests"]
        for look in test["alert_rule_test"]
    ]


def entries() -> dict[str, str]:
    """The entries of the playbook: heading and text."""
    parts = re.split(r"^### (\w+)\n", PAGE.read_text(), flags=re.MULTILINE)[1:]
    return {name: re.split(r"^## ", text, flags=re.MULTILINE)[0] for name, text in zip(parts[::2], parts[1::2], strict=True)}


def test_prometheus_accepts_rules_and_configuration():
    for arguments in (["check", "rules", "--lint=all", "--lint-fatal", *RULES], ["check", "config", "prometheus.yml"]):
        checked = promtool(*arguments)
        assert checked.returncode == 0, checked.stdout


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_alerts_fire_when_they_should_and_only_then(file: Path):
    run = promtool("test", "rules", file)
    assert run.returncode == 0, run.stdout


def test_every_alert_has_its_tests_and_its_entry():
    rules, pages = alerts(), entries()
    fires = {look["alertname"] for _, _, look in cases() if look["exp_alerts"]}
    silent = {look["alertname"] for _, test, look in cases() if test["name"].startswith("quiet") and not look["exp_alerts"]}
    assert fires == set(rules), "each is seen firing"
    assert silent == set(rules), "each is seen silent in a case where it might not be"
    assert list(pages) == list(rules), "the playbook has them all, in the order of the rules"
    for name, rule in rules.items():
        assert rule["labels"]["severity"] in SEVERITIES, name
        text = rule["annotations"]
        assert set(text) == {"summary", "description", "runbook"}, name
        assert text["runbook"] == f"docs/alerts.md#{name.lower()}", name
        said = re.findall(r"\*\*(Look at|Do|False alarm)\b", pages[name])
        assert sorted(set(said)) == ["Do", "False alarm", "Look at"], f"{name}: {said}"


def test_the_table_of_alerts(capsys):
    where: dict[str, set[str]] = {}
    for file, _, look in cases():
        where.setdefault(look["alertname"], set()).add(str(file.relative_to(ROOT)))
    with capsys.disabled():
        print("\n\n| alert | severity | for | query | promtool test | page |\n|---|---|---|---|---|---|")
        for name, rule in alerts().items():
            query = " ".join(rule["expr"].split()).replace("|", "\\|")
            files = ", ".join(sorted(where[name]))
            print(
                f"| {name} | {rule['labels']['severity']} | {rule.get('for', '0s')} | `{query}` | {files} | {rule['annotations']['runbook']} |"
            )


def conditions(rule: dict) -> list[int]:
    """Every line of an alert's query that only narrows it (`and ...`, `unless ...`), and its wait (WAIT)."""
    lines = rule["expr"].splitlines()
    found = [at for at, line in enumerate(lines) if line.startswith(("and ", "unless "))]
    return [*found, WAIT] if "for" in rule else found


def without(rule: dict, at: int) -> dict:
    """The alert with one of its conditions taken away."""
    if at == WAIT:
        return {key: value for key, value in rule.items() if key != "for"}
    lines = rule["expr"].splitlines()
    end = at + 1
    while end < len(lines) and lines[end].startswith(" "):
        end += 1
    return rule | {"expr": "\n".join(lines[:at] + lines[end:])}


def trial(rule: dict, tests: list[dict], directory: Path, name: str) -> None:
    """Writes a test file of what looks at this alert, with this version of it and the records that it needs."""
    used, records = rule["expr"], []
    for record in reversed([record for group in groups() for record in group["rules"] if "record" in record]):
        if record["record"] in used:
            used, records = used + record["expr"], [record, *records]
    rules = [{"name": "all", "rules": [*records, rule]}]
    (directory / f"{name}.rules").write_text(yaml.safe_dump({"groups": rules}))
    tests = {
        "rule_files": [f"{name}.rules"],
        "evaluation_interval": "1m",
        "tests": tests,
    }
    (directory / f"{name}.yaml").write_text(yaml.safe_dump(tests))


def test_no_condition_of_an_alert_can_be_left_out(tmp_path: Path):
    """Tests of silence that would pass without what keeps the alert silent prove nothing."""
    expected = {}
    for name, rule in alerts().items():
        looked: dict[tuple, dict] = {}
        for file, test, look in cases():
            if look["alertname"] == name:
                looked.setdefault((file, test["name"]), test | {"alert_rule_test": []})["alert_rule_test"].append(look)
        for at in conditions(rule):
            trial(without(rule, at), list(looked.values()), tmp_path, f"{name}.{at}")
            expected[f"{name}.{at}"] = "for" if at == WAIT else rule["expr"].splitlines()[at]
    run = promtool("test", "rules", *(f"{name}.yaml" for name in expected), cwd=tmp_path)
    said = dict(re.findall(r"Unit Testing:  ([^\n]*)\.yaml\n(.*?)(?=\nUnit Testing:|\Z)", run.stdout, re.DOTALL))
    assert set(said) == set(expected)
    needless = [f"{name}: {what}" for name, what in expected.items() if "exp:[" not in said[name]]
    assert not needless, "no test notices when this is gone:\n" + "\n".join(needless)
