"""Whether a manifest is one: Kubernetes' own kinds by its OpenAPI schemas, the others by crds.yaml."""

from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

CRDS = yaml.safe_load((Path(__file__).parent / "crds.yaml").read_text())
KUBERNETES = "1.32"


def check(document: dict) -> None:
    """Raises with what is wrong. Unknown fields are, too."""
    kind = document["kind"]
    if kind not in CRDS:
        kubernetes_validate.validate(document, KUBERNETES, strict=True)
        return
    assert document["apiVersion"] == CRDS[kind]["version"]
    assert set(document) == {"apiVersion", "kind", "metadata", "spec"}, document["metadata"]
    jsonschema.validate(document["spec"], CRDS[kind]["spec"], jsonschema.Draft202012Validator)
