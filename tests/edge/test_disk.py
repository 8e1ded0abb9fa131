"""An agent on a disk that is full, and on one whose files were damaged."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.broker import (
    EPOCH,
    Broker,
    Process,
    config,
    expected_scores,
    rows_committed,
    sample,
    saved_model,
    series,
    wait_for,
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own with two megabytes."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("A small file system cannot be mounted here: that needs root.")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def in_flight(broker: Broker) -> int:
    """Messages that the broker has sent and not heard of; from its log."""
    sent = broker.log.count("Sending PUBLISH to fedkad-hall")
    return sent - broker.log.count("Received PUBACK from fedkad-hall")


@pytest.mark.parametrize("learning", [{"every": 0}, {"every": 100}])
def test_a_full_disk_delays_and_loses_nothing(tmp_path: Path, small_disk: Path, learning: dict[str, int]) -> None:
    rows = series(400, seed=3)
    with Broker(tmp_path, lasting=False) as broker, broker.client() as client:
        text = config(
            broker.source(),
            top={"state": str(small_disk / "state")},
            learning={"model": str(saved_model(tmp_path)), **learning},
        )
        with Process(tmp_path, text) as agent:
            agent.wait_for_log("connected")
            client.publish_all("in/pump", [sample(rows, k) for k in range(60)])
            wait_for(lambda: rows_committed(small_disk / "state", "pump") == 60)
            ballast = small_disk / "ballast"
            with pytest.raises(OSError, match="No space"):
                ballast.write_bytes(bytes(4 << 20))
            client.publish_all("in/pump", [sample(rows, k) for k in range(60, 300)])
            agent.wait_for_log("no messages are accepted until")
            stopped = rows_committed(small_disk / "state", "pump")
            assert stopped < 300
            assert in_flight(broker) > 0
            assert agent.is_running
            ballast.unlink()
            agent.wait_for_log("The disk can be written again")
            agent.kill()  # what was acknowledged by now must be there
            agent.start()
            wait_for(lambda: rows_committed(small_disk / "state", "pump") == 300, agent.log)
            client.publish_all("in/pump", [sample(rows, k) for k in range(300, 400)])
            wait_for(lambda: rows_committed(small_disk / "state", "pump") == 400, agent.log)
            if learning["every"] == 0:
                # Of what it wrote when it was killed, some may be lost or repeated; the last hundred rows came later.
                wait_for(lambda: agent.readings()[-1]["time"] == EPOCH + 399, "the last reading is missing")
                scores = [reading["score"] for reading in agent.readings() if "score" in reading]
                assert scores[-100:] == pytest.approx(expected_scores(rows)[-100:], rel=1e-9)
            assert agent.log.count("nothing is taken") <= 3  # said, not repeated every second
            assert agent.stop() == 0


def test_damaged_files_are_set_aside_and_the_agent_goes_on(tmp_path: Path) -> None:
    rows = series(60, seed=4)
    text = config({"kind": "stdin"}, learning={"model": str(saved_model(tmp_path)), "every": 0})
    agent = Process(tmp_path, text, piped=True)
    with agent:
        agent.feed(*(sample(rows, k) for k in range(30)))
        agent.wait_for_readings(30)
        assert agent.end_of_input() == 0
    store, model = tmp_path / "state" / "agent.sqlite", tmp_path / "state" / "devices" / "pump" / "model.safetensors"
    store.write_bytes(b"no database" * 1000)
    model.write_bytes(b"no model" * 1000)
    with agent:
        agent.feed(*(sample(rows, k) for k in range(30, 60)))
        readings = agent.wait_for_readings(60)
        assert agent.end_of_input() == 0
    assert "agent.sqlite.damaged-1" in agent.log
    assert "model.safetensors.damaged-1" in agent.log
    assert (store.parent / "agent.sqlite.damaged-1").read_bytes().startswith(b"no database")
    # The model that the configuration names takes the place of the damaged one; the window fills up anew.
    assert [reading["state"] for reading in readings[30:]] == ["warming"] * 6 + ["ok"] * 24
