"""A release: the same sources make the same module, wherever they stand."""

import hashlib
import os
import shutil
import subprocess

from conftest import ROOT


def copy_sources(to):
    """What git has or would take: a checkout as it stands, without what was built in it."""
    names = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT, check=True, capture_output=True, text=True,
    ).stdout.split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name)
    # The same tools.
    (to / ".tools").symlink_to((ROOT / ".tools").resolve())


def module(checkout, out, **environment):
    """Makes the module there; the name of its file and its bytes."""
    # One compiler, and last in line: tests that measure run beside this.
    command = ["nice", "-n", "19", checkout / "scripts/release", "--wasm-only", "--out", out]
    environment["CARGO_BUILD_JOBS"] = "1"
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    [line] = (out / "SHA256SUMS").read_text().splitlines()
    digest, name = line.split()
    content = (out / name).read_bytes()
    assert hashlib.sha256(content).hexdigest() == digest
    return name, content


def test_two_checkouts_make_the_same_module(tmp_path):
    other = tmp_path / "quite" / "another place"
    other.mkdir(parents=True)
    copy_sources(other)
    # Another home of cargo, too, with the same crates in it.
    home = os.environ.get("CARGO_HOME") or os.path.expanduser("~/.cargo")
    cargo_home = tmp_path / "cargo"
    cargo_home.mkdir()
    (cargo_home / "registry").symlink_to(os.path.join(home, "registry"))
    name, here = module(ROOT, tmp_path / "a")
    elsewhere = module(other, tmp_path / "b", CARGO_HOME=str(cargo_home), CARGO_TARGET_DIR=str(tmp_path / "target"),
                       CARGO_NET_OFFLINE="true")
    shutil.rmtree(tmp_path / "target")
    assert elsewhere == (name, here)
    assert name.startswith("weighbridge-") and here.startswith(b"\0asm")
    # No path of this machine is in it.
    for path in (str(ROOT), home, str(tmp_path)):
        assert path.encode() not in here, path
