# SPDX-License-Identifier: Apache-2.0
"""Endpoints of a Weighbridge prober, through its REST API."""

from __future__ import annotations

DOCUMENTATION = r"""
module: endpoint
short_description: An endpoint of a Weighbridge prober
description:
  - Registers, drains, probes and removes an endpoint through the prober's REST API, and waits until that is done.
  - It is run where the prober's API can be reached.
options:
  url: {description: "Base URL of the prober's API.", type: str, required: true}
  token: {description: "Token of the API, where it asks for one.", type: str}
  ca_path: {description: "Certificate authority of the API, where it speaks TLS and the system's do not know it.", type: path}
  id: {description: "Id of the endpoint.", type: str, required: true}
  state:
    description:
      - V(registered) - the prober knows it as O(registration) says.
      - V(drained) - it gets no new requests, and none is left there.
      - V(probed) - it has been measured anew.
      - V(serving) - no drain is in force, and it gets requests.
      - V(absent) - it was drained, and the prober has forgotten it.
    type: str
    required: true
    choices: [registered, drained, probed, serving, absent]
  registration: {description: "Body of C(POST /v1/endpoints), without O(id).", type: dict}
  reason: {description: "Why it is drained, for the next person who looks.", type: str, default: drained by Ansible}
  timeout_s: {description: "How long to wait.", type: int, default: 900}
  last:
    description: What to do with V(drained) and V(absent) when nobody else of the pool serves.
    type: str
    default: refuse
    choices: [refuse, allow]
author: The Weighbridge authors
"""

EXAMPLES = r"""
- name: Drain it
  weighbridge.fleet.endpoint:
    url: http://127.0.0.1:7070
    id: rtx6000
    state: drained
    reason: new driver
"""

RETURN = r"""
drained_by_others:
  description: A drain was in force before, for a reason other than O(reason).
  type: bool
  returned: with V(drained)
probe:
  description: The measurement.
  type: dict
  returned: with V(probed)
"""

import json
import time
from urllib.error import HTTPError

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

POLL_S = 0.25
SHOWN = ("pool", "address", "node", "launch_args")


class Refused(Exception):
    """The prober's answer was no."""

    def __init__(self, status: int, message: str):
        super().__init__(message)
        self.status = status


class Prober:
    """Requests to one endpoint."""

    def __init__(self, params: dict):
        self.base = params["url"].rstrip("/") + "/v1/endpoints"
        self.params = params
        self.until = time.monotonic() + params["timeout_s"]

    def call(self, method: str, path: str = "", body=None):
        """The answer's JSON."""
        headers = {"content-type": "application/json"}
        if self.params["token"]:
            headers["authorization"] = f"Bearer {self.params['token']}"
        data = None if body is None else json.dumps(body)
        left = max(5.0, self.until - time.monotonic())
        try:
            with open_url(
                self.base + path, method=method, data=data, headers=headers, timeout=left, ca_path=self.params["ca_path"]
            ) as answer:
                text = answer.read()
                return json.loads(text) if text else None
        except HTTPError as error:
            text = error.read().decode(errors="replace")
            try:
                text = json.loads(text)["error"]["message"]
            except (ValueError, KeyError, TypeError):
                pass
            raise Refused(error.code, f"{method} {self.base}{path}: {error.code}: {text}") from error

    def own(self, method: str = "GET", path: str = "", body=None):
        """The same about this endpoint."""
        return self.call(method, f"/{self.params['id']}{path}", body)

    def look(self):
        """The endpoint, or nothing."""
        try:
            return self.own()
        except Refused as refused:
            if refused.status != 404:
                raise
            return None

    def wait(self, what: str, done):
        """The first endpoint (or nothing) for which `done` is true."""
        while True:
            seen = self.look()
            if done(seen):
                return seen
            if time.monotonic() > self.until:
                told = {} if seen is None else {key: seen[key] for key in ("state", "health", "drain", "alarm")}
                raise TimeoutError(f"{self.params['id']} is not {what} within {self.params['timeout_s']} s: {json.dumps(told)}")
            time.sleep(POLL_S)

    def others_serve(self, endpoint: dict) -> bool:
        """Whether somebody else of its pool gets requests."""
        every = self.call("GET")["endpoints"]
        return any(
            other["pool"] == endpoint["pool"] and other["id"] != endpoint["id"] and other["state"] == "ready" for other in every
        )


