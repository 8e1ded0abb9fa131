"""Faults of sensors, told by a real agent: each once, on every sink, and through a kill."""

import json
import sqlite3
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.fixtures.broker import CHANNELS, EPOCH, Array, Process, config, saved_model, series, wait_for
from tests.fixtures.receiver import receiving


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved_model(tmp_path_factory.mktemp("model"))


def line(row: int, values: Array, at: float | None = None) -> str:
    """A row as a message, without the channels that are NaN."""
    named = {name: value for name, value in zip(CHANNELS, values.tolist(), strict=True) if not np.isnan(value)}
    return json.dumps({"time": EPOCH + row if at is None else at, **named})


def faulty() -> list[str]:
    """Each fault in turn: an impossible value, a channel that is silent, one that is stuck, and another interval."""
    rows = series(600)
    rows[150, 0] = -3277.0
    rows[200:230, 1] = np.nan
    rows[300:380, 2] = rows[299, 2]
    slow = series(60, 3)
    return [
        *(line(k, row) for k, row in enumerate(rows)),
        *(line(k, row, EPOCH + 600 + 7.0 * k) for k, row in enumerate(slow)),
    ]


EXPECTED = [
    ("start", "impossible", "flow"),
    ("end", "impossible", "flow"),
    ("start", "channel silent", "pressure"),
    ("end", "channel silent", "pressure"),
    ("start", "stuck", "heat"),
    ("end", "stuck", "heat"),
    ("start", "period", None),
]


def told(alerts: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    """The faults; not that the device is silent, which it is if the machine pauses."""
    faults = [alert for alert in alerts if alert.get("fault") not in (None, "silent")]
    return [(alert["event"], alert["fault"], alert["channel"]) for alert in faults]


def kept(folder: Path) -> list[dict[str, Any]]:
    """The last alert of every fault, as the store remembers it."""
    database = sqlite3.connect(f"file:{folder / 'state' / 'agent.sqlite'}?mode=ro", uri=True)
    try:
        found = database.execute("SELECT alert FROM incident ORDER BY number").fetchall()
    finally:
        database.close()
    return [alert for (text,) in found if (alert := json.loads(text)).get("fault") not in (None, "silent")]


def test_each_fault_is_told_once_on_every_sink(tmp_path: Path, model: Path) -> None:
    with receiving() as receiver:
        sampling = {"stale_after": 12}
        text = config(
            {"kind": "stdin"}, learning={"model": str(model)}, sampling=sampling, webhook={"url": receiver.url}
        )
        with Process(tmp_path, text, piped=True) as process:
            process.feed(*faulty())
            assert process.end_of_input() == 0
        assert told(process.alerts()) == EXPECTED
        assert told(receiver.accepted) == EXPECTED
    (period,) = [alert for alert in process.alerts() if alert.get("fault") == "period"]
    assert period["sentence"] == 'samples come every 7 s, but the period is 1 s; set period = "7s" in [sampling]'


def is_read(process: Process, at: float) -> bool:
    """Whether rows were read up to that time, or nearly: a slow device is held back by a few."""
    readings = process.readings()
    return bool(readings) and readings[-1]["time"] >= at - 10.0


def test_a_kill_in_the_middle_of_every_fault_tells_nothing_twice(tmp_path: Path, model: Path) -> None:
    """What is told on a pipe just before a kill may be told again, with the same id; the store has each once."""
    lines, path = faulty(), tmp_path / "samples.log"
    source = {"kind": "file", "path": "samples.log"}
    text = config(source, learning={"model": str(model)}, sampling={"stale_after": 12})
    path.write_text("")
    with Process(tmp_path, text) as process:
        for until in (100, 155, 215, 325, 360, 385, len(lines)):
            done = sum(bool(each) for each in path.read_text().splitlines())
            with path.open("a") as file:
                file.write("".join(f"{each}\n" for each in lines[done:until]))
            at = json.loads(lines[until - 1])["time"]
            wait_for(partial(is_read, process, at), process.log)
            process.kill()
            process.start()
        wait_for(lambda: len(kept(tmp_path)) >= 4, "not every fault is kept")
        wait_for(lambda: [each["event"] for each in kept(tmp_path)] == ["end", "end", "end", "start"], "not all ended")
        found = {alert["id"] for alert in process.alerts() if alert.get("fault") not in (None, "silent")}
    assert told(kept(tmp_path)) == [EXPECTED[1], EXPECTED[3], EXPECTED[5], EXPECTED[6]]
    assert found == {alert["id"] for alert in kept(tmp_path)}
