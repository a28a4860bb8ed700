"""Running Ansible in the tests: in a directory of its own, with the collection installed as an operator installs it."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import machines
import pytest
from conftest import ROOT

COLLECTION = ROOT / "deploy" / "ansible"
BIN = Path(sys.executable).parent


def collection_module(path: str):
    """A Python file of the collection."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, COLLECTION / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def environment(here: Path) -> dict[str, str]:
    """Nothing of this user's: a home of its own, the connection plugin of the machines, the collection as it was installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    ours = {
        "ANSIBLE_HOME": here / "home",
        "ANSIBLE_COLLECTIONS_PATH": here / "collections",
        "ANSIBLE_CONNECTION_PLUGINS": Path(machines.__file__).parent / "connection",
        "ANSIBLE_PIPELINING": "1",
        "ANSIBLE_NOCOLOR": "1",
        "PATH": f"{BIN}:{kept['PATH']}",
    }
    return kept | {name: str(value) for name, value in ours.items()}


@pytest.fixture(scope="module")
def controller(tmp_path_factory) -> Path:
    """An operator's directory, with the collection."""
    here = tmp_path_factory.mktemp("controller")
    install = [BIN / "ansible-galaxy", "collection", "install", COLLECTION, "-p", here / "collections"]
    subprocess.run(install, cwd=here, env=environment(here), check=True, capture_output=True)
    return here
