"""The agent as a process: where samples come from, what it learns, whom it tells, and what it refuses."""

from __future__ import annotations

import json
import os
import random
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedkad.detect.detector import KoopmanDetector
from fedkad.detect.events import examine
from fedkad.detect.series import Series
from fedkad.edge.sources.lines import FileSource
from fedkad.edge.store import Store
from fedkad.simulate import CHANNELS as PUMP_CHANNELS
from fedkad.simulate import simulate_fleet
from measurements.loopback import free_port
from tests.fixtures.broker import (
    CHANNELS,
    EPOCH,
    PATIENCE,
    Array,
    Broker,
    Process,
    broken,
    config,
    expected_scores,
    logged,
    sample,
    saved_model,
    series,
    wait_for,
)
from tests.fixtures.forge import ForkedAgent
from tests.fixtures.receiver import receiving

HEADER = "time,flow,pressure,heat"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


def csv_row(rows: Array, row: int) -> str:
    return ",".join(repr(number) for number in (EPOCH + row, *rows[row].tolist()))


def store_of(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(f"file:{folder / 'state' / 'agent.sqlite'}?mode=ro", uri=True)


def kept_values(folder: Path) -> Array:
    """The rows that an agent has committed."""
    if not (folder / "state" / "agent.sqlite").exists():
        return np.empty((0, len(CHANNELS)))
    database = store_of(folder)
    try:
        found = database.execute("SELECT vals FROM row ORDER BY seq").fetchall()
    except sqlite3.OperationalError:  # it is being made
        found = []
    finally:
        database.close()
    return np.array([np.frombuffer(values) for (values,) in found]).reshape(-1, len(CHANNELS))


def device_state(folder: Path, device: str = "pump") -> dict[str, Any]:
    database = store_of(folder)
    try:
        found = database.execute("SELECT state FROM device WHERE name = ?", (device,)).fetchone()
    finally:
        database.close()
    return dict(json.loads(found[0]))


# -- lines ----------------------------------------------------------------------------------------------------------


def test_json_lines_from_standard_input_to_the_last_one_without_an_end(tmp_path: Path, model: Path) -> None:
    rows = series(30)
    lines = [sample(rows, row) for row in range(30)]
    with Process(tmp_path, config({"kind": "stdin"}, learning={"model": str(model)}), piped=True) as process:
        process.feed(*lines[:-1], lines[-1][:20])
        process.wait_for_readings(29)
        assert process.is_running
    process = Process(tmp_path / "whole", config({"kind": "stdin"}, learning={"model": str(model)}), piped=True)
    with process:
        process.write("\n".join(lines))
        assert process.end_of_input() == 0
        process.assert_scored_once(rows)


@pytest.mark.parametrize("timed", [True, False])
def test_csv_from_standard_input(tmp_path: Path, model: Path, timed: bool) -> None:
    rows = series(30)
    lines = [HEADER, *(csv_row(rows, row) for row in range(30))]
    clock = "message"
    if not timed:
        lines, clock = [line.partition(",")[2] for line in lines], "count"
    source = {"kind": "stdin", "format": "csv"}
    text = config(source, learning={"model": str(model)}, sampling={"clock": clock})
    with Process(tmp_path, text, piped=True) as process:
        process.feed(*lines[:10])
        process.wait_for_readings(9)
        process.feed(*lines[10:])
        assert process.end_of_input() == 0
        process.assert_scored_once(rows)
        times = np.diff([reading["time"] for reading in process.readings()])
        assert times.tolist() == [1.0] * 29


def test_lines_and_values_that_cannot_be_used_are_counted(tmp_path: Path, model: Path) -> None:
    text = config({"kind": "stdin"}, learning={"model": str(model)})
    with Process(tmp_path / "json", text, piped=True) as process:
        process.feed("{", '{"flow": NaN, "pressure": Infinity, "heat": "x"}', sample(series(1), 0))
        assert process.end_of_input() == 0
    assert device_state(tmp_path / "json")["refused"] == 2
    assert len(process.readings()) == 1
    text = config({"kind": "stdin", "format": "csv"}, learning={"model": str(model)})
    with Process(tmp_path / "csv", text, piped=True) as process:
        process.feed(HEADER, "1,2", f"{EPOCH},much,1,2", f"{EPOCH + 1},3,1,2")
        assert process.end_of_input() == 0
    assert device_state(tmp_path / "csv")["refused"] == 2
    assert len(process.readings()) == 1


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_growing_file_is_read_once_through_kills_and_rotations(tmp_path: Path, model: Path, form: str) -> None:
    """Rows are what was committed: a reading on a pipe may be said again by an agent that was killed."""
    rows, path, chance = series(400), tmp_path / "samples.log", random.Random(form)
    lines = [sample(rows, row) if form == "json" else csv_row(rows, row) for row in range(len(rows))]

    def begin() -> None:
        path.write_text(f"{HEADER}\n" if form == "csv" else "")

    def append(since: int, until: int) -> None:
        with path.open("a") as file:
            for row in range(since, until):
                half = chance.randrange(len(lines[row]))
                file.write(lines[row][:half])
                file.flush()
                file.write(f"{lines[row][half:]}\n")
                file.flush()

    def rotate() -> None:
        path.rename(path.with_name(f"samples.log.{time.monotonic_ns()}"))
        begin()

    def wait_until(count: int) -> None:
        wait_for(lambda: len(kept_values(tmp_path)) >= count, f"not all of {count} rows came")

    text = config({"kind": "file", "path": "samples.log", "format": form}, learning={"model": str(model)})
    process = Process(tmp_path, text)
    begin()
    append(0, 20)
    with process:
        for since in range(20, 120, 25):  # killed at any moment, while it reads
            append(since, since + 25)
            wait_until(since - 15)
            process.kill()
            process.start()
        wait_until(120)
        for since in range(120, 240, 40):  # rotated while it reads
            append(since, since + 20)
            rotate()
            append(since + 20, since + 40)
            wait_until(since + 40)
        with path.open("a") as file:  # killed in the middle of a line
            file.write(f"{lines[240]}\n{lines[241][:30]}")
            file.flush()
            wait_until(241)
            process.kill()
            file.write(f"{lines[241][30:]}\n")
        append(242, 270)  # rotated while it is down
        rotate()
        append(270, 300)
        process.start()
        wait_until(300)
        append(300, 310)
        wait_until(310)
        process.kill()
        path.write_text("")  # cut, and already longer than it was
        begin()
        append(310, 400)
        process.start()
        wait_until(400)
        assert process.stop() == 0
    np.testing.assert_array_equal(kept_values(tmp_path), rows)


def test_what_is_written_just_before_a_file_is_rotated_is_read(tmp_path: Path) -> None:
    path = tmp_path / "samples"

    class Unlucky(FileSource):
        """Between its look at the end of the file and its look at the name, somebody writes and rotates."""

        def _was_replaced(self) -> bool:
            if path.read_text() == "1\n":
                path.write_text("1\n2\n")
                path.rename(tmp_path / "samples.1")
                path.write_text("3\n")
            return super()._was_replaced()

    path.write_text("1\n")
    store = Store(tmp_path / "store")
    source = Unlucky(path, store)
    found = [message.payload for _ in range(6) for message in source.poll(0.0)]
    source.close()
    store.close()
    assert found == [b"1", b"2", b"3"]


@pytest.fixture
def said() -> Iterator[list[str]]:
    with logged() as lines:
        yield lines


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "store")
    yield store
    store.close()


