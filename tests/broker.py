"""A real broker, a line to it that can be cut, a client of it, and a real agent process."""

from __future__ import annotations

import json
import logging
import os
import shutil
import signal
import socket
import sqlite3
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
import paho.mqtt.client as paho
import pytest
from numpy.typing import NDArray
from paho.mqtt.enums import CallbackAPIVersion

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.fleet.certificates import make_authority, make_server_certificate
from tests.forge import ForkedAgent

Array = NDArray[np.float64]

PATIENCE = 60.0
"""Seconds until a test gives up waiting; far more than is needed, for machines that are busy."""

CHANNELS = ("flow", "pressure", "heat")
EPOCH = 1_700_000_000.0
"""Time of the first sample that a test sends."""


def wait_for(what: Callable[[], Any], message: str = "it did not happen", patience: float = PATIENCE) -> Any:
    """Ask again and again until the answer is true; returns it."""
    deadline = time.monotonic() + patience
    while not (found := what()):
        if time.monotonic() > deadline:
            pytest.fail(message)
        time.sleep(0.02)
    return found


@contextmanager
def logged() -> Iterator[list[str]]:
    """The messages that the agent logs in this process meanwhile."""
    lines: list[str] = []
    handler, logger = logging.Handler(), logging.getLogger("fedkad.edge")
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


# -- data -----------------------------------------------------------------------------------------------------------


def series(rows: int, seed: int = 0, channels: int = len(CHANNELS)) -> Array:
    """Coupled waves with a little noise, rounded as a sensor does."""
    noise = np.random.default_rng(seed).normal(size=(rows, channels))
    waves = np.sin(np.arange(rows)[:, None] / np.linspace(3.0, 8.0, channels) + seed)
    return np.round(10.0 + waves + 0.05 * noise, 6)


@cache
def detector() -> KoopmanDetector:
    """A small one, whose normal scores lie below its threshold and those of `broken` far above; not to be changed."""
    small = KoopmanDetector(window=6, rank=5, observables=16, smoothing=2, threshold=7.0)
    return small.fit(Series(series(1500), CHANNELS))


def broken(rows: Array, start: int, end: int, channel: int = 1) -> Array:
    """The series with a sensor that shows nonsense for a while."""
    rows = rows.copy()
    rows[start:end, channel] += np.where(np.arange(end - start) % 2, 3.0, -3.0)
    return rows


def expected_scores(rows: Array, model: KoopmanDetector | None = None) -> list[float]:
    """What a stream in this process says of the series: a score for each row, NaN while it warms up."""
    stream = (model or detector()).stream()
    return [stream.update(row).score for row in rows]


def sample(rows: Array, row: int, **more: Any) -> str:
    """A row as a message with its time."""
    return json.dumps({"time": EPOCH + row, **dict(zip(CHANNELS, rows[row].tolist(), strict=True)), **more})


# -- the broker -----------------------------------------------------------------------------------------------------