def registered(prober: Prober, check: bool) -> dict:
    """Makes the prober know it; a reconnect where it does already."""
    wanted = {key: value for key, value in prober.params["registration"].items() if value is not None}
    before = prober.look()
    if check:
        return {"changed": before is None or any(before[key] != wanted[key] for key in ("pool", "launch_args") if key in wanted)}
    after = prober.call("POST", "", dict(wanted, id=prober.params["id"]))
    new = before is None or before["removal"] is not None
    return {"changed": new or any(before[key] != after[key] for key in SHOWN)}


def drain(prober: Prober, check: bool) -> dict:
    """Takes it out of service and waits until nothing is left there."""
    before = prober.own()
    reason = prober.params["reason"]
    others = before["drain"] is not None and before["drain"]["reason"] != reason
    serves = before["state"] == "ready"
    if serves and prober.params["last"] == "refuse" and not prober.others_serve(before):
        raise Refused(409, f"{before['id']} is the only endpoint of {before['pool']} that serves: draining it would stop the pool")
    if check:
        return {"changed": before["drain"] is None, "drained_by_others": others}
    if not others:
        prober.own("PUT", "/drain", {"reason": reason, "deadline_s": prober.params["timeout_s"]})
    prober.wait("empty", lambda seen: seen is not None and seen["drain"] is not None and seen["drain"]["state"] == "drained")
    return {"changed": before["drain"] is None, "drained_by_others": others}


def probed(prober: Prober, check: bool) -> dict:
    """Measures it, as soon as the prober sees that it is well."""
    if check:
        return {"changed": True}
    prober.wait("well", lambda seen: seen is not None and seen["health"]["checked"] and seen["health"]["healthy"])
    record = prober.own("POST", "/probe?wait=true")
    if record.get("error"):
        raise Refused(500, f"the probe of {prober.params['id']} failed: {record['error']}")
    return {"changed": True, "probe": record}


def serving(prober: Prober, check: bool) -> dict:
    """Ends a drain and waits until it gets requests."""
    before = prober.own()
    changed = before["drain"] is not None
    if check:
        return {"changed": changed}
    if changed:
        prober.own("DELETE", "/drain")
    prober.wait("in service", lambda seen: seen is not None and seen["state"] == "ready")
    return {"changed": changed}


def absent(prober: Prober, check: bool) -> dict:
    """Drains it and has it forgotten."""
    before = prober.look()
    if before is None or check:
        return {"changed": before is not None}
    drain(prober, False)
    prober.own("DELETE")
    prober.wait("forgotten", lambda seen: seen is None)
    return {"changed": True}


STATES = {"registered": registered, "drained": drain, "probed": probed, "serving": serving, "absent": absent}


def main() -> None:
    """One task."""
    module = AnsibleModule(
        argument_spec={
            "url": {"type": "str", "required": True},
            "token": {"type": "str", "no_log": True},
            "ca_path": {"type": "path"},
            "id": {"type": "str", "required": True},
            "state": {"type": "str", "required": True, "choices": list(STATES)},
            "registration": {"type": "dict"},
            "reason": {"type": "str", "default": "drained by Ansible"},
            "timeout_s": {"type": "int", "default": 900},
            "last": {"type": "str", "default": "refuse", "choices": ["refuse", "allow"]},
        },
        required_if=[("state", "registered", ["registration"])],
        supports_check_mode=True,
    )
    prober = Prober(module.params)
    try:
        module.exit_json(**STATES[module.params["state"]](prober, module.check_mode))
    except (OSError, Refused, ValueError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