def read_all(source: FileSource, polls: int = 6) -> list[bytes]:
    return [message.payload for _ in range(polls) for message in source.poll(0.0)]


def keep(source: FileSource, store: Store) -> None:
    source.put_position()
    store.commit()


def test_empty_cells_at_either_end_of_a_row_are_kept(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "samples"
    path.write_bytes(b"\n\ttime\tflow\t\r\n\t1\t2\t\r\n \t \n")
    source = FileSource(path, store, has_header=True)
    assert read_all(source) == [b"\t1\t2\t"]
    assert source.header == b"\ttime\tflow\t"
    keep(source, store)
    again = FileSource(path, store, has_header=True)
    assert read_all(again) == []
    assert again.header == b"\ttime\tflow\t"
    source.close()
    again.close()


@pytest.mark.parametrize("killed_after", range(5))
def test_the_last_line_of_a_rotated_file_needs_no_end(tmp_path: Path, store: Store, killed_after: int) -> None:
    path, found = tmp_path / "samples", list[bytes]()
    path.write_bytes(b"1\n2")
    source = FileSource(path, store)
    found += read_all(source)
    path.rename(tmp_path / "samples.1")
    path.write_bytes(b"")
    assert read_all(source) == []  # until something is in the new one, somebody may still write to the old one
    path.write_bytes(b"3\n")
    found += read_all(source, killed_after)
    keep(source, store)
    source.close()
    again = FileSource(path, store)
    found += read_all(again)
    again.close()
    assert found == [b"1", b"2", b"3"]


def test_what_is_left_of_a_line_when_its_file_is_cut_is_no_line(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "samples"
    path.write_bytes(b"1\n2.")
    source = FileSource(path, store)
    assert read_all(source) == [b"1"]
    path.write_bytes(b"5\n")
    assert read_all(source) == [b"5"]
    source.close()


def write_over(path: Path, content: bytes) -> None:
    """As `cp` does it: the same file, with other content."""
    inode = path.stat().st_ino
    path.write_bytes(content)
    assert path.stat().st_ino == inode


@pytest.mark.parametrize("more", [0, 1, 50_000])
def test_a_file_that_is_written_over_is_begun_anew(tmp_path: Path, store: Store, more: int) -> None:
    path = tmp_path / "pump-1.csv"
    first = b"".join(b"%d,1\n" % row for row in range(100))
    path.write_bytes(b"time,flow\n" + first + b"100,")
    source = FileSource(path, store, has_header=True)
    assert read_all(source) == first.splitlines()
    keep(source, store)
    second = first.replace(b",1", b",2") + b"100,2\n" * more
    write_over(path, b"when,flow\n" + second + b"100,")
    assert read_all(source, polls=20) == second.splitlines()
    assert source.header == b"when,flow"
    with path.open("ab") as file:
        file.write(b"3\n101,3\n")
    assert read_all(source) == [b"100,3", b"101,3"]
    keep(source, store)
    source.close()
    again = FileSource(path, store, has_header=True)
    assert read_all(again) == []
    write_over(path, b"time,flow\n" + second + b"102,4\n" * 10)
    assert read_all(again, polls=20) == [*second.splitlines(), *[b"102,4"] * 10]
    again.close()


def test_the_same_content_with_more_of_it_is_the_same_file(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "samples"
    path.write_bytes(b"1\n" * 300)
    source = FileSource(path, store)
    assert len(read_all(source)) == 300
    write_over(path, b"1\n" * 300 + b"2\n")
    assert read_all(source) == [b"2"]
    source.close()


def test_a_file_that_is_cut_under_a_writer_that_keeps_its_place_is_read_on(tmp_path: Path, store: Store) -> None:
    path = tmp_path / "samples"
    with path.open("wb", buffering=0) as writer:
        writer.write(b"1\n2\n")
        source = FileSource(path, store)
        assert read_all(source) == [b"1", b"2"]
        os.truncate(path, 0)
        writer.write(b"3\n")
        assert read_all(source) == [b"3"]
    source.close()


def test_a_file_that_is_not_there_is_said_once_each_time(tmp_path: Path, store: Store, said: list[str]) -> None:
    path = tmp_path / "samples"
    source = FileSource(path, store)
    for number in (1, 2):
        assert read_all(source) == []
        assert said == [f"{path}: does not exist; the agent waits for it."] * number
        path.write_bytes(b"%d\n" % number)
        assert read_all(source) == [b"%d" % number]
        path.unlink()
    path.write_bytes(b"3\n")
    assert read_all(source) == [b"3"]
    path.rename(tmp_path / "samples.1")
    assert read_all(source, polls=1) == []  # a rotation takes a moment
    path.write_bytes(b"4\n")
    assert read_all(source) == [b"4"]
    assert len(said) == 2
    source.close()


@pytest.mark.parametrize("call", ["open", "pread"])
def test_a_file_that_cannot_be_read_for_a_moment_is_tried_again(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, call: str, said: list[str]
) -> None:
    path, found = tmp_path / "samples", list[bytes]()
    path.write_bytes(b"1\n2")
    source = FileSource(path, store)
    found += read_all(source)

    def fail(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    for number in (1, 2):
        path.rename(tmp_path / f"samples.{number}")
        path.write_bytes(b"%d3\n" % number)
        with monkeypatch.context() as patch:
            patch.setattr(Path if call == "open" else os, call, fail)
            found += read_all(source)
            keep(source, store)
        assert said == [f"{path}: cannot be read now (Permission denied); the agent tries again."] * number
        again = FileSource(path, store)
        assert [*found, *read_all(again)] == [b"1", b"2", b"13", b"23"][: number + 2]
        again.close()
        found += read_all(source)
    source.close()
    assert found == [b"1", b"2", b"13", b"23"]


def test_a_position_is_that_of_one_file(tmp_path: Path, store: Store) -> None:
    path, other = tmp_path / "samples", tmp_path / "other"
    path.write_bytes(b"1\n2\n")
    source = FileSource(path, store)
    assert read_all(source) == [b"1", b"2"]
    keep(source, store)
    source.close()
    with path.open("ab") as file:
        file.write(b"3\n")
    other.write_bytes(b"9\n")
    for name, expected in ((other, [b"9"]), (path, [b"3"])):
        source = FileSource(name, store)
        assert read_all(source) == expected
        source.close()
    position = store.states.position("file")
    del position["path"]  # as older versions left it
    store.states.put_position("file", position)
    store.commit()
    path.rename(tmp_path / "samples.1")
    path.write_bytes(b"4\n")
    source = FileSource(path, store)
    assert read_all(source) == [b"3", b"4"]
    source.close()


# -- learning -------------------------------------------------------------------------------------------------------

SMALL = {"window": 6, "rank": 5, "observables": 16, "smoothing": 2}


def trained(process: Process, complete: set[int], since: int) -> list[bool]:
    """Of the rows since then, by what the agent said of them: which may be learnt."""
    times = [round(reading["time"]) for reading in process.readings()]
    learnt, memory = [row in complete for row in range(len(times))], SMALL["window"] + SMALL["smoothing"]
    for alert in process.alerts():
        if alert["event"] == "end":  # it is left out, with what fills the window before it
            begun, over = (times.index(round(datetime.fromisoformat(alert[k]).timestamp())) for k in ("start", "time"))
            first = max(begun - memory - 1, 0)
            learnt[first : over + 1] = [False] * (over + 1 - first)
    return learnt[since:]


def test_a_first_model_is_fitted_and_then_only_normal_complete_rows_are_learnt(tmp_path: Path) -> None:
    rows = broken(series(900), 340, 346)
    complete = {row for row in range(900) if row not in (310, 311)}
    path = tmp_path / "state" / "devices" / "pump" / "model.safetensors"
    text = config({"kind": "stdin"}, learning={"first": 300, "every": 100}, detector=SMALL, alarm={"threshold": 7.0})
    process = Process(tmp_path, text, piped=True)

    def feed(since: int, until: int) -> None:
        for row in range(since, until):
            values = json.loads(sample(rows, row))
            if row not in complete:
                del values["heat"]
            process.feed(json.dumps(values))
        process.wait_for_readings(until)

    def version() -> tuple[int, int] | None:
        return (path.stat().st_ino, path.stat().st_mtime_ns) if path.exists() else None

    def wait_for_another(than: tuple[int, int] | None) -> KoopmanDetector:
        wait_for(lambda: version() != than, "nothing was learnt")
        return KoopmanDetector.load(path)

    with pytest.warns(UserWarning, match="Only 300 rows"):
        expected = KoopmanDetector(**SMALL, sample_period=1.0).fit(Series(rows[:300], CHANNELS))  # type: ignore[arg-type]
    with process:
        feed(0, 299)
        assert version() is None
        assert {reading["state"] for reading in process.readings()} == {"learning"}
        feed(299, 300)
        first = wait_for_another(None)
        np.testing.assert_allclose(first.operator_, expected.operator_, rtol=1e-9)
        assert first.memory_.statistics.count == expected.memory_.statistics.count
        before = version()
        feed(300, 380)
        wait_for(lambda: len(process.alerts()) == 2, "no incident began and ended")
        until = 380 + 100 - sum(trained(process, complete, 300))
        feed(380, until)
        second = wait_for_another(before)
        learnt = trained(process, complete, 300)
        told = rows[300:until].copy()
        told[[not fine for fine in learnt]] = np.nan
        assert 10 < np.isnan(told[:, 0]).sum() < 60
        expected.learn(told)
        assert second.memory_.statistics.count == expected.memory_.statistics.count
        np.testing.assert_allclose(second.operator_, expected.operator_, rtol=1e-6, atol=1e-9)
        before = version()
        feed(until, until + 60)
        assert process.end_of_input() == 0
        assert version() == before
    with process:  # what was gathered before a restart counts
        feed(until + 60, until + 100)
        third = wait_for_another(before)
        expected.learn(rows[until : until + 100])
        assert third.memory_.statistics.count == expected.memory_.statistics.count
        assert process.end_of_input() == 0
    assert device_state(tmp_path)["learnt"] == 3


def test_rows_of_other_channels_or_another_period_are_not_learnt(tmp_path: Path) -> None:
    """Whoever corrects the configuration before there is a model must not wait for ever, or get a model of both."""
    rows, path = series(600), tmp_path / "state" / "devices" / "pump" / "model.safetensors"

    def run(since: int, until: int, **sampling: Any) -> None:
        text = config({"kind": "stdin"}, learning={"first": 200}, detector=SMALL, sampling=sampling)
        with Process(tmp_path, text, piped=True) as process:
            process.feed(*(sample(rows, row) for row in range(since, until)))
            assert process.end_of_input() == 0
        assert "nothing was learned" not in process.log

    run(0, 150)
    run(150, 250, channels=["heat", "flow"])
    run(250, 400, channels=["flow", "heat"], period=2)
    run(400, 599, channels=["flow", "heat"])
    assert not path.exists()
    run(599, 600, channels=["flow", "heat"])
    found = KoopmanDetector.load(path).memory_.statistics
    with pytest.warns(UserWarning, match="Only 200 rows"):
        expected = KoopmanDetector(**SMALL).fit(Series(rows[400:, [0, 2]], ("flow", "heat"))).memory_.statistics  # type: ignore[arg-type]
    assert found.count == expected.count


# -- telling --------------------------------------------------------------------------------------------------------


def test_alerts_wait_for_a_webhook_that_is_away_and_for_an_agent_that_was_killed(tmp_path: Path, model: Path) -> None:
    rows, port = broken(broken(series(80), 20, 26), 50, 56), free_port()
    (tmp_path / "samples").write_text("".join(f"{sample(rows, row)}\n" for row in range(80)))
    text = config(
        {"kind": "file", "path": "samples"},
        learning={"model": str(model)},
        webhook={"url": f"http://127.0.0.1:{port}/alerts"},
    )
    with Process(tmp_path, text) as process:
        process.wait_for_log("The webhook at 127.0.0.1 cannot be reached")
        expected = wait_for(lambda: alerts if len(alerts := process.alerts()) == 4 else None, "no alerts")
        process.kill()
        with receiving(port=port) as got:
            process.start()
            wait_for(lambda: len(got.accepted) >= 4, "alerts were lost")
            assert process.stop() == 0
        assert [alert["event"] for alert in expected] == ["start", "end"] * 2
        assert [{"type": "alert", **alert} for alert in got.accepted] == expected
        assert len({request.headers["Idempotency-Key"] for request in got.requests}) == 4
        assert process.log.count("cannot be reached") == 1


def test_systemd_hears_that_the_agent_is_ready_alive_and_stopping(tmp_path: Path, model: Path) -> None:
    address = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(address)
        systemd.settimeout(PATIENCE)
        environment = {"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "200000"}
        text = config({"kind": "stdin"}, learning={"model": str(model)})
        with Process(tmp_path, text, environment=environment, piped=True) as process:
            assert systemd.recv(1000) == b"READY=1\nSTATUS=watching 1 device(s)"
            assert [systemd.recv(1000) for _ in range(4)] == [b"WATCHDOG=1"] * 4
            assert process.stop() == 0
        said = systemd.recv(1000)
        while said == b"WATCHDOG=1":
            said = systemd.recv(1000)
        assert said == b"STOPPING=1"


# -- what it carries and what it refuses ----------------------------------------------------------------------------

HEAVY = ("scipy", "torch", "pandas", "flwr", "typer", "rich", "pyarrow", "sklearn", "matplotlib")


def test_an_agent_carries_no_heavy_library(tmp_path: Path) -> None:
    spy = "import atexit, sys\natexit.register(lambda: open({!r}, 'w').write('\\n'.join(sys.modules)))\n"
    (tmp_path / "sitecustomize.py").write_text(spy.format(str(tmp_path / "modules")))
    text = config(
        {"kind": "stdin"},
        detector=SMALL,
        learning={"first": 200},
        mqtt={"broker": f"mqtt://127.0.0.1:{free_port()}"},
        homeassistant={},
        prometheus={"port": free_port()},
        webhook={"url": f"http://127.0.0.1:{free_port()}/"},
    )
    rows = series(220)
    environment = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])}
    with Process(tmp_path / "agent", text, environment=environment, piped=True, installed=True) as process:
        process.feed(*(sample(rows, row) for row in range(210)))
        wait_for(lambda: (tmp_path / "agent/state/devices/pump/model.safetensors").exists(), "no model")
        process.feed(*(sample(rows, row) for row in range(210, 220)))
        process.wait_for_readings(220)
        assert process.end_of_input() == 0
        assert process.readings()[-1]["state"] == "ok"
    modules = (tmp_path / "modules").read_text().split()
    assert {"fedkad.edge.agent", "paho.mqtt.client", "prometheus_client"} <= set(modules)
    assert [name for name in modules if name.partition(".")[0] in HEAVY] == []


def checked(folder: Path, text: str) -> subprocess.CompletedProcess[str]:
    """Run `fedkad-agent --check`, and see that it writes nothing."""
    (folder / "agent.toml").write_text(text)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        agent = ForkedAgent([str(folder / "agent.toml"), "--check"], os.environ, out, err)
        agent.stdin.close()
        code = agent.wait(PATIENCE)
        texts = [os.pread(file.fileno(), 1 << 16, 0).decode() for file in (out, err)]
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    return subprocess.CompletedProcess([], code, *texts)


def test_a_configuration_can_be_checked_without_a_trace(tmp_path: Path, model: Path) -> None:
    stdin = {"kind": "stdin"}
    fine = checked(tmp_path, config(stdin, devices=("a", "b"), learning={"model": str(model)}))
    assert (fine.returncode, fine.stderr) == (0, "")
    assert fine.stdout.startswith(f"{tmp_path / 'agent.toml'}: 2 device(s) from standard input, 2 with a model;")
    (tmp_path / "damaged").write_bytes(model.read_bytes()[:1000])
    mqtt = {"kind": "mqtt", "broker": "mqtts://127.0.0.1", "topics": ["x/{device}"]}
    refused = {
        "has no key 'sauce'": config(stdin, sauce={}),
        "no-such-model: no such file": config(stdin, learning={"model": "no-such-model"}),
        "the model has the channels flow, pressure, heat": config(
            stdin, learning={"model": str(model)}, sampling={"channels": ["heat", "flow", "pressure"]}
        ),
        "damaged": config(stdin, learning={"model": str(tmp_path / "damaged")}),
        "secret: no such file; password_file in [source]": config({**mqtt, "username": "u", "password_file": "secret"}),
        "nowhere.pem": config({**mqtt, "ca_file": "nowhere.pem"}),
        "agent.toml: Invalid value": "devices = [",
    }
    for sentence, text in refused.items():
        done = checked(tmp_path, text)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("error: ")
        assert done.stderr.count("\n") == 1
        assert sentence in done.stderr


def test_the_large_command_runs_the_same_agent(tmp_path: Path, model: Path) -> None:
    rows = series(20)
    (tmp_path / "agent.toml").write_text(config({"kind": "stdin"}, learning={"model": str(model)}))
    done = subprocess.run(
        [Path(sys.executable).parent / "fedkad", "watch", tmp_path / "agent.toml"],
        input="\n".join(sample(rows, row) for row in range(20)),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    scores = [json.loads(line).get("score", np.nan) for line in done.stdout.splitlines()]
    assert scores == pytest.approx(expected_scores(rows), rel=1e-9, nan_ok=True)


def test_a_state_folder_serves_one_agent(tmp_path: Path, model: Path) -> None:
    text = config({"kind": "stdin"}, top={"state": str(tmp_path / "state")}, learning={"model": str(model)})
    first, second = (Process(tmp_path / name, text, piped=True) for name in ("first", "second"))
    with first:
        first.feed(sample(series(1), 0))
        first.wait_for_readings(1)
        assert second.start().wait() == 1
        assert second.log == (
            f"error: {tmp_path / 'state'}: an agent already runs with this state folder; stop it, or set another "
            "state.\n"
        )
        assert first.end_of_input() == 0
    with second:  # a free one is nobody's
        second.feed(sample(series(2), 1))
        second.wait_for_readings(1)


# -- all of it ------------------------------------------------------------------------------------------------------


def test_the_faults_of_a_simulated_fleet_are_told_on_a_broker_with_their_channels(tmp_path: Path) -> None:
    """An incident covers every event that is found in the whole recording within a fault, for the same reason."""
    fleet = simulate_fleet(4, train_rows=3000, test_rows=600, seed=2)
    pumps = [name for name in fleet.test if fleet.faults_of(name)]
    window, period = 12, int(fleet.period)
    detectors = {
        name: KoopmanDetector(window=window, rank=16, observables=64, sample_period=period).fit(
            Series(fleet.train[name], PUMP_CHANNELS)
        )
        for name in pumps
    }
    for name, detector in detectors.items():
        detector.save(tmp_path / f"{name}.fedkad")
    with Broker(tmp_path) as broker, broker.client() as client:
        text = config(
            broker.source(),
            devices=tuple(pumps),
            sampling={"channels": list(PUMP_CHANNELS), "period": period, "max_gap": 1},
            alarm={"clear_after": window * period},
            learning={"model": str(tmp_path / "{device}.fedkad")},
            mqtt={},
        )
        client.subscribe("fedkad/+/alert")
        with Process(tmp_path / "agent", text) as process:
            process.wait_for_log("connected.")
            for name in pumps:
                client.publish_all(f"in/{name}", messages(fleet.test[name], fleet.test_times(name)))
            for name in pumps:
                rows = fleet.test[name]
                process.wait_for_readings(int((~np.isnan(rows).any(axis=1)).sum()), name)
            assert process.stop() == 0
        wait_for(lambda: len(client.heard) == len(process.alerts()), "alerts were lost")
    assert [fault.kind for fault in fleet.faults] == ["drift", "lag", "decoupling", "spikes", "stuck", "drift"]
    own = []  # whether an incident began in each fault that names one of its channels first
    for name in pumps:
        times = [f"{moment}.000Z" for moment in fleet.test_times(name)]
        told = last_words([each.content for each in client.on(f"fedkad/{name}/alert")])
        events = examine(detectors[name].model_, fleet.test[name]).events
        for fault in fleet.faults_of(name):
            within = [event for event in events if fault.start <= event.start and event.end <= fault.end + window]
            top = set()
            for event in within:
                (alert,) = [each for each in told if covers(each, times[event.start])]
                assert is_open_at(alert, times[event.end])
                causes = {event.causes[0].channel for event in events if covers(alert, times[event.start])}
                assert alert["channels"][0]["channel"] in causes
                if str(alert["start"]) >= times[fault.start]:  # one that was open before is about something else
                    top.add(alert["channels"][0]["channel"])
            own.append(bool(top & set(fault.channels)))
    assert sum(own) >= 3


def is_open_at(alert: dict[str, Any], moment: str) -> bool:
    """Whether the incident had not ended before that moment."""
    return alert["event"] != "end" or moment <= str(alert["time"])


def covers(alert: dict[str, Any], moment: str) -> bool:
    """Whether a row of that moment belongs to the incident; where another one ends it, the row is of the other one."""
    is_ended_by_it = alert["event"] == "end" and alert["time"] == moment
    return str(alert["start"]) <= moment and is_open_at(alert, moment) and not is_ended_by_it


def messages(rows: Array, times: Any) -> list[str]:
    """The rows that were measured, as flat messages."""
    return [
        json.dumps({"time": f"{moment}Z", **dict(zip(PUMP_CHANNELS, row.tolist(), strict=True))})
        for moment, row in zip(times, rows, strict=True)
        if not np.isnan(row).any()
    ]


def last_words(alerts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({alert["id"]: alert for alert in alerts}.values())


def test_the_same_input_gives_the_same_alarms_whatever_the_hash_seed(tmp_path: Path) -> None:
    """Three devices become ready to learn at the same moment; which of them goes first must not be left to chance."""
    names = ("pump", "fan", "valve")
    rows = {name: broken(series(700, seed), 500, 506) for seed, name in enumerate(names)}
    lines = [sample(rows[name], row, device=name) for row in range(700) for name in names]
    found = []
    for seed in ("0", "1", "2"):
        folder = tmp_path / seed
        folder.mkdir()
        (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
        learning = {"first": 300, "every": 100}
        text = config({"kind": "file", "path": "samples.jsonl"}, devices=names, learning=learning, detector=SMALL)
        with Process(folder, text, environment={"PYTHONHASHSEED": seed}, installed=True) as process:
            process.wait_for_readings(len(lines))
        found.append(process.readings())
    assert found[0] == found[1] == found[2]
    assert any(line.get("abnormal") for line in found[0])


def how_they_arrive(folder: Path, lines: list[str], how: str, text: dict[str, Any]) -> Process:
    """An agent that has read all of the lines, which came in that way."""
    names, count = ("pump", "fan"), len(lines)
    if how == "file":
        (folder / "samples.jsonl").write_text("\n".join(lines) + "\n")
        with Process(folder, config({"kind": "file", "path": "samples.jsonl"}, devices=names, **text)) as process:
            process.wait_for_readings(count)
        return process
    if how == "broker":
        with Broker(folder, lasting=False) as broker, broker.client() as client:
            source = broker.source(topics=["in"])
            with Process(folder, config(source, devices=names, **text)) as process:
                process.wait_for_log("connected.")
                client.publish_all("in", lines)
                process.wait_for_readings(count)
        return process
    with Process(folder, config({"kind": "stdin"}, devices=names, **text), piped=True) as process:
        if how == "one by one":
            for number, line in enumerate(lines):
                process.feed(line)
                if number % 50 == 0:
                    process.wait_for_readings(number + 1)
        else:
            process.write("\n".join(lines))
        assert process.end_of_input() == 0
    return process


def test_the_same_samples_give_the_same_alarms_however_they_arrive(tmp_path: Path) -> None:
    """A model judges what comes after the row that it was due by, though more has arrived already."""
    rows = {name: broken(broken(series(760, seed), 420, 426), 700, 706) for seed, name in enumerate(("pump", "fan"))}
    rows["fan"][550:, 0] += 1.0  # it stays there, and becomes normal
    lines = [sample(rows[name], row, device=name) for row in range(760) for name in rows]
    alarm = {"settle": 60, "clear_after": 5, "cool_down": 0}
    text = {"learning": {"first": 300, "every": 100}, "detector": SMALL, "alarm": alarm}
    found = {}
    for how in ("at once", "one by one", "file", "broker"):
        (tmp_path / how).mkdir()
        process = how_they_arrive(tmp_path / how, lines, how, text)
        found[how] = [(process.readings(name), process.alerts(name)) for name in rows]
        assert process.log.count("a first model was fitted to 300 rows") == 2
        assert "is normal from now on" in process.log
        assert process.log.count("more rows were learned") >= 4
    for how, said in found.items():
        assert said == found["at once"], how
