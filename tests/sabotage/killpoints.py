"""Kills of an agent at chosen steps, from outside the product: between any two of them a power cut may come.

`KILL_AT` in the environment of an agent that `tests.forge` makes names a point and how often it is passed before.
"""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Iterator
from itertools import groupby
from typing import Any

from fedkad.edge import store
from fedkad.edge.agent import Agent
from fedkad.edge.learning import Learner
from fedkad.edge.model import DeviceModel
from fedkad.edge.outbox import Outbox
from fedkad.edge.sinks.mqtt import BrokerSink
from fedkad.edge.sources.mqtt import MqttSource

KILL_AT = "FEDKAD_TEST_KILL_AT"

Step = tuple[Any, str]

BEFORE: dict[str, Step] = {
    "before the commit": (store.Store, "commit"),
    "before the acknowledgements": (MqttSource, "acknowledge"),
    "before alerts are published": (BrokerSink, "offer"),
    "before the model is fitted": (DeviceModel, "learn"),
    "before the model is renamed": (os, "replace"),
    "before the model is used": (DeviceModel, "reload"),
}
AFTER: dict[str, Step] = {
    "after a message": (Agent, "take"),
    "after the acknowledgements": (MqttSource, "acknowledge"),
    "after alerts are published": (BrokerSink, "offer"),
    "after an alert is confirmed": (BrokerSink, "_confirm"),
    "after a delivery is noted": (Outbox, "deliver"),
    "after the model is written": (DeviceModel, "learn"),
    "after the rows are marked": (Learner, "settle"),
}
POINTS = (*BEFORE, *AFTER, "in the transaction")
WITH_ARGUMENT = ("before alerts are published", "after alerts are published")
WITH_RESULT = ("after a delivery is noted", "after the rows are marked")


def arm(wanted: str) -> None:
    """Let this process be killed when it passes a point for the n-th time; `wanted` is "point:n"."""
    point, _, number = wanted.rpartition(":")
    agent, left = os.getpid(), mmap.mmap(-1, 1)  # shared with the processes that learn
    left[0] = int(number)

    def reach() -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(agent, signal.SIGKILL)  # also from the process that learns, which ends with the agent
            time.sleep(60)

    if point == "in the transaction":
        _arm_transaction(reach)
        return
    owner, name = (BEFORE | AFTER)[point]
    original = getattr(owner, name)

    def step(*given: Any, **named: Any) -> Any:
        if point in BEFORE and (point not in WITH_ARGUMENT or given[1]):
            reach()
        result = original(*given, **named)
        if point in AFTER and (given[1] if point in WITH_ARGUMENT else point not in WITH_RESULT or result):
            reach()
        return result

    setattr(owner, name, step)


def _arm_transaction(reach: Callable[[], None]) -> None:
    """Between the last statement of a transaction and its commit."""
    original = groupby

    def grouped(*given: Any, **named: Any) -> Iterator[Any]:
        yield from original(*given, **named)
        reach()

    vars(store)["groupby"] = grouped
