"""A fleet on one machine, of real processes: `fedkad server`, `fedkad client`, and a wire between them to cut or count.

Tests and measurements share it. Everything lies below one folder, and `stop` leaves no process behind.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from typer.testing import CliRunner

from fedkad.cli.app import app
from fedkad.federation.training_state import latest_training

ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    """A port that nobody listens on now.

    It lies below those that the system gives to outgoing connections: a server that is restarted must find it free.
    """
    while True:
        port = secrets.randbelow(20_000) + 10_000
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


class Wire:
    """A TCP relay that counts what passes, can keep it, and can be cut.

    Attributes
    ----------
    up, down : int
        Bytes from those who connect, and to them.
    kept : list of bytearray
        With `keep`, what every connection sent up.
    """

    def __init__(self, target: int, *, keep: bool = False) -> None:
        self.target, self.keep = target, keep
        self.up = self.down = 0
        self.kept: list[bytearray] = []
        self._cut = False
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> None:
        """Break all connections and refuse new ones until `mend`."""
        self._cut = True
        for pair in list(self._pairs):
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections through again."""
        self._cut = False

    def close(self) -> None:
        """Stop listening."""
        self.cut()
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._cut:
                near.close()
                continue
            threading.Thread(target=self._relay, args=(near,), daemon=True).start()

    def _relay(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=10)
        except OSError:
            near.close()
            return
        pair = (near, far)
        self._pairs.add(pair)
        sent = bytearray()
        if self.keep:
            self.kept.append(sent)
        with contextlib.suppress(OSError), selectors.DefaultSelector() as selector:
            selector.register(near, selectors.EVENT_READ)
            selector.register(far, selectors.EVENT_READ)
            while self._pass_on(selector, pair, sent):
                pass
        self._pairs.discard(pair)
        for end in pair:
            end.close()

    def _pass_on(
        self, selector: selectors.BaseSelector, pair: tuple[socket.socket, socket.socket], sent: bytearray
    ) -> bool:
        near, far = pair
        for key, _ in selector.select():
            upward = key.fileobj is near
            piece = (near if upward else far).recv(65536)
            if not piece:
                return False
            if upward:
                self.up += len(piece)
                if self.keep:
                    sent += piece
            else:
                self.down += len(piece)
            (far if upward else near).sendall(piece)
        return True


