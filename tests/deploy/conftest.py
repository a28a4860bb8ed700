"""What the tests of deploy/ and envoy/mesh share: where things are, free ports, and the running demo."""

import json
import os
import shutil
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGET = Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target"))


def tool(name: str) -> str:
    """A program that scripts/setup --tests has provided."""
    ours = ROOT / ".tools" / "bin" / name
    found = str(ours) if ours.exists() else shutil.which(name)
    assert found, f"{name} is missing: run scripts/setup --tests"
    return found


def free_ports(count: int) -> list[int]:
    """Loopback ports that nobody listens on now; all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [listener.getsockname()[1] for listener in sockets]
    for listener in sockets:
        listener.close()
    return ports


def get(url: str, timeout: float = 5.0) -> str:
    """The body of an answer of 200; anything else raises."""
    with urllib.request.urlopen(url, timeout=timeout) as answer:
        return answer.read().decode()


def get_json(url: str):
    """The same as JSON."""
    return json.loads(get(url))


def eventually(what: str, check, deadline_s: float = 60.0):
    """The first true answer of `check`, which may raise until then; fails with the last reason after the deadline."""
    end, last = time.monotonic() + deadline_s, None
    while time.monotonic() < end:
        try:
            if found := check():
                return found
        except (OSError, urllib.error.URLError, AssertionError, ValueError, KeyError) as error:
            last = error
        time.sleep(0.1)
    raise AssertionError(f"{what}: not within {deadline_s:.0f} s (last: {last!r})")


def stop(process: subprocess.Popen, deadline_s: float = 20.0) -> None:
    """Ends a process that a test has started, by its own handle."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(deadline_s)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Demo:
    """The running demo fleet: base URLs without a slash at the end."""

    gateway: str
    admin: str
    api: str
    log: Path


@pytest.fixture(scope="session")
def demo(tmp_path_factory) -> Demo:
    """What `scripts/run` starts, with every endpoint measured. One for all tests: nobody changes its fleet for good."""
    directory = tmp_path_factory.mktemp("demo")
    gateway, admin, api, xds = (f"127.0.0.1:{port}" for port in free_ports(4))
    log = directory / "run.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            [TARGET / "debug" / "weighbridge-run", "--listen", gateway, "--admin", admin, "--api", api, "--xds", xds],
            cwd=directory,
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:

        def ready() -> bool:
            if process.poll() is not None:
                raise RuntimeError(f"the demo has ended: {log.read_text()}")
            return get(f"http://{api}/readyz") != ""

        eventually("the demo is measured", ready, 240)
        yield Demo(f"http://{gateway}", f"http://{admin}", f"http://{api}", log)
    finally:
        stop(process)
