"""The Ansible collection, applied to machines with a real systemd: installed, run again, crashed, rolled, broken, mended, removed."""

import json
import re
import resource
import subprocess
import threading
import time
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

import machines
import pytest
import yaml
from ansible_runs import BIN, collection_module, controller, environment  # noqa: F401  (a fixture)
from conftest import ROOT, TARGET, eventually, free_ports, get, tool

TOKEN = "0123456789abcdef0123456789abcdef"
# Of the gateway's machine. Nothing else of this machine uses it, so a port that is free stays so until somebody listens there.
GATEWAY = "127.0.0.4"
PROGRAM = "/usr/local/lib/weighbridge/programs/engine-sim"


def envoy_config(ports: dict[str, int]) -> str:
    """The shipped configuration with other ports."""
    text = (ROOT / "envoy" / "envoy.yaml").read_text()
    for shipped, name in {8080: "gateway", 9901: "admin", 7070: "api", 7071: "xds"}.items():
        here = f"address: {GATEWAY}, port_value: {ports[name]}"
        text, count = re.subn(rf"address: 127\.0\.0\.1, port_value: {shipped}\b", here, text)
        assert count == 1, f"envoy.yaml names port {shipped} no more"
    return text


def prober_config(ports: dict[str, int]) -> str:
    """A small, quick one."""
    return yaml.safe_dump(
        {
            "api": {"listen": f"{GATEWAY}:{ports['api']}", "token_file": "/etc/weighbridge/token"},
            "xds": {"listen": f"{GATEWAY}:{ports['xds']}"},
            "filter": {"wasm": "dist/weighbridge.wasm"},
            "store": {"path": "weighbridge.redb"},
            "probe": {"concurrency": 4, "tokens": 16, "prefill_tokens": 0},
            "health": {"interval": "250ms"},
            "pools": [{"name": "demo", "models": ["demo"], "endpoints": []}],
        }
    )


