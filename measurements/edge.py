"""The agent on a device against its budgets: memory, processor time a sample, time to start, and whether it grows.

`python -m measurements.edge` takes minutes; `--quick` takes one and shows that all works; `--soak 2000000` only soaks,
`--fleet` only measures an agent that follows the notice of a real server, which needs Flower and nginx, and `--cost`
only what a sample costs, five times as often, because that varies on a shared machine.
Memory is that of the whole process as /proc tells it, in MB of 10⁶ bytes. Processor time is that of the program and of
the system for it; whoever is compared takes turns, since the machine may be shared.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import NamedTuple

import numpy as np

from measurements.edge_rig import (
    NAMES,
    Agent,
    Broker,
    Offspring,
    Process,
    bodies,
    environment,
    fitted,
    messages,
    on_broker,
    own,
    place_model,
    wait,
)
from measurements.loopback import Loopback
from measurements.measure import heading, one_blas_thread

MOST_MEMORY, MOST_EACH, MOST_RATIO, MOST_SECONDS = 64.0, 1.5, 2.0, 1.0
MOST_FLEET = 25.0  # MB beyond the agent's, while its device waits to be called
UNWANTED = ("scipy", "torch", "pandas", "flwr")
LOOKS, LOOK_SECONDS = 3, 10
EVERY, LEAST_EVERY = 5000, 100
"""Rows after which an agent learns, unless told otherwise, and the fewest that it may be told."""

LISTING = "import sys; from fedkad.edge.main import main; main(); print(*sys.modules)"


class Sizes(NamedTuple):
    """How much is measured."""

    messages: int
    repeats: int
    fleet: tuple[int, ...]
    starts: int
    soak: int


FULL = Sizes(messages=20_000, repeats=5, fleet=(2, 50, 200), starts=9, soak=2_000_000)
QUICK = Sizes(messages=2_000, repeats=2, fleet=(2, 10), starts=2, soak=30_000)


class Bench:
    """What all measurements share: a folder, a broker, a model, and the samples."""

    def __init__(self, root: Path, sizes: Sizes) -> None:
        self.root, self.sizes, self.bodies = root, sizes, bodies()
        self.model = root / "model.safetensors"
        fitted().save(self.model)
        self.broker = Broker(root)
        self._numbers = count()

    def folder(self) -> Path:
        """A new one."""
        made = self.root / f"agent-{next(self._numbers)}"
        made.mkdir()
        return made

    def send(self, agent: Agent, first: int, rows: int) -> float:
        """Publish rows first … first + rows − 1 of every device; processor seconds until all are committed."""
        began, topics = agent.seconds, [f"in/{device}" for device in agent.devices]
        self.broker.publish((topic, text) for text in messages(self.bodies, first, rows) for topic in topics)
        agent.wait_rows((first + rows) * len(topics))
        return agent.seconds - began


def verdict(value: float, budget: float) -> str:
    """Whether a budget holds."""
    return f"budget {budget:g}: {'holds' if value <= budget else 'MISSED'}"


def modules(bench: Bench) -> None:
    """What an agent has loaded at its end; this is also the start that compiles its modules."""
    folder, program = bench.folder(), [sys.executable, "-c", LISTING]
    given = on_broker(bench.broker, LEAST_EVERY)
    with Agent(folder, ["device-0"], given, program, stdout=subprocess.PIPE, text=True) as agent:
        agent.wait_connected()
        bench.send(agent, 0, 2500)
        wait(lambda: agent.states()[0]["learnt"] >= 1, "learning")
        agent.process.send_signal(signal.SIGTERM)
        loaded = {name.partition(".")[0] for name in agent.process.communicate()[0].split()}
    assert "numpy" in loaded
    print(f"  of {', '.join(UNWANTED)} loaded by the agent (none asked): {', '.join(loaded & set(UNWANTED)) or 'none'}")


def memory(bench: Bench) -> None:
    """One device, MQTT in and out: at rest, and while it learns."""
    folder = bench.folder()
    place_model(folder, "device-0", bench.model)
    with Agent(folder, ["device-0"], on_broker(bench.broker, EVERY)) as agent:
        agent.wait_connected()
        start = agent.peak
        bench.send(agent, 0, EVERY - 1000)
        before, plain = agent.resident, agent.peak
        agent.forget_peak()
        learning = Offspring(agent.process.pid)
        learning.start()
        bench.send(agent, EVERY - 1000, 3 * EVERY)
        wait(lambda: agent.states()[0]["learnt"] >= 3, "learning")
        time.sleep(1.0)
        aside = learning.finish()
        after, peak, learnt = agent.resident, agent.peak, agent.states()[0]["learnt"]
    print(f"  memory, one device of 25 channels, MQTT in and out (under {MOST_MEMORY:g} MB asked):")
    print(f"    settled after {EVERY - 1000} samples {before:.1f} MB, {verdict(before, MOST_MEMORY)}")
    print(f"    settled after learning {learnt} times {after:.1f} MB, {verdict(after, MOST_MEMORY)}")
    print(
        f"    peak of the start {start:.1f} MB, of {EVERY - 1000} samples {plain:.1f} MB, {verdict(plain, MOST_MEMORY)}"
    )
    print(
        f"    peak while learning from {EVERY} rows {peak:.1f} MB, {verdict(peak, MOST_MEMORY)}; "
        f"beside it, for a moment, a process with {aside:.1f} MB of its own"
    )
    first_model(bench)


def first_model(bench: Bench) -> None:
    """The same device without a model: the first one is fitted on the device."""
    with Agent(bench.folder(), ["device-0"], on_broker(bench.broker, EVERY)) as agent:
        agent.wait_connected()
        bench.send(agent, 0, 2500)
        wait(lambda: agent.states()[0]["learnt"] >= 1, "the first model")
        time.sleep(1.0)
        print(
            f"    peak while fitting a first model on 2000 rows {agent.peak:.1f} MB, "
            f"{verdict(agent.peak, MOST_MEMORY)}; settled {agent.resident:.1f} MB"
        )


class Held(NamedTuple):
    """Memory of an agent in MB, now and at most."""

    resident: float
    peak: float


class Fleet(NamedTuple):
    """An agent of some devices."""

    resident: float
    peak: float
    microseconds: float
    kilobytes: float


def run_fleet(bench: Bench, devices: int, *, different: bool = False, every: int = 0) -> Fleet:
    """Samples of so many devices in one process, taking turns."""
    folder, names = bench.folder(), [f"device-{k}" for k in range(devices)]
    for k, name in enumerate(names):
        if different:
            target = folder / "state" / "devices" / name
            target.mkdir(parents=True)
            own(bench.model, k).save(target / "model.safetensors")
        else:
            place_model(folder, name, bench.model)
    rows = max(bench.sizes.messages // 2 // devices, 40)
    with Agent(folder, names, on_broker(bench.broker, every)) as agent:
        agent.wait_connected()
        bench.send(agent, 0, 30)
        written = agent.written
        seconds = bench.send(agent, 30, rows)
        written = agent.written - written
        if every:
            bench.send(agent, 30 + rows, every)
            wait(lambda: min(state["learnt"] for state in agent.states()) >= 1, "learning")
        time.sleep(1.0)
        return Fleet(agent.resident, agent.peak, 1e6 * seconds / rows / devices, written / rows / devices)


def fleets(bench: Bench) -> None:
    """Memory and processor time of many devices in one process."""
    print(f"  further devices in one process (under {MOST_EACH:g} MB each asked):")
    one, learnt = run_fleet(bench, 1), run_fleet(bench, 1, every=LEAST_EVERY)
    print(
        f"    1 device: {one.resident:.1f} MB, after learning {learnt.resident:.1f}; {one.microseconds:.0f} µs a sample"
    )
    cases = [(devices, False, 0) for devices in bench.sizes.fleet]
    cases += [(bench.sizes.fleet[-1], True, 0), (bench.sizes.fleet[-2], False, LEAST_EVERY)]
    for devices, different, every in cases:
        found = run_fleet(bench, devices, different=different, every=every)
        each = (found.resident - (learnt if every else one).resident) / (devices - 1)
        what = ", a model of its own each" if different else ", after each has learnt" if every else ""
        print(
            f"    {devices} devices{what}: {found.resident:.1f} MB, {each:.2f} MB for each further one, "
            f"{verdict(each, MOST_EACH)}; peak {found.peak:.1f} MB"
            + ("" if every else f"; {found.microseconds:.0f} µs and {found.kilobytes:.1f} kB written a sample")
        )


def in_a_fleet(bench: Bench) -> None:
    """What it costs that the agent follows the notice of a fleet, while nobody calls its device."""
    folder = bench.folder()
    table = folder / "table.csv"
    table.write_text(",".join(NAMES) + "\n" + ",".join("0" for _ in NAMES) + "\n")
    with Loopback(folder, {"device-0": table}, "--on-demand") as fleet:
        often = fleet.server_folder / "fleet.toml"
        often.write_text(often.read_text().replace('period = "1m"', f'period = "{LOOK_SECONDS}s"'))
        fleet.start_server()
        wait(lambda: (fleet.server_folder / "public" / "notice").exists(), "a notice")
        homes = (None, fleet.device_folder("device-0"))
        *_, alone, member = [_settled(bench, home) for home in 2 * homes]  # the first starts compile modules
    beyond = member.resident - alone.resident
    print(
        f"  with [fleet], after {LOOKS} looks at the notice of a server: {member.resident:.1f} MB, peak "
        f"{member.peak:.1f}; {beyond:.1f} MB beyond {alone.resident:.1f} without it, {verdict(beyond, MOST_FLEET)}; "
        f"in all {verdict(member.peak, MOST_MEMORY)}"
    )


def _settled(bench: Bench, home: Path | None) -> Held:
    """The memory of an agent whose device is in a fleet, if `home` is its folder there."""
    folder, given = bench.folder(), on_broker(bench.broker, EVERY)
    if home is None:
        place_model(folder, "device-0", bench.model)
    else:
        shutil.copyfile(bench.model, home / "model.safetensors")
        given += f"folder = '{home}'\n[fleet]\n"
    with Agent(folder, ["device-0"], given) as agent:
        agent.wait_connected()
        bench.send(agent, 0, EVERY - 1000)
        if home is not None:
            wait((home / "notice").exists, f"the notice: {agent.log}")
            time.sleep(1.5 * LOOKS * LOOK_SECONDS)
        time.sleep(1.0)
        return Held(agent.resident, agent.peak)


def wear(bench: Bench) -> None:
    """What a device with a sample now and then writes: each is committed alone."""
    folder, samples = bench.folder(), 20
    place_model(folder, "device-0", bench.model)
    with Agent(folder, ["device-0"], on_broker(bench.broker, 0)) as agent:
        agent.wait_connected()
        bench.send(agent, 0, 100)
        before = agent.written
        for k in range(samples):
            bench.send(agent, 100 + k, 1)
        each = (agent.written - before) / samples
    daily = each * 86.4
    print(f"  written to the disk, each sample committed alone: {each:.1f} kB; with one a second {daily:.0f} MB a day")


def cost_of_a_sample(bench: Bench) -> None:
    """From message to decision, against the least that a program can do."""
    total, folder = bench.sizes.messages, bench.folder()
    place_model(folder, "device-0", bench.model)
    command = [sys.executable, "-m", "measurements.edge_bare", str(bench.broker.port), str(bench.model), "bare"]
    surroundings = {**environment(), "OPENBLAS_NUM_THREADS": "1"}
    piped = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": surroundings}
    with (
        Agent(folder, ["device-0"], on_broker(bench.broker, 0)) as agent,
        Process(subprocess.Popen(command, **piped)) as bare,  # type: ignore[call-overload]
    ):
        agent.wait_connected()
        _hear(bare, "ready")
        spent = []
        for k in range(bench.sizes.repeats):
            ours = bench.send(agent, k * total, total)
            _ask(bare, total * (k + 1))
            began = bare.seconds
            bench.broker.publish(("bare", text) for text in messages(bench.bodies, k * total, total))
            _hear(bare, str(total * (k + 1)))
            spent.append((ours, bare.seconds - began))
    ours, theirs = np.median(spent, axis=0) / total * 1e6
    ratios = [a / b for a, b in spent]
    ratio = float(np.median(ratios))
    print(
        f"  processor time from MQTT message to decision, median of {len(spent)} times {total} messages of quality 1:\n"
        f"    bare program {theirs:.0f} µs (paho, json, update), agent {ours:.0f} µs: {ratio:.2f} x "
        f"({min(ratios):.2f} to {max(ratios):.2f}), {verdict(ratio, MOST_RATIO)}"
    )


def _hear(bare: Process, expected: str) -> None:
    assert bare.process.stdout is not None
    answer = bare.process.stdout.readline().strip()
    if answer != expected:
        raise RuntimeError(f"The bare program says {answer!r} and not {expected!r}.")


def _ask(bare: Process, messages: int) -> None:
    assert bare.process.stdin is not None
    bare.process.stdin.write(f"{messages}\n")
    bare.process.stdin.flush()


def start_again(bench: Bench) -> None:
    """From the start of the process to the first score, where the agent ran before."""
    folder = bench.folder()
    place_model(folder, "device-0", bench.model)
    given = "[stdout]\nreadings = true\n"
    times: list[tuple[float, float, float]] = []
    for k in range(bench.sizes.starts + 1):
        numpy = _import_numpy()
        lines = b"\n".join(messages(bench.bodies, k, 1) if k else messages(bench.bodies, -50, 51)) + b"\n"
        began = time.perf_counter()
        with Agent(folder, ["device-0"], given, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
            assert agent.process.stdin is not None
            assert agent.process.stdout is not None
            agent.process.stdin.write(lines)
            agent.process.stdin.flush()
            reading = next(line for line in agent.process.stdout if b'"score"' in line)
            took, spent = time.perf_counter() - began, agent.seconds
            assert json.loads(reading)["score"] > 0.0
        if k:  # the first fills the window, and compiles
            times.append((took, spent, numpy))
    took, spent, numpy = np.median(times, axis=0)
    print(
        f"  start to first reading after a restart, median of {len(times)}: {took:.2f} s of time, {spent:.2f} s of "
        f"processor, {verdict(took, MOST_SECONDS)}; python -c 'import numpy' {numpy:.2f} s: {took / numpy:.1f} x"
    )


def _import_numpy() -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import numpy"], check=True, env=environment())
    return time.perf_counter() - began


def soak(bench: Bench, total: int) -> None:
    """As many samples as a device sees in weeks, at full speed, learning all the while."""
    folder, marks = bench.folder(), 50
    place_model(folder, "device-0", bench.model)
    given = f"[stdout]\nenabled = true\n[learning]\nevery = {EVERY}\n"
    held = np.empty(marks)
    began = time.perf_counter()
    with Agent(folder, ["device-0"], given, stdin=subprocess.PIPE) as agent:
        pipe = agent.process.stdin
        assert pipe is not None
        for k in range(marks):
            first, last = k * total // marks, (k + 1) * total // marks
            for start in range(first, last, 500):
                text = b"\n".join(messages(bench.bodies, start, min(500, last - start)))
                pipe.write(text + b"\n")
            pipe.flush()
            held[k] = agent.resident
        agent.wait_rows(total)
        time.sleep(1.0)
        held[-1], peak, seconds, state = agent.resident, agent.peak, agent.seconds, agent.states()[0]
    warm = slice(marks // 10, None)
    samples = (np.arange(marks) + 1.0)[warm] * total / marks
    growth = float(np.polyfit(samples / 1e6, held[warm], 1)[0])
    print(
        f"  soak, {state['seq']} samples through standard input in {time.perf_counter() - began:.0f} s, learnt "
        f"{state['learnt']} times, {state['alarms']['incidents']} incidents (flat asked):\n"
        f"    {held[marks // 10 - 1]:.1f} MB at 10 %, {held[marks // 2 - 1]:.1f} at 50 %, {held[-1]:.1f} at 100 %, "
        f"peak {peak:.1f}; {growth:+.2f} MB a million samples after the first tenth "
        f"(lowest {held[warm].min():.1f}, highest {held[warm].max():.1f}); "
        f"{1e6 * seconds / total:.0f} µs of processor a sample, learning included"
    )


def main() -> None:
    """Measure all, or only soak."""
    one_blas_thread()
    parser = argparse.ArgumentParser(prog="python -m measurements.edge")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--soak", type=int, default=0, metavar="SAMPLES")
    parser.add_argument("--fleet", action="store_true")
    parser.add_argument("--cost", action="store_true")
    given = parser.parse_args()
    sizes = QUICK if given.quick else FULL
    sizes = sizes._replace(repeats=5 * sizes.repeats) if given.cost else sizes
    heading("The agent on a device: 25 channels, window 20, rank 24, 128 observables")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as closing:
        bench = Bench(Path(folder), sizes)
        closing.enter_context(bench.broker)
        if given.soak:
            soak(bench, given.soak)
            return
        if given.fleet:
            in_a_fleet(bench)
            return
        if given.cost:
            cost_of_a_sample(bench)
            return
        for measurement in (modules, memory, in_a_fleet, fleets, wear, cost_of_a_sample, start_again):
            measurement(bench)
            sys.stdout.flush()
        soak(bench, sizes.soak)


if __name__ == "__main__":
    main()
