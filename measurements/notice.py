"""Thousands of devices that follow the notice of a fleet, beside a training of eight; what it costs both sides.

Everything is on this machine: the fleet's own server with its nginx, eight real devices, and emulated devices that are
registered like real ones. Those look at the notice once a period as a real one does (the same code, with the ETag of
the last answer and the TLS session of the last connection). Trainings take turns: during one the emulated devices look
at this fleet's nginx, during the next at the nginx of another fleet, so that they cost the machine the same.

    python -m measurements.notice                               10,000 devices, ten minutes at this nginx: half an hour
    python -m measurements.notice --devices 1000 --minutes 1    a smaller one
    python -m measurements.notice --looks                       only what a look costs: a minute
"""

from __future__ import annotations

import argparse
import collections
import heapq
import json
import multiprocessing
import os
import random
import ssl
import subprocess
import tempfile
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from fedkad.federation.training_files import WANTED, is_requested, last_done
from fedkad.fleet.device.httpsclient import NOT_MODIFIED, OK, HttpsClient, UnreachableError
from fedkad.fleet.device.noticeclient import PATH
from fedkad.fleet.flower import proxy
from fedkad.fleet.server import registry
from fedkad.fleet.server.noticeboard import NoticeBoard
from fedkad.fleet.server.settings import ServerFolder
from fedkad.fleet.shared.files import write_private
from fedkad.fleet.shared.notice import PLACES, REPORT_EVERY, place
from fedkad.simulate import simulate_fleet
from fedkad.tables import write_table
from measurements.loopback import Loopback, Wire, command_line, descendants, megabytes, wait
from measurements.measure import heading, one_blas_thread

REAL = 8
TOKEN = "measured"  # of every request for a training: it decides who is called
ROUNDS = 12
PROCESSES, THREADS = 2, 12  # that emulate devices
FETCHERS, LOOKS, KEPT = 1000, 1000, 500
TICKS = os.sysconf("SC_CLK_TCK")
DAY = 86_400.0
PATIENCE = 900.0


class Usage(NamedTuple):
    """Processor seconds and megabytes of processes."""

    seconds: float
    megabytes: float


def seconds_of(process: int) -> float:
    """Processor time of one process so far."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def megabytes_of(process: int) -> float:
    """Memory of one process; pages that it shares with others count by their share."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024 / 1e6


def usage(*processes: int) -> Usage:
    """What processes, without those below them, have used so far, and hold now."""
    return Usage(sum(map(seconds_of, processes)), sum(map(megabytes_of, processes)))


# -- emulated devices ----------------------------------------------------------------------------------------------


class EmulatedDevice(HttpsClient):
    """A device that looks at the notice; all of one process share what they trust, to save memory."""

    def __init__(self, server: str, ca_certificate: Path, trust: ssl.SSLContext) -> None:
        super().__init__([server], ca_certificate, "")
        self._trust, self.tag = trust, ""
        self.shown: dict[str, str] = {}  # what says who looks

    def look(self) -> int:
        """Look once; the status of the answer."""
        answer = self.get(PATH, {**self.shown, **({"If-None-Match": self.tag} if self.tag else {})})
        self.tag = answer.tag or self.tag
        return answer.status

    def show_key(self, key: str) -> None:
        """Say who looks, from now on."""
        self.shown = {"flwr-public-key": key}

    def forget_session(self) -> None:
        """Begin the next connection anew."""
        self._session = None


def trusting(ca_certificate: Path) -> ssl.SSLContext:
    """What trusts a fleet's authority."""
    trust = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trust.load_verify_locations(ca_certificate)
    return trust


class Target(NamedTuple):
    """An nginx to look at."""

    server: str
    ca_certificate: Path