@dataclass
class Fleet:
    """Three machines, and the controller's directory that has their inventory."""

    here: Path
    ports: dict[str, int]
    machines: dict[str, machines.Machine]
    instances: dict[str, list[dict]]
    ran: list[str] = field(default_factory=list)

    def write(self) -> None:
        """The files that an operator writes."""
        hosts = {
            name: {
                "ansible_connection": "machine",
                "machine_enter": machine.enter,
                "ansible_host": machine.address,
                "ansible_python_interpreter": "/usr/bin/python3",
                "ansible_become": False,
            }
            for name, machine in self.machines.items()
        }
        for name, instances in self.instances.items():
            hosts[name]["engine_instances"] = instances
        inventory = {
            "all": {
                "hosts": hosts,
                "vars": {
                    "prober_program": str(ROOT / "dist" / "weighbridge-prober"),
                    "prober_module": str(ROOT / "dist" / "weighbridge.wasm"),
                    "envoy_module": str(ROOT / "dist" / "weighbridge.wasm"),
                    "envoy_program": str(Path(tool("envoy")).resolve()),
                    "envoy_arguments": ["--concurrency", "1"],
                    "prober_config": str(self.here / "weighbridge.yaml"),
                    "envoy_config": str(self.here / "envoy.yaml"),
                    "prober_token": TOKEN,
                    "prober_url": f"http://{GATEWAY}:{self.ports['api']}",
                    "engine_prober_url": f"http://{GATEWAY}:{self.ports['api']}",
                    "engine_prober_token": TOKEN,
                    "envoy_admin": f"http://{GATEWAY}:{self.ports['admin']}",
                    "envoy_drain_s": 60,
                    "engine_programs": [{"src": str(TARGET / "debug" / "engine-sim"), "name": "engine-sim"}],
                    "engine_restart_s": 0.2,
                    "engine_drain_s": 60,
                    "prober_ready_s": 90,
                },
            },
            "weighbridge_engines": {"hosts": {"gpu-a": {}, "gpu-b": {}}},
            "weighbridge_prober": {"hosts": {"gateway": {}}},
            "weighbridge_gateway": {"hosts": {"gateway": {}}},
        }
        (self.here / "inventory.yml").write_text(yaml.safe_dump(inventory, sort_keys=False))

    def ansible(self, *command: str, check: bool = True) -> subprocess.CompletedProcess:
        """A command of the documentation, in the operator's directory."""
        began, spent = time.monotonic(), cpu_s()
        done = subprocess.run(
            [BIN / command[0], *command[1:]], cwd=self.here, env=environment(self.here), capture_output=True, text=True, check=False
        )
        self.ran.append(" ".join(command))
        print(f"$ {' '.join(command)}   ({time.monotonic() - began:.1f} s, of CPU {cpu_s() - spent:.1f} s)")
        assert not check or done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        return done

    def play(self, name: str, *more: str, check: bool = True) -> subprocess.CompletedProcess:
        """One of the playbooks."""
        return self.ansible("ansible-playbook", "-i", "inventory.yml", f"weighbridge.fleet.{name}", *more, check=check)

    def api(self, path: str, method: str = "GET", body: dict | None = None) -> dict:
        """What the prober's API says."""
        request = urllib.request.Request(
            f"http://{GATEWAY}:{self.ports['api']}{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"authorization": f"Bearer {TOKEN}", "content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=5) as answer:
            return json.load(answer)

    def task(self, name: str) -> dict:
        """Parameters of the module `endpoint`."""
        url = f"http://{GATEWAY}:{self.ports['api']}"
        return {"url": url, "token": TOKEN, "ca_path": None, "id": name, "reason": "a test", "timeout_s": 30, "last": "refuse"}

    def endpoints(self) -> dict[str, dict]:
        """By id."""
        return {endpoint["id"]: endpoint for endpoint in self.api("/v1/endpoints")["endpoints"]}

    def ask(self, max_tokens: int = 8) -> tuple[str, str]:
        """One request through the gateway: who answered, and what."""
        messages = [{"role": "user", "content": "Hello"}]
        body = {"model": "demo", "messages": messages, "max_tokens": max_tokens, "ignore_eos": True}
        request = urllib.request.Request(
            f"http://{GATEWAY}:{self.ports['gateway']}/v1/chat/completions",
            data=json.dumps(body).encode(),
            headers={"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.headers["x-weighbridge-endpoint"], answer.read().decode()

    def pids(self) -> dict[str, str]:
        """The process of each engine."""
        return {
            instance["id"]: self.machines[host].unit(f"weighbridge-engine-{instance['id']}", "MainPID")["MainPID"]
            for host, instances in self.instances.items()
            for instance in instances
        }

    def journals(self) -> str:
        """Of every unit of ours."""
        return "\n".join(machine.journal("weighbridge-*") for machine in self.machines.values())


def cpu_s() -> float:
    """What children of this process that have ended have used."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def recap(output: str) -> dict[str, dict[str, int]]:
    """The last lines of ansible-playbook: by host, what was how often."""
    _, _, lines = output.partition("PLAY RECAP")
    counts = {}
    for host, rest in re.findall(r"^(\S+)\s+: (ok=.*)$", lines, re.M):
        counts[host] = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", rest)}
    return counts


@pytest.fixture(scope="module")
def fleet(controller, tmp_path_factory):  # noqa: F811
    """The machines, empty."""
    if reason := machines.why_not():
        pytest.skip(f"no machines here: {reason}")
    directory = tmp_path_factory.mktemp("machines")
    running = {}
    try:
        for name, address in {"gateway": GATEWAY, "gpu-a": "127.0.0.2", "gpu-b": "127.0.0.3"}.items():
            running[name] = machines.Machine(name, address, directory)
        ports = dict(zip(["gateway", "admin", "api", "xds", "a0", "a1", "b0"], free_ports(7)))

        def engine(name: str, host: str, gpus: list[int], profile: str) -> dict:
            listen = f"{running[host].address}:{ports[name]}"
            command = [PROGRAM, "--listen", listen, "--profile", profile, "--model", "demo", "--warm"]
            return {"id": name, "kind": "custom", "port": ports[name], "pool": "demo", "gpus": gpus, "command": command}

        instances = {
            "gpu-a": [engine("a0", "gpu-a", [0], "fast"), engine("a1", "gpu-a", [1], "pair")],
            "gpu-b": [engine("b0", "gpu-b", [0, 1], "small")],
        }
        fleet = Fleet(controller, ports, running, instances)
        (controller / "weighbridge.yaml").write_text(prober_config(ports))
        (controller / "envoy.yaml").write_text(envoy_config(ports))
        fleet.write()
        yield fleet
    finally:
        for machine in running.values():
            machine.stop()


@pytest.fixture(scope="module")
def installed(fleet) -> Fleet:
    """After the first run; the tests that change something leave it as it was."""
    done = fleet.play("site", check=False)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr + fleet.journals()
    print(done.stdout[done.stdout.index("PLAY RECAP") :])
    return fleet


def test_from_empty_machines_to_a_measured_and_routed_request(installed):
    endpoints = installed.endpoints()
    assert {endpoint["weight_source"] for endpoint in endpoints.values()} == {"measured"}
    answered, body = installed.ask()
    assert answered in endpoints and json.loads(body)["usage"]["completion_tokens"] == 8
    assert [envoy["node_id"] for envoy in installed.api("/v1/envoys")["envoys"]] == ["gateway"], "not the name in its file"
    assert endpoints["a0"]["weight"] > endpoints["b0"]["weight"], "they are as fast as their profiles"


def test_the_second_run_changes_nothing(installed):
    before = installed.pids()
    done = installed.play("site")
    print(done.stdout[done.stdout.index("PLAY RECAP") :])
    assert {host: counts["changed"] for host, counts in recap(done.stdout).items()} == {"gateway": 0, "gpu-a": 0, "gpu-b": 0}
    assert installed.pids() == before


def test_a_crash_stays_with_one_engine(installed):
    before = installed.pids()
    installed.machines["gpu-a"].run("systemctl", "kill", "--signal=SIGKILL", "weighbridge-engine-a1")
    eventually("a1 runs again", lambda: installed.pids()["a1"] not in ("0", before["a1"]), 20)
    after = installed.pids()
    assert {name for name in after if after[name] != before[name]} == {"a1"}
    eventually("a1 serves again", lambda: installed.endpoints()["a1"]["state"] == "ready", 30)
    serving = {installed.ask()[0] for _ in range(3)}
    assert serving <= set(after)


def test_a_crash_loop_ends(installed):
    machine, unit = installed.machines["gpu-b"], "weighbridge-engine-loop.service"
    text = machine.run("cat", "/etc/systemd/system/weighbridge-engine-b0.service")
    machine.write(f"/etc/systemd/system/{unit}", re.sub(r"ExecStart=[^\n]*(\\\n[^\n]*)*", "ExecStart=/bin/false", text))
    machine.run("systemctl", "daemon-reload")
    machine.run("systemctl", "start", unit, check=False)
    states = ("ActiveState", "NRestarts", "Result")
    eventually("systemd gives up", lambda: machine.unit(unit, *states)["ActiveState"] == "failed", 30)
    assert machine.unit(unit, "NRestarts")["NRestarts"] == "5", "engine_restart_burst"
    machine.run("rm", f"/etc/systemd/system/{unit}")
    machine.run("systemctl", "daemon-reload")


def test_envoy_finishes_what_it_serves_before_it_stops(installed):
    machine, answers = installed.machines["gateway"], []
    before = machine.unit("weighbridge-envoy", "MainPID")
    asking = threading.Thread(target=lambda: answers.append(json.loads(installed.ask(max_tokens=300)[1])))
    asking.start()
    eventually("it is being served", lambda: any(each["signals"]["running"] for each in installed.endpoints().values()))
    machine.run("systemctl", "restart", "weighbridge-envoy")
    asking.join()
    assert answers[0]["usage"]["completion_tokens"] == 300
    assert machine.unit("weighbridge-envoy", "MainPID") != before
    assert "0 requests are left" in machine.journal("weighbridge-envoy")
    eventually("the gateway serves again", installed.ask)


def test_a_run_that_failed_half_way_is_made_good_by_the_next(installed):
    machine, config, module = installed.machines["gateway"], installed.here / "envoy.yaml", installed.here / "filter.wasm"
    units = ("weighbridge-envoy", "weighbridge-prober")
    before, good = {unit: machine.unit(unit, "MainPID") for unit in units}, config.read_text()
    # The same filter with a section that says nothing: installed before the configuration is refused.
    module.write_bytes((ROOT / "dist" / "weighbridge.wasm").read_bytes() + bytes([0, 2, 1, ord("x")]))
    changed = ("--limit", "gateway", "--extra-vars", f"envoy_module={module} prober_module={module}")
    config.write_text("static_resources: 1\n")
    assert installed.play("site", *changed, check=False).returncode != 0
    assert machine.unit("weighbridge-envoy", "MainPID") == before["weighbridge-envoy"]
    config.write_text(good)
    installed.play("site", *changed)
    after = {unit: machine.unit(unit, "MainPID") for unit in units}
    assert all(after[unit] != before[unit] for unit in units), "what was installed is in force"
    eventually("the gateway serves", installed.ask)


class Stream:
    """Requests through the gateway, two at a time, until it ends; what failed."""

    def __init__(self, fleet: Fleet):
        self._fleet, self._ended = fleet, threading.Event()
        self.answered: list[str] = []
        self.failed: list[str] = []
        self._threads = [threading.Thread(target=self._run) for _ in range(2)]

    def _run(self) -> None:
        while not self._ended.is_set():
            try:
                self.answered.append(self._fleet.ask(max_tokens=24)[0])
            except (OSError, ValueError) as error:
                self.failed.append(repr(error))

    def __enter__(self):
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        for thread in self._threads:
            thread.join()


def test_a_rolling_restart_loses_no_request(installed):
    before = installed.pids()
    with Stream(installed) as stream:
        installed.play("rolling")
    print(f"rolling: {len(stream.answered)} requests, {len(stream.failed)} failed")
    assert stream.failed == [] and set(stream.answered) == {"a0", "a1", "b0"}
    after = installed.pids()
    assert all(after[name] != before[name] for name in before), "every engine has been restarted"
    endpoints = installed.endpoints()
    assert {(endpoint["state"], endpoint["weight_source"]) for endpoint in endpoints.values()} == {("ready", "measured")}


def test_a_rolling_restart_stops_at_an_engine_that_does_not_come_back(installed):
    before = installed.pids()
    good = installed.instances["gpu-a"][0]["command"]
    installed.instances["gpu-a"][0]["command"] = [*good, "--no-such-option"]
    installed.write()
    with Stream(installed) as stream:
        done = installed.play("rolling", "--extra-vars", "engine_start_s=2", check=False)
    assert done.returncode != 0
    assert "a0 on gpu-a is not back" in done.stdout and "It is left drained" in done.stdout, done.stdout
    assert stream.failed == [] and "a0" not in stream.answered[-5:]
    assert installed.endpoints()["a0"]["drain"]["reason"] == "rolling restart by Ansible"
    after = installed.pids()
    assert (after["a1"], after["b0"]) == (before["a1"], before["b0"]), "nobody else was touched"

    # Rollback: the inventory as it was. Meanwhile somebody works on a1, which is restarted with the rest and stays out of service.
    installed.instances["gpu-a"][0]["command"] = good
    installed.write()
    installed.api("/v1/endpoints/a1/drain", "PUT", {"reason": "somebody works there"})
    installed.play("rolling", "--limit", "gpu-a")
    endpoints = installed.endpoints()
    assert (endpoints["a0"]["state"], endpoints["a0"]["drain"]) == ("ready", None)
    assert endpoints["a1"]["drain"]["reason"] == "somebody works there"
    assert installed.pids()["a1"] != after["a1"]
    installed.api("/v1/endpoints/a1/drain", "DELETE")
    eventually("a1 serves", lambda: installed.endpoints()["a1"]["state"] == "ready")


def test_the_last_endpoint_of_a_pool_is_not_drained(installed):
    endpoint = collection_module("plugins/modules/endpoint.py")
    for name in ("a0", "a1"):
        installed.api(f"/v1/endpoints/{name}/drain", "PUT", {"reason": "somebody works there"})
    with pytest.raises(endpoint.Refused, match="b0 is the only endpoint of demo that serves: draining it would stop the pool"):
        endpoint.drain(endpoint.Prober(installed.task("b0")), False)
    assert installed.endpoints()["b0"]["drain"] is None
    for name in ("a0", "a1"):
        assert endpoint.serving(endpoint.Prober(installed.task(name)), False) == {"changed": True}
        assert endpoint.serving(endpoint.Prober(installed.task(name)), False) == {"changed": False}


def test_removal(installed):
    machine = installed.machines["gpu-b"]
    installed.play("remove", "--extra-vars", '{"engine_remove": ["b0"]}')
    assert set(installed.endpoints()) == {"a0", "a1"}
    assert machine.unit("weighbridge-engine-b0", "LoadState") == {"LoadState": "not-found"}
    assert machine.run("ls", "/var/cache/weighbridge-engine").split() == []
    endpoint = collection_module("plugins/modules/endpoint.py")
    assert endpoint.absent(endpoint.Prober(installed.task("b0")), False) == {"changed": False}


def test_the_commands_of_the_page_are_those_that_were_run(installed):
    page = (ROOT / "docs" / "provisioning.md").read_text()
    shown = [line for block in re.findall(r"^```sh\n(.*?)^```$", page, re.M | re.S) for line in block.splitlines()]
    run = {*installed.ran, "scripts/build", "ansible-galaxy collection install deploy/ansible -p collections"}
    # The page removes `small`, the test `b0`.
    assert len(shown) >= 5 and {line.replace("'", "").replace("small", "b0") for line in shown} <= run
