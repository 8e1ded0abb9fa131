"""Devices as real processes that are cut off, join late, or share their folder with an agent: nothing is lost."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad import KoopmanDetector
from fedkad.detect.series import Series
from tests.fixtures.sabotage import sitecustomize as sabotage
from tests.fixtures.sabotage.faultyfleet import (
    CHANNELS,
    MODEL,
    PATIENCE,
    PUMPS,
    SABOTAGE,
    SHORT,
    Fleet,
    Status,
    fleet,
    recorded,
    running,
    write_table,
)

__all__ = ["fleet", "running"]


pytestmark = [
    pytest.mark.skipif(find_spec("flwr") is None, reason="the extra `fleet` is not installed"),
    pytest.mark.skipif(shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None, reason="no nginx"),
]


def test_a_round_closes_without_a_device_that_is_cut_off_and_it_takes_part_again(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=4)
    points = fleet.hold("pump-1")
    fleet.wires["pump-1"].cut()
    points.release()
    lost = fleet.status()["round"]
    closed = fleet.wait_round(lost + 1, before)["participants"]
    assert "pump-1" not in closed[lost]
    with fleet.pause("pump-0", "pump-2"):
        fleet.until(lambda: "pump-1" not in fleet.online(), "pump-1 missed")
        fleet.wires["pump-1"].mend()
        fleet.wait_online("pump-1", seconds=PATIENCE)
    fleet.finish_with(before, closed, {"pump-1"})


def test_a_fleet_cut_off_in_the_middle_of_its_replies_continues_once_it_is_back(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=3)
    fleet.wait_round(1, before)
    for name in PUMPS:
        fleet.arm(name, sabotage.UPLOADING)
    for name in PUMPS:
        fleet.wait_fired(name, sabotage.UPLOADING)
    closed = fleet.status()
    for name, wire in fleet.wires.items():
        wire.cut()
        fleet.points(name).release()
    fleet.until(lambda: not fleet.online(), "nobody online")
    for wire in fleet.wires.values():
        wire.mend()
    fleet.finish_as(before, closed)


def test_the_server_does_not_wait_for_a_partial_reply_which_is_late_when_it_is_complete(fleet: Fleet) -> None:
    before = fleet.begin(deadline=SHORT, rounds=4)
    fleet.wait_round(1, before)
    fleet.arm("pump-1", sabotage.UPLOADING)
    fleet.wait_fired("pump-1", sabotage.UPLOADING)
    missed = fleet.kept("pump-1")["pending"]
    status = fleet.wait_round(missed + 1, before)
    assert "pump-1" not in status["participants"][missed]
    given_up = [reason for _, reason in refused(status, "pump-1") if "upload" in reason]
    assert not given_up, "the round waited until Flower gave up on the reply"
    with fleet.pause("pump-0", "pump-2"):  # no round closes without pump-1
        fleet.points("pump-1").release()
        fleet.until(lambda: fleet.has_answered("pump-1"), "pump-1 answered again, after all of its old reply was sent")
    status = fleet.finish_with(before, status["participants"], {"pump-1"})
    late = [number for number, reason in refused(status, "pump-1") if "came too late" in reason]
    assert late
    assert min(late) > missed
    assert status["refusals"] == len(status["refused"])


def refused(status: Status, name: str) -> list[tuple[int, str]]:
    return [(told["round"], told["reason"]) for told in status["refused"] if told["device"] == name]


def heard_since(status: Status, name: str, number: int) -> bool:
    return any(name in participants for participants in status["participants"][number:])


def test_a_device_that_joins_late_takes_part_and_a_later_one_receives_the_result(fleet: Fleet) -> None:
    before = fleet.begin(rounds=3)
    points = fleet.hold("pump-1")
    closed = fleet.status()["round"]
    join(fleet, 3)
    fleet.wait_online("pump-3", seconds=PATIENCE)
    points.release()
    status = fleet.finish(before)
    assert heard_since(status, "pump-3", closed)
    fleet.leave("pump-3")
    join(fleet, 4)
    fleet.until(lambda: "pump-4" in fleet.status()["delivered"], "pump-4 delivered")
    assert fleet.status()["run"] == status["run"]
    assert fleet.status()["participants"] == status["participants"]
    fleet.check(fleet.status(), {"pump-4"})
    fleet.leave("pump-4")


def join(fleet: Fleet, number: int) -> None:
    name = f"pump-{number}"
    fleet.data[name] = write_table(fleet.root / "data", number)
    fleet.add(name)
    fleet.start(name)


@contextmanager
def agent(task: str, folder: Path, rows: Path, told: Path) -> Iterator[subprocess.Popen[bytes]]:
    command = [sys.executable, str(SABOTAGE / "agent.py"), task, str(folder), str(rows), str(told)]
    process = subprocess.Popen(command)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_an_agent_keeps_its_window_and_its_statistics_over_a_delivery(fleet: Fleet, tmp_path: Path) -> None:
    pieces = [tmp_path / f"{k}.npy" for k in range(3)]
    for k, piece in enumerate(pieces):
        np.save(piece, recorded(5, 2600)[1500 + 350 * k : 1850 + 350 * k])
    fleet.data["pump-5"] = write_table(fleet.root / "data", 5)
    fleet.agents.add("pump-5")
    fleet.add("pump-5")
    folder = fleet.device_folder("pump-5")
    own = KoopmanDetector(**MODEL).fit(fleet.series("pump-5"))
    own.save(folder / "model.safetensors")
    fleet.start("pump-5")
    result = fleet.server_folder / "training" / "result.json"
    fleet.until(lambda: "pump-5" in json.loads(result.read_text())["delivered"], "the last result with the newcomer")
    fleet.wait_idle()
    points, learnt = fleet.points("pump-5"), tmp_path / "learnt"
    with agent("watch", folder, pieces[0], tmp_path / "watched"):
        before = fleet.begin(rounds=2)
        fleet.arm("pump-5", sabotage.DELIVERING)
        fleet.wait_fired("pump-5", sabotage.DELIVERING)
        with agent("learn", folder, pieces[1], learnt) as first:
            assert first.wait(PATIENCE) == 0
        points.hold_again(sabotage.RENEWING)
        fleet.wait_fired("pump-5", sabotage.RENEWING)
        with agent("learn", folder, pieces[2], learnt) as second:
            fleet.until(lambda: learnt.read_text() == "waits", "the agent at the lock")
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(2.0)  # the delivery holds the folder
            points.release()
            assert second.wait(PATIENCE) == 0
        fleet.finish(before)
        seen = len(readings(tmp_path / "watched"))
        fleet.until(lambda: len(readings(tmp_path / "watched")) > seen + 5, "the agent at work")
    own.learn(piece_of(pieces[1])).adopt(fleet.shared).learn(piece_of(pieces[2]))
    found = fleet.model("pump-5")
    np.testing.assert_allclose(found.subspace_, own.subspace_, atol=1e-6)
    np.testing.assert_allclose(found.operator_, own.operator_, atol=1e-6)
    assert found.memory_.statistics.count == own.memory_.statistics.count
    np.testing.assert_allclose(found.memory_.statistics.xx, own.memory_.statistics.xx, rtol=1e-12)
    told = readings(tmp_path / "watched")
    states = [reading["state"] for reading in told]
    assert set(states[states.index("ok") :]) == {"ok"}
    assert told[-1]["subspace"] == found.subspace_[0, 0] != told[0]["subspace"]
    fleet.leave("pump-5")


def piece_of(path: Path) -> Series:
    return Series(np.load(path), CHANNELS)


def readings(path: Path) -> list[dict[str, Any]]:
    """The complete lines that the agent has written."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