class Loopback:
    """A fleet with TLS, keys and the proxy, as an operator would run it."""

    def __init__(self, root: Path, data: Mapping[str, Path], *options: str) -> None:
        self.root, self.data = root, dict(data)
        self.server_folder = root / "server"
        self.port, self.control_port = free_port(), free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}
        like = next(iter(self.data.values()))
        ports = ("--port", str(self.port), "--control-port", str(self.control_port))
        self.command(
            "fleet", "init", str(self.server_folder), "--address", "127.0.0.1", *ports, "--like", str(like), *options
        )
        for name in self.data:
            self.add(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def command(self, *arguments: str) -> str:
        """Run a `fedkad` command to its end, in this process; what it printed."""
        done = CliRunner().invoke(app, arguments)
        if done.exit_code:
            raise RuntimeError(f"fedkad {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def add(self, name: str) -> None:
        """Register a device, and move its folder to where the device would have it."""
        self.command("fleet", "add", str(self.server_folder), name)
        os.replace(self.server_folder / "devices" / name, self.device_folder(name))
        self._reach(name, self.port)

    def _reach(self, name: str, port: int) -> None:
        """Have a device reach the server at this port."""
        path = self.device_folder(name) / "device.toml"
        path.write_text(re.sub('^server = ".*"', f'server = "127.0.0.1:{port}"', path.read_text(), flags=re.MULTILINE))

    def device_folder(self, name: str) -> Path:
        """The folder of a device."""
        (self.root / "devices").mkdir(exist_ok=True)
        return self.root / "devices" / name

    def through(self, wire: Wire, *names: str) -> None:
        """Let devices reach the server over this wire, and nowhere else; to be called before the server is started."""
        settings = self.server_folder / "fleet.toml"
        elsewhere = settings.read_text().replace('address = "127.0.0.1"', 'address = "127.0.0.9"')
        settings.write_text(elsewhere.replace('bind = ""', 'bind = "127.0.0.1"'))
        for name in names or tuple(self.data):
            self._reach(name, wire.port)

    def start_server(self, environment: Mapping[str, str] | None = None) -> None:
        """Start the server."""
        self._start("server", ["server", str(self.server_folder)], environment or {})

    def start(self, *names: str, environment: Mapping[str, str] | None = None) -> None:
        """Start devices, all by default."""
        for name in names or tuple(self.data):
            arguments = ["client", str(self.device_folder(name)), "--data", str(self.data[name])]
            self._start(name, arguments, environment or {})

    def _start(self, name: str, arguments: Sequence[str], environment: Mapping[str, str]) -> None:
        with (self.root / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                [sys.executable, "-m", "fedkad", *arguments],
                stdout=log,
                stderr=log,
                env={**os.environ, **ENVIRONMENT, **environment},
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """Kill a device, or the server, with all its processes and without a warning, as a power cut does.

        They are stopped first: a process whose child is killed may start another one before it is killed itself.
        """
        process = self.running.pop(name)
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for each in [process.pid, *reversed(descendants(process.pid))]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(each, number)
        process.wait()

    def processes(self, name: str, word: str) -> list[int]:
        """The processes below a device or the server whose command line has the word."""
        return [child for child in descendants(self.running[name].pid) if word in command_line(child)]

    def status(self) -> dict[str, Any]:
        """The status of the last training; empty before the first."""
        return latest_training(self.server_folder / "training") or {}

    def online(self) -> set[str]:
        """Devices that the server sees."""
        return online(self.server_folder, self.control_port)

    def wait_online(self, *names: str, seconds: float = 300.0) -> None:
        """Wait until the server sees these devices, all that were started by default."""
        wanted = set(names or self.running) - {"server"}
        wait(lambda: wanted <= self.online(), seconds, f"{sorted(wanted)} online", pause=0.5)

    def train(self) -> None:
        """Ask for a training."""
        self.command("fleet", "train", str(self.server_folder))

    def wait_done(self, seconds: float = 600.0, after: str = "") -> dict[str, Any]:
        """Wait until a training other than the run `after` is done; its status."""

        def is_done() -> bool:
            status = self.status()
            return status.get("state") == "done" and status["run"] != after

        wait(is_done, seconds, "the training done")
        return self.status()

    def stop(self) -> None:
        """Stop everything, gently where that works."""
        for process in self.running.values():
            process.terminate()
        for name, process in list(self.running.items()):
            try:
                process.wait(20)
                del self.running[name]
            except subprocess.TimeoutExpired:
                self.kill(name)


def online(server_folder: Path, control_port: int) -> set[str]:
    """Devices that a server sees: as `fedkad fleet status` says it, without a process for every look."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what Flower imports
        from fedkad.fleet.flower.control import ControlError, open_control
    with open_control(control_port, server_folder / "ca" / "ca.crt") as control:
        try:
            return {node.name for node in control.nodes().values() if node.state == "online"}
        except ControlError:
            return set()


def wait(condition: Callable[[], bool], seconds: float, what: str, pause: float = 0.2) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"After {seconds:g} s still not: {what}.")
        time.sleep(pause)


def descendants(parent: int) -> list[int]:
    """The processes that descend from one."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError, IndexError, ValueError):
                above = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(above, []).append(int(entry.name))
    return list(_below(parent, children))


def _below(parent: int, children: Mapping[int, list[int]]) -> Iterator[int]:
    for child in children.get(parent, []):
        yield from _below(child, children)
        yield child


def megabytes(process: int, what: str = "Pss") -> float:
    """Memory of a process and its descendants; pages that several share count once, or with `Rss` for each."""
    total = 0
    for each in (process, *descendants(process)):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{each}/smaps_rollup").read_text().splitlines()
            total += sum(int(line.split()[1]) for line in lines if line.startswith(f"{what}:"))
    return total * 1024 / 1e6


def command_line(process: int) -> str:
    """The command line of a process, empty if it has ended."""
    try:
        return Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
