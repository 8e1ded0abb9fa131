"""What `measurements.edge` measures with: a broker, agents, a bare program, and cheap samples for them.

All of them are processes of their own below one folder, and leave with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from fedkad.detect.witnesses import WitnessScoring
from measurements.loopback import free_port
from measurements.measure import Array

CHANNELS = 25
NAMES = [f"c{k}" for k in range(CHANNELS)]
CYCLE = 4000
"""Rows after which the series goes on from its beginning without a jump, so that lines are made once."""

ROWS = 15 * CYCLE
"""Rows that models are fitted on: enough that the held-out part is as large as it ever gets."""

BEGAN = 1_700_000_000
PATIENCE = 600.0


def series(rows: int, seed: int) -> Array:
    """Coupled oscillations with noise, every period a whole part of `CYCLE`."""
    generator = np.random.default_rng(1)
    turns = generator.integers(CYCLE // 200, CYCLE // 20, CHANNELS)
    mixing = generator.normal(size=(CHANNELS, CHANNELS)) / np.sqrt(CHANNELS)
    phases = 2.0 * np.pi * np.arange(rows)[:, None] * turns / CYCLE
    clean: Array = np.sin(phases) @ mixing
    return clean + 0.1 * np.random.default_rng(seed).normal(size=clean.shape)


def fitted() -> KoopmanDetector:
    """A detector of the default settings."""
    return KoopmanDetector(sample_period=1.0).fit(Series(series(ROWS, 2), tuple(NAMES)))


def own(model: Path, number: int) -> KoopmanDetector:
    """A detector like that in the file, with a subspace and an operator of its own."""
    detector = KoopmanDetector.load(model)
    known, generator = detector.model_, np.random.default_rng(number)
    assert isinstance(known.scoring, WitnessScoring)
    turned, _ = np.linalg.qr(detector.subspace_ + 1e-6 * generator.normal(size=detector.subspace_.shape))
    signs = np.sign(np.sum(turned * detector.subspace_, axis=0))
    operator = detector.operator_ * (1.0 - 1e-6 * number)
    dynamics = replace(known.dynamics, subspace=turned * signs, operator=operator)
    return KoopmanDetector.of(replace(known, scoring=replace(known.scoring, dynamics=dynamics)), detector.memory_)


def bodies() -> list[bytes]:
    """The samples of one cycle as JSON, without their times."""
    rows = series(CYCLE, 3)
    return [json.dumps(dict(zip(NAMES, row, strict=True)))[1:].encode() for row in rows.round(5).tolist()]


def messages(bodies: list[bytes], first: int, count: int) -> Iterator[bytes]:
    """Samples first … first + count − 1, a second apart."""
    for k in range(first, first + count):
        yield b'{"time": %d, %s' % (BEGAN + k, bodies[k % CYCLE])


class Process:
    """A process that is measured from outside."""

    def __init__(self, process: subprocess.Popen[Any]) -> None:
        self.process = process

    @property
    def status(self) -> dict[str, float]:
        """Sizes in MB (10⁶ bytes), by their names in /proc."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return {line.split(":")[0]: int(line.split()[1]) * 1024 / 1e6 for line in lines if line.endswith(" kB")}

    @property
    def resident(self) -> float:
        """MB that the process holds now."""
        return self.status["VmRSS"]

    @property
    def peak(self) -> float:
        """MB that it held at most, since the last `forget_peak`."""
        return self.status["VmHWM"]

    def forget_peak(self) -> None:
        """Let the peak begin anew."""
        Path(f"/proc/{self.process.pid}/clear_refs").write_text("5")

    @property
    def seconds(self) -> float:
        """Processor time so far, of the program, of the system for it, and of its processes that have ended."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(int(field) for field in fields[11:15]) / os.sysconf("SC_CLK_TCK")

    @property
    def written(self) -> float:
        """What it has sent to the disk so far, in kB of 10³ bytes."""
        lines = Path(f"/proc/{self.process.pid}/io").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes")) / 1e3

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                stream.close()


class Offspring(threading.Thread):
    """Looks, again and again, at the memory that the children of a process have for themselves, in MB."""

    def __init__(self, parent: int) -> None:
        super().__init__(daemon=True)
        self._parent, self._ended = parent, threading.Event()
        self.largest = 0.0

    def run(self) -> None:
        """Look until `finish`."""
        while not self._ended.wait(0.002):
            with contextlib.suppress(OSError):  # gone between two looks
                for child in Path(f"/proc/{self._parent}/task/{self._parent}/children").read_text().split():
                    lines = Path(f"/proc/{child}/smaps_rollup").read_text().splitlines()
                    own = sum(int(line.split()[1]) for line in lines if line.startswith("Private_"))
                    self.largest = max(self.largest, own * 1024 / 1e6)

    def finish(self) -> float:
        """The most that was seen."""
        self._ended.set()
        self.join()
        return self.largest


def wait(condition: Callable[[], bool], what: str) -> None:
    """Wait for something that must come."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(what)
        time.sleep(0.05)


