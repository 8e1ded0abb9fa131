"""Weeks of messages through a real agent in minutes: its own loop, store, learning and sinks, on a simulated clock.

The agent follows a file that grows, as in production; before each line the clock of this process is set to the moment
at which it arrives, so that silence, commits, retries and everything else that waits happen when they would. Nothing
sleeps: who wants to sleep moves the clock. Only learning takes its real time, in its own process.
"""

from __future__ import annotations

import io
import json
import logging
import math
import tempfile
import time
import tomllib
import warnings
from argparse import ArgumentParser, Namespace
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager, redirect_stdout
from datetime import datetime
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

from fedkad.edge.agent import Agent
from fedkad.edge.commands.client import StoreClient
from fedkad.edge.commands.command import Command, new_id
from fedkad.edge.settings.file import parse

Document = Mapping[str, Any]
"""A parsed agent.toml."""

Alert = Mapping[str, Any]
"""An alert as the agent writes it to its standard output."""

Arriving = Iterable[tuple[float, Sequence[Mapping[str, Any]]]]
"""Messages, by the moments at which they arrive."""


class IncidentSpan(NamedTuple):
    """An incident or a health alert, in seconds since 1970."""

    device: str
    kind: str  # score, rate or health
    start: float  # of what is wrong
    told: float  # when the first alert came
    end: float  # infinite if it is still open
    updates: int
    cause: str  # its first channel and witness, or what the alert says
    is_again: bool = False  # whether an incident came back, or had another cause: told once more, as one alarm more


class SimulatedClock:
    """The clock of this process while it is in use."""

    def __init__(self, now: float) -> None:
        self.now = now

    def read(self) -> float:
        """Seconds since 1970, as both clocks of the system show them."""
        return self.now

    def sleep(self, seconds: float) -> None:
        """Let the time pass."""
        self.now += max(seconds, 0.0)

    @contextmanager
    def in_use(self) -> Iterator[None]:
        """Let everything in this process read it, and sleep by it."""
        with patch.multiple(time, time=self.read, monotonic=self.read, sleep=self.sleep):
            yield


def setting(text: str) -> dict[str, Any]:
    """One setting of an agent.toml from the command line; a word needs no quotes.

    >>> setting("alarm.min_duration=3m"), setting("learning.first=10080")
    ({'alarm': {'min_duration': '3m'}}, {'learning': {'first': 10080}})
    """
    key, _, value = text.partition("=")
    try:
        return tomllib.loads(f"{key} = {value}")
    except tomllib.TOMLDecodeError:
        return tomllib.loads(f"{key} = {json.dumps(value)}")


def merged(document: Document, more: Document) -> dict[str, Any]:
    """The document with what the other one sets.

    >>> merged({"alarm": {"budget": "1/week"}}, {"alarm": {"release": 0.9}})
    {'alarm': {'budget': '1/week', 'release': 0.9}}
    """
    both = dict(document)
    for key, value in more.items():
        both[key] = merged(both[key], value) if isinstance(value, Mapping) and key in both else value
    return both


def add_options(parser: ArgumentParser) -> None:
    """The options of a measurement that replays: settings of the agent, variants of them, and processes."""
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="of every agent")
    parser.add_argument("--against", action="append", default=[""], metavar="KEY=VALUE …", help="another variant")
    parser.add_argument("--jobs", type=int, default=1, help="agents at a time")


