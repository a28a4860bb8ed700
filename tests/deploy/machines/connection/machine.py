"""How Ansible reaches a machine of machines.py: it enters the namespaces of that machine's process 1."""

from __future__ import annotations

DOCUMENTATION = r"""
name: machine
short_description: Enters the namespaces of a process
description: As ansible.builtin.local, in the namespaces of another process.
author: The Weighbridge authors
options:
  enter:
    description: The command that runs a command there.
    type: list
    elements: str
    required: true
    vars: [{name: machine_enter}]
"""

import shlex
import subprocess

from ansible.errors import AnsibleError
from ansible.plugins.connection.local import Connection as Local


class Connection(Local):
    """Runs there what the local connection runs here."""

    transport = "machine"

    def _there(self, command: str) -> str:
        return shlex.join([*self.get_option("enter"), "/bin/sh", "-c", command])

    def exec_command(self, cmd, in_data=None, sudoable=True):
        """A command."""
        return super().exec_command(self._there(cmd), in_data=in_data, sudoable=sudoable)

    def put_file(self, in_path, out_path):
        """A file from here to there."""
        with open(in_path, "rb") as source:
            self._pipe(f"cat > {shlex.quote(out_path)}", stdin=source)

    def fetch_file(self, in_path, out_path):
        """A file from there to here."""
        with open(out_path, "wb") as sink:
            self._pipe(f"cat {shlex.quote(in_path)}", stdout=sink)

    def _pipe(self, command: str, **streams) -> None:
        done = subprocess.run(["/bin/sh", "-c", self._there(command)], stderr=subprocess.PIPE, check=False, **streams)
        if done.returncode != 0:
            raise AnsibleError(f"{command}: {done.stderr.decode(errors='replace')}")
