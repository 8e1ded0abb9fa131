"""How many functions a reader steps through from one end of the program to the other, by tracing real calls.

    python -m measurements.walks [--list] [--against COMMIT]

Four walks: a row of a CSV file to its event (`fedkad detect`), an MQTT message to the alert that a broker gets (a real
agent, a real Mosquitto), one round of a training over the carrier in memory, and a message of one over Flower (the
server's app and the device's; what lies between them is Flower's own). A walk has stations, functions where what is
handed on changes: a message becomes a sample, a sample a row, a row a score. Counted are the functions of `fedkad` on
the stacks with which the stations are reached, each once; `--list` names them. `--against` does the same in an earlier
tree.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib import import_module
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType, SimpleNamespace
from typing import Any

import numpy as np

import fedkad

PACKAGE = str(Path(fedkad.__file__).parent) + os.sep
CHANNELS = ("flow", "pressure", "speed")
PATIENCE = 120.0
BEFORE = "26b49a0"
"""The last commit before the rooms were cut anew."""

Walked = dict[CodeType, None]
"""Functions of the package on the way to the stations, in their order."""


@contextmanager
def traced(walked: Walked, stations: Sequence[str]) -> Iterator[None]:
    """Note the stacks with which stations are entered, in this thread and in those that begin meanwhile."""
    is_station: dict[CodeType, bool] = {}

    def note(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(PACKAGE):
            return
        if code not in is_station:
            is_station[code] = any(re.fullmatch(each, name_of(code)) for each in stations)
        is_over = any(re.fullmatch(stations[-1], name_of(each)) for each in walked)
        if is_station[code] and not is_over:
            stack = []
            at: FrameType | None = frame
            while at is not None:
                if at.f_code.co_filename.startswith(PACKAGE) and not at.f_code.co_name.startswith("<"):
                    stack.append(at.f_code)
                at = at.f_back
            walked.update(dict.fromkeys(code for code in reversed(stack) if code not in walked))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def name_of(code: CodeType) -> str:
    """Return the module below fedkad and the name in it."""
    return f"{code.co_filename.removeprefix(PACKAGE)[:-3]}.{code.co_qualname}"


def waves(rows: int, seed: int) -> np.ndarray[Any, Any]:
    """Three oscillations with noise."""
    t = np.arange(rows)[:, None]
    return np.sin(t / [[7.0, 11.0, 5.0]]) + 0.05 * np.random.default_rng(seed).normal(size=(rows, 3))


CSV_STATIONS = (
    r"intake/(reading\..*_(read|number)|channels\.read_columns)",
    r"detect/.*\.score_series",
    r"detect/.*\.judge_all",
    r"detect/.*\.find_events",
    r"detect/(kinds\.tell|explanations\.explain_\w+)",
)
"""The cells become numbers, the numbers scores, the scores alarms, the alarms events, an event a sentence."""

MESSAGE_STATIONS = (
    r"edge/.*Connection\._on_message",
    r"edge/.*Decoder\.decode",
    r"edge/.*SampleGrid\.add",
    r"detect/stream\.Stream\.update",
    r"edge/(alarms|alarms/policy)\..*update",
    r"edge/(alerttext\.alert_text|alert\.[A-Za-z]*\.text)",
    r"edge/.*(Store\.put_alert|AlertTable\.put)",
    r"edge/.*(Store|Database)\.commit",
    r"edge/.*BrokerSink\.offer",
)
"""The message arrives, becomes a sample, a row, a score, an incident, an alert; it is kept, committed, and sent."""

ROUND_STATIONS = (
    r"federation/coordinator.*\.(open|take)",
    r"federation/participant\.answer",
    r"federation/client\.Client\.local_round",
    r"federation/server\.Server\.close_round",
)
"""The request, its arrival, the local steps, the reply's arrival, the new subspace."""


