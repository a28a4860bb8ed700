"""The JSON schema of the configuration, as editors use it: what the prober takes, it takes; a typing error it finds."""

import copy
import json
import re

import jsonschema
import pytest
import yaml

from conftest import ROOT

SCHEMA = json.loads((ROOT / "docs/weighbridge.schema.json").read_text())
EXAMPLE = yaml.safe_load((ROOT / "prober/example.yaml").read_text())


def validator():
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    return jsonschema.Draft202012Validator(SCHEMA)


def sections(value, path=()):
    """Every section of a file, with its path."""
    if isinstance(value, dict):
        yield path
        for key, inner in value.items():
            yield from sections(inner, (*path, key))
    elif isinstance(value, list):
        for nth, inner in enumerate(value):
            yield from sections(inner, (*path, nth))


def at(value, path):
    for part in path:
        value = value[part]
    return value


def test_the_example_is_valid():
    assert [error.message for error in validator().iter_errors(EXAMPLE)] == []


def test_every_configuration_in_the_documentation_is_valid():
    seen = 0
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]:
        for block in re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.M | re.S):
            value = yaml.safe_load(block)
            if isinstance(value, dict) and "pools" in value:
                assert [error.message for error in validator().iter_errors(value)] == [], page
                seen += 1
    assert seen > 5


@pytest.mark.parametrize("path", list(sections(EXAMPLE)), ids=lambda path: ".".join(map(str, path)) or "top")
def test_a_field_that_does_not_exist_is_found(path):
    wrong = copy.deepcopy(EXAMPLE)
    at(wrong, path)["wieght"] = 1
    errors = list(validator().iter_errors(wrong))
    assert len(errors) == 1 and "wieght" in errors[0].message, errors
    assert tuple(errors[0].absolute_path) == path


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("probe", "concurrency"), 0),
        (("probe", "concurrency"), "16"),
        (("probe", "interval"), 6),
        (("probe", "interval"), "6"),
        (("filter", "max_body"), "16 apples"),
        (("filter", "client_headers"), ["host"]),
        (("pools", 0, "policy", "name"), "fastest"),
        (("pools", 0, "policy", "choices"), "some"),
        (("pools", 0, "admission", "queue"), 5000),
        (("pools", 0, "endpoints", 0, "address"), None),
    ],
)
def test_a_value_that_cannot_be_is_found(path, value):
    wrong = copy.deepcopy(EXAMPLE)
    at(wrong, path[:-1])[path[-1]] = value
    errors = list(validator().iter_errors(wrong))
    assert errors and all(tuple(error.absolute_path)[: len(path)] == path for error in errors), errors


def test_every_field_is_described():
    def walk(schema):
        for name, inner in schema.get("properties", {}).items():
            assert inner["description"], name
            walk(inner)
            walk(inner.get("items", {}))

    walk(SCHEMA)
