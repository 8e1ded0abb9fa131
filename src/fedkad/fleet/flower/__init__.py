"""The one door to Flower: only the modules in here rely on more than its public API.

Flower has no interface for much of what a fleet needs: to run its programs as child processes, to know whether a device
is connected, to take part of a reply without waiting for the rest. So this package knows command lines, environment
variables, URLs, log lines and internal classes of the Flower versions named in `pyproject.toml`, and
`tests/fleet/flower/test_flower_contract.py` checks each of these assumptions against the installed version.

On both sides:

- `programs`: Flower's processes, their commands, environment and configuration files

On the server:

- `proxy`: the part of Flower's HTTP API that devices may reach from outside
- `control`: the devices and runs that a running server knows
- `mailbox`: replies as they arrive at the server app

On a device:

- `supernode`: the process that connects it; `supernodelog`: what that is doing
- `reception`: keeps it in step: it forgets messages of ended runs, and does not wait for an app that is gone
- `launcher`: the processes that answer messages

`control`, `mailbox` and `reception` import Flower itself, which takes about a second; import them only where they are
used.
"""

from fedkad.fleet.flower.programs import device_command, environment, quiet, server_commands, write_configuration

__all__ = ["device_command", "environment", "quiet", "server_commands", "write_configuration"]