FLOWER_STATIONS = (
    r"fleet/.*serverapp\.main",
    r"fleet/.*[cC]arrier\..*send",
    r"fleet/.*clientapp\.train",
    r"federation/participant\.answer",
    r"federation/client\.Client\.local_round",
    r"fleet/.*mailbox\..*collect",
    r"federation/coordinator.*\.take",
    r"federation/server\.Server\.close_round",
)
"""The server's app begins and sends, the device's takes, answers and computes; the reply arrives and closes a round."""


def csv_to_event(folder: Path) -> list[str]:
    """Trace `fedkad detect` on a file with one event, up to the words that are found for it."""
    app = import_module("fedkad.cli.app").app
    model, train, today = (str(folder / name) for name in ("model.safetensors", "train.csv", "today.csv"))
    faulty = waves(300, 1)
    faulty[200:, 0] += 8.0
    for path, series in ((train, waves(1500, 0)), (today, faulty)):
        np.savetxt(path, series, delimiter=",", header=",".join(CHANNELS), comments="")
    walked: Walked = {}
    with redirect_stdout(StringIO()):
        app(["fit", train, "-o", model, "--sample-period", "1"], standalone_mode=False)
        with traced(walked, CSV_STATIONS):
            app(["detect", model, today], standalone_mode=False)
    return list(map(name_of, walked))


AGENT = """
name = "walks"
devices = ["pump"]
source = {{ kind = "mqtt", broker = "mqtt://127.0.0.1:{port}", topics = ["plant/{{device}}"] }}
sampling = {{ channels = ["flow", "pressure", "speed"], period = "1s", clock = "count" }}
learning = {{ first = 1000 }}
[mqtt]
"""


def message_to_alert(folder: Path) -> list[str]:
    """Trace an agent from the message that begins an incident to its alert at the broker."""
    try:
        parse = import_module("fedkad.edge.settings.file").parse
    except ImportError:  # an earlier tree
        parse = import_module("fedkad.edge.settingsfile").parse
    port = import_module("measurements.loopback").free_port()
    (folder / "broker.conf").write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\n")
    environment = {**os.environ, "PATH": f"{os.environ['PATH']}{os.pathsep}/usr/sbin"}
    broker = subprocess.Popen(
        ["mosquitto", "-c", str(folder / "broker.conf")], env=environment, stderr=subprocess.DEVNULL
    )
    walked: Walked = {}
    try:
        time.sleep(1.0)
        with traced(walked, MESSAGE_STATIONS):  # the threads of the client are traced only if they begin now
            agent = import_module("fedkad.edge.agent").Agent(parse(tomllib.loads(AGENT.format(port=port)), folder))
            try:
                limit = time.monotonic() + 3.0  # it has subscribed by then
                step_until(agent, lambda: time.monotonic() > limit)
                publish(port, waves(1200, 0))
                step_until(agent, lambda: agent.statuses()["pump"].state == "ok")
                walked.clear()
                publish(port, waves(40, 1) + np.array([8.0, 0.0, 0.0]))
                step_until(agent, lambda: any(code.co_qualname == "BrokerSink.offer" for code in walked))
            finally:
                agent.close()
    finally:
        broker.terminate()
        broker.wait()
    return list(map(name_of, walked))


def step_until(agent: Any, is_done: Callable[[], bool]) -> None:
    """Let the agent work until something has happened."""
    limit = time.monotonic() + PATIENCE
    while not is_done():
        agent.step(0.05)
        if time.monotonic() > limit:
            sys.exit("the agent does not get there")


def publish(port: int, rows: np.ndarray[Any, Any]) -> None:
    """Publish rows from a process of its own."""
    lines = "\n".join(json.dumps(dict(zip(CHANNELS, row.tolist(), strict=True))) for row in rows)
    command = ["mosquitto_pub", "-h", "127.0.0.1", "-p", str(port), "-q", "1", "-t", "plant/pump", "-l"]
    subprocess.run(command, input=lines, text=True, check=True)


def message_of_a_training(folder: Path) -> list[str]:
    """Trace one round: from the coordinator's request to the reply that it has heard."""
    del folder
    walked: Walked = {}
    fleet = {name: waves(1500, k) for k, name in enumerate("abc")}
    with traced(walked, ROUND_STATIONS):
        fedkad.federate(fleet, rounds=2, rank=2, observables=8)
    return list(map(name_of, walked))


