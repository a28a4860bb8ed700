# SPDX-License-Identifier: Apache-2.0
"""What is wrong with the engines of an inventory, and words of a unit file."""

from __future__ import annotations

import re

KINDS = ("vllm", "sglang", "llamacpp", "custom")
ID = re.compile(r"[A-Za-z0-9_-]{1,64}")
# An argument that is a key; one that names a file with keys is none.
KEY = re.compile(r"--?(admin[-_])?api[-_]key(=|$)")
REQUIRED = ("id", "kind", "port", "pool")
OPTIONAL = (
    "model",
    "served_name",
    "gpus",
    "context_window",
    "args",
    "command",
    "executable",
    "environment",
    "environment_file",
    "memory_max",
    "api_key_file",
    "max_in_flight",
)


def _is_port(port) -> bool:
    return isinstance(port, int) and not isinstance(port, bool) and 1024 <= port <= 65535


def _of_one(where: str, engine) -> list[str]:
    """Faults that an engine has by itself."""
    if not isinstance(engine, dict):
        return [f"{where} is {engine!r}: expected a mapping with {', '.join(REQUIRED)}"]
    faults = [
        f"{where}.{name} is unknown: expected one of {', '.join(REQUIRED + OPTIONAL)}"
        for name in engine
        if name not in REQUIRED + OPTIONAL
    ]
    faults += [f"{where}.{name} is missing" for name in REQUIRED if engine.get(name) in (None, "")]

    def expect(name: str, right, expected: str) -> None:
        if engine.get(name) not in (None, "") and not right(engine[name]):
            faults.append(f"{where}.{name} is {engine[name]!r}: expected {expected}")

    def words(value) -> bool:
        return isinstance(value, list) and all(
            isinstance(word, (str, int, float)) and "\n" not in str(word) for word in value
        )

    expect("id", lambda value: isinstance(value, str) and ID.fullmatch(value), "1 to 64 of A-Z a-z 0-9 _ -")
    expect("kind", lambda value: value in KINDS, f"one of {', '.join(KINDS)}")
    expect("port", _is_port, "a whole number from 1024 to 65535")
    expect("args", words, "a list of words, each on one line")
    expect("command", words, "a list of words, each on one line")
    for name in ("args", "command"):
        for word in engine.get(name) if isinstance(engine.get(name), list) else []:
            if KEY.match(str(word)):
                # Without its value: this is printed.
                faults.append(
                    f"{where}.{name} has {str(word).partition('=')[0]}: expected no key there, since everybody on the host can read the unit, "
                    f"and the prober shows launch arguments; put it into the file that environment_file names"
                )
    expect(
        "gpus",
        lambda value: isinstance(value, list)
        and all(isinstance(gpu, int) and gpu >= 0 or re.fullmatch(r"(GPU|MIG)-[0-9A-Za-z/-]+", str(gpu)) for gpu in value),
        "a list of GPU numbers (0, 1, ...) or of names as nvidia-smi -L prints them (GPU-..., MIG-...)",
    )
    expect("environment", lambda value: isinstance(value, dict), "a mapping of names to values")
    expect("memory_max", lambda value: re.fullmatch(r"\d+[KMGT]?|infinity", str(value)), "bytes, with K, M, G or T, or infinity")
    for name in ("context_window", "max_in_flight"):
        expect(name, lambda value: isinstance(value, int) and value > 0, "a whole number above 0")
    if engine.get("kind") == "custom" and not engine.get("command"):
        faults.append(f"{where}.command is missing: expected the command line of an engine of kind custom")
    if engine.get("kind") in KINDS[:-1] and not engine.get("model"):
        faults.append(f"{where}.model is missing: expected a path or a name that {engine['kind']} can load")
    return faults


def inventory_faults(hostvars, hosts: list[str]) -> list[str]:
    """A sentence for everything that is wrong: which host and variable, its value, what was expected."""
    faults: list[str] = []
    ids: dict[str, str] = {}
    for host in hosts:
        engines = hostvars[host].get("engine_instances", [])
        if not isinstance(engines, list):
            faults.append(f"{host}: engine_instances is {engines!r}: expected a list")
            continue
        ports: dict[int, str] = {}
        gpus: dict[str, str] = {}
        for number, engine in enumerate(engines):
            where = f"{host}: engine_instances[{number}]"
            faults += _of_one(where, engine)
            if not isinstance(engine, dict):
                continue
            name = str(engine.get("id", number))
            if isinstance(engine.get("id"), str):
                other = ids.setdefault(name, host)
                if other != host or any(earlier.get("id") == name for earlier in engines[:number] if isinstance(earlier, dict)):
                    faults.append(f"{where}.id is {name!r}: expected an id of its own ({other} has it already)")
            port = engine.get("port")
            if _is_port(port) and ports.setdefault(port, name) != name:
                faults.append(f"{where}.port is {port}: expected a port of its own ({ports[port]} has it already)")
            listed = engine.get("gpus") or []
            for gpu in map(str, listed if isinstance(listed, list) else []):
                if gpu in gpus:
                    faults.append(f"{where}.gpus has {gpu}: expected a GPU of its own ({gpus[gpu]} has it already)")
                gpus.setdefault(gpu, name)
    return faults


def systemd_word(word) -> str:
    """One word of an `ExecStart=` or `Environment=` line, meant literally."""
    text = str(word).replace("%", "%%").replace("\\", "\\\\")
    if re.fullmatch(r"[A-Za-z0-9_./:=,@%+-]+", text):
        return text
    return '"' + text.replace('"', '\\"') + '"'


def systemd_argument(word) -> str:
    """The same on a command line, where systemd would put the values of variables."""
    return systemd_word(str(word).replace("$", "$$"))


class FilterModule:
    """The filters of this file."""

    def filters(self):
        """By name."""
        return {
            "inventory_faults": inventory_faults,
            "systemd_argument": systemd_argument,
            "systemd_word": systemd_word,
        }