def emulate(targets: list[Target], count: int, period: float, choice: Any, ended: Event, results: Any) -> None:
    """Emulate devices in this process until told to end; `choice` says which target they look at."""
    trusts = [trusting(target.ca_certificate) for target in targets]
    groups = [
        [EmulatedDevice(*target, trust) for _ in range(count)] for target, trust in zip(targets, trusts, strict=True)
    ]
    now = time.monotonic()
    due = [(now + random.uniform(0.0, period), k) for k in range(count)]
    heapq.heapify(due)
    lock, seen, late = threading.Lock(), collections.Counter[str](), [0.0]

    def follow() -> None:
        while not ended.is_set():
            with lock:
                moment, k = due[0]
                if moment > time.monotonic():
                    k = -1
                else:
                    heapq.heapreplace(due, (time.monotonic() + period * random.uniform(0.75, 1.25), k))
            if k < 0:
                time.sleep(0.02)
                continue
            which = choice.value
            try:
                what = f"{which} {groups[which][k].look()}"
            except UnreachableError as error:
                what = f"{which} {error}"
            with lock:
                seen[what] += 1
                late[0] = max(late[0], time.monotonic() - moment)

    threads = [threading.Thread(target=follow) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    results.put((dict(seen), late[0]))


class Crowd:
    """Emulated devices in processes of their own."""

    def __init__(self, targets: list[Target], devices: int, period: float) -> None:
        context = multiprocessing.get_context("spawn")
        self.choice, self.ended, self.results = context.Value("i", 0), context.Event(), context.Queue()
        given = (targets, devices // PROCESSES, period, self.choice, self.ended, self.results)
        self.processes = [context.Process(target=emulate, args=given, daemon=True) for _ in range(PROCESSES)]

    def __enter__(self) -> Crowd:
        for process in self.processes:
            process.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()

    def end(self) -> tuple[collections.Counter[str], float]:
        """Stop; the answers by target and status, and the longest delay."""
        self.ended.set()
        seen, late = collections.Counter[str](), 0.0
        for _ in self.processes:
            found, delay = self.results.get(timeout=PATIENCE)
            seen.update(found)
            late = max(late, delay)
        return seen, late


# -- the fleet -----------------------------------------------------------------------------------------------------


def lowest_names(others: int) -> list[str]:
    """Names for the real devices that a training with `TOKEN` calls before any emulated one, almost surely."""
    bound = PLACES // (100 * (others + 1))
    found: list[str] = []
    k = 0
    while len(found) < REAL:
        if place(TOKEN, name := f"pump-{k}") < bound:
            found.append(name)
        k += 1
    return found


class CalledFleet(Loopback):
    """Real devices, beside many registered ones that are emulated."""

    def register(self, count: int) -> dict[str, str]:
        """Register emulated devices; their keys, which Flower never sees, as nginx wants them."""
        keys = {}
        with registry.changing(self.server_folder / "devices.json") as devices:
            for k in range(count):
                letters = b64encode(random.randbytes(120)).decode()
                key = f"-----BEGIN PUBLIC KEY-----\n{letters}\n-----END PUBLIC KEY-----\n"
                devices[f"emulated-{k}"] = registry.RegisteredDevice(f"emulated-{k}", key, "")
                keys[f"emulated-{k}"] = b64encode(key.encode()).decode()
        return keys

    @property
    def target(self) -> Target:
        """Where devices look."""
        return Target(f"127.0.0.1:{self.port}", self.server_folder / "ca" / "ca.crt")

    @property
    def nginx(self) -> list[int]:
        """The processes of nginx."""
        return [each for each in descendants(self.running["server"].pid) if "nginx" in command_line(each)]

    def train_once(self) -> dict[str, Any]:
        """A training that calls the real devices, to its end; its status."""
        folder = self.server_folder / "training"
        before = last_done(folder)
        write_private(folder / WANTED, json.dumps({"after": before, "token": TOKEN}).encode())
        status = self.wait_done(PATIENCE, after=before)
        wait(lambda: not is_requested(folder), PATIENCE, "the request closed")
        return status

    def wait_waiting(self) -> None:
        """Wait until all real devices only look at the notice."""

        def all_wait() -> bool:
            return all("fleet.device.idleclient" in command_line(self.running[name].pid) for name in self.data)

        wait(all_wait, PATIENCE, "all devices wait")


@contextmanager
def another_nginx(fleet: CalledFleet, root: Path) -> Iterator[tuple[Target, int]]:
    """The nginx of another fleet with the same notice and keys, and nothing behind it; its process as well."""
    other = Loopback(root, fleet.data)
    folder = ServerFolder(other.server_folder)
    NoticeBoard(folder).show(60.0, None, 1)
    with (root / "nginx.log").open("wb") as log:
        process = subprocess.Popen(proxy.command(folder.root), stdout=log, stderr=log)
    try:
        yield Target(f"127.0.0.1:{other.port}", folder.ca_certificate), process.pid
    finally:
        process.terminate()
        process.wait()


# -- what is measured ----------------------------------------------------------------------------------------------


def bytes_of_looks(fleet: CalledFleet, how: Callable[[EmulatedDevice], object]) -> float:
    """Bytes on the wire of one look, after the first."""
    wire = Wire(fleet.port)
    device = EmulatedDevice(
        f"127.0.0.1:{wire.port}", fleet.target.ca_certificate, trusting(fleet.target.ca_certificate)
    )
    device.look()
    before = wire.up + wire.down
    for _ in range(20):
        how(device)
        assert device.look() == NOT_MODIFIED
    wait(lambda: not wire._pairs, 60.0, "all connections closed")
    found = (wire.up + wire.down - before) / 20
    wire.close()
    return found


def cost_of_looks(fleet: CalledFleet, how: Callable[[EmulatedDevice], object]) -> float:
    """Processor seconds of nginx for one look."""
    device = EmulatedDevice(*fleet.target, trusting(fleet.target.ca_certificate))
    device.look()
    before = usage(*fleet.nginx).seconds
    for _ in range(LOOKS):
        how(device)
        device.look()
    return (usage(*fleet.nginx).seconds - before) / LOOKS


def memory_of_connections(fleet: CalledFleet) -> float:
    """Megabytes of nginx for one connection that is kept open."""
    device = EmulatedDevice(*fleet.target, trusting(fleet.target.ca_certificate))
    before = usage(*fleet.nginx).megabytes
    lines = []
    for _ in range(KEPT):
        line = device.connect()
        line.sendall(f"HEAD {PATH} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        line.recv(4096)
        lines.append(line)
    found = (usage(*fleet.nginx).megabytes - before) / KEPT
    for line in lines:
        line.close()
    return found


def fetch_at_once(fleet: CalledFleet, keys: list[str]) -> tuple[float, collections.Counter[str], int, float]:
    """Seconds until all have the model, statuses, its bytes, and processor seconds of nginx."""
    shown = NoticeBoard(ServerFolder(fleet.server_folder)).last()
    assert shown is not None
    model = shown.body.model
    assert model is not None
    trust, seen = trusting(fleet.target.ca_certificate), collections.Counter[str]()
    start, lock = threading.Barrier(len(keys) + 1), threading.Lock()

    def fetch(key: str) -> None:
        device = EmulatedDevice(*fleet.target, trust)
        start.wait()
        try:
            answer = device.get(f"/models/{model.sha256}", {"flwr-public-key": key})
            what = str(answer.status if len(answer.content) == model.size else "cut short")
        except UnreachableError as error:
            what = str(error)
        with lock:
            seen[what] += 1

    threads = [threading.Thread(target=fetch, args=(key,)) for key in keys]
    for thread in threads:
        thread.start()
    before = usage(*fleet.nginx).seconds
    start.wait()
    began = time.monotonic()
    for thread in threads:
        thread.join()
    took = time.monotonic() - began
    return took, seen, model.size, usage(*fleet.nginx).seconds - before


def follow_beside_trainings(fleet: CalledFleet, other: Target, devices: int, minutes: float, period: float) -> None:
    """Trainings beside emulated devices that look here, and elsewhere, in turn; prints what was found."""
    server = fleet.running["server"].pid
    link = [each for each in descendants(server) if "flower-superlink" in command_line(each)]
    rounds: dict[int, list[float]] = {0: [], 1: []}
    spent, nginx_here = {0: 0.0, 1: 0.0}, {0: 0.0, 1: 0.0}
    with Crowd([fleet.target, other], devices, period) as crowd:
        time.sleep(1.25 * period)  # every device has looked once
        before, began = [usage(server), usage(*link)], time.monotonic()
        turn = 0
        while spent[0] < 60.0 * minutes or turn % 2:
            crowd.choice.value = turn % 2
            start, used = time.monotonic(), usage(*fleet.nginx).seconds
            status = fleet.train_once()
            fleet.wait_waiting()
            rounds[turn % 2] += status["round_seconds"]
            spent[turn % 2] += time.monotonic() - start
            nginx_here[turn % 2] += usage(*fleet.nginx).seconds - used
            turn += 1
        elapsed = time.monotonic() - began
        after = [usage(server), usage(*link)]
        memory = usage(*fleet.nginx).megabytes
        seen, late = crowd.end()
    here = sum(count for what, count in seen.items() if what.startswith("0 "))
    print(f"  {devices} emulated devices looked here for {spent[0]:.0f} s, in which there were {turn // 2} trainings")
    print(f"  answers: {dict(sorted(seen.items()))}; the latest look was {late:.1f} s late")
    busy, calm = nginx_here[0] / spent[0], nginx_here[1] / spent[1]
    print(f"  nginx: {100 * busy:.1f} % of a core with them, {100 * calm:.1f} % without; {memory:.0f} MB")
    print(f"         {1e3 * (nginx_here[0] - calm * spent[0]) / here:.2f} ms for each of their looks")
    for name, old, new in zip(("fedkad server", "SuperLink"), before, after, strict=True):
        print(f"  {name}: {100 * (new.seconds - old.seconds) / elapsed:.1f} % of a core, {new.megabytes:.0f} MB")
    medians = [float(np.median(rounds[which])) for which in (0, 1)]
    print(f"  seconds of a round, median of {len(rounds[0])} and {len(rounds[1])}: {medians[0]:.2f} with looks here,")
    print(f"    {medians[1]:.2f} with looks at another nginx: ratio {medians[0] / medians[1]:.3f}")


def print_looks(fleet: CalledFleet, period: float, key: str) -> None:
    """What a look at the notice costs the wire and nginx."""
    ways: dict[str, Callable[[EmulatedDevice], object]] = {
        "resumed session": lambda device: None,
        "resumed session and a key, once an hour": lambda device: device.show_key(key),
        "new session": EmulatedDevice.forget_session,
    }
    for name, how in ways.items():
        size, cost = bytes_of_looks(fleet, how), cost_of_looks(fleet, how)
        day = DAY / (REPORT_EVERY if "hour" in name else period) * size / 1e6
        print(f"  a look with a {name}: {size:.0f} bytes, {day:.2f} MB a day; nginx {1e3 * cost:.2f} ms")


def print_costs(fleet: CalledFleet, period: float, key: str) -> None:
    """What a device that waits costs itself and the server."""
    print_looks(fleet, period, key)
    print(f"  a connection that is kept open instead: {1e3 * memory_of_connections(fleet):.1f} kB of nginx")
    own, alone = (
        float(np.median([megabytes(fleet.running[name].pid, what) for name in fleet.data])) for what in ("Pss", "Rss")
    )
    print(f"  memory of a real device that waits, median of {len(fleet.data)}: {own:.1f} MB with its share of")
    print(f"    the pages that they have in common, {alone:.1f} MB with all of them, as on a device of its own")


def main() -> None:
    """Print everything."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--devices", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--period", type=float, default=60.0)
    parser.add_argument("--looks", action="store_true", help="only what a look costs")
    given = parser.parse_args()
    one_blas_thread()
    heading(f"{given.devices} devices that look at the notice every {given.period:g} s, beside trainings of {REAL}")
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        names = lowest_names(given.devices)
        simulated = simulate_fleet(REAL).train
        data = {name: root / f"{name}.csv" for name in names}
        for name, series in zip(names, simulated.values(), strict=True):
            write_table(data[name], {f"c{k}": column for k, column in enumerate(np.asarray(series).T)})
        (root / "ours").mkdir()
        (root / "other").mkdir()
        options = ("--rounds", str(ROUNDS), "--devices-per-training", str(REAL), "--period", f"{given.period:g}s")
        with CalledFleet(root / "ours", data, *options) as fleet:
            keys = fleet.register(max(given.devices, FETCHERS))
            fleet.start_server()
            if given.looks:
                wait((fleet.server_folder / "public" / "notice").exists, PATIENCE, "a notice")
                wait(lambda: len(fleet.nginx) > 1, PATIENCE, "nginx")
                print_looks(fleet, given.period, next(iter(keys.values())))
                return
            fleet.start()
            fleet.wait_waiting()
            with another_nginx(fleet, root / "other") as (other, _):
                follow_beside_trainings(fleet, other, given.devices, given.minutes, given.period)
            print_costs(fleet, given.period, next(iter(keys.values())))
            took, seen, size, cost = fetch_at_once(fleet, list(keys.values())[:FETCHERS])
            assert set(seen) == {str(OK)}, seen
            print(f"  {FETCHERS} devices fetch a model of {size} bytes at once: {took:.1f} s; nginx {cost:.2f} s")


if __name__ == "__main__":
    main()