class Broker(Process):
    """mosquitto, which keeps what it cannot deliver at once."""

    def __init__(self, folder: Path) -> None:
        self.port = free_port()
        config = folder / "mosquitto.conf"
        config.write_text(f"listener {self.port} 127.0.0.1\nallow_anonymous true\nmax_queued_messages 0\n")
        command = ["/usr/sbin/mosquitto", "-c", str(config)]
        super().__init__(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        wait(self._answers, "the broker")

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def publish(self, packets: Iterable[tuple[str, bytes]]) -> None:
        """Publish messages of quality 1 as fast as the broker confirms them, a hundred at a time."""
        with socket.create_connection(("127.0.0.1", self.port)) as link:
            link.sendall(b"\x10\x0f\x00\x04MQTT\x04\x02\x00\x00\x00\x03pub")
            _receive(link, 4)
            waiting: list[bytes] = []
            for topic, payload in packets:
                waiting.append(_packet(topic.encode(), payload, len(waiting) + 1))
                if len(waiting) == 100:
                    _confirm(link, waiting)
            _confirm(link, waiting)
            link.sendall(b"\xe0\x00")


def _packet(topic: bytes, payload: bytes, number: int) -> bytes:
    body = len(topic).to_bytes(2, "big") + topic + number.to_bytes(2, "big") + payload
    size, length = b"", len(body)
    while length > 127:
        size, length = size + bytes([length % 128 | 128]), length // 128
    return b"\x32" + size + bytes([length]) + body


def _confirm(link: socket.socket, waiting: list[bytes]) -> None:
    link.sendall(b"".join(waiting))
    _receive(link, 4 * len(waiting))
    waiting.clear()


def _receive(link: socket.socket, size: int) -> None:
    while size:
        found = link.recv(size)
        if not found:
            raise ConnectionError("The broker has left.")
        size -= len(found)


def environment() -> dict[str, str]:
    """As a service has it: nothing says how many threads to use, and compiled modules are kept."""
    unwanted = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONDONTWRITEBYTECODE")
    kept = {key: value for key, value in os.environ.items() if key not in unwanted}
    return {**kept, "PYTHONPYCACHEPREFIX": str(Path(tempfile.gettempdir()) / f"edge-benchmark-{os.getuid()}")}


class Agent(Process):
    """`fedkad-agent`, as it is installed, in a folder with a configuration."""

    def __init__(
        self, folder: Path, devices: Iterable[str], given: str, program: Sequence[str] = (), **streams: Any
    ) -> None:
        self.folder, self.devices = folder, list(devices)
        write_config(folder, self.devices, given)
        command = [*(program or [str(Path(sys.executable).parent / "fedkad-agent")]), str(folder / "agent.toml")]
        streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, **streams}
        with (folder / "agent.log").open("ab") as log:
            super().__init__(subprocess.Popen(command, stderr=log, env=environment(), **streams))

    @property
    def log(self) -> str:
        """What it has said."""
        return (self.folder / "agent.log").read_text()

    def states(self) -> list[Mapping[str, Any]]:
        """What it has committed of its devices."""
        path = self.folder / "state" / "agent.sqlite"
        if self.process.poll() is not None:
            raise RuntimeError(f"The agent has left: {self.log}")
        if not path.exists():
            return []
        try:
            with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
                return [json.loads(state) for (state,) in database.execute("SELECT state FROM device")]
        except sqlite3.OperationalError:  # not made yet, or busy
            return []

    def wait_rows(self, count: int) -> None:
        """Wait until so many rows of all devices together are committed."""
        wait(lambda: sum(state["seq"] for state in self.states()) >= count, f"{count} rows: {self.log[-500:]}")

    def wait_connected(self) -> None:
        """Wait until it listens to the broker."""
        wait(lambda: "connected." in self.log, self.log)
        time.sleep(0.5)


def write_config(folder: Path, devices: list[str], given: str) -> None:
    """Write agent.toml: what all agents here have in common, and what is `given`."""
    text = (
        f"name = 'bench'\ndevices = {json.dumps(devices)}\n[sampling]\nchannels = {json.dumps(NAMES)}\nperiod = 1.0\n"
    )
    (folder / "agent.toml").write_text(text + given)


def on_broker(broker: Broker, every: int) -> str:
    """The part of a configuration for MQTT in and out."""
    return (
        f"[source]\nkind = 'mqtt'\nbroker = 'mqtt://127.0.0.1:{broker.port}'\ntopics = ['in/{{device}}']\n"
        f"[mqtt]\n[stdout]\nenabled = false\n[learning]\nfirst = 700\nevery = {every}\n"
    )


def place_model(folder: Path, device: str, source: Path) -> None:
    """Put a model in use; a link will do, since models are replaced and never changed."""
    target = folder / "state" / "devices" / device
    target.mkdir(parents=True)
    os.link(source, target / "model.safetensors")
