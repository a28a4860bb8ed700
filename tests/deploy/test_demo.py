"""The demo that the other tests look at is really one."""

from conftest import Demo, get_json


def test_every_endpoint_of_the_demo_is_measured(demo: Demo):
    endpoints = get_json(f"{demo.api}/v1/endpoints")["endpoints"]
    assert {endpoint["weight_source"] for endpoint in endpoints} == {"measured"}
    assert len({endpoint["weight"] for endpoint in endpoints}) == len(endpoints), "their speeds are unequal"
