"""Devices and servers that are killed: the result always equals that of some valid schedule."""

from __future__ import annotations

import os
import re
import shutil
import signal
from importlib.util import find_spec

import pytest

from tests.fixtures.sabotage import sitecustomize as sabotage
from tests.fixtures.sabotage.faultyfleet import (
    PATIENCE,
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


def test_devices_killed_while_one_computes_and_one_does_not_know_that_it_was_accepted(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=6)
    with fleet.in_next_round({"pump-0": sabotage.COMPUTING, "pump-1": sabotage.ASKED}, pacemaker="pump-2"):
        fleet.kill_at("pump-0", sabotage.COMPUTING)
        fleet.kill_at("pump-1", sabotage.ASKED)
        closed, known = fleet.status()["participants"], fleet.kept("pump-1")
        assert known["pending"] > known["committed"]
        assert "pump-1" in closed[known["pending"]]
        fleet.start_again("pump-0", "pump-1")
    fleet.finish_with(before, closed, {"pump-0", "pump-1"})


def test_devices_killed_while_they_write_their_state(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=6)
    points = {"pump-1": sabotage.BEFORE_RENAME, "pump-2": sabotage.AFTER_RENAME}
    with fleet.in_next_round(points, pacemaker="pump-0"):
        fleet.wait_fired("pump-1", sabotage.BEFORE_RENAME)
        old = fleet.kept("pump-1")
        fleet.kill_at("pump-1", sabotage.BEFORE_RENAME)
        assert fleet.kept("pump-1") == old
        fleet.kill_at("pump-2", sabotage.AFTER_RENAME)
        new, closed = fleet.kept("pump-2"), fleet.status()["participants"]
        assert old["pending"] < new["pending"] == len(closed)
        fleet.start_again("pump-1", "pump-2")
    fleet.finish_with(before, closed, {"pump-1", "pump-2"})


def kill_app(fleet: Fleet) -> None:
    (app,) = fleet.processes("server", "flwr-serverapp")
    os.kill(app, signal.SIGKILL)


def kill_superlink(fleet: Fleet) -> None:
    (link,) = fleet.processes("server", "flower-superlink")
    os.kill(link, signal.SIGKILL)


def kill_server(fleet: Fleet) -> None:
    fleet.kill("server")
    fleet.start_server()


def test_a_training_continues_from_its_last_closed_round_whatever_dies_on_the_server(
    fleet: Fleet,
) -> None:
    before = fleet.begin(rounds=9)  # a busy machine may lose the device for a few of them
    for kill in (kill_superlink, kill_app, kill_server):
        points = fleet.hold("pump-1")
        closed = fleet.status()
        kill(fleet)
        points.release()
        status = fleet.wait_round(closed["round"] + 1, before)
        assert status["run"] == closed["run"]
        assert status["participants"][: closed["round"]] == closed["participants"]
    fleet.finish_as(before, closed)
    for log in (fleet.server_folder / "logs" / "app.log", fleet.device_folder("pump-1") / "logs" / "supernode.log"):
        lines = [line for line in log.read_text().splitlines() if line]
        assert lines
        assert not [line for line in lines if not re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ ", line)]
    said = fleet.said("pump-1")
    assert said.rfind("connected to") > said.rfind("does not answer"), "it is connected, and says otherwise"


def test_a_device_answers_again_after_a_run_that_ended_while_it_received_a_message(fleet: Fleet) -> None:
    before = fleet.begin(rounds=4)
    fleet.wait_round(1, before)
    fleet.arm("pump-1", sabotage.CONFIRMING)
    fleet.wait_fired("pump-1", sabotage.CONFIRMING)
    closed = fleet.status()
    (app,) = fleet.processes("server", "flwr-serverapp")
    kill_app(fleet)
    fleet.until(lambda: bool({*fleet.processes("server", "flwr-serverapp")} - {app}), "another run")
    fleet.points("pump-1").release()
    fleet.finish_as(before, closed)


def test_a_device_whose_app_was_stopped_connects_again_and_takes_part(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=6)
    fleet.hold("pump-1")
    closed, connections = fleet.status()["participants"], fleet.connections("pump-1")
    app, *_ = fleet.processes("pump-1", "flower.supernode")
    os.kill(app, signal.SIGTERM)
    fleet.points("pump-1").release()
    with fleet.pause("pump-0", "pump-2"):
        fleet.until(lambda: fleet.connections("pump-1") > connections, "pump-1 connected again")
    fleet.finish_with(before, closed, {"pump-1"})
    assert "pump-1 began to answer the server and did not finish" in fleet.said("pump-1")


def test_a_training_that_is_cancelled_ends_and_the_next_one_begins_anew(fleet: Fleet) -> None:
    before = fleet.begin(rounds=4)
    fleet.wait_round(1, before)
    held = fleet.hold("pump-1")
    cancelled = fleet.status()
    fleet.command("fleet", "train", str(fleet.server_folder), "--cancel")
    fleet.until(lambda: not fleet.processes("server", "flwr-serverapp"), "the end of the app")
    assert (fleet.status()["run"], fleet.status()["state"]) == (cancelled["run"], "cancelled")
    held.release()
    before = fleet.begin(rounds=4)
    assert before == cancelled["run"]
    fleet.finish(before)
    assert fleet.status()["run"] != cancelled["run"]


def test_whatever_hangs_is_started_again_and_the_training_continues(fleet: Fleet) -> None:
    for name in ("pump-1", "server"):  # in this order, so that the server knows that pump-1 has left
        fleet.leave(name)
    impatient = {sabotage.IMPATIENT: "25"}
    fleet.start_server(impatient)
    fleet.start("pump-1", environment=impatient)
    fleet.wait_online("pump-1", seconds=PATIENCE)
    fleet.until(lambda: bool(fleet.processes("pump-1", "flower.supernode")), "pump-1 connected")
    for process in (
        *fleet.processes("server", "flower-superlink"),
        *fleet.processes("pump-1", "flower.supernode"),
    ):
        os.kill(process, signal.SIGSTOP)
    fleet.until(lambda: "superlink: has not answered" in fleet.said("server"), "the SuperLink missed")
    fleet.until(lambda: "The connection of pump-1 has hung" in fleet.said("pump-1"), "the connection missed")
    before = fleet.begin(deadline=SHORT, rounds=4)
    fleet.wait_round(1, before)
    fleet.hold("pump-1")
    fleet.arm("server", sabotage.GATHERING)  # from here on both apps hang, and their heartbeats go on
    fleet.wait_fired("server", sabotage.GATHERING)
    closed = fleet.status()
    fleet.until(lambda: "has made no progress for" in fleet.said("server"), "the app of the server missed")
    fleet.points("server").release()
    fleet.until(lambda: "pump-1 has not answered" in fleet.said("pump-1"), "the app of pump-1 missed")
    fleet.points("pump-1").release()
    fleet.finish_as(before, closed)