class HandedGrid:
    """What an app sees of Flower: each message is handed to the app of its device, and the reply back."""

    def __init__(self, train: Callable[[Any, Any], Any], contexts: dict[int, Any]) -> None:
        self.train, self.contexts = train, contexts
        self.replies: dict[str, Any] = {}

    def get_nodes(self) -> list[Any]:
        """Return the devices that are connected."""
        return [SimpleNamespace(node_id=node) for node in self.contexts]

    def push_messages(self, messages: Iterable[Any]) -> list[str]:
        """Have messages answered."""
        numbers = []
        for message in messages:
            numbers.append(f"message-{len(self.replies)}")
            message.metadata.__dict__["_message_id"] = numbers[-1]
            self.replies[numbers[-1]] = self.train(message, self.contexts[message.metadata.dst_node_id])
        return numbers

    def pull_messages(self, numbers: Iterable[str]) -> list[Any]:
        """Return the replies to messages."""
        return [self.replies[number] for number in numbers]

    def send_and_receive(self, messages: Iterable[Any], *, timeout: float) -> list[Any]:
        """Return the replies to messages that are sent now."""
        return self.pull_messages(self.push_messages(messages))


def message_over_flower(folder: Path) -> list[str]:
    """Trace a training of three devices through both apps."""
    from flwr.app import Context, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1
    try:
        client, server = (import_module(f"fedkad.fleet.{name}") for name in ("device.clientapp", "server.serverapp"))
        settings = import_module("fedkad.fleet.server.settings")
    except ImportError:  # an earlier tree
        client, server = (import_module(f"fedkad.fleet.{name}") for name in ("clientapp", "serverapp"))
        settings = import_module("fedkad.fleet.settings")
    contexts = {}
    for k, name in enumerate("abc", start=1):
        table = folder / f"{name}.csv"
        np.savetxt(table, waves(1500, k), delimiter=",", header=",".join(CHANNELS), comments="")
        place: dict[str, bool | float | int | str] = {"device": name, "folder": str(folder / name), "data": str(table)}
        contexts[k] = Context(1, k, place, RecordDict(), {})
    model = settings.ModelSettings(CHANNELS, rank=2, observables=8)
    training = settings.TrainingSettings(rounds=2, participation=1.0)
    settings.save(folder, settings.FleetSettings(model=model, training=training))
    walked: Walked = {}
    with traced(walked, FLOWER_STATIONS), redirect_stdout(StringIO()):
        grid = HandedGrid(client.train, contexts)
        server.main(grid, Context(1, 0, {}, RecordDict(), {"folder": str(folder), "job": "train"}))
    return list(map(name_of, walked))


WALKS = (csv_to_event, message_to_alert, message_of_a_training, message_over_flower)


def main() -> None:
    """Print the length of every walk, and the walks themselves if they are asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--against", metavar="COMMIT", default=BEFORE, help="another tree; none with an empty word")
    chosen = parser.parse_args()
    for walk in WALKS:
        with tempfile.TemporaryDirectory() as folder, redirect_stdout(StringIO()):  # alerts are printed as well
            names = walk(Path(folder))
        modules = len({name.rpartition("/")[2].partition(".")[0] for name in names})
        print(f"  {walk.__name__.replace('_', ' '):24}{len(names):5} functions in {modules:3} modules", flush=True)
        if chosen.list:
            print(*(f"      {name}" for name in names), sep="\n")
    if chosen.against:
        with import_module("measurements.measure").earlier_tree(chosen.against) as tree:
            print(f"  {chosen.against}:", flush=True)
            places = (tree / "src", tree / "fedkad-bench" / "src", tree)
            here = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, places))}
            script = Path(__file__).resolve()
            subprocess.run(
                [sys.executable, "-P", str(script), "--against", "", *(["--list"] if chosen.list else [])],
                env=here,
                check=True,
            )


if __name__ == "__main__":
    main()
