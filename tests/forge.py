"""Agents that start in milliseconds: a process with everything imported forks them.

`python -m tests.forge FD` serves requests on a socket: JSON with the arguments and the environment of an agent, and its
descriptors, the standard streams and one for its status. On the last it writes the process id, and the exit status as
soon as the agent ends, as `Popen.returncode` has it.
"""

from __future__ import annotations

import atexit
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from typing import IO, Any


class ForkedAgent:
    """An agent made by the forge, used like `subprocess.Popen`."""

    def __init__(
        self, arguments: Sequence[str], environment: Mapping[str, str], out: IO[bytes], err: IO[bytes]
    ) -> None:
        reader, writer = os.pipe()
        self._status, status = os.pipe()
        request = json.dumps({"arguments": list(arguments), "environment": dict(environment)}).encode()
        socket.send_fds(_forge(), [request], [reader, out.fileno(), err.fileno(), status])
        os.close(reader)
        os.close(status)
        self.stdin: IO[bytes] = os.fdopen(writer, "wb")
        self._pieces = b""
        self.returncode: int | None = None
        while b"\n" not in self._pieces:
            self._pieces += os.read(self._status, 100)
        self.pid = int(self._pieces.split(b"\n")[0])

    def wait(self, timeout: float | None = None) -> int:
        while self.returncode is None:
            if self._pieces.count(b"\n") == 2:
                self.returncode = int(self._pieces.split(b"\n")[1])
                os.close(self._status)
            elif select.select([self._status], [], [], timeout)[0]:
                self._pieces += os.read(self._status, 100)
            else:
                raise subprocess.TimeoutExpired("agent", timeout or 0.0)
        return self.returncode

    def poll(self) -> int | None:
        try:
            return self.wait(0.0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


@cache
def _forge() -> socket.socket:
    near, far = socket.socketpair()
    environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.forge", str(far.fileno())]
    process = subprocess.Popen(command, env=environment, pass_fds=[far.fileno()])
    far.close()

    def close() -> None:
        near.close()
        process.wait()

    atexit.register(close)
    return near


def serve(requests: socket.socket) -> None:
    """Fork an agent for every request, until the other end is closed."""
    import fedkad.edge.agent
    import fedkad.edge.checking
    import fedkad.edge.settingsfile
    import fedkad.edge.sinks.mqtt
    import fedkad.edge.sinks.prometheus
    import fedkad.edge.sinks.webhook
    import fedkad.edge.sources.mqtt  # noqa: F401

    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    while True:
        request, descriptors, _, _ = socket.recv_fds(requests, 1 << 20, 4)
        if not request:
            return
        if os.fork() == 0:
            requests.close()
            _keep(json.loads(request), descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _keep(request: dict[str, Any], descriptors: list[int]) -> None:
    """Be the parent of one agent, and report its end."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    *streams, status = descriptors
    agent = os.fork()
    if agent == 0:
        os.close(status)
        _run(request, streams)
    for stream in streams:
        os.close(stream)
    os.write(status, b"%d\n" % agent)
    os.write(status, b"%d\n" % os.waitstatus_to_exitcode(os.waitpid(agent, 0)[1]))
    os._exit(0)


def _run(request: dict[str, Any], streams: list[int]) -> None:
    from fedkad.edge.main import main

    code = 1
    try:
        for number, stream in enumerate(streams):
            os.dup2(stream, number)
            os.close(stream)
        os.environ.clear()
        os.environ.update(request["environment"])
        if wanted := os.environ.get("FEDKAD_TEST_KILL_AT"):
            from tests.sabotage.killpoints import arm

            arm(wanted)
        sys.argv = ["fedkad-agent", *request["arguments"]]
        code = main()
        sys.stdout.flush()
    except SystemExit as error:
        code = int(error.code or 0)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
