"""A fleet of real processes in trouble: whatever is killed, the result is that of some legal schedule."""

from __future__ import annotations

import os
import shutil
import signal
from importlib.util import find_spec

import pytest

from tests.sabotage import sitecustomize as sabotage
from tests.sabotage.troubled import (
    SHORT,
    Fleet,
    fleet,
    running,
)

__all__ = ["fleet", "running"]


pytestmark = [
    pytest.mark.skipif(find_spec("flwr") is None, reason="the extra `fleet` is not installed"),
    pytest.mark.skipif(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no nginx"),
]


def test_devices_killed_while_one_computes_and_one_has_not_heard_that_it_was_accepted(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=8)
    fleet.arm_for_next_round({"pump-0": sabotage.COMPUTING, "pump-1": sabotage.ASKED}, pacemaker="pump-2")
    fleet.kill_at("pump-0", sabotage.COMPUTING)
    fleet.kill_at("pump-1", sabotage.ASKED)
    closed, known = fleet.status()["participants"], fleet.kept("pump-1")
    assert known["pending"] > known["committed"]
    assert "pump-1" in closed[known["pending"]]
    with fleet.pause("pump-2"):
        fleet.start_again("pump-0", "pump-1")
    fleet.finish_with(before, closed, {"pump-0", "pump-1"})


def test_devices_killed_while_they_write_their_state(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=8)
    points = {"pump-1": sabotage.BEFORE_RENAME, "pump-2": sabotage.AFTER_RENAME}
    fleet.arm_for_next_round(points, pacemaker="pump-0")
    fleet.wait_fired("pump-1", sabotage.BEFORE_RENAME)
    old = fleet.kept("pump-1")
    fleet.kill_at("pump-1", sabotage.BEFORE_RENAME)
    assert fleet.kept("pump-1") == old
    fleet.kill_at("pump-2", sabotage.AFTER_RENAME)
    new, closed = fleet.kept("pump-2"), fleet.status()["participants"]
    assert old["pending"] < new["pending"] == len(closed)
    with fleet.pause("pump-0"):
        fleet.start_again("pump-1", "pump-2")
    fleet.finish_with(before, closed, {"pump-1", "pump-2"})


def test_a_server_app_killed_in_a_round_goes_on_from_the_last_closed_one(fleet: Fleet) -> None:
    before = fleet.begin(rounds=3)
    fleet.wait_round(2, before)
    points = fleet.hold("pump-1")
    closed = fleet.status()
    (app,) = fleet.processes("server", "flwr-serverapp")
    os.kill(app, signal.SIGKILL)
    points.release()
    fleet.finish_as(before, closed)


def test_a_superlink_killed_in_a_round_comes_back_and_the_training_goes_on(fleet: Fleet) -> None:
    before = fleet.begin(rounds=3)
    fleet.wait_round(2, before)
    points = fleet.hold("pump-1")
    closed = fleet.status()
    (link,) = fleet.processes("server", "flower-superlink")
    os.kill(link, signal.SIGKILL)
    points.release()
    fleet.finish_as(before, closed)


def test_a_whole_server_killed_in_a_round_goes_on_with_the_same_training(fleet: Fleet) -> None:
    before = fleet.begin(rounds=3)
    fleet.wait_round(2, before)
    points = fleet.hold("pump-1")
    closed = fleet.status()
    fleet.kill("server")
    points.release()
    fleet.start_server()
    fleet.finish_as(before, closed)
