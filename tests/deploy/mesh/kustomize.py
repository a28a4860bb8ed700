"""Renders a kustomization with `kubectl kustomize`, or, where there is no kubectl, with what of it deploy/kubernetes uses.

The second cannot be installed everywhere: Debian 12's kubectl is too old, and no registry has kustomize by itself. A test
compares the two where both can be had. Names get no hash of their content from the second.
"""

import copy
import re
import shutil
import subprocess
from pathlib import Path

import yaml

CLUSTER_WIDE = {"Namespace"}
HASH = re.compile(r"-[a-z0-9]{10}$")


def kubectl() -> str | None:
    """One that knows components and patches: 1.21 or later."""
    found = shutil.which("kubectl")
    if not found:
        return None
    said = subprocess.run([found, "version", "--client"], capture_output=True, text=True, check=False).stdout
    return found if "Kustomize Version: v" in said else None


def kustomize(directory: Path) -> list[dict]:
    if not (found := kubectl()):
        return rendered(directory)
    done = subprocess.run([found, "kustomize", directory], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def rendered(directory: Path) -> list[dict]:
    kustomization = yaml.safe_load((directory / "kustomization.yaml").read_text())
    documents = _resources(directory, kustomization)
    for name in kustomization.get("components", []):
        component = (directory / name).resolve()
        documents += _resources(component, yaml.safe_load((component / "kustomization.yaml").read_text()))
    for generator in kustomization.get("configMapGenerator", []):
        assert set(generator) <= {"name", "behavior", "files"}
        data = {file: (directory / file).read_text() for file in generator["files"]}
        if generator.get("behavior") == "replace":
            (old,) = [
                each
                for each in documents
                if each["kind"] == "ConfigMap" and each["metadata"]["name"] == generator["name"]
            ]
            old["data"] = data
        else:
            documents.append(
                {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data}
            )
    for patch in kustomization.get("patches", []):
        (target,) = [
            each for each in documents if {"kind": each["kind"], "name": each["metadata"]["name"]} == patch["target"]
        ]
        for operation in yaml.safe_load(patch["patch"]):
            _apply(target, operation)
    for image in kustomization.get("images", []):
        for container in _containers(documents):
            if container["image"] == image["name"]:
                container["image"] = f"{image.get('newName', image['name'])}:{image['newTag']}"
    for document in documents:
        if document["kind"] not in CLUSTER_WIDE and "namespace" in kustomization:
            document["metadata"]["namespace"] = kustomization["namespace"]
    known = {"apiVersion", "kind", "namespace", "resources", "components", "configMapGenerator", "patches", "images"}
    assert set(kustomization) <= known, f"{directory}: unknown to this test: {set(kustomization) - known}"
    return documents


def _resources(directory: Path, kustomization: dict) -> list[dict]:
    documents = []
    for name in kustomization.get("resources", []):
        path = (directory / name).resolve()
        documents += rendered(path) if path.is_dir() else list(yaml.safe_load_all(path.read_text()))
    return documents


def _containers(documents: list[dict]):
    for document in documents:
        yield from document.get("spec", {}).get("template", {}).get("spec", {}).get("containers", [])


def _apply(document, operation: dict) -> None:
    """One of RFC 6902."""
    *way, last = operation["path"].split("/")[1:]
    for step in way:
        document = document[int(step)] if isinstance(document, list) else document[step]
    if operation["op"] == "remove":
        del document[last]
    elif isinstance(document, list):
        assert operation["op"] == "add" and last == "-"
        document.append(copy.deepcopy(operation["value"]))
    else:
        assert operation["op"] in ("add", "replace") and (operation["op"] == "add") != (last in document)
        document[last] = copy.deepcopy(operation["value"])


def without_hashes(documents: list[dict]) -> list[dict]:
    """The names of generated ConfigMaps as they are written, everywhere."""
    hashed = [
        each["metadata"]["name"]
        for each in documents
        if each["kind"] == "ConfigMap" and HASH.search(each["metadata"]["name"])
    ]
    text = yaml.safe_dump_all(documents)
    for name in hashed:
        text = text.replace(name, HASH.sub("", name))
    return list(yaml.safe_load_all(text))
