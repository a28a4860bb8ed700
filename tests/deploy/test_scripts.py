"""The scripts say how they are called, and refuse what cannot be, before they install, build or write anything."""

import os
import re
import shutil
import subprocess

import pytest

from conftest import ROOT, TARGET

SCRIPTS = sorted(path.name for path in (ROOT / "scripts").iterdir() if os.access(path, os.X_OK))
# What these do not know goes to cargo.
STRICT = [name for name in SCRIPTS if name != "test"]


@pytest.fixture
def copy(tmp_path):
    """A checkout with nothing but the scripts, in which whatever they make would be seen."""
    shutil.copytree(ROOT / "scripts", tmp_path / "checkout" / "scripts")
    return tmp_path / "checkout"


def files(checkout):
    return sorted(str(path.relative_to(checkout)) for path in checkout.rglob("*"))


def call(checkout, name, *arguments, cwd=None):
    # A script that wants to build finds no cargo, a script that wants to install no Python package.
    environment = {"PATH": os.defpath, "HOME": str(checkout), "PIP_NO_INDEX": "1"}
    return subprocess.run(
        [checkout / "scripts" / name, *arguments],
        cwd=cwd or checkout.parent, env=environment, capture_output=True, text=True, timeout=20,
    )


def refused(checkout, name, *arguments, **options):
    """What it says on standard error."""
    done = call(checkout, name, *arguments, **options)
    assert done.returncode == 2 and done.stdout == "", done
    said, usage = done.stderr.split("\n", 1)
    assert said.startswith("error: ") and usage.startswith("usage: scripts/"), done.stderr
    # The directory for tools is all that a script has made by then.
    assert [made for made in files(checkout) if not made.startswith("scripts")] in ([], [".tools"])
    return said


def test_there_are_scripts():
    assert {"run", "test", "bench", "build", "check", "setup"} <= set(SCRIPTS)


@pytest.mark.parametrize("option", ["--help", "-h"])
@pytest.mark.parametrize("name", SCRIPTS)
def test_help_is_printed_and_nothing_is_done(copy, name, option):
    before = files(copy)
    done = call(copy, name, option)
    assert done.returncode == 0 and done.stderr == "", done
    assert done.stdout.startswith(f"usage: scripts/{name}"), done.stdout
    assert files(copy) == before


@pytest.mark.parametrize("name,first", [("build", "--wasm-only"), ("release", "--wasm-only"), ("setup", "--tests"), ("run", "--listen=a:1")])
def test_help_is_printed_after_another_option_too(copy, name, first):
    done = call(copy, name, first, "--help")
    assert done.returncode == 0 and done.stdout.startswith(f"usage: scripts/{name}"), done


@pytest.mark.parametrize("name", STRICT)
def test_an_unknown_option_is_refused_by_its_name(copy, name):
    # Also behind one that is known, where there is one.
    first = {"build": ["--wasm-only"], "release": ["--out", "made"], "run": ["--listen", "127.0.0.1:0"]}.get(name, [])
    assert "--bogus" in refused(copy, name, *first, "--bogus")


@pytest.mark.parametrize(
    "arguments,told",
    [
        (["stray"], "stray"),
        (["--bogus=1"], "--bogus"),
        (["--listen"], "--listen needs a value"),
        (["--config", "nowhere.yaml"], "nowhere.yaml"),
        (["--config", "."], "--config"),
        (["--demo-load", "heavy"], "--demo-load is off or light, not heavy"),
        (["--config=prober.yaml", "--api=127.0.0.1:1"], "--api is for the demo"),
        (["--demo-load", "off", "--config", "prober.yaml"], "--demo-load is for the demo"),
    ],
)
def test_what_run_cannot_do_it_refuses_before_it_builds(copy, tmp_path, arguments, told):
    (tmp_path / "prober.yaml").write_text("pools: []\n")
    assert told in refused(copy, "run", *arguments, cwd=tmp_path)


def test_run_knows_what_its_launcher_knows(copy):
    def options(text):
        # At the beginning of a line, and what follows of values.
        return dict(re.findall(r"^ +(?:-\w, )?(--[a-z-]+)(.*)$", text, re.MULTILINE))

    launcher = subprocess.run([TARGET / "debug" / "weighbridge-run", "--help"], capture_output=True, text=True, check=True).stdout
    ours, theirs = options(call(copy, "run", "--help").stdout), options(launcher)
    assert set(ours) == set(theirs) - {"--help"}
    # None of them is refused as unknown; without cargo it ends later, or for the value.
    for option in ours:
        assert "does not know" not in call(copy, "run", option).stderr