def _program(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin")))
    if found is None:
        pytest.skip(f"There is no {name} on this machine; install Mosquitto to run this test.")
    return found


class Broker:
    """Mosquitto on a free port of this machine.

    Parameters
    ----------
    folder : Path
        For its configuration, its log, its certificates and what it keeps of sessions.
    users : mapping, optional
        Passwords by name; anybody may come without.
    tls : bool
        With a certificate of an authority of its own, in `authority`.
    lines : str
        More of the configuration.
    lasting : bool
        Whether it keeps sessions when it is killed itself; that costs a write of everything for every message.
    """

    def __init__(
        self,
        folder: Path,
        *,
        users: Mapping[str, str] | None = None,
        tls: bool = False,
        lines: str = "",
        lasting: bool = True,
    ) -> None:
        self._program = _program("mosquitto")
        self.folder = folder / f"broker-{free_port()}"
        self.folder.mkdir(parents=True)
        self.port, self.tls, self.process = free_port(), tls, None
        self.authority, self._passwords = self.folder / "ca.pem", self.folder / "passwords"
        given = [
            f"listener {self.port} 127.0.0.1",
            "user root",
            f"log_dest file {self.folder / 'broker.log'}",
            "log_type all",
            "max_queued_messages 0",
            lines,
        ]
        if lasting:
            given += ["persistence true", f"persistence_location {self.folder}/"]
            given += ["autosave_on_changes true", "autosave_interval 1"]
        if users is not None:
            self.set_users(users)
            given += ["allow_anonymous false", f"password_file {self._passwords}"]
        else:
            given += ["allow_anonymous true"]
        if tls:
            self._make_certificates()
            given += [f"certfile {self.folder / 'server.pem'}", f"keyfile {self.folder / 'server.key'}"]
        self._config = self.folder / "broker.conf"
        self._config.write_text("\n".join(given) + "\n")

    process: subprocess.Popen[bytes] | None

    def _make_certificates(self) -> None:
        authority = make_authority("the test")
        server = make_server_certificate(authority, "127.0.0.1")
        self.authority.write_bytes(authority.public)
        (self.folder / "server.pem").write_bytes(server.public)
        (self.folder / "server.key").write_bytes(server.key)

    def set_users(self, users: Mapping[str, str]) -> None:
        """Write the password file; a running broker reads it at `reload`."""
        self._passwords.write_text("")
        self._passwords.chmod(0o600)
        for name, password in users.items():
            command = [_program("mosquitto_passwd"), "-b", str(self._passwords), name, password]
            subprocess.run(command, check=True, capture_output=True)

    @property
    def url(self) -> str:
        return f"{'mqtts' if self.tls else 'mqtt'}://127.0.0.1:{self.port}"

    @property
    def log(self) -> str:
        path = self.folder / "broker.log"
        return path.read_text() if path.exists() else ""

    def start(self) -> Self:
        self.process = subprocess.Popen(
            [self._program, "-c", str(self._config)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_for(self._is_listening, f"The broker does not listen:\n{self.log}")
        return self

    def _is_listening(self) -> bool:
        with suppress(OSError), socket.create_connection(("127.0.0.1", self.port), timeout=1.0):
            return True
        return False

    def reload(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> None:
        """Let it end in good order: it writes what it keeps."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """What a power cut does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        self.stop()
        self.start()

    def _end(self, number: int) -> None:
        if self.process is not None:
            self.process.send_signal(number)
            self.process.wait(PATIENCE)
            self.process = None

    def source(self, **more: Any) -> dict[str, Any]:
        """The section by which an agent hears what is published to `in/DEVICE`."""
        return {"kind": "mqtt", "broker": self.url, "topics": ["in/{device}"], **more}

    def client(self, **more: Any) -> Client:
        return Client(self.port, authority=self.authority if self.tls else None, **more)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.kill()


class Heard(NamedTuple):
    """A message that a client got."""

    topic: str
    payload: str
    retained: bool

    @property
    def content(self) -> Any:
        return json.loads(self.payload)


class Client:
    """A client in a thread of its own: publishes and waits for the broker, and keeps what it hears.

    Under a `name`, the broker keeps for it what it misses.
    """

    def __init__(
        self, port: int, *, name: str = "", username: str = "", password: str = "", authority: Path | None = None
    ) -> None:
        self.heard: list[Heard] = []
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=name, clean_session=not name)
        if username:
            self._client.username_pw_set(username, password)
        if authority is not None:
            self._client.tls_set_context(ssl.create_default_context(cafile=str(authority)))
        self._client.on_message = self._keep
        self._granted: set[int] = set()
        self._client.on_subscribe = lambda _, __, number, *___: self._granted.add(number)
        self._client.reconnect_delay_set(0.1, 0.5)  # type: ignore[arg-type]
        self._client.connect("127.0.0.1", port)
        self._client.loop_start()

    def _keep(self, client: paho.Client, _: Any, message: paho.MQTTMessage) -> None:
        self.heard.append(Heard(message.topic, message.payload.decode(), message.retain))

    def subscribe(self, *topics: str) -> None:
        for topic in topics:
            _, number = self._client.subscribe(topic, 1)
            wait_for(partial(self._granted.__contains__, number), f"{topic} was not granted")

    def publish(self, topic: str, payload: str | bytes, *, retain: bool = False) -> None:
        """Publish at QoS 1 and wait until the broker has it, however long it is away."""
        self.send(topic, payload, retain=retain).wait_for_publish(PATIENCE)

    def send(self, topic: str, payload: str | bytes, *, retain: bool = False) -> paho.MQTTMessageInfo:
        """Publish at QoS 1 and do not wait."""
        return self._client.publish(topic, payload, qos=1, retain=retain)

    def publish_all(self, topic: str, payloads: list[str]) -> None:
        for sent in [self.send(topic, payload) for payload in payloads]:
            sent.wait_for_publish(PATIENCE)

    def on(self, topic: str) -> list[Heard]:
        return [heard for heard in list(self.heard) if heard.topic == topic]

    def last(self, topic: str) -> str | None:
        found = self.on(topic)
        return found[-1].payload if found else None

    def close(self) -> None:
        self._client.disconnect()
        self._client.loop_stop()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Wire:
    """A line between an agent and a broker that can be cut, and that can swallow what the agent says."""

    def __init__(self, port: int) -> None:
        self._to, self.deaf, self._pairs = port, False, list[socket.socket]()
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._server.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._to))
                except OSError:
                    near.close()
                    continue
                self._pairs += [near, far]
                threading.Thread(target=self._pump, args=(near, far, True), daemon=True).start()
                threading.Thread(target=self._pump, args=(far, near, False), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket, up: bool) -> None:
        with suppress(OSError):
            while piece := source.recv(1 << 16):
                if not (up and self.deaf):
                    target.sendall(piece)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        """Break every connection; new ones can be made."""
        pairs, self._pairs = self._pairs, []
        for end in pairs:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._server.close()
        self.cut()


@contextmanager
def wired(broker: Broker) -> Iterator[Wire]:
    wire = Wire(broker.port)
    try:
        yield wire
    finally:
        wire.close()


# -- the agent ------------------------------------------------------------------------------------------------------

Section = Mapping[str, Any]


def saved_model(folder: Path) -> Path:
    """The small detector as a file."""
    path = folder / "small.fedkad"
    if not path.exists():
        detector().save(path)
    return path


def config(
    source: Section, *, devices: tuple[str, ...] = ("pump",), top: Section | None = None, **more: Section
) -> str:
    """The text of `agent.toml`: a quick agent that tells every reading, with sections changed or added by `more`.

    A section of one device is called `override_…`, such as ``override_pump_alarm``.
    """
    sections: dict[str, dict[str, Any]] = {
        "": {"name": "hall", "commit_every": 0.1, "devices": list(devices), **(top or {})},
        "source": dict(source),
        "sampling": {"channels": list(CHANNELS), "period": 1, "zone": "UTC"},
        "alarm": {"clear_after": 3, "cool_down": 0, "rate_limit": 0, "critical": 1000},
        "learning": {"every": 0},
        "stdout": {"readings": True},
    }
    for name, given in more.items():
        key = ".".join(f'"{part}"' for part in name.split("_")) if name.startswith("override_") else name
        sections[key] = {**sections.get(key, {}), **given}
    return "\n".join(_section(name, given) for name, given in sections.items())


def _section(name: str, given: Section) -> str:
    lines = [f"{key} = {json.dumps(value)}" for key, value in given.items()]
    return "\n".join([f"[{name}]" if name else "", *lines])


class Process:
    """An agent as it is run on a device.

    Parameters
    ----------
    folder : Path
        Of the configuration and of all that the agent keeps.
    config : str
        The text of `agent.toml`.
    environment : mapping, optional
        More variables.
    piped : bool
        Whether the test writes to its standard input, by `feed`.
    installed : bool
        Whether the installed program is run; otherwise it is forked, which is much faster.
    """

    def __init__(
        self,
        folder: Path,
        config: str,
        *,
        environment: Mapping[str, str] | None = None,
        piped: bool = False,
        installed: bool = False,
    ) -> None:
        self.folder, self._piped, self._installed = folder, piped, installed
        folder.mkdir(parents=True, exist_ok=True)
        self.config = folder / "agent.toml"
        self.config.write_text(config)
        self._environment = {**os.environ, "OPENBLAS_NUM_THREADS": "1", **(environment or {})}
        self.process: subprocess.Popen[bytes] | ForkedAgent | None = None
        self._out, self._err = folder / "stdout.txt", folder / "stderr.txt"

    def start(self, *arguments: str) -> Self:
        with self._out.open("ab") as out, self._err.open("ab") as err:
            if self._installed:
                program = Path(sys.executable).parent / "fedkad-agent"
                self.process = subprocess.Popen(
                    [program, self.config, *arguments],
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    env=self._environment,
                )
            else:
                self.process = ForkedAgent([str(self.config), *arguments], self._environment, out, err)
        if not self._piped:
            assert self.process.stdin is not None
            self.process.stdin.close()
        return self

    def feed(self, *lines: str) -> None:
        """Write lines to its standard input."""
        self.write("".join(f"{line}\n" for line in lines))

    def write(self, text: str) -> None:
        """Write to its standard input."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.write(text.encode())
        self.process.stdin.flush()

    def end_of_input(self) -> int:
        """Close its standard input; returns the exit status."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self._wait()

    def wait(self) -> int:
        """Wait until it ends by itself; returns the exit status."""
        return self._wait()

    def stop(self) -> int:
        """Ask it to end; returns the exit status."""
        assert self.process is not None
        self.process.terminate()
        return self._wait()

    def kill(self) -> None:
        """What a power cut does."""
        assert self.process is not None
        self.process.kill()
        self._wait()

    def _wait(self) -> int:
        assert self.process is not None
        process, self.process = self.process, None
        if process.stdin is not None:
            with suppress(BrokenPipeError):
                process.stdin.close()
        try:
            return process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            pytest.fail(f"The agent does not end:\n{self.log}")

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def log(self) -> str:
        return self._err.read_text() if self._err.exists() else ""

    @property
    def output(self) -> str:
        return self._out.read_text() if self._out.exists() else ""

    def said(self, kind: str, device: str | None = None) -> list[dict[str, Any]]:
        """The whole lines of one type on its standard output, since its first start."""
        *lines, _ = self.output.split("\n")
        found = [json.loads(line) for line in lines if line]
        return [each for each in found if each["type"] == kind and device in (None, each["device"])]

    def readings(self, device: str | None = None) -> list[dict[str, Any]]:
        return self.said("reading", device)

    def alerts(self, device: str | None = None) -> list[dict[str, Any]]:
        return self.said("alert", device)

    def wait_for_log(self, text: str, times: int = 1) -> None:
        wait_for(lambda: self.log.count(text) >= times or not self.is_running, f"{text!r} is not in:\n{self.log}")
        assert self.log.count(text) >= times, f"The agent has ended without {text!r}:\n{self.log}"

    def wait_for_readings(self, count: int, device: str | None = None) -> list[dict[str, Any]]:
        """Wait for so many readings; returns all of them, for there may be too many."""
        deadline = time.monotonic() + PATIENCE
        while len(found := self.readings(device)) < count and self.is_running and time.monotonic() < deadline:
            time.sleep(0.03)
        assert len(found) >= count, f"{len(found)} readings of {count} after a long time:\n{self.log}"
        return found

    def assert_scored_once(self, rows: Array, device: str | None = None) -> None:
        """Exactly these rows, in order, each with the score that a stream in this process gives it."""
        found = self.wait_for_readings(len(rows), device)
        assert len(found) == len(rows)
        scores = [reading.get("score", np.nan) for reading in found]
        assert scores == pytest.approx(expected_scores(rows), rel=1e-9, nan_ok=True)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        if self.process is not None:
            self.kill()


def rows_committed(state: Path, device: str) -> int:
    """Rows of a device that an agent has committed so far; only reads, so that a running agent is not disturbed."""
    try:
        database = sqlite3.connect(f"file:{state / 'agent.sqlite'}?mode=ro", uri=True)
    except sqlite3.OperationalError:
        return 0
    try:
        found = database.execute("SELECT state FROM device WHERE name = ?", (device,)).fetchone()
    except sqlite3.OperationalError:  # not made yet
        return 0
    finally:
        database.close()
    return int(json.loads(found[0])["seq"]) if found else 0