def variants(chosen: Namespace) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The name and the settings of each variant that was asked for."""
    for more in chosen.against:
        settings = (*chosen.set, *more.split())
        yield ", ".join(settings) or "as in the README", settings


def processes(jobs: int) -> ProcessPoolExecutor:
    """A new process for every agent: each has a clock of its own, and what it measures of itself is about that run."""
    return ProcessPoolExecutor(jobs, mp_context=get_context("spawn"), max_tasks_per_child=1)


class Operator:
    """Acknowledges the incidents that are faults, some time after each was told, as `fedkad-agent tell` would."""

    def __init__(self, is_fault: Callable[[Alert], bool], after: float) -> None:
        self._is_fault, self._after = is_fault, after
        self._due: list[tuple[float, Alert]] = []

    def hear(self, alert: Alert, now: float) -> None:
        """Hear of something new."""
        if alert["event"] == "start" and alert["kind"] != "health" and self._is_fault(alert):
            self._due.append((now + self._after, alert))

    def answer(self, agent: Agent, now: float) -> None:
        """Leave what is due in the store of the agent, which acts on it with its next step."""
        while self._due and self._due[0][0] <= now:
            _, alert = self._due.pop(0)
            agent.commit()  # in one process nobody else could write before
            command = Command(new_id(), alert["device"], "acknowledge", alert["id"], "operator", now)
            StoreClient(agent.settings.state).leave(command)


def replay(document: Document, arriving: Arriving, operator: Operator | None = None) -> list[Alert]:
    """Feed messages, by the moments at which they arrive, to an agent with these settings; returns all its alerts."""
    logging.getLogger("fedkad.edge").setLevel(logging.ERROR)
    warnings.simplefilter("ignore")
    written = io.StringIO()
    alerts: list[Alert] = []
    with tempfile.TemporaryDirectory() as name, redirect_stdout(written), ExitStack() as closing:
        feed = Path(name) / "messages.jsonl"
        own = {"name": "replay", "commit_every": "1h", "source": {"kind": "file", "path": str(feed)}}
        file, agent = closing.enter_context(feed.open("w")), None
        clock = SimulatedClock(0.0)
        closing.enter_context(clock.in_use())
        for moment, messages in chain(arriving, [(math.inf, ())] * 3):  # what is left is judged, committed and told
            clock.now = max(clock.now, moment) if moment < math.inf else clock.now + 61.0
            file.writelines(json.dumps(message) + "\n" for message in messages)
            file.flush()
            if agent is None:
                agent = Agent(parse(merged(document, own), Path(name)))
                closing.callback(agent.close)
            agent.step(0.0)
            if moment == math.inf:
                agent.commit()
            for line in written.getvalue().splitlines() if written.tell() else ():
                alerts.append(json.loads(line))
                if operator is not None:
                    operator.hear(alerts[-1], clock.now)
            written.seek(0)
            written.truncate()
            if operator is not None:
                operator.answer(agent, clock.now)
    return alerts


def incidents(alerts: Iterable[Mapping[str, Any]]) -> list[IncidentSpan]:
    """The alerts of a run, gathered by what they are about; one that comes back, or has another cause, is one more."""
    found: dict[tuple[str, int], IncidentSpan] = {}
    times: Counter[str] = Counter()
    for alert in alerts:
        if "id" not in alert or "event" not in alert:
            continue
        moment, is_again = seconds(alert["time"]), alert.get("reason") in ("again", "another")
        if is_again and (before := found.get((alert["id"], times[alert["id"]]))) is not None:
            found[alert["id"], times[alert["id"]]] = before._replace(end=min(before.end, moment))
        times[alert["id"]] += is_again
        key = alert["id"], times[alert["id"]]
        known = found.get(key)
        if known is None:
            cause = " ".join([*(each["channel"] for each in alert.get("channels", [])[:1]), alert.get("witness", "")])
            start = moment if is_again else seconds(alert.get("start", alert["time"]))
            known = IncidentSpan(
                *(alert["device"], alert["kind"], start, moment, float("inf"), 0, cause.strip(), is_again)
            )
        if alert["event"] == "end":
            known = known._replace(end=moment)
        elif alert["event"] == "update":
            known = known._replace(updates=known.updates + 1)
        found[key] = known
    return list(found.values())


def seconds(text: str) -> float:
    """Seconds since 1970 of a time in an alert."""
    return datetime.fromisoformat(text).timestamp()
