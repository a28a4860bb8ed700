"""The Ansible collection as it is written: lint, syntax, refusals, the reference, the example units, and what it must not know."""

import os
import re
import subprocess
from pathlib import Path

import machines
import pytest
import yaml
from ansible_runs import BIN, COLLECTION, collection_module, controller, environment  # noqa: F401  (a fixture)
from conftest import ROOT

PAGE = ROOT / "docs" / "provisioning.md"
ROLES = ["engine", "prober", "envoy"]
UPDATE = "UPDATE_PROVISIONING" in os.environ
EXAMPLES = ROOT / "deploy" / "systemd"


fleet = collection_module("plugins/filter/fleet.py")


def blocks(language: str) -> list[str]:
    """The code of the page in this language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def inventory() -> dict:
    """The inventory that the page shows."""
    return next(document for document in map(yaml.safe_load, blocks("yaml")) if "all" in document)


def test_lint(controller):  # noqa: F811
    done = subprocess.run(
        [BIN / "ansible-lint", "--offline", "--nocolor", "--profile", "production"],
        cwd=COLLECTION,
        env=environment(controller),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed: 0 failure(s), 0 warning(s)" in done.stdout + done.stderr, done.stderr


GOOD = {"id": "a", "kind": "vllm", "model": "/srv/models/m", "port": 8000, "pool": "p", "gpus": [0]}
REFUSED = [
    ({"a": [GOOD | {"port": 80}]}, "a: engine_instances[0].port is 80: expected a whole number from 1024 to 65535"),
    ({"a": [GOOD | {"kind": "tgi"}]}, "a: engine_instances[0].kind is 'tgi': expected one of vllm, sglang, llamacpp, custom"),
    ({"a": [GOOD | {"model": ""}]}, "a: engine_instances[0].model is missing: expected a path or a name that vllm can load"),
    ({"a": [GOOD | {"kind": "custom"}]}, "a: engine_instances[0].command is missing: expected the command line of an engine of kind custom"),
    ({"a": [GOOD | {"id": "a b"}]}, "a: engine_instances[0].id is 'a b': expected 1 to 64 of A-Z a-z 0-9 _ -"),
    ({"a": [GOOD | {"gpu": 1}]}, "a: engine_instances[0].gpu is unknown: expected one of id, kind, port, pool, model"),
    ({"a": [{"id": "a", "kind": "vllm", "model": "m", "port": 8000}]}, "a: engine_instances[0].pool is missing"),
    ({"a": [GOOD | {"gpus": [-1]}]}, "a: engine_instances[0].gpus is [-1]: expected a list of GPU numbers"),
    ({"a": [GOOD | {"gpus": [0, 0]}]}, "a: engine_instances[0].gpus has 0: expected a GPU of its own (a has it already)"),
    ({"a": [GOOD | {"args": "--x"}]}, "a: engine_instances[0].args is '--x': expected a list of words, each on one line"),
    ({"a": [GOOD | {"args": ["a\nb"]}]}, "a: engine_instances[0].args is ['a\\nb']: expected a list of words, each on one line"),
    ({"a": [GOOD | {"args": ["--api-key", "secret"]}]}, "a: engine_instances[0].args has --api-key: expected no key there, since everybody"),
    ({"a": [GOOD | {"args": ["--api_key=secret"]}]}, "a: engine_instances[0].args has --api_key: expected no key there, since everybody"),
    (
        {"a": [GOOD | {"kind": "custom", "command": ["x", "--admin-api-key=secret", "--api-key-file", "/f"]}]},
        "a: engine_instances[0].command has --admin-api-key: expected no key there, since everybody",
    ),
    ({"a": [GOOD | {"memory_max": "64 GB"}]}, "a: engine_instances[0].memory_max is '64 GB': expected bytes, with K, M, G or T"),
    ({"a": [GOOD | {"context_window": 0}]}, "a: engine_instances[0].context_window is 0: expected a whole number above 0"),
    ({"a": [GOOD | {"environment": ["A=1"]}]}, "a: engine_instances[0].environment is ['A=1']: expected a mapping of names to values"),
    ({"a": ["vllm"]}, "a: engine_instances[0] is 'vllm': expected a mapping with id, kind, port, pool"),
    ({"a": {"id": "a"}}, "a: engine_instances is {'id': 'a'}: expected a list"),
    (
        {"a": [GOOD, GOOD | {"id": "b", "gpus": [1]}]},
        "a: engine_instances[1].port is 8000: expected a port of its own (a has it already)",
    ),
    (
        {"a": [GOOD, GOOD | {"id": "b", "port": 8001}]},
        "a: engine_instances[1].gpus has 0: expected a GPU of its own (a has it already)",
    ),
    ({"a": [GOOD], "b": [GOOD]}, "b: engine_instances[0].id is 'a': expected an id of its own (a has it already)"),
    (
        {"a": [GOOD, GOOD | {"port": 8001, "gpus": [1]}]},
        "a: engine_instances[1].id is 'a': expected an id of its own (a has it already)",
    ),
]


@pytest.mark.parametrize("engines, message", REFUSED, ids=[message for _, message in REFUSED])
def test_what_is_wrong_with_an_inventory_is_said(engines, message):
    hostvars = {host: {"engine_instances": instances} for host, instances in engines.items()}
    faults = fleet.inventory_faults(hostvars, list(engines))
    assert len(faults) == 1 and faults[0].startswith(message), faults
    assert "secret" not in faults[0]


def test_a_wrong_inventory_ends_the_run_before_anything_is_touched(controller):  # noqa: F811
    wrong = inventory()
    wrong["weighbridge_engines"]["hosts"]["gpu-a"]["engine_instances"] = [GOOD | {"port": 80}, GOOD | {"id": "b", "kind": "tgi"}]
    wrong["all"]["vars"]["ansible_connection"] = "local"
    (controller / "wrong.yml").write_text(yaml.safe_dump(wrong))
    site = [BIN / "ansible-playbook", "-i", "wrong.yml", "weighbridge.fleet.site"]
    done = subprocess.run(site, cwd=controller, env=environment(controller), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    for fault in ["[0].port is 80: expected", "[1].kind is 'tgi': expected one of vllm", "[1].gpus has 0: expected a GPU of its own"]:
        assert f"gpu-a: engine_instances{fault}" in done.stdout, done.stdout
    assert "PLAY [The prober]" not in done.stdout


def test_the_inventory_of_the_page_has_no_faults():
    hosts = inventory()["weighbridge_engines"]["hosts"]
    assert fleet.inventory_faults(hosts, list(hosts)) == []


@pytest.mark.parametrize(
    "word, written",
    [
        ("--port", "--port"),
        ("50%", "50%%"),
        ("two words", '"two words"'),
        ('say "hi"', '"say \\"hi\\""'),
        ("back\\slash", '"back\\\\slash"'),
        ("$HOME", '"$$HOME"'),
        ("a;b", '"a;b"'),
        ("", '""'),
    ],
)
def test_a_word_reaches_the_engine_as_it_is(word, written):
    assert fleet.systemd_argument(word) == written


def reference() -> str:
    """Every variable, from the specifications of the roles."""

    def cell(text) -> str:
        return str(text).replace("|", "\\|").replace("\n", " ").strip()

    def rows(options: dict) -> list[str]:
        lines = ["| variable | | default | |", "|---|---|---|---|"]
        for name, option in options.items():
            kind = option["type"] + (f" of {option['elements']}" if option["type"] == "list" else "")
            default = option.get("default")
            if option.get("required"):
                shown = "required"
            elif default in (None, "", []):
                shown = ""
            else:
                shown = f"`{', '.join(map(str, default)) if isinstance(default, list) else default}`"
                if isinstance(default, dict):
                    shown = ", ".join(f"{key}: `{value}`" for key, value in default.items())
            if option.get("choices"):
                kind = ", ".join(f"`{choice}`" for choice in option["choices"])
            lines.append(f"| `{name}` | {kind} | {shown} | {cell(option['description'])} |")
        return lines

    text = []
    for role in ROLES:
        spec = yaml.safe_load((COLLECTION / "roles" / role / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]
        text += [f"### {role}", "", *rows(spec["options"]), ""]
        for name, option in spec["options"].items():
            if "options" in option:
                text += [f"Each of `{name}`:", "", *rows(option["options"]), ""]
    return "\n".join(text)


def test_the_reference_has_every_variable():
    begin, end = re.search(r"<!-- reference: .*? -->\n", PAGE.read_text()).group(), "<!-- end of reference -->"
    before, rest = PAGE.read_text().split(begin)
    written, after = rest.split(end)
    if UPDATE:
        PAGE.write_text(f"{before}{begin}\n{reference()}\n{end}{after}")
    else:
        assert written.strip() == reference().strip(), "UPDATE_PROVISIONING=1 writes it"


@pytest.mark.parametrize("role", [*ROLES])
def test_specifications_and_defaults_agree(role):
    directory = COLLECTION / "roles" / role
    options = yaml.safe_load((directory / "meta" / "argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    defaults = yaml.safe_load((directory / "defaults" / "main.yml").read_text())
    assert set(options) == set(defaults)
    computed = {name for name, value in defaults.items() if "{{" in str(value)}
    assert {name: option.get("default") for name, option in options.items() if name not in computed} == {
        name: value for name, value in defaults.items() if name not in computed
    }


def test_each_kind_of_engine_has_its_arguments():
    kinds = {path.stem for path in (COLLECTION / "roles" / "engine" / "templates" / "argv").iterdir()}
    assert kinds == set(fleet.KINDS)
    spec = yaml.safe_load((COLLECTION / "roles/engine/meta/argument_specs.yml").read_text())["argument_specs"]["main"]["options"]
    one = spec["engine_instances"]["options"]
    assert tuple(one["kind"]["choices"]) == fleet.KINDS
    assert set(one) == set(fleet.REQUIRED + fleet.OPTIONAL)
    assert {name for name, option in one.items() if option.get("required")} == set(fleet.REQUIRED)


@pytest.fixture(scope="module")
def sheet(controller, tmp_path_factory):  # noqa: F811
    """A machine on which the units of the page's inventory are written."""
    if reason := machines.why_not():
        pytest.skip(f"no machines here: {reason}")
    machine = machines.Machine("sheet", "127.0.0.1", tmp_path_factory.mktemp("sheet"))
    try:
        shown = inventory()
        shown["all"]["vars"] |= {
            "ansible_connection": "machine",
            "machine_enter": machine.enter,
            "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_managed": "An example, made from deploy/ansible: see docs/provisioning.md",
        }
        (controller / "sheet.yml").write_text(yaml.safe_dump(shown))
        render = [BIN / "ansible-playbook", "-i", "sheet.yml", Path(__file__).parent / "render.yml"]
        done = subprocess.run(render, cwd=controller, env=environment(controller), capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        yield machine
    finally:
        machine.stop()


def _units(machine) -> list[str]:
    listed = machine.run("sh", "-c", "cd /etc/systemd/system && ls weighbridge-*").split()
    assert len(listed) == 6, listed
    return listed


def test_the_examples_are_what_the_templates_make(sheet):
    made = {unit: sheet.run("cat", f"/etc/systemd/system/{unit}") for unit in _units(sheet)}
    if UPDATE:
        for unit, text in made.items():
            (EXAMPLES / unit).write_text(text)
    shipped = {path.name: path.read_text() for path in EXAMPLES.glob("*.service")}
    assert shipped == made, "UPDATE_PROVISIONING=1 writes them"


def test_systemd_accepts_every_unit(sheet):
    for unit in _units(sheet):
        path = f"/etc/systemd/system/{unit}"
        # The programs are not installed here: something executable stands in their places.
        for program in re.findall(r"^Exec\w+=(/\S+)", sheet.run("cat", path), re.M):
            sheet.run("sh", "-c", f"mkdir -p $(dirname {program}) && [ -e {program} ] || ln -s /bin/true {program}")
        assert _verify(sheet, path) == ""
    # It would have said something.
    broken = "/etc/systemd/system/broken.service"
    sheet.write(broken, sheet.run("cat", path).replace("ProtectSystem=strict", "ProtectSystem=strikt"))
    assert "strikt" in _verify(sheet, broken)
    sheet.run("rm", broken)


def _verify(machine, path: str) -> str:
    return machine.run("sh", "-c", f"systemd-analyze verify --man=no {path} 2>&1", check=False)


# The most that `systemd-analyze security` may say: 0 is nothing exposed, 10 everything.
# `gpu` is root, loads a module of the kernel and makes device files, and has ended before an engine begins.
EXPOSURE = {"engine": 2.5, "prober": 2.0, "envoy": 2.5, "gpu": 4.5}


def test_units_expose_little(sheet):
    for unit in _units(sheet):
        said = sheet.run("systemd-analyze", "security", "--offline=true", "--no-pager", f"/etc/systemd/system/{unit}", check=False)
        exposure = re.search(r"Overall exposure level for (\S+): ([\d.]+)", said)
        print(f"{unit}: {exposure[2]}")
        assert float(exposure[2]) <= EXPOSURE[unit.split("-")[1].split(".")[0]], said


# Words of the other side. `weight` and the like are the prober's; Ansible and systemd are provisioning's.
ROUTING = r"\b(weight|policy|p2c|least_request|round_robin|affinity|admission|pin|throughput|base_cap|snapshot)\b"
PROVISIONING = r"\b(ansible|systemd|systemctl)\b"


def _mentions(files, words: str) -> list[str]:
    return [
        f"{path.relative_to(ROOT)}: {line.strip()}"
        for path in files
        if path.is_file() and ".ansible/" not in str(path)
        for line in path.read_text(errors="replace").splitlines()
        if re.search(words, line, re.I)
    ]


def test_provisioning_knows_nothing_of_routing():
    files = [path for part in ("roles", "playbooks", "plugins") for path in (COLLECTION / part).rglob("*") if path.suffix != ".pyc"]
    said = [line for line in _mentions(files, ROUTING) if "Every Envoy has the snapshot" not in line]
    assert len(files) > 30 and said == []
    assert _mentions([ROOT / "prober" / "example.yaml"], ROUTING), "the words are those of the prober"


def test_routing_knows_nothing_of_provisioning():
    files = [path for part in ("routing/src", "prober/src", "filter/src", "filter/hints/src", "envoy") for path in (ROOT / part).rglob("*")]
    assert len(files) > 50 and _mentions(files, PROVISIONING) == []
    assert _mentions([PAGE], PROVISIONING), "the words are those of provisioning"
