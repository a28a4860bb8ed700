"""Machines to install things on: namespaces of this one, each with a copy-on-write root and a real systemd as process 1.

They need root, or sudo that asks nothing. What is installed on one is gone when it stops, and nothing of it is seen here
but its ports: the network is shared, each has a loopback address of its own.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from conftest import ROOT, TARGET

HERE = Path(__file__).parent
ENVIRONMENT = ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME=/root", "LANG=C.UTF-8"]
SUDO = [] if os.geteuid() == 0 else ["sudo", "-n"]


def why_not() -> str | None:
    """Why this machine cannot have machines; nothing when it can."""
    if not Path("/lib/systemd/systemd").exists():
        return "there is no systemd here: run scripts/setup --tests"
    probe = [*SUDO, "unshare", "--mount", "--pid", "--fork", "--uts", "--ipc", "--cgroup", "true"]
    if SUDO and not shutil.which("sudo"):
        return "this needs root"
    tried = subprocess.run(probe, capture_output=True, text=True, check=False)
    return None if tried.returncode == 0 else f"no namespaces: {tried.stderr.strip()}"


def _systemd(pid: int) -> int | None:
    """The systemd that this process has become or started; nothing as long as there is none."""
    try:
        while Path(f"/proc/{pid}/comm").read_text().strip() != "systemd":
            pid = int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
    except (FileNotFoundError, ProcessLookupError, IndexError):
        # No child yet, or one of those that boot starts and that have ended meanwhile.
        return None
    return pid


class Machine:
    """One machine, running until `stop`."""

    def __init__(self, name: str, address: str, directory: Path):
        self.name, self.address = name, address
        self._group = f"weighbridge-test-{name}-{os.getpid()}"
        root = directory / name
        root.mkdir()
        self._pid: int | None = None
        self.console = directory / f"{name}.console"
        seen = [ROOT, TARGET, (ROOT / ".tools").resolve(), Path(sys.base_prefix)]
        with self.console.open("wb") as console:
            # Whatever ends this process ends the machine.
            self._outer = subprocess.Popen(
                [*SUDO, "setpriv", "--pdeathsig", "KILL"]
                + ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--uts", "--ipc"]
                + [HERE / "boot", self._group, root, *seen],
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._booted()
        except BaseException:
            self.stop()
            raise

    def _booted(self, deadline_s: float = 30.0) -> None:
        end = time.monotonic() + deadline_s
        while time.monotonic() < end and self._outer.poll() is None:
            self._pid = _systemd(self._outer.pid)
            if self._pid and self.run("systemctl", "is-active", "multi-user.target", check=False).strip() == "active":
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.name} did not boot: {self.console.read_text()}")

    @property
    def enter(self) -> list[str]:
        """The command that runs a command there."""
        spaces = ["--mount", "--pid", "--uts", "--ipc", "--cgroup"]
        return [*SUDO, "nsenter", "--target", str(self._pid), *spaces, "--", "env", "-i", *ENVIRONMENT]

    def run(self, *command: str, check: bool = True) -> str:
        """What a command prints there."""
        done = subprocess.run([*self.enter, *command], capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{self.name}: {command}: {done.stdout}{done.stderr}"
        return done.stdout

    def write(self, path: str, text: str) -> None:
        """A file there."""
        subprocess.run([*self.enter, "sh", "-c", 'cat > "$1"', "write", path], input=text, text=True, check=True)

    def unit(self, name: str, *properties: str) -> dict[str, str]:
        """Properties of a unit, by name."""
        shown = self.run("systemctl", "show", name, *(f"--property={each}" for each in properties))
        return dict(line.split("=", 1) for line in shown.splitlines())

    def journal(self, unit: str) -> str:
        """The end of a unit's journal."""
        return self.run("journalctl", "--no-pager", "--lines=400", "--unit", unit, check=False)

    def stop(self) -> None:
        """Ends it and everything that runs there."""
        if self._outer.poll() is None:
            # Process 1 ends, and the kernel ends the rest of its namespace. Without one yet, unshare ends, and boot with it.
            subprocess.run([*SUDO, "kill", "-KILL", str(self._pid or self._outer.pid)], check=False)
            self._outer.wait(20)
        sweep = 'mount -t cgroup2 groups /mnt && find "/mnt/$1" -depth -type d -exec rmdir {} +'
        subprocess.run([*SUDO, "unshare", "--mount", "sh", "-c", sweep, "sweep", self._group], capture_output=True, check=False)
